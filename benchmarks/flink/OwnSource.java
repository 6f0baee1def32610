import java.io.BufferedReader;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.LocalDate;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Scanner;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.functions.CoGroupFunction;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.Boundedness;
import org.apache.flink.api.connector.source.ReaderOutput;
import org.apache.flink.api.connector.source.Source;
import org.apache.flink.api.connector.source.SourceOutput;
import org.apache.flink.api.connector.source.SourceReader;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.api.connector.source.SourceSplit;
import org.apache.flink.api.connector.source.SplitEnumerator;
import org.apache.flink.api.connector.source.SplitEnumeratorContext;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.PipelineOptions;
import org.apache.flink.connector.file.src.FileSource;
import org.apache.flink.connector.file.src.FileSourceSplit;
import org.apache.flink.connector.file.src.reader.BulkFormat;
import org.apache.flink.connector.file.src.util.CheckpointedPosition;
import org.apache.flink.connector.file.src.util.IteratorResultIterator;
import org.apache.flink.core.io.InputStatus;
import org.apache.flink.core.io.SimpleVersionedSerializer;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.CloseableIterator;
import org.apache.flink.util.Collector;

/**
 * A windowed count, or a join of two sources, from a source of our own: a directory is a split, with a watermark of its
 * own. Or from Flink's file source, of which each file is a split.
 *
 * <p>For each line `KIND SOURCE PARALLELISM DISORDER_MS MAX_DRIFT_MS BUFFER OUTPUT FOLDERS` that it is given it runs a
 * job, writes its windows, and prints the seconds of the job, the most windows (of a join: records) that were in state,
 * and how far directories were apart over time, as pairs `seconds:milliseconds`. `KIND` is `count`, `count:MS` with so much allowed
 * lateness, or `join`, `SOURCE` is
 * `directories` or `files`. Without alignment the drift is -1.
 */
public final class OwnSource implements Source<Tuple2<Long, Long>, OwnSource.Directory, Void> {

    private static final int LINES_A_POLL = 1024;

    private final String folder;

    private OwnSource(String folder) {
        this.folder = folder;
    }

    public static void main(String[] args) throws Exception {
        Scanner jobs = new Scanner(System.in);
        while (jobs.hasNext()) {
            String[] kind = jobs.next().split(":");
            boolean joins = kind[0].equals("join");
            Duration lateness = Duration.ofMillis(kind.length > 1 ? Long.parseLong(kind[1]) : 0);
            boolean fromFiles = jobs.next().equals("files");
            int parallelism = jobs.nextInt();
            Duration disorder = Duration.ofMillis(jobs.nextLong());
            long driftMs = jobs.nextLong();
            int buffer = jobs.nextInt();
            Path output = Path.of(jobs.next());
            String[] folders = jobs.next().split(",");
            long began = System.nanoTime();
            Seen.forget();
            Configuration configuration = new Configuration();
            configuration.set(PipelineOptions.WATERMARK_ALIGNMENT_BUFFER_SIZE, buffer);
            StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(configuration);
            env.setParallelism(parallelism);
            env.getConfig().enableObjectReuse();
            WatermarkStrategy<Tuple2<Long, Long>> strategy = WatermarkStrategy.forBoundedOutOfOrderness(disorder);
            strategy = strategy.withTimestampAssigner((record, assigned) -> record.f0);
            if (driftMs >= 0) {
                strategy = strategy.withWatermarkAlignment("directories", Duration.ofMillis(driftMs));
            }
            List<DataStream<Tuple2<Long, Long>>> sources = new ArrayList<>();
            for (String folder : folders) {
                sources.add(
                        fromFiles
                                ? env.fromSource(files(folder), strategy, folder)
                                : env.fromSource(new OwnSource(folder), strategy, folder, Records.TYPE));
            }
            DataStream<String> lines = joins ? join(sources.get(0), sources.get(1)) : count(sources.get(0), lateness);
            List<String> windows = new ArrayList<>();
            try (CloseableIterator<String> found = lines.executeAndCollect()) {
                found.forEachRemaining(windows::add);
            }
            double seconds = (System.nanoTime() - began) / 1e9;
            Files.createDirectories(output);
            Files.write(output.resolve("windows"), windows);
            System.out.println("seconds " + seconds + " " + Seen.mostOpen.get() + " " + Seen.overTime());
        }
    }

    /** Records by minute and key. */
    private static DataStream<String> count(DataStream<Tuple2<Long, Long>> source, Duration lateness) {
        return source.keyBy(record -> record.f1, Types.LONG)
                .window(TumblingEventTimeWindows.of(Duration.ofMinutes(1)))
                .allowedLateness(lateness)
                .aggregate(new Count(), new Line());
    }

