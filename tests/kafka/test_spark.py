"""On Spark: windowed results over skewed partitions are those of a batch; those of Spark's own source are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from streaming_source import explain, read_stream, required_delay
from streaming_source.monitoring.explained import explain_checkpoint
from tests.kafka.support import BOUND, SKEWS, Logs, format_options, naive_logs
from tests.kafka.topics import MS, Topic
from tests.spark.support import (
    SECOND,
    T0,
    Run,
    available_now,
    end_offset,
    naive_windows,
    windows,
)
from tests.spark.test_windowed_results import strategy

pytestmark = pytest.mark.spark

Rows = list[tuple[int, int]]


def stream(spark: SparkSession, topic: Topic, **options: Any) -> DataFrame:
    """A frame with the column `s` that tells the partitions."""
    given = format_options(topic, maxOutOfOrderness=BOUND, **options)
    return named(spark.readStream.format("aligned_kafka").options(**given).load())


def exact(spark: SparkSession, topic: Topic, **options: Any) -> DataFrame:
    given = format_options(topic, maxOutOfOrderness=BOUND, **options)
    return named(read_stream(spark).format("aligned_kafka").options(**given).load())


def topics_of(frame: DataFrame) -> set[str]:
    return {row[0] for row in frame.select("topic").distinct().collect()}


@pytest.mark.soak
def test_a_pattern_chooses_the_topics_that_it_chooses_with_sparks_own_source(
    spark_kafka: SparkSession, topic: Topic
) -> None:
    name = topic.name
    topics = [Topic(topic.broker, text).create() for text in (name, f"eu.{name}", f"{name}-late", f"EU.{name.upper()}")]
    for written in topics:
        written.write_logs({0: T0 + np.arange(3) * SECOND})
        written.close()
    for pattern in (name, f"^{name}", f"(?i)eu.{name}$", f"[.]{name}++|__consumer_offsets"):
        given = format_options(topic, subscribe=None, startingOffsets=None, subscribePattern=pattern)
        theirs = spark_kafka.read.format("kafka").options(**given).load()
        ours = spark_kafka.read.format("aligned_kafka").options(**given).load()
        assert topics_of(ours) == topics_of(theirs) != set()


@pytest.mark.soak
def test_a_query_from_latest_reads_all_that_is_written_once_it_has_processed_all_available(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    topic.create(partitions=2).write_logs({p: T0 + np.arange(3) * SECOND for p in range(2)})
    chosen = {"subscribe": None, "assign": f'{{"{topic.name}": [0, 1]}}', "startingOffsets": "latest"}
    for turn in range(2):
        run = Run(spark, exact(spark, topic, **chosen), tmp_path / "cp", files=tmp_path / "out")
        # Where it begins is fixed now, and is in its checkpoint.
        run.query.processAllAvailable()
        if turn == 0:
            run.query.stop()
            topic.write_logs({p: T0 + np.arange(3, 6) * SECOND for p in range(2)})
    assert run.caught_up().query.exception() is None
    read = spark.read.parquet(str(tmp_path / "out")).select("partition", "offset").collect()
    assert sorted(map(tuple, read)) == [(p, offset) for p in range(2) for offset in range(3, 6)]


@pytest.mark.soak
def test_a_batch_frame_that_is_used_again_has_the_records_of_its_first_use(spark: SparkSession, topic: Topic) -> None:
    topic.create().write_logs({0: T0 + np.arange(3) * SECOND})
    reader = spark.read.format("aligned_kafka").options(**format_options(topic, startingOffsets=None))
    frame = reader.load()
    assert frame.count() == 3
    topic.write_logs({0: T0 + np.arange(3, 7) * SECOND})
    # Spark plans a Python source once for each load().
    assert (frame.count(), reader.load().count()) == (3, 7)


@pytest.mark.parametrize(
    ("indexing", "wanted", "tasks"),
    [
        pytest.param("auto", {"minPartitions": 7}, 7, marks=pytest.mark.soak),
        ("scan", {"maxRecordsPerPartition": 3, "numReaders": 1}, 6),
        pytest.param("off", {"minPartitions": 7}, 7, marks=pytest.mark.soak),
    ],
)
def test_min_partitions_and_max_records_per_partition_decide_how_many_tasks_there_are(
    spark: SparkSession, topic: Topic, tmp_path: Path, indexing: str, wanted: dict[str, int], tasks: int
) -> None:
    topic.create(partitions=2).write_logs({p: T0 + np.arange(9) * SECOND for p in range(2)})
    found: list[int] = []

    def keep(batch: DataFrame, number: int) -> None:
        found.append(batch.rdd.getNumPartitions())

    writer = exact(spark, topic, **wanted, indexing=indexing).writeStream.foreachBatch(keep)
    writer = writer.option("checkpointLocation", str(tmp_path / "cp"))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)
    assert max(found) == tasks


def test_they_decide_how_many_tasks_a_batch_read_has(spark: SparkSession, topic: Topic) -> None:
    topic.create(partitions=2).write_logs({p: T0 + np.arange(9) * SECOND for p in range(2)})
    reader = spark.read.format("aligned_kafka").options(**format_options(topic, startingOffsets=None))
    assert reader.load().rdd.getNumPartitions() == 2  # one a partition
    limited = reader.option("maxRecordsPerPartition", "4").option("numReaders", "1").load()
    assert sorted(len(part) for part in limited.rdd.glom().collect()) == [3, 3, 3, 3, 3, 3]
    assert reader.option("minPartitions", "5").load().rdd.getNumPartitions() >= 5


def named(frame: DataFrame) -> DataFrame:
    return frame.withColumn("s", F.col("partition").cast("string"))


# Each of the others is in a test below, and all are read without Spark in test_capping.py.
@pytest.fixture(params=[pytest.param(name, marks=[] if name == "one-tiny" else [pytest.mark.soak]) for name in SKEWS])
def logs(request: pytest.FixtureRequest, topic: Topic) -> Logs:
    """Skewed partitions, written."""
    logs = SKEWS[request.param]
    topic.create(partitions=3).write_logs(logs)
    return logs


def test_a_batch_read_counts_every_record(spark: SparkSession, topic: Topic, logs: Logs) -> None:
    given = format_options(topic, startingOffsets=None)
    frame = named(spark.read.format("aligned_kafka").options(**given).load())
    assert sorted(map(tuple, windows(frame).collect())) == naive_windows(naive_logs(logs))


# Of `scan` see JSON values below.
@pytest.mark.parametrize("indexing", ["auto", *(pytest.param(one, marks=pytest.mark.soak) for one in ("scan", "off"))])
def test_exact_mode_gives_all_windows_of_the_batch_result(
    spark: SparkSession, topic: Topic, logs: Logs, tmp_path: Path, indexing: str
) -> None:
    frame = exact(spark, topic, bounded="true", maxOffsetsPerTrigger=300, indexing=indexing)
    run = available_now(spark, windows(frame), tmp_path / "cp")
    assert run.rows == naive_windows(naive_logs(logs))
    assert max(p["numInputRows"] for p in run.progress) <= 300 + 1  # the watermark row


@pytest.mark.soak
@pytest.mark.parametrize("indexing", ["auto", "off"])
def test_exact_mode_over_an_unbounded_topic_gives_all_windows_that_are_closed(
    spark: SparkSession, topic: Topic, logs: Logs, tmp_path: Path, indexing: str
) -> None:
    run = available_now(spark, windows(exact(spark, topic, indexing=indexing)), tmp_path / "cp")
    slowest = min(int(times.max()) - 5 * SECOND - 1 for times in logs.values())
    expected = [row for row in naive_windows(naive_logs(logs)) if row[1] <= slowest]
    assert run.rows == expected


@pytest.mark.soak
def test_plain_mode_at_the_required_delay_gives_all_closed_windows(
    spark: SparkSession, topic: Topic, logs: Logs, tmp_path: Path
) -> None:
    frame = stream(spark, topic, bounded="true", maxOffsetsPerTrigger=250)
    watermarked = frame.withWatermark("timestamp", required_delay(strategy(5 * SECOND)))
    run = available_now(spark, windows(watermarked), tmp_path / "cp")
    final_us = (max(int(times.max()) for times in logs.values()) // MS - 5000) * MS
    assert run.rows == [row for row in naive_windows(naive_logs(logs)) if row[1] <= final_us]


@pytest.mark.soak
def test_a_running_trigger_gives_all_windows(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    logs = SKEWS["one-ahead"]
    topic.create(partitions=3).write_logs(logs)
    frame = exact(spark, topic, bounded="true", maxOffsetsPerTrigger=300)
    run = Run(spark, windows(frame), tmp_path / "cp", trigger={"processingTime": "200 milliseconds"})
    assert run.caught_up().rows == naive_windows(naive_logs(logs))


@pytest.mark.soak
def test_sparks_own_source_loses_rows_on_the_same_topics_and_this_one_none(
    spark_kafka: SparkSession, topic: Topic, logs: Logs, tmp_path: Path
) -> None:
    given = {"kafka.bootstrap.servers": topic.broker.bootstrap, "subscribe": topic.name, "startingOffsets": "earliest"}
    theirs = named(spark_kafka.readStream.format("kafka").options(**given, maxOffsetsPerTrigger="150").load())
    theirs = theirs.withWatermark("timestamp", BOUND)
    ours = exact(spark_kafka, topic, maxOffsetsPerTrigger=150)
    # Counts as they were at last, of windows that are still open too: what is not in them was dropped.
    kept = {
        name: sum({row[:3]: row[3] for row in run_through(spark_kafka, frame, tmp_path / name)}.values())
        for name, frame in {"theirs": theirs, "ours": ours}.items()
    }
    written = sum(map(len, logs.values()))
    assert kept["ours"] == written
    assert kept["theirs"] < 0.9 * written


def run_through(spark: SparkSession, frame: DataFrame, checkpoint: Path) -> list[tuple[Any, ...]]:
    """Counts in update mode, each window's greatest last: counts only grow."""
    return sorted(available_now(spark, windows(frame), checkpoint, "update").rows)


