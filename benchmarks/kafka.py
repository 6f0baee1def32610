"""Kafka: records a second next to Spark's own source, into Arrow before Spark, and planning of a thousand partitions.

Against a real broker of one node on this machine, which shares its processors. Where none can be had, a line says so.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from confluent_kafka import Consumer, TopicPartition

import streaming_source
from benchmarks.broker import start_broker
from benchmarks.on_spark import drain, session
from benchmarks.report import Report, in_turn, median_ratio
from streaming_source.connectors.kafka.client_config import ClientConfig
from streaming_source.spark.datasource import AlignedDataSource
from tests.kafka.artifacts import SPARK_CONNECTOR
from tests.kafka.broker import KafkaBroker
from tests.kafka.topics import Record, Topic

SPLITS = 8
SIZES = {100: 2_000_000, 1024: 500_000}
"""Bytes of a value, and records of so many bytes; with `--quick` a quarter of them."""

START_MS = 1_700_000_000_000
PARTITIONS = 1000
_PER_PARTITION = 20
_CLOCKS = {"triggerExecution": 1.2, "by the clock": 1.0}
"""Of a query, with the aims beside Spark's own source; beside its triggers it takes time to start and to stop."""


def run(report: Report, folder: Path, *, quick: bool) -> None:
    with ExitStack() as stack:
        started = start_broker(stack, folder / "kafka", heap_mib=1024)
        if started is None:
            return
        broker, connector = started
        sizes = {size: records // 4 if quick else records for size, records in SIZES.items()}
        topics = {size: _write(broker, size, records) for size, records in sizes.items()}
        _to_arrow(report, broker, topics, sizes, rounds=3 if quick else 8)
        spark = session(*connector)
        for size, topic in topics.items():
            _against_spark(report, spark, broker, topic, (size, sizes[size]), folder, rounds=2 if quick else 5)
        _planning(report, spark, broker, folder, PARTITIONS // 4 if quick else PARTITIONS)
        spark.stop()


def _write(broker: KafkaBroker, size: int, records: int) -> str:
    print(f"\nwriting {records:,} records of {size} bytes to {SPLITS} partitions", flush=True)
    topic = Topic(broker).create(partitions=SPLITS)
    jitter = np.random.default_rng(7).integers(0, 5_000, records // SPLITS)
    value = os.urandom(size)
    with topic.producer(linger_ms=50, batch_size=1_000_000) as producer:
        for i, late_ms in enumerate(jitter.tolist()):
            for partition in range(SPLITS):
                producer.produce(topic.name, value, partition=partition, timestamp=START_MS + 2 * i + late_ms)
            if not i % 1000:
                producer.poll(0)
    return topic.name


# ---- before Spark ----------------------------------------------------------------------------------------------------


def _to_arrow(report: Report, broker: KafkaBroker, topics: dict[int, str], sizes: dict[int, int], rounds: int) -> None:
    """What one task does without Spark: all columns, from the broker into Arrow batches.

    Beside it the client's own calls and nothing else: what is made of its messages cannot cost less than nothing. The
    best of all rounds says what the code costs, the median what the broker and others leave of this machine.
    """

    def ours(topic: str, records: int) -> None:
        given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
        source = AlignedDataSource.of_format("aligned_kafka", given)
        reader = source.batch_reader(source.schema())
        assert sum(len(batch) for part in reader.partitions() for batch in reader.read(part)) == records

    def client(topic: str, records: int) -> None:
        settings = ClientConfig.of({"bootstrap.servers": broker.bootstrap}).for_consumer()
        consumer = Consumer({**settings, "enable.partition.eof": "false"})
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(SPLITS)])
        while records > 0:
            records -= len(consumer.consume(500, 1.0))
        consumer.close()

    rows = []
    for size, topic in topics.items():
        records = sizes[size]
        contestants = {"ours": partial(ours, topic, records), "the client alone": partial(client, topic, records)}
        taken = in_turn(contestants, rounds, _clocks)
        for name, seconds in taken.items():
            rates = [records / each(seconds, axis=0) / 1e6 for each in (np.median, np.min)]
            rows.append([str(size), name, *(f"{rate:.2f} M/s" for rate in np.ravel(rates))])
        best = [np.min(seconds, axis=0) for seconds in taken.values()]
        report.at_least(
            f"Kafka, {size} bytes, into Arrow: ours against the client alone", float((best[1] / best[0])[0]), 0.6
        )
    clocks = ["by the clock", "a second of processor"]
    header = [f"{name}, {which}" for which in ("median", "best") for name in clocks]
    report.table(f"From the broker into Arrow, one task ({rounds} rounds in turn)", ["bytes", "source", *header], rows)


def _clocks() -> npt.NDArray[np.float64]:
    """Seconds by the clock and of the processor, all threads together."""
    return np.array([time.perf_counter(), time.process_time()])


# ---- on Spark --------------------------------------------------------------------------------------------------------


def _planning(report: Report, spark: Any, broker: KafkaBroker, folder: Path, partitions: int) -> None:
    """How long Spark waits for `latestOffset` of a topic with news in every partition, as the query's progress says."""
    print(f"\nmaking a topic of {partitions:,} partitions", flush=True)
    topic = Topic(broker).create(partitions=partitions)

    def write(turn: int) -> None:
        seconds = range(turn * _PER_PARTITION, (turn + 1) * _PER_PARTITION)
        topic.write(Record(START_MS + 1000 * s, b"x" * 100, partition=p) for s in seconds for p in range(partitions))

    write(0)
    options = {"subscribe": topic.name, "maxOutOfOrderness": "5 seconds", "maxRowsPerTrigger": 2 * partitions}
    reader = spark.readStream.format("aligned_kafka").options(**options, startingOffsets="earliest")
    frame = reader.option("kafka.bootstrap.servers", broker.bootstrap).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(folder / f"checkpoint-{topic.name}"))
    query = writer.start()
    for turn in range(1, 5):
        query.processAllAvailable()
        write(turn)
    query.processAllAvailable()
    first, *later = [p.durationMs["latestOffset"] for p in query.recentProgress if p.numInputRows]
    query.stop()
    row = [f"{first} ms", f"{statistics.median(later):.0f} ms", f"{max(later)} ms", str(len(later))]
    report.at_most(f"Kafka, {partitions:,} partitions: first plan", first / 1e3, 0.5, " s")
    title = (
        f"Planning {partitions:,} partitions, at most {2 * partitions:,} records a micro-batch, as Spark measures it"
    )
    report.table(
        title, ["the first, with connecting", "median of the rest", "slowest of the rest", "micro-batches"], [row]
    )