    /** By minute, the pairs of records of one key that are in it. */
    private static DataStream<String> join(DataStream<Tuple2<Long, Long>> left, DataStream<Tuple2<Long, Long>> right) {
        return left.map(new Entering())
                .coGroup(right.map(new Entering()))
                .where(record -> record.f1, Types.LONG)
                .equalTo(record -> record.f1, Types.LONG)
                .window(TumblingEventTimeWindows.of(Duration.ofMinutes(1)))
                .apply(new Pairs(), Types.TUPLE(Types.LONG, Types.LONG))
                .windowAll(TumblingEventTimeWindows.of(Duration.ofMinutes(1)))
                .reduce((one, other) -> Tuple2.of(one.f0, one.f1 + other.f1))
                .map(pairs -> pairs.f0 + ",0," + pairs.f1)
                .returns(Types.STRING);
    }

    /** Flink's own source, with a format that parses lines as ours does. */
    private static FileSource<Tuple2<Long, Long>> files(String folder) {
        for (String directory : children(folder)) {
            Seen.latestMs.put(directory, Long.MIN_VALUE);
            Seen.unread.put(directory, new AtomicInteger(children(directory).size()));
        }
        return FileSource.forBulkFileFormat(new CsvFormat(), new org.apache.flink.core.fs.Path(folder)).build();
    }

    @Override
    public Boundedness getBoundedness() {
        return Boundedness.BOUNDED;
    }

    @Override
    public SplitEnumerator<Directory, Void> createEnumerator(SplitEnumeratorContext<Directory> context) {
        return new Enumerator(folder, context);
    }

    @Override
    public SplitEnumerator<Directory, Void> restoreEnumerator(SplitEnumeratorContext<Directory> context, Void state) {
        return createEnumerator(context);
    }

    @Override
    public SourceReader<Tuple2<Long, Long>, Directory> createReader(SourceReaderContext context) {
        return new Reader(context);
    }

    @Override
    public SimpleVersionedSerializer<Directory> getSplitSerializer() {
        return new DirectorySerializer();
    }

    @Override
    public SimpleVersionedSerializer<Void> getEnumeratorCheckpointSerializer() {
        return null; // there are no checkpoints
    }

    /** A split: the files of a directory, by name. */
    public record Directory(String path) implements SourceSplit {
        @Override
        public String splitId() {
            return path;
        }
    }

    private static final class DirectorySerializer implements SimpleVersionedSerializer<Directory> {
        @Override
        public int getVersion() {
            return 1;
        }

        @Override
        public byte[] serialize(Directory directory) {
            return directory.path().getBytes(StandardCharsets.UTF_8);
        }

        @Override
        public Directory deserialize(int version, byte[] bytes) {
            return new Directory(new String(bytes, StandardCharsets.UTF_8));
        }
    }

    /** Every reader has its share of the directories before it reads: none can come late. */
    private static final class Enumerator implements SplitEnumerator<Directory, Void> {
        private final String folder;
        private final SplitEnumeratorContext<Directory> context;

        Enumerator(String folder, SplitEnumeratorContext<Directory> context) {
            this.folder = folder;
            this.context = context;
        }

        @Override
        public void addReader(int reader) {
            List<String> directories = children(folder);
            for (int i = reader; i < directories.size(); i += context.currentParallelism()) {
                context.assignSplit(new Directory(directories.get(i)), reader);
            }
            context.signalNoMoreSplits(reader);
        }

        @Override
        public void start() {}

        @Override
        public void handleSplitRequest(int reader, String host) {}

        @Override
        public void addSplitsBack(List<Directory> splits, int reader) {}

        @Override
        public Void snapshotState(long checkpoint) {
            return null;
        }

        @Override
        public void close() {}
    }

