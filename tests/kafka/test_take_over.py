"""A query over Spark's own Kafka source is stopped midway, and goes on with ours: no record is lost or doubled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from typer.testing import CliRunner

from streaming_source import read_stream
from streaming_source.tools.cli.main import app
from tests.kafka.support import format_options
from tests.kafka.topics import Topic
from tests.spark.support import SECOND, T0, available_now, forget_batches, last_batch

pytestmark = pytest.mark.spark

Load = Callable[[SparkSession, Topic], DataFrame]
MINUTE = np.arange(60, dtype=np.int64) * SECOND
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def theirs(spark: SparkSession, topic: Topic) -> DataFrame:
    frame = spark.readStream.format("kafka").options(**format_options(topic, maxOffsetsPerTrigger=60)).load()
    return frame.withWatermark("timestamp", "5 seconds")


def renamed(spark: SparkSession, topic: Topic) -> DataFrame:
    frame = spark.readStream.format("aligned_kafka").options(**format_options(topic, maxOffsetsPerTrigger=60)).load()
    return frame.withWatermark("timestamp", "5 seconds")


def exact(spark: SparkSession, topic: Topic) -> DataFrame:
    given = format_options(topic, maxOffsetsPerTrigger=60, maxOutOfOrderness="5 seconds")
    return read_stream(spark).format("aligned_kafka").options(**given).load()


def places(frame: DataFrame) -> DataFrame:
    return frame.select("partition", "offset")


def take_over(topic: Topic, old: Path, new: Path, source: int = 0) -> str:
    arguments = ["take-over", str(old), str(new), "--subscribe", topic.name, "--source", str(source)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.soak
@pytest.mark.parametrize("in_the_sink", [False, True])
def test_a_query_that_died_in_a_micro_batch_is_taken_over(
    spark_kafka: SparkSession, topic: Topic, tmp_path: Path, in_the_sink: bool
) -> None:
    topic.create(3).write_logs(dict.fromkeys((0, 2), T0 + MINUTE))
    old, new, out = tmp_path / "old", tmp_path / "new", tmp_path / "out"
    available_now(spark_kafka, places(theirs(spark_kafka, topic)), old, files=out)
    # As if the driver had died before the commit, or before the sink had it.
    forget_batches(old / "commits", last_batch(old))
    if not in_the_sink:
        forget_batches(out / "_spark_metadata", last_batch(old))
    topic.write_logs(dict.fromkeys(range(3), T0 + 60 * SECOND + MINUTE))
    topic.add_partitions(4)
    topic.write_logs({3: T0 + MINUTE})
    assert f"micro-batch {last_batch(old)}, which Spark's source had planned" in take_over(topic, old, new)
    run = available_now(spark_kafka, places(renamed(spark_kafka, topic)), new, files=out)
    sizes = {0: 120, 1: 60, 2: 120, 3: 60}
    assert run.rows == [(p, offset) for p, size in sizes.items() for offset in range(size)]
    assert run.progress[0]["batchId"] == last_batch(old)


@pytest.mark.parametrize(
    ("load", "provider"),
    [
        (exact, ""),
        pytest.param(renamed, "", marks=pytest.mark.soak),
        pytest.param(exact, ROCKS, marks=pytest.mark.soak),
    ],
    ids=["exact", "renamed", "rocksdb"],
)
def test_a_windowed_count_goes_on_with_its_state(
    spark_kafka: SparkSession, topic: Topic, tmp_path: Path, load: Load, provider: str
) -> None:
    def counts(frame: DataFrame) -> DataFrame:
        counted = frame.groupBy(F.window("timestamp", "7 seconds")).count()
        return counted.select(F.col("window.start").cast("long"), "count")

    if provider:
        spark_kafka.conf.set(PROVIDER, provider)
    try:
        topic.create(2).write_logs(dict.fromkeys(range(2), T0 + MINUTE))
        old, new, out = tmp_path / "old", tmp_path / "new", tmp_path / "out"
        available_now(spark_kafka, counts(theirs(spark_kafka, topic)), old, files=out)
        topic.write_logs(dict.fromkeys(range(2), T0 + 60 * SECOND + MINUTE))
        take_over(topic, old, new)
        run = available_now(spark_kafka, counts(load(spark_kafka, topic)), new, files=out)
    finally:
        spark_kafka.conf.unset(PROVIDER)
    starts = (T0 // SECOND + np.arange(120)) // 7 * 7
    expected = {start: int((starts == start).sum()) * 2 for start in dict.fromkeys(starts.tolist())}
    # The last windows are still open.
    assert run.rows == [(start, n) for start, n in expected.items() if start + 7 <= T0 // SECOND + 119 - 5]


def deduplicated(frame: DataFrame) -> DataFrame:
    return places(frame.dropDuplicates(["partition", "offset", "timestamp"]))


def within_watermark(frame: DataFrame) -> DataFrame:
    return places(frame.dropDuplicatesWithinWatermark(["partition", "offset"]))


@pytest.mark.soak
@pytest.mark.parametrize("load", [renamed, exact])
@pytest.mark.parametrize("operator", [deduplicated, within_watermark])
def test_deduplication_goes_on_with_its_state(
    spark_kafka: SparkSession, topic: Topic, tmp_path: Path, load: Load, operator: Callable[[DataFrame], DataFrame]
) -> None:
    topic.create(2).write_logs(dict.fromkeys(range(2), T0 + MINUTE))
    old, new, out = tmp_path / "old", tmp_path / "new", tmp_path / "out"
    available_now(spark_kafka, operator(theirs(spark_kafka, topic)), old, files=out)
    topic.write_logs(dict.fromkeys(range(2), T0 + 60 * SECOND + MINUTE))
    take_over(topic, old, new)
    run = available_now(spark_kafka, operator(load(spark_kafka, topic)), new, files=out)
    assert run.rows == [(p, offset) for p in range(2) for offset in range(120)]
    assert run.progress[0]["stateOperators"][0]["numRowsTotal"] < 120


@pytest.mark.soak
def test_a_stream_that_is_joined_with_itself_is_taken_over_with_both_of_its_sides(
    spark_kafka: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    def joined(load: Load) -> DataFrame:
        rows = load(spark_kafka, topic)
        left = rows.selectExpr("partition", "offset", "timestamp lt")
        right = rows.selectExpr("partition p", "offset o", "timestamp rt")
        near = "partition = p and offset = o and rt between lt - interval 5 seconds and lt + interval 5 seconds"
        return left.join(right, F.expr(near), "leftOuter").select("partition", "offset", "o")

    topic.create(2).write_logs(dict.fromkeys(range(2), T0 + MINUTE))
    old, new, out = tmp_path / "old", tmp_path / "new", tmp_path / "out"
    available_now(spark_kafka, joined(theirs), old, files=out)
    topic.write_logs(dict.fromkeys(range(2), T0 + 60 * SECOND + MINUTE))
    take_over(topic, old, new)
    run = available_now(spark_kafka, joined(exact), new, files=out)
    assert run.rows == [(p, offset, offset) for p in range(2) for offset in range(120)]


@pytest.mark.soak
@pytest.mark.parametrize("load", [renamed, exact])
def test_a_join_of_two_topics_is_taken_over_source_by_source(
    spark_kafka: SparkSession, topic: Topic, tmp_path: Path, load: Load
) -> None:
    other = Topic(topic.broker)
    old, between, new, out = (tmp_path / name for name in ("old", "between", "new", "out"))

    def joined(load: Load) -> DataFrame:
        left, right = load(spark_kafka, topic), load(spark_kafka, other)
        left = left.selectExpr("partition", "offset", "timestamp lt")
        right = right.selectExpr("partition p", "offset o", "timestamp rt")
        near = "partition = p and offset = o and rt between lt - interval 5 seconds and lt + interval 5 seconds"
        return left.join(right, F.expr(near), "leftOuter").select("partition", "offset", "o")

    for written in (topic, other):
        written.create(2).write_logs(dict.fromkeys(range(2), T0 + MINUTE))
    available_now(spark_kafka, joined(theirs), old, files=out)
    for written in (topic, other):
        written.write_logs(dict.fromkeys(range(2), T0 + 60 * SECOND + MINUTE))
    take_over(topic, old, between)
    take_over(other, between, new, source=1)
    run = available_now(spark_kafka, joined(load), new, files=out)
    assert run.rows == [(p, offset, offset) for p in range(2) for offset in range(120)]
    other.close()
