"""Sources that name the same alignment group are aligned with each other, whichever query they are in."""

from __future__ import annotations

import os
import signal
import sqlite3
import tempfile
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import streaming_source
from alignment import WatermarkStrategy
from alignment.drift import SourceReport, source_limit
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from streaming_source.connectors.files import FileSource
from tests.spark.conftest import Loader
from tests.spark.support import SECOND, T0, Run, end_offset, eventually, write_logs

pytestmark = pytest.mark.spark

DRIFT = 60 * SECOND
# The same number of records a micro-batch are one time as much event time on the one side, ten times on the other.
SLOW = {f"s{i}": T0 + i * SECOND + np.arange(200, dtype=np.int64) * SECOND for i in range(2)}
FAST = {f"f{i}": T0 + i * SECOND + np.arange(200, dtype=np.int64) * 10 * SECOND for i in range(2)}


def strategy(idle: timedelta | None = None) -> WatermarkStrategy:
    ordered = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("ts")
    ordered = ordered if idle is None else ordered.with_idleness(idle)
    return ordered.with_watermark_alignment("pair", timedelta(microseconds=DRIFT), timedelta(milliseconds=50))


def source_frame(
    spark: SparkSession, path: Path, name: str, idle: timedelta | None = None, **options: Any
) -> DataFrame:
    bounded = options.pop("bounded", True)
    return streaming_source.from_source(spark, FileSource(str(path), bounded=bounded), strategy(idle), name, **options)


def joined(left: DataFrame, right: DataFrame) -> DataFrame:
    left = left.select(F.col("event_time").alias("lt"), F.col("k").alias("lk"))
    right = right.select(F.col("event_time").alias("rt"), F.col("k").alias("rk"))
    near = F.expr("date_trunc('minute', lt) = date_trunc('minute', rt) and rt between lt - interval 3 seconds and lt")
    return left.join(right, near, "left_outer").select(F.unix_micros("lt"), "lk", F.coalesce("rk", F.lit("none")))


def combined(run: Run, source: int = 0) -> list[int]:
    """The watermarks that a source has announced, one a micro-batch."""
    announced = [end_offset(progress, source)["watermark"] for progress in run.progress if progress["sources"]]
    return [MIN_WATERMARK if watermark is None else watermark for watermark in announced]


def last(run: Run, source: int = 0) -> int:
    return max(combined(run, source), default=MIN_WATERMARK)


def test_of_two_joined_sources_neither_runs_ahead_and_the_join_is_that_of_the_batch(
    spark: SparkSession, batch: Loader, tmp_path: Path
) -> None:
    write_logs(tmp_path / "slow", SLOW)
    write_logs(tmp_path / "fast", FAST)
    frames = [source_frame(spark, tmp_path / side, f"group_{side}", maxRowsPerTrigger=40) for side in ("slow", "fast")]
    run = Run(spark, joined(*frames), tmp_path / "cp")
    eventually(lambda: last(run) == last(run, 1) == MAX_WATERMARK, "the ends of both", run.query, 120)
    run.caught_up()
    assert run.rows == sorted(map(tuple, joined(batch(tmp_path / "slow"), batch(tmp_path / "fast")).collect()))
    end = int(SLOW["s1"][-1])
    # The first micro-batch of the one is planned before the other is there.
    both = [pair for pair in zip(combined(run, 0), combined(run, 1), strict=True) if max(pair) < end][1:]
    ahead = [fast - slow for slow, fast in both]
    assert max(ahead) <= DRIFT
    assert max(ahead) > DRIFT / 2, "the fast side never came near the limit: nothing was shown"


def members(run: Run) -> dict[int, SourceReport]:
    """What the members of the group have said last, by their planners' processes."""
    folders = Path(tempfile.gettempdir()).glob("blockmgr-*/watermark-alignment.sqlite")
    newest = max(folders, key=lambda path: path.stat().st_mtime)
    with closing(sqlite3.connect(newest)) as file:
        rows = file.execute("SELECT pid, max_drift_us, watermark, next_us FROM report").fetchall()
    return {pid: SourceReport(*report) for pid, *report in rows}


@pytest.mark.parametrize("end", ["stopped", "killed", "idle"])
def test_a_source_that_is_gone_or_has_nothing_more_to_say_lets_the_other_go_on(
    spark: SparkSession, tmp_path: Path, end: str
) -> None:
    write_logs(tmp_path / "ahead", FAST)
    write_logs(tmp_path / "behind", {"b": T0 - 3600 * SECOND + np.arange(10, dtype=np.int64) * SECOND})

    def count(side: str, **options: Any) -> Run:
        frame = source_frame(spark, tmp_path / side, f"{side}_{end}", bounded=False, **options)
        return Run(spark, frame.groupBy().agg(F.count("*")), tmp_path / f"cp-{side}", "complete")

    idle = timedelta(seconds=3) if end == "idle" else None
    behind = count("behind", idle=idle)
    eventually(lambda: last(behind) > MIN_WATERMARK, "the one that is behind", behind.query)
    (planner,) = members(behind)
    ahead = count("ahead", maxRowsPerTrigger=1)

    def waits() -> bool:
        reports = {str(pid): report for pid, report in members(ahead).items()}
        own = next((pid for pid in reports if pid != str(planner)), None)
        next_us = None if own is None else reports[own].next_us
        return next_us is not None and next_us > source_limit(str(own), reports)

    # It has read all that it has, an hour behind, and may get more: nobody may leave it behind.
    eventually(waits, "the one ahead to wait", ahead.query)
    at = last(ahead)
    if end == "stopped":
        behind.query.stop()
    elif end == "killed":
        os.kill(planner, signal.SIGKILL)
    eventually(lambda: last(ahead) > at, f"it to go on when the other one is {end}", ahead.query)