    private static List<String> children(String folder) {
        try (Stream<Path> found = Files.list(Path.of(folder))) {
            return found.map(Path::toString).sorted().toList();
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    /** Reads some lines of each of its directories in turn. */
    private static final class Reader implements SourceReader<Tuple2<Long, Long>, Directory> {
        private final SourceReaderContext context;
        private final ArrayDeque<OpenDirectory> open = new ArrayDeque<>();
        private final Map<String, SourceOutput<Tuple2<Long, Long>>> outputs = new HashMap<>();
        private final CompletableFuture<Void> allThere = new CompletableFuture<>();
        private final Set<String> paused = new HashSet<>();
        private CompletableFuture<Void> resumed = CompletableFuture.completedFuture(null);

        Reader(SourceReaderContext context) {
            this.context = context;
        }

        @Override
        public void start() {}

        @Override
        public void addSplits(List<Directory> splits) {
            splits.forEach(split -> open.add(new OpenDirectory(split)));
            splits.forEach(split -> Seen.latestMs.put(split.splitId(), Long.MIN_VALUE));
        }

        @Override
        public void notifyNoMoreSplits() {
            allThere.complete(null);
        }

        @Override
        public CompletableFuture<Void> isAvailable() {
            return allThere.isDone() ? resumed : allThere;
        }

        @Override
        public void pauseOrResumeSplits(Collection<String> toPause, Collection<String> toResume) {
            paused.addAll(toPause);
            paused.removeAll(toResume);
            resumed.complete(null);
        }

        @Override
        public InputStatus pollNext(ReaderOutput<Tuple2<Long, Long>> output) throws IOException {
            if (!allThere.isDone()) {
                return InputStatus.NOTHING_AVAILABLE;
            }
            if (outputs.isEmpty()) {
                // All of them before the first record: each holds the watermark.
                open.forEach(one -> outputs.put(one.splitId, output.createOutputForSplit(one.splitId)));
            }
            if (open.isEmpty()) {
                return InputStatus.END_OF_INPUT;
            }
            OpenDirectory next = null;
            for (int i = 0; i < open.size() && next == null; i++) {
                OpenDirectory one = open.poll();
                if (paused.contains(one.splitId)) {
                    open.add(one);
                } else {
                    next = one;
                }
            }
            if (next == null) {
                resumed = new CompletableFuture<>();
                return InputStatus.NOTHING_AVAILABLE;
            }
            if (next.emit(outputs.get(next.splitId))) {
                open.add(next);
            } else {
                output.releaseOutputForSplit(next.splitId);
                Seen.latestMs.remove(next.splitId);
            }
            return InputStatus.MORE_AVAILABLE;
        }

        @Override
        public List<Directory> snapshotState(long checkpoint) {
            return List.of();
        }

        @Override
        public void close() {}
    }

    private static final class OpenDirectory {
        final String splitId;
        private final ArrayDeque<String> files;
        private BufferedReader file = new BufferedReader(BufferedReader.nullReader());
        private final Records records = new Records();
        private long latestMs = Long.MIN_VALUE;

        OpenDirectory(Directory split) {
            splitId = split.splitId();
            files = new ArrayDeque<>(children(split.path()));
        }

        /** Emits some records; whether there may be more. */
        boolean emit(SourceOutput<Tuple2<Long, Long>> output) throws IOException {
            for (int i = 0; i < LINES_A_POLL; i++) {
                String line = file.readLine();
                while (line == null) {
                    file.close();
                    if (files.isEmpty()) {
                        return false;
                    }
                    file = Files.newBufferedReader(Path.of(files.poll()));
                    line = file.readLine();
                }
                Tuple2<Long, Long> record = records.of(line);
                output.collect(record, record.f0);
                latestMs = Math.max(latestMs, record.f0);
            }
            Seen.read(splitId, latestMs);
            return true;
        }
    }

    /** Records of lines: `2023-11-14 22:13:20.123,key,...`. */
    private static final class Records {
        static final TypeInformation<Tuple2<Long, Long>> TYPE = Types.TUPLE(Types.LONG, Types.LONG);
        private int date;
        private long dateMs;

        Tuple2<Long, Long> of(String line) {
            return Tuple2.of(time(line), Long.parseLong(line, 24, line.indexOf(',', 24), 10));
        }

        private long time(String line) {
            int of = digits(line, 0, 4) * 10_000 + digits(line, 5, 7) * 100 + digits(line, 8, 10);
            if (of != date) {
                date = of;
                dateMs = LocalDate.of(of / 10_000, of / 100 % 100, of % 100).toEpochDay() * 86_400_000;
            }
            int seconds = (digits(line, 11, 13) * 60 + digits(line, 14, 16)) * 60 + digits(line, 17, 19);
            return dateMs + seconds * 1000L + digits(line, 20, 23);
        }

        private static int digits(String line, int from, int to) {
            int value = 0;
            for (int i = from; i < to; i++) {
                value = value * 10 + line.charAt(i) - '0';
            }
            return value;
        }
    }

    /** The format of Flink's file source: a file at a time, as it is read. */
    public static final class CsvFormat implements BulkFormat<Tuple2<Long, Long>, FileSourceSplit> {
        @Override
        public Reader<Tuple2<Long, Long>> createReader(Configuration configuration, FileSourceSplit split)
                throws IOException {
            Path path = Path.of(split.path().getPath());
            return new FileReader(path.getParent().toString(), Files.newBufferedReader(path));
        }

        @Override
        public Reader<Tuple2<Long, Long>> restoreReader(Configuration configuration, FileSourceSplit split)
                throws IOException {
            return createReader(configuration, split); // there are no checkpoints
        }

        @Override
        public boolean isSplittable() {
            return false;
        }

        @Override
        public TypeInformation<Tuple2<Long, Long>> getProducedType() {
            return Records.TYPE;
        }
    }

    private static final class FileReader implements BulkFormat.Reader<Tuple2<Long, Long>> {
        private final String directory;
        private final BufferedReader file;
        private final Records records = new Records();
        private long latestMs = Long.MIN_VALUE;

        FileReader(String directory, BufferedReader file) {
            this.directory = directory;
            this.file = file;
        }

        @Override
        public BulkFormat.RecordIterator<Tuple2<Long, Long>> readBatch() throws IOException {
            List<Tuple2<Long, Long>> batch = new ArrayList<>(LINES_A_POLL);
            String line;
            while (batch.size() < LINES_A_POLL && (line = file.readLine()) != null) {
                batch.add(records.of(line));
                latestMs = Math.max(latestMs, batch.get(batch.size() - 1).f0);
            }
            if (batch.isEmpty()) {
                Seen.finished(directory);
                return null;
            }
            Seen.read(directory, latestMs);
            return new IteratorResultIterator<>(batch.iterator(), CheckpointedPosition.NO_OFFSET, 0);
        }

        @Override
        public void close() throws IOException {
            file.close();
        }
    }

    /** What all tasks of a job have seen, in one process. */
    private static final class Seen {
        static final long INTERVAL_NS = 100_000_000;
        static final Map<String, Long> latestMs = new ConcurrentHashMap<>();
        static final Map<String, AtomicInteger> unread = new ConcurrentHashMap<>();
        static final Map<Long, Long> apartMs = new ConcurrentSkipListMap<>();
        static final AtomicLong earliestMs = new AtomicLong();
        static long began;
        static final AtomicLong open = new AtomicLong();
        static final AtomicLong mostOpen = new AtomicLong();

        static void forget() {
            latestMs.clear();
            unread.clear();
            apartMs.clear();
            earliestMs.set(Long.MAX_VALUE);
            began = System.nanoTime();
            open.set(0);
            mostOpen.set(0);
        }

        /**
         * How far a directory is read ahead of the one that is read least far, of those that are not read to their ends.
         * All begin at the same time: one of which nothing is read is there.
         */
        static void read(String directory, long ms) {
            latestMs.put(directory, ms);
            earliestMs.accumulateAndGet(ms, Math::min);
            long least = latestMs.values().stream().min(Long::compare).orElse(ms);
            apartMs.merge(
                    (System.nanoTime() - began) / INTERVAL_NS, ms - Math.max(least, earliestMs.get()), Math::max);
        }

        /** A file of a directory was read to its end. */
        static void finished(String directory) {
            if (unread.get(directory).decrementAndGet() == 0) {
                latestMs.remove(directory);
            }
        }

        /** The greatest of each tenth of a second. */
        static String overTime() {
            return apartMs.entrySet().stream()
                    .map(apart -> apart.getKey() * INTERVAL_NS / 1e9 + ":" + apart.getValue())
                    .collect(Collectors.joining(","));
        }

        static void enter() {
            mostOpen.accumulateAndGet(open.incrementAndGet(), Math::max);
        }
    }

    private static final class Count implements AggregateFunction<Tuple2<Long, Long>, Long, Long> {
        @Override
        public Long createAccumulator() {
            Seen.enter();
            return 0L;
        }

        @Override
        public Long add(Tuple2<Long, Long> record, Long count) {
            return count + 1;
        }

        @Override
        public Long getResult(Long count) {
            return count;
        }

        @Override
        public Long merge(Long one, Long other) {
            return one + other;
        }
    }

    private static final class Line extends ProcessWindowFunction<Long, String, Long, TimeWindow> {
        @Override
        public void process(Long key, Context context, Iterable<Long> counts, Collector<String> output) {
            output.collect(context.window().getStart() + "," + key + "," + counts.iterator().next());
        }

        @Override
        public void clear(Context context) {
            Seen.open.decrementAndGet();
        }
    }

    private static final class Entering implements MapFunction<Tuple2<Long, Long>, Tuple2<Long, Long>> {
        @Override
        public Tuple2<Long, Long> map(Tuple2<Long, Long> record) {
            Seen.enter();
            return record;
        }
    }

    /** The start of a minute and how many pairs of one key are in it. */
    private static final class Pairs
            implements CoGroupFunction<Tuple2<Long, Long>, Tuple2<Long, Long>, Tuple2<Long, Long>> {
        @Override
        public void coGroup(
                Iterable<Tuple2<Long, Long>> left,
                Iterable<Tuple2<Long, Long>> right,
                Collector<Tuple2<Long, Long>> output) {
            long lefts = 0;
            long rights = 0;
            long ms = 0;
            for (Tuple2<Long, Long> record : left) {
                lefts++;
                ms = record.f0;
            }
            for (Tuple2<Long, Long> ignored : right) {
                rights++;
            }
            Seen.open.addAndGet(-lefts - rights);
            if (lefts * rights > 0) {
                output.collect(Tuple2.of(ms - ms % 60_000, lefts * rights));
            }
        }
    }
}
