import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Scanner;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.stream.Collectors;
import java.util.stream.StreamSupport;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.connector.base.source.hybrid.HybridSource;
import org.apache.flink.connector.file.src.FileSource;
import org.apache.flink.connector.file.src.reader.TextLineInputFormat;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.KafkaSourceBuilder;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.core.fs.Path;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.windowing.ProcessAllWindowFunction;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.CloseableIterator;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.TopicPartition;

/**
 * Windows of an hour over a history in files and the topic that goes on, by Flink's HybridSource.
 *
 * <p>For each line `PARALLELISM DISORDER_MS FOLDER BOOTSTRAP TOPIC START PATIENCE_MS OUTPUT` that it is given it runs a
 * job, writes a line `WINDOW_START,ID ID ...` for each window, and prints the seconds of the job. The topic is read from
 * `START` on: `from:MILLISECONDS`, or `PARTITION:OFFSET,...`. With the patience 0 the topic ends with the records that
 * are there. Otherwise it has no end, a split is idle after a second without records, and the job is cancelled after so
 * many milliseconds without a window.
 */
public final class HybridHistory {

    /** By default 200 ms, in which all of a history as small as this one is read: no watermark would be sent of it. */
    private static final int WATERMARK_INTERVAL_MS = 10;

    private HybridHistory() {}

    public static void main(String[] args) throws Exception {
        Scanner jobs = new Scanner(System.in);
        while (jobs.hasNext()) {
            int parallelism = jobs.nextInt();
            Duration disorder = Duration.ofMillis(jobs.nextLong());
            Path history = new Path(jobs.next());
            String bootstrap = jobs.next();
            String topic = jobs.next();
            String start = jobs.next();
            long patienceMs = jobs.nextLong();
            java.nio.file.Path output = java.nio.file.Path.of(jobs.next());
            long began = System.nanoTime();
            WatermarkStrategy<String> strategy = WatermarkStrategy.<String>forBoundedOutOfOrderness(disorder)
                    .withTimestampAssigner((line, ofSource) -> Long.parseLong(line, 0, line.indexOf(','), 10));
            FileSource<String> files = FileSource.forRecordStreamFormat(new TextLineInputFormat(), history)
                    .build();
            KafkaSourceBuilder<String> live = KafkaSource.<String>builder()
                    .setBootstrapServers(bootstrap)
                    .setTopics(topic)
                    .setStartingOffsets(startingOffsets(topic, start))
                    .setDeserializer(new TimeAndId());
            if (patienceMs == 0) {
                live.setBounded(OffsetsInitializer.latest());
            } else {
                strategy = strategy.withIdleness(Duration.ofSeconds(1));
            }
            HybridSource<String> hybrid =
                    HybridSource.builder(files).addSource(live.build()).build();
            StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment();
            env.setParallelism(parallelism);
            env.getConfig().enableObjectReuse();
            env.getConfig().setAutoWatermarkInterval(WATERMARK_INTERVAL_MS);
            DataStream<String> windows = env.fromSource(hybrid, strategy, "history, then live", Types.STRING)
                    .windowAll(TumblingEventTimeWindows.of(Duration.ofHours(1)))
                    .process(new Ids(), Types.STRING);
            List<String> found = collect(windows, patienceMs);
            double seconds = (System.nanoTime() - began) / 1e9;
            Files.write(output, found);
            System.out.println("seconds " + seconds);
        }
    }

    /** All windows, or those that come out before none has come out for so long. */
    private static List<String> collect(DataStream<String> windows, long patienceMs) throws Exception {
        List<String> found = new CopyOnWriteArrayList<>();
        CloseableIterator<String> all = windows.executeAndCollect();
        if (patienceMs == 0) {
            all.forEachRemaining(found::add);
            all.close();
            return found;
        }
        Thread taking = new Thread(() -> all.forEachRemaining(found::add));
        taking.setDaemon(true);
        // Closing the iterator, which cancels the job, lets the thread fail.
        taking.setUncaughtExceptionHandler((thread, error) -> {});
        taking.start();
        int before = -1;
        while (found.size() > before) {
            before = found.size();
            Thread.sleep(patienceMs);
        }
        List<String> until = List.copyOf(found);
        all.close();
        return until;
    }

    private static OffsetsInitializer startingOffsets(String topic, String start) {
        if (start.startsWith("from:")) {
            return OffsetsInitializer.timestamp(Long.parseLong(start.substring("from:".length())));
        }
        Map<TopicPartition, Long> offsets = new HashMap<>();
        for (String one : start.split(",")) {
            String[] pair = one.split(":");
            offsets.put(new TopicPartition(topic, Integer.parseInt(pair[0])), Long.parseLong(pair[1]));
        }
        return OffsetsInitializer.offsets(offsets);
    }

    /** A record as the line that the history has of it. */
    private static final class TimeAndId implements KafkaRecordDeserializationSchema<String> {
        @Override
        public void deserialize(ConsumerRecord<byte[], byte[]> record, Collector<String> out) {
            out.collect(record.timestamp() + "," + new String(record.value(), StandardCharsets.UTF_8));
        }

        @Override
        public TypeInformation<String> getProducedType() {
            return Types.STRING;
        }
    }

    private static final class Ids extends ProcessAllWindowFunction<String, String, TimeWindow> {
        @Override
        public void process(Context context, Iterable<String> lines, Collector<String> out) {
            String ids = StreamSupport.stream(lines.spliterator(), false)
                    .map(line -> line.substring(line.indexOf(',') + 1))
                    .collect(Collectors.joining(" "));
            out.collect(context.window().getStart() + "," + ids);
        }
    }
}
