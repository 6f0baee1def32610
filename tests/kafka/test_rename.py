"""`aligned_kafka` in place of `kafka`, nothing else changed: it is never worse than Spark's own source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.kafka.support import format_options
from tests.kafka.topics import Topic
from tests.spark.support import MINUTE, SECOND, T0, Run, available_now

pytestmark = pytest.mark.spark

TEN = np.arange(10, dtype=np.int64) * SECOND


def write_two_partitions_of_three(topic: Topic) -> None:
    topic.create(partitions=3).write_logs({0: T0 + TEN, 2: T0 + 60 * MINUTE + TEN})


def values(spark: SparkSession, topic: Topic, **options: str) -> DataFrame:
    return spark.readStream.format("aligned_kafka").options(**format_options(topic, **options)).load().select("value")


def test_available_now_reads_20_of_20_rows_beside_an_empty_partition(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    write_two_partitions_of_three(topic)
    assert len(available_now(spark, values(spark, topic), tmp_path / "cp").rows) == 20


@pytest.mark.soak
def test_process_all_available_covers_the_12_records_that_were_written_before_it(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    write_two_partitions_of_three(topic)
    # Event times from the brokers' index, and from values that the planner reads ahead.
    frames = {how: values(spark, topic, idleTimeout="none", indexing=how) for how in ("auto", "scan")}
    runs = [Run(spark, frame, tmp_path / how) for how, frame in frames.items()]

    def counts() -> list[int]:
        for run in runs:
            run.query.processAllAvailable()
        return [len(run.rows) for run in runs]

    assert counts() == [20, 20]
    # Of a partition that has none, of those that have some, and of several.
    for number, partitions in enumerate(([1], [0], [2, 2, 2], [0, 1], [2], [0, 1, 0, 1]), 1):
        topic.write_logs({p: [T0 + number * SECOND] * partitions.count(p) for p in partitions})
        read = counts()
    assert read == [32, 32]
