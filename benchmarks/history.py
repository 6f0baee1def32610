"""A history in Parquet, and the topic that goes on: records lost and doubled, and the time, in one query and in two.

The history was written from the topic, as a bronze table is, up to another time in each partition. Beside the union of
this library stand Spark's two jobs: a batch over the history, then a stream over the topic from the latest time of the
history on, or from the time up to which it has all partitions. Records are counted in windows of an hour: one that is
in no window of the result is lost, one that is in several is doubled.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.on_spark import session
from benchmarks.report import Report
from streaming_source import cut_from, read_stream
from tests.kafka.artifacts import BROKER, SPARK_CONNECTOR, ArtifactsMissingError
from tests.kafka.broker import KafkaBroker
from tests.kafka.topics import Topic

PARTITIONS, RECORDS, QUICK_RECORDS = 4, 200_000, 20_000
T0_MS = 1_699_920_000_000  # 2023-11-14 00:00:00 UTC
DAY_MS = 86_400_000
BOUND_S = 300
WITH_THEM = 600_000
"""How far the history of a partition ends behind that of the one before it, in milliseconds."""


def run(report: Report, folder: Path, *, quick: bool) -> None:
    try:
        jars, connector = BROKER.jars(), SPARK_CONNECTOR.jars()
    except ArtifactsMissingError as error:
        print(f"\nKafka is not measured: {error}", flush=True)
        return
    records = QUICK_RECORDS if quick else RECORDS
    broker = KafkaBroker(folder / "kafka-of-history", jars)
    broker.start()
    try:
        topic, root = Topic(broker), folder / "bronze"
        latest_ms, all_until_ms = _write(topic, root, records // PARTITIONS)
        spark = session(*connector)
        ways: dict[str, Callable[[], Any]] = {
            "one union, cut by offset": lambda: _union(spark, topic, root, folder),
            "two jobs, from the latest time": lambda: _two_jobs(spark, topic, root, folder / "latest", latest_ms),
            "two jobs, from the earliest": lambda: _two_jobs(spark, topic, root, folder / "earliest", all_until_ms),
        }
        _windows(_with_id(spark.range(1).selectExpr("current_timestamp() AS timestamp", "'1' AS value"))).collect()
        rows = []
        for name, way in ways.items():
            begun = time.monotonic()
            found = Counter(row["id"] for row in way())
            seconds = time.monotonic() - begun
            doubled = sum(count - 1 for count in found.values())
            rows.append([name, f"{records - len(found):,}", f"{doubled:,}", f"{seconds:.1f} s"])
        report.table(
            f"{records:,} records, half of them in the history: windows of an hour",
            ["way", "records lost", "records doubled", "time"],
            rows,
        )
        spark.stop()
    finally:
        broker.stop()


def _write(topic: Topic, root: Path, each: int) -> tuple[int, int]:
    """Two days into the topic, about one of them into the history; the latest times, of any partition and of all."""
    topic.create(partitions=PARTITIONS)
    root.mkdir()
    rng, ends_ms = np.random.default_rng(7), []
    with topic.producer(linger_ms=50) as producer:
        for partition in range(PARTITIONS):
            times = T0_MS + np.linspace(0, 2 * DAY_MS, each).astype(np.int64) - rng.integers(0, BOUND_S * 1000, each)
            ids = partition * each + np.arange(each)
            for us, number in zip(times.tolist(), ids.tolist(), strict=True):
                producer.produce(topic.name, b"%d" % number, partition=partition, timestamp=us)
                if not number % 10_000:
                    producer.flush()
            kept = int(np.searchsorted(np.maximum.accumulate(times), T0_MS + DAY_MS - partition * WITH_THEM))
            ends_ms.append(int(times[:kept].max()))
            table = {
                "timestamp": pa.array(times[:kept] * 1000, pa.timestamp("us", "UTC")),
                "id": pa.array(ids[:kept]),
                "topic": [topic.name] * kept,
                "partition": pa.array([partition] * kept, pa.int32()),
                "offset": pa.array(np.arange(kept)),
            }
            pq.write_table(pa.table(table), root / f"{partition}.parquet", row_group_size=10_000)
    return max(ends_ms), min(ends_ms)


def _windows(frame: Any) -> Any:
    from pyspark.sql import functions as F

    by_hour = frame.groupBy(F.window("timestamp", "1 hour")).agg(F.collect_list("id").alias("ids"))
    return by_hour.select(F.explode("ids").alias("id"))


def _union(spark: Any, topic: Topic, root: Path, folder: Path) -> list[Any]:
    cut = cut_from(root, partitions={topic.name: PARTITIONS})
    both = {"maxOutOfOrderness": f"{BOUND_S} seconds", "alignmentGroup": "both", "alignmentScope": "query"}
    both |= {"maxDrift": "1 day"}
    history = read_stream(spark).format("aligned_files").options(**both, bounded=True, eventTimeColumn="timestamp")
    live = read_stream(spark).format("aligned_kafka").options(**both, bounded=True, subscribe=topic.name)
    live = live.options(startingOffsets=cut.starting_offsets).option("kafka.bootstrap.servers", topic.broker.bootstrap)
    of_both = history.load(str(root)).select("timestamp", "id").unionByName(_with_id(live.load()))
    return _drain(spark, _windows(of_both), folder / "union")


def _two_jobs(spark: Any, topic: Topic, root: Path, folder: Path, from_ms: int) -> list[Any]:
    _windows(spark.read.parquet(str(root)).select("timestamp", "id")).write.parquet(str(folder / "batch"))
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", topic.broker.bootstrap)
    reader = reader.option("subscribe", topic.name).option("startingTimestamp", str(from_ms))
    live = _with_id(reader.load()).withWatermark("timestamp", f"{BOUND_S} seconds")
    # In this mode the last windows come out too: what Spark leaves open in them is none of its losses.
    found = _drain(spark, _windows(live), folder / "stream", mode="complete")
    return found + spark.read.parquet(str(folder / "batch")).collect()


def _with_id(frame: Any) -> Any:
    from pyspark.sql import functions as F

    return frame.select("timestamp", F.col("value").cast("string").cast("bigint").alias("id"))


def _drain(spark: Any, frame: Any, folder: Path, mode: str = "append") -> list[Any]:
    """What a query gives until all that is there is read."""
    name = f"of_{folder.parent.name}_{folder.name}".replace("-", "_")
    writer = frame.writeStream.format("memory").queryName(name).outputMode(mode).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(folder)).start()
    query.awaitTermination()
    found: list[Any] = spark.table(name).collect()
    return found
