"""Scenarios of Spark's own suite that no other test here has; see docs/parity.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.kafka.support import format_options
from tests.kafka.topics import Record, Topic
from tests.spark.support import SECOND, T0, Run, available_now, eventually

pytestmark = [pytest.mark.spark, pytest.mark.soak]

TEN = np.arange(10, dtype=np.int64) * SECOND


def load(spark: SparkSession, topic: Topic, **options: Any) -> DataFrame:
    return spark.readStream.format("aligned_kafka").options(**format_options(topic, **options)).load()


def test_a_self_join_reads_each_record_once(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    topic.create(2).write_logs(dict.fromkeys(range(2), T0 + TEN))
    values = load(spark, topic).selectExpr("partition + 0 as p", "offset + 0 as o")
    run = available_now(spark, values.join(values, ["p", "o"]), tmp_path / "cp")
    assert run.rows == [(p, offset) for p in range(2) for offset in range(10)]
    # One offset, one planner; the exchange is used twice.
    assert [len(progress["sources"]) for progress in run.progress] == [1] * len(run.progress)
    assert sum(progress["numInputRows"] for progress in run.progress) == 20


def test_topics_of_a_pattern_may_be_deleted_and_added(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    other = Topic(topic.broker, f"{topic.name}-b")
    topic.create(5).write_logs({0: T0 + TEN})
    pattern = {"subscribe": None, "subscribePattern": f"{topic.name}.*", "discoveryInterval": "200 ms"}
    frame = load(spark, topic, **pattern, failOnDataLoss="false").select("topic", "offset")
    run = Run(spark, frame, tmp_path / "cp")
    run.query.processAllAvailable()
    topic.delete()
    other.create(5).write_logs({4: T0 + TEN})
    wanted = [(name, n) for name in (topic.name, other.name) for n in range(10)]
    eventually(lambda: run.rows == wanted, "the topic that was added", run.query)
    run.query.stop()
    other.close()


def test_an_available_now_run_fails_twice_in_the_same_way_after_partitions_were_added(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    topic.create(1).write([Record(T0 // 1000 + n, b"%d" % n) for n in range(8)])
    number = F.col("value").cast("string").cast("int")
    frame = load(spark, topic).select(F.when(number == 7, F.raise_error(F.lit("error for 7"))).otherwise(number))
    for _ in range(2):
        with pytest.raises(PySparkException, match="error for 7"):
            available_now(spark, frame, tmp_path / "cp", files=tmp_path / "out")
        if len(topic.partitions) == 1:
            topic.add_partitions(2)


def test_limits_of_two_sources_in_one_query_are_their_own(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    other = Topic(topic.broker).create(1)
    topic.create(1).write_logs({0: T0 + TEN})
    other.write_logs({0: T0 + np.arange(100) * SECOND})
    small, large = (load(spark, t, maxOffsetsPerTrigger=5).select("topic", "offset") for t in (topic, other))
    run = available_now(spark, small.union(large), tmp_path / "cp")
    assert [p["numInputRows"] for p in run.progress if p["numInputRows"]] == [10, 10] + [5] * 18
    other.close()


def test_a_run_once_ignores_the_limit(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    topic.create(3).write_logs({0: T0 + TEN, 2: T0 + TEN})
    for rows in (20, 30):
        frame = load(spark, topic, maxOffsetsPerTrigger=5)
        run = Run(spark, frame, tmp_path / "cp", trigger={"once": True}, files=tmp_path / "out").finished()
        assert run.progress[-1]["numInputRows"] == (20 if rows == 20 else 10)
        topic.write_logs({1: T0 + TEN})
