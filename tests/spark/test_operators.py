"""Joins, deduplication, sessions and `foreachBatch` on `from_source` frames agree with batch and leave no state."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import streaming_source
from alignment import WatermarkStrategy
from streaming_source.connectors.files import FileSource
from tests.spark import twin as twins
from tests.spark.answers import Distinct, Windows
from tests.spark.conftest import Loader
from tests.spark.support import (
    SECOND,
    T0,
    Run,
    available_now,
    forget_batches,
    naive_windows,
    skewed_logs,
    state_rows,
    write_file,
    write_logs,
)
from tests.spark.twin import Frame, Twin

STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(seconds=5)).with_timestamp_assigner("ts")
LEFT = skewed_logs(11, rows=(150, 90), starts=(0, 600 * SECOND), steps=(2 * SECOND, 5 * SECOND))
RIGHT = skewed_logs(12, rows=(120, 60), starts=(300 * SECOND, 0), steps=(2 * SECOND, 7 * SECOND))


def source_frame(spark: SparkSession, path: Path, name: str, **options: Any) -> DataFrame:
    return streaming_source.from_source(spark, FileSource(str(path), bounded=True), STRATEGY, name, **options)


def joined(left: DataFrame, right: DataFrame, how: str) -> DataFrame:
    near = F.expr("rt between lt - interval 3 seconds and lt + interval 3 seconds and ls = rs")
    left = left.select(F.col("ts").alias("lt"), F.col("k").alias("lk"), F.substring("s", 1, 5).alias("ls"))
    right = right.select(F.col("ts").alias("rt"), F.col("k").alias("rk"), F.substring("s", 1, 5).alias("rs"))
    micros = F.unix_micros("lt").alias("lt"), F.coalesce(F.unix_micros("rt"), F.lit(-1)).alias("rt")
    return left.join(right, near, how).select(*micros, "lk", F.coalesce("rk", F.lit("none")).alias("rk"))


@pytest.mark.spark
@pytest.mark.parametrize("how", [pytest.param("inner", marks=pytest.mark.soak), "left_outer"])
def test_a_stream_stream_join_gives_the_rows_of_the_batch_join_and_ends_without_state(
    spark: SparkSession, batch: Loader, tmp_path: Path, how: str
) -> None:
    write_logs(tmp_path / "left", LEFT)
    write_logs(tmp_path / "right", RIGHT)
    frames = [source_frame(spark, tmp_path / side, f"{side}_{how}", maxRowsPerTrigger=80) for side in ("left", "right")]
    run = available_now(spark, joined(*frames, how), tmp_path / "cp")
    expected = joined(batch(tmp_path / "left"), batch(tmp_path / "right"), how)
    assert run.rows == sorted(map(tuple, expected.collect()))
    assert how == "inner" or any(row[3] == "none" for row in run.rows)
    assert state_rows(run) == 0


@pytest.mark.spark
@pytest.mark.soak
def test_a_join_goes_on_after_a_restart_in_which_one_side_has_nothing_more_to_say(
    spark: SparkSession, batch: Loader, tmp_path: Path
) -> None:
    write_file(tmp_path / "left" / "a" / "f.parquet", T0 + np.arange(40) * SECOND, "split")
    write_file(tmp_path / "right" / "a" / "f.parquet", T0 + np.arange(5) * SECOND, "split")

    def run() -> Run:
        frames = [
            source_frame(spark, tmp_path / side, f"{side}_again", maxRowsPerTrigger=20) for side in ("left", "right")
        ]
        joining = joined(*frames, "left_outer")
        return Run(spark, joining, tmp_path / "cp", trigger={"availableNow": True}, files=tmp_path / "out")

    first = run()
    assert first.query.awaitTermination(120)
    # Forget all but the first micro-batch: the right side is read then, the left one is not.
    for log in ("cp/offsets", "cp/commits", "out/_spark_metadata"):
        forget_batches(tmp_path / log, 1)
    again = run().finished()
    expected = joined(batch(tmp_path / "left"), batch(tmp_path / "right"), "left_outer")
    assert again.rows == sorted(map(tuple, expected.collect()))
    assert state_rows(again) == 0


def bounded(path: Path, **options: Any) -> Frame:
    return twins.frame(path, maxOutOfOrderness="5 seconds", bounded="true", **options)


def test_drop_duplicates_gives_the_distinct_rows_of_the_batch(tmp_path: Path) -> None:
    # Each record twice, in splits that lie ten minutes apart in reading.
    times = {"a": LEFT["split-0"], "b": LEFT["split-0"]}
    write_logs(tmp_path / "in", times, files=2)
    twin = Twin(tmp_path / "cp", bounded(tmp_path / "in", maxRowsPerTrigger=70), answer=Distinct()).run()
    assert [t for (t,) in twin.rows] == sorted(set(LEFT["split-0"].tolist()))


@pytest.mark.spark
def test_drop_duplicates_on_spark_ends_without_state(spark: SparkSession, tmp_path: Path) -> None:
    write_logs(tmp_path / "in", {"a": LEFT["split-0"], "b": LEFT["split-0"]}, files=2)
    frame = source_frame(spark, tmp_path / "in", "distinct")
    run = available_now(spark, frame.select("ts").dropDuplicates(["ts"]), tmp_path / "cp")
    assert len(run.rows) == len(set(LEFT["split-0"].tolist()))
    assert state_rows(run) == 0


@pytest.mark.spark
def test_session_windows_are_those_of_the_batch_and_end_without_state(
    spark: SparkSession, batch: Loader, tmp_path: Path
) -> None:
    write_logs(tmp_path / "in", LEFT)

    def sessions(frame: DataFrame) -> DataFrame:
        counted = frame.groupBy(F.session_window("ts", "5 seconds").alias("w"), "s").count()
        return counted.select(F.unix_micros("w.start"), F.unix_micros("w.end"), "s", "count")

    frame = source_frame(spark, tmp_path / "in", "sessions", maxRowsPerTrigger=70)
    run = available_now(spark, sessions(frame), tmp_path / "cp")
    assert run.rows == sorted(map(tuple, sessions(batch(tmp_path / "in")).collect()))
    assert state_rows(run) == 0


def test_a_union_of_sources_follows_the_slower_one(tmp_path: Path) -> None:
    both = {"left": LEFT, "right": {f"r-{split}": times for split, times in RIGHT.items()}}
    for side, logs in both.items():
        write_logs(tmp_path / side, logs)
    frames = [bounded(tmp_path / side, maxRowsPerTrigger=90) for side in both]
    twin = Twin(tmp_path / "cp", *frames, answer=Windows()).run()
    assert twin.rows == naive_windows({**both["left"], **both["right"]})


@pytest.mark.spark
def test_foreach_batch_sees_each_record_once_and_no_watermark_row(spark: SparkSession, tmp_path: Path) -> None:
    write_logs(tmp_path / "in", LEFT)
    seen: list[tuple[str, int]] = []

    def keep(batch: DataFrame, number: int) -> None:
        assert batch.where("k is null").isEmpty()
        # Read twice, as by any batch function with two actions.
        rows = batch.select("_split", "_position").collect()
        assert batch.count() == len(rows)
        seen.extend(map(tuple, rows))

    frame = source_frame(spark, tmp_path / "in", "each", maxRowsPerTrigger=100, includeMetadata=True)
    query = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "cp"))
    assert query.trigger(availableNow=True).start().awaitTermination(120)
    assert sorted(seen) == [(split, i) for split, times in LEFT.items() for i in range(len(times))]
