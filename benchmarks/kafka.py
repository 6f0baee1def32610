"""Kafka: records a second next to Spark's own source, into Arrow before Spark, and planning of a thousand partitions.

Against a real broker of one node on this machine, which shares its processors. Where none can be had, a line says so.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from benchmarks.report import in_turn, ratio, table
from tests.kafka.artifacts import BROKER, SPARK_CONNECTOR, ArtifactsMissingError

SPLITS = 8
SIZES = {100: 2_000_000, 1024: 500_000}
"""Bytes of a value, and records of so many bytes."""

START_MS = 1_700_000_000_000
PARTITIONS = 1000
_PER_PARTITION = 20


def run(folder: Path) -> None:
    try:
        jars, connector = BROKER.jars(), SPARK_CONNECTOR.jars()
    except ArtifactsMissingError as error:
        print(f"\nKafka is not measured: {error}", flush=True)
        return
    from tests.kafka.broker import KafkaBroker

    broker = KafkaBroker(folder / "kafka", jars, heap_mib=1024)
    broker.start()
    try:
        topics = {size: _write(broker, size, records) for size, records in SIZES.items()}
        _to_arrow(broker, topics)
        _planning(broker)
        with _session(connector) as spark:
            for size, topic in topics.items():
                _compare(spark, broker, topic, size, folder)
    finally:
        broker.stop()


def _write(broker: Any, size: int, records: int) -> str:
    from tests.kafka.topics import Topic

    print(f"\nwriting {records:,} records of {size} bytes to {SPLITS} partitions", flush=True)
    topic = Topic(broker).create(partitions=SPLITS)
    jitter = np.random.default_rng(7).integers(0, 5_000, records // SPLITS)
    value = os.urandom(size)
    with topic.producer(linger_ms=50, batch_size=1_000_000, enable_idempotence=True) as producer:
        for i, late_ms in enumerate(jitter.tolist()):
            for partition in range(SPLITS):
                producer.produce(topic.name, value, partition=partition, timestamp=START_MS + 2 * i + late_ms)
            if not i % 1000:
                producer.poll(0)
    return topic.name


# ---- before Spark ----------------------------------------------------------------------------------------------------


def _source(broker: Any, topic: str, **options: str) -> Any:
    from streaming_source.spark.datasource import AlignedDataSource

    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, "startingOffsets": "earliest", **options}
    return AlignedDataSource.of_format("aligned_kafka", given)


def _to_arrow(broker: Any, topics: dict[int, str]) -> None:
    """What one task does without Spark: all columns, from the broker into Arrow batches."""
    rows = []
    for size, topic in topics.items():
        walls, cpus = [], []
        for _ in range(5):
            source = _source(broker, topic)
            reader = source.batch_reader(source.schema())
            parts = reader.partitions()
            wall, cpu = time.perf_counter(), time.process_time()
            count = sum(len(batch) for part in parts for batch in reader.read(part))
            walls.append(time.perf_counter() - wall)
            cpus.append(time.process_time() - cpu)
            assert count == SIZES[size]
        # The first connects.
        rates = [SIZES[size] / statistics.median(seconds[1:]) / 1e6 for seconds in (walls, cpus)]
        rows.append([str(size), *(f"{rate:.2f} M/s" for rate in rates)])
    table("From the broker into Arrow, one task", ["bytes", "by the clock", "a second of processor"], rows)


def _planning(broker: Any) -> None:
    """`latestOffset` with news in every partition: all is known ahead, then after more was written."""
    from tests.kafka.topics import Record, Topic

    print(f"\nmaking a topic of {PARTITIONS:,} partitions", flush=True)
    topic = Topic(broker).create(partitions=PARTITIONS)

    def write(turn: int) -> None:
        seconds = range(turn * _PER_PARTITION, (turn + 1) * _PER_PARTITION)
        topic.write(Record(START_MS + 1000 * s, b"x" * 100, partition=p) for s in seconds for p in range(PARTITIONS))

    write(0)
    options = {"maxOutOfOrderness": "5 seconds", "watermarkRows": "true", "maxRowsPerTrigger": str(2 * PARTITIONS)}
    source = _source(broker, topic.name, **options)
    reader = source.stream_reader(source.schema())
    try:
        offset, limit = reader.initialOffset(), reader.getDefaultReadLimit()
        began = time.perf_counter()
        first = None
        seconds: list[float] = []
        read, wanted = 0, _PER_PARTITION * PARTITIONS
        for turn in range(1, 5):
            while read < wanted:
                start, before = offset, time.perf_counter()
                offset = reader.latestOffset(start, limit)
                took = time.perf_counter() - before
                if offset is start:
                    time.sleep(0.01)  # as long as Spark waits between two polls
                    continue
                first = first or time.perf_counter() - began
                seconds.append(took)
                reader.partitions(start, offset)
                read = sum(entry[0][2] for entry in offset["splits"])
            write(turn)
            wanted += _PER_PARTITION * PARTITIONS
    finally:
        reader.stop()
    later = seconds[1:]
    row = [f"{first:.2f} s", f"{statistics.median(later) * 1e3:.0f} ms", f"{max(later) * 1e3:.0f} ms", str(len(later))]
    title = f"Planning {PARTITIONS:,} partitions, at most {2 * PARTITIONS:,} records a micro-batch"
    table(title, ["to the first", "median of the rest", "slowest", "micro-batches"], [row])


# ---- on Spark --------------------------------------------------------------------------------------------------------


def _compare(spark: Any, broker: Any, topic: str, size: int, folder: Path) -> None:
    import streaming_source

    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}

    def ours(*, exact: bool = False) -> Any:
        reader = spark.readStream.format("aligned_kafka").options(**options, bounded="true")
        frame = reader.options(maxOutOfOrderness="5 seconds", watermarkRows=str(exact).lower()).load()
        return streaming_source.with_exact_watermark(frame) if exact else frame

    def theirs() -> Any:
        return spark.readStream.format("kafka").options(**options).load()

    def windowed(frame: Any, time_column: str) -> Any:
        from pyspark.sql import functions as F

        return frame.groupBy(F.window(time_column, "1 minute"), "partition").count()

    name = f"spark kafka {SPARK_CONNECTOR.version}"
    kinds: dict[str, dict[str, Callable[[], object]]] = {
        "a no-op sink": {"ours": lambda: _drain(ours(), folder), name: lambda: _drain(theirs(), folder)},
        "a windowed count": {
            "ours": lambda: _drain(windowed(ours(exact=True), "event_time"), folder),
            name: lambda: _drain(windowed(theirs().withWatermark("timestamp", "5 seconds"), "timestamp"), folder),
        },
    }
    rounds = 5
    for kind, contestants in kinds.items():
        seconds = in_turn(contestants, rounds)
        lines = [
            [name, f"{SIZES[size] / statistics.median(taken) / 1e6:.2f} M/s", ratio(taken, seconds["ours"])]
            for name, taken in seconds.items()
        ]
        title = f"Kafka, {size} bytes, into {kind} ({rounds} rounds in turn, Spark {spark.version})"
        table(title, ["source", "median rate", "speed of ours against it"], lines)


def _drain(frame: Any, folder: Path) -> None:
    checkpoint = folder / f"checkpoint-{uuid4().hex}"
    writer = frame.writeStream.format("noop").trigger(availableNow=True).outputMode("append")
    writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination()
    shutil.rmtree(checkpoint)


@contextmanager
def _session(jars: list[Path]) -> Iterator[Any]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    import streaming_source

    session = (
        SparkSession.builder.master("local[*]")
        .config("spark.driver.memory", "4g")
        .config("spark.jars", ",".join(map(str, jars)))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    streaming_source.register(session)
    yield session
    session.stop()