def batches_of(frame: DataFrame, checkpoint: Path) -> dict[int, Rows]:
    """Run to the end of what is there; the `(partition, offset)` that each micro-batch read."""
    read: dict[int, Rows] = {}

    def keep(batch: DataFrame, number: int) -> None:
        found = batch.where("partition is not null").select("partition", "offset").collect()
        read[number] = sorted(map(tuple, found))

    writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)
    return read


@pytest.mark.soak
def test_available_now_run_again_with_more_records_between_gives_each_once(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    topic.create(partitions=2)
    seen: Rows = []
    for turn in range(2):
        times = T0 + (100 * turn + np.arange(50)) * SECOND
        topic.write_logs({0: times, 1: times + 3600 * SECOND}, first=50 * turn)
        if turn:
            topic.add_partitions(3)
            topic.write_logs({2: times})
        read = batches_of(exact(spark, topic, maxOffsetsPerTrigger=70), tmp_path / "cp")
        seen += [row for rows in read.values() for row in rows]
    assert sorted(seen) == [(p, i) for p, n in ((0, 100), (1, 100), (2, 50)) for i in range(n)]


@pytest.mark.soak
def test_the_offset_in_the_progress_says_where_each_partition_is(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    topic.create(partitions=2).write_logs({p: T0 + np.arange(10) * SECOND for p in range(2)})
    run = available_now(spark, exact(spark, topic, maxOffsetsPerTrigger=5), tmp_path / "cp")
    splits = end_offset(run.progress[-1])["splits"]
    assert [entry[0][:3] for entry in splits] == [[topic.name, 0, 10], [topic.name, 1, 10]]
    behind = [progress["sources"][0]["latestOffset"]["metrics"] for progress in run.progress]
    least, most, mean = (f"{name}OffsetsBehindLatest" for name in ("min", "max", "avg"))
    assert behind[-1] == {least: "0", most: "0", mean: "0.0"}
    # Of five records at most those of two seconds fit: each has one in both partitions.
    assert behind[0] == {least: "8", most: "8", mean: "8.0"}
    (source,) = explain(run.query).to_json()["sources"]
    (stored,) = explain_checkpoint(str(tmp_path / "cp")).to_json()["sources"]
    assert {i: split["position"] for i, split in source["splits"].items()} == {f"{topic.name}-{p}": 10 for p in (0, 1)}
    assert stored["splits"] == source["splits"]


def test_json_values_give_the_event_time(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    from tests.kafka.topics import Record

    logs = SKEWS["one-fast"]
    # Written at any time; their event times are in their values.
    topic.create(partitions=3).write(
        Record(T0 // MS + i, b'{"ts": "%s", "n": %d}' % (_iso(int(t)), i), partition=partition)
        for partition, times in logs.items()
        for i, t in enumerate(times)
    )
    json_options = {"valueFormat": "json", "valueSchema": "ts TIMESTAMP, n BIGINT", "eventTimeColumn": "value.ts"}
    frame = exact(spark, topic, bounded="true", maxOffsetsPerTrigger=300, **json_options)
    run = available_now(spark, windows(frame), tmp_path / "cp")
    assert run.rows == naive_windows(naive_logs(logs))


def _iso(time_us: int) -> bytes:
    return f"{np.datetime64(time_us, 'us')}Z".encode()