def _against_spark(
    report: Report, spark: Any, broker: KafkaBroker, topic: str, of: tuple[int, int], folder: Path, rounds: int
) -> None:
    size, records = of
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}

    def ours(*, exact: bool = False) -> Any:
        door = streaming_source.read_stream(spark) if exact else spark.readStream
        return door.format("aligned_kafka").options(**options, bounded="true", maxOutOfOrderness="5 seconds").load()

    def theirs() -> Any:
        return spark.readStream.format("kafka").options(**options).load()

    def windowed(frame: Any) -> Any:
        from pyspark.sql import functions as F

        return frame.groupBy(F.window("timestamp", "1 minute"), "partition").count()

    name = f"spark kafka {SPARK_CONNECTOR.version}"
    kinds: dict[str, dict[str, Callable[[], Any]]] = {
        "a no-op sink": {"ours": ours, name: theirs},
        "a windowed count": {
            "ours": lambda: windowed(ours(exact=True)),
            name: lambda: windowed(theirs().withWatermark("timestamp", "5 seconds")),
        },
    }
    for kind, frames in kinds.items():
        taken = in_turn({name: partial(_drained, frame, folder) for name, frame in frames.items()}, rounds)
        for place, (clock, at_least) in enumerate(_CLOCKS.items()):
            seconds = {name: [float(each[place]) for each in times] for name, times in taken.items()}
            report.compare(f"Kafka, {size} bytes, into {kind}, {clock}, Spark {spark.version}", records, seconds)
            against = median_ratio(seconds[name], seconds["ours"])
            report.at_least(f"Kafka, {size} bytes, into {kind}, {clock}: ours against Spark's own", against, at_least)


def _drained(frame: Callable[[], Any], folder: Path) -> npt.NDArray[np.float64]:
    """Seconds of `_CLOCKS`."""
    began = time.perf_counter()
    triggers = drain(frame(), folder, "triggerExecution")
    return np.array([triggers, time.perf_counter() - began])
