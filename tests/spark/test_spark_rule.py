"""What the exact watermark builds on, pinned: which rows Spark itself takes for late."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.spark.support import MS, SECOND, T0, available_now, write_file

pytestmark = pytest.mark.spark

MINUTE_LATER = T0 + 60 * SECOND


def test_spark_drops_a_row_at_the_watermark_and_none_above_and_a_delay_of_zero_is_zero(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Fails where Spark changes what is late at equal times, or bumps a delay of 0 to one of 1 ms."""
    times = [
        [MINUTE_LATER],
        # The micro-batch right after it still has the watermark from before.
        [T0],
        [T0 + 1, MINUTE_LATER - 1, MINUTE_LATER, MINUTE_LATER + 1, MINUTE_LATER + MS],
    ]
    for number, rows in enumerate(times):
        file = tmp_path / "in" / f"{number}.parquet"
        write_file(file, rows, "")
        os.utime(file, (T0 // SECOND + number, T0 // SECOND + number))
    read = spark.readStream.schema("ts timestamp, k string").option("maxFilesPerTrigger", 1)
    dated = read.parquet(str(tmp_path / "in")).withWatermark("ts", "0 seconds")
    # Each row is a group of its own, whose event time is the row's.
    counted = dated.groupBy("ts", "k").count().select(F.unix_micros("ts"), "k")
    run = available_now(spark, counted, tmp_path / "cp", mode="update")
    kept = [row[0] for row in run.rows]
    assert kept == sorted([*times[0], *times[1], MINUTE_LATER + 1, MINUTE_LATER + MS])
    assert run.progress[-1]["eventTime"]["watermark"] == "2023-11-14T22:15:00.001Z"
