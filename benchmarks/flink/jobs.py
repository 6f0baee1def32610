"""The windowed count in PyFlink; this runs in Flink's own environment, where nothing of the project is.

For each line `JOB PARALLELISM FOLDER OUTPUT` that it is given it runs a job, which writes its windows, and
prints the seconds of the job.
"""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime

from pyflink.common import Configuration, Duration, Encoder, Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import ProcessWindowFunction, StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import FileSink, FileSource, StreamFormat
from pyflink.datastream.window import TumblingEventTimeWindows
from pyflink.table import EnvironmentSettings, TableEnvironment

_LAG_HOURS = 4
"""More than all the records span: with less, a watermark that is not of a split drops records of those behind."""


def sql(mode: str, parallelism: int, folder: str, output: str) -> None:
    configuration = Configuration()
    configuration.set_string("parallelism.default", str(parallelism))
    # In batch mode Flink would choose anew for each operator.
    configuration.set_string("table.exec.resource.default-parallelism", str(parallelism))
    configuration.set_string("pipeline.object-reuse", "true")
    settings = EnvironmentSettings.new_instance().with_configuration(configuration)
    settings = settings.in_batch_mode() if mode == "batch" else settings.in_streaming_mode()
    tables = TableEnvironment.create(settings.build())
    watermark = "" if mode == "batch" else f", WATERMARK FOR ts AS ts - INTERVAL '{_LAG_HOURS}' HOUR"
    tables.execute_sql(
        f"CREATE TABLE records (ts TIMESTAMP(3), `key` BIGINT, `value` DOUBLE, n BIGINT{watermark}) "
        f"WITH ('connector' = 'filesystem', 'path' = 'file://{folder}', 'format' = 'csv')"
    )
    tables.execute_sql(
        "CREATE TABLE windows (start_ms BIGINT, `key` BIGINT, `count` BIGINT) "
        f"WITH ('connector' = 'filesystem', 'path' = 'file://{output}', 'format' = 'csv')"
    )
    tables.execute_sql(
        "INSERT INTO windows "
        "SELECT CAST(1000 AS BIGINT) * TIMESTAMPDIFF(SECOND, TIMESTAMP '1970-01-01 00:00:00', window_start), "
        "`key`, COUNT(*) FROM TABLE(TUMBLE(TABLE records, DESCRIPTOR(ts), INTERVAL '1' MINUTE)) "
        "GROUP BY window_start, window_end, `key`"
    ).wait()


class _ByText(TimestampAssigner):
    def extract_timestamp(self, value: tuple[str, int], record_timestamp: int) -> int:
        return int(datetime.fromisoformat(value[0]).replace(tzinfo=UTC).timestamp() * 1000)


class _Line(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield f"{context.window().start},{key},{sum(1 for _ in elements)}"


def _fields(line: str) -> tuple[str, int]:
    ts, key, _ = line.split(",", 2)
    return ts, int(key)


def data_stream(parallelism: int, folder: str, output: str) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism)
    env.set_python_executable(sys.executable)
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), folder).build()
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_hours(_LAG_HOURS))
    lines = env.from_source(source, WatermarkStrategy.no_watermarks(), "files", Types.STRING())
    records = lines.map(_fields, Types.TUPLE([Types.STRING(), Types.LONG()]))
    records = records.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(_ByText()))
    windows = records.key_by(lambda record: record[1], Types.LONG())
    windows = windows.window(TumblingEventTimeWindows.of(Time.minutes(1))).process(_Line(), Types.STRING())
    windows.sink_to(FileSink.for_row_format(output, Encoder.simple_string_encoder()).build())
    env.execute()


def main() -> None:
    for line in sys.stdin:
        job, parallelism, output, folder = line.split()
        began = time.perf_counter()
        if job == "data-stream":
            data_stream(int(parallelism), folder, output)
        else:
            sql(job, int(parallelism), folder, output)
        print("seconds", time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main()
