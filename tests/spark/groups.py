"""Two sources in one alignment group, whatever Spark they run on."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

import streaming_source
from alignment import WatermarkStrategy
from alignment.groups import SourceReport, source_limit
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from streaming_source.connectors.files import FileSource
from streaming_source.coordinator.group_location import member_from_json
from tests.spark.support import (
    SECOND,
    T0,
    Run,
    available_now,
    end_offset,
    eventually,
    is_planner,
    write_file,
    write_logs,
)

DRIFT = 60 * SECOND
# The same number of records a micro-batch are one time as much event time on the one side, ten times on the other.
SLOW = {f"s{i}": T0 + i * SECOND + np.arange(150, dtype=np.int64) * SECOND for i in range(2)}
FAST = {f"f{i}": T0 + i * SECOND + np.arange(150, dtype=np.int64) * 10 * SECOND for i in range(2)}

ENDS = ("stopped", "killed", "idle", "finished")
_BY_ITSELF = ("idle", "finished")


def check_that_neither_of_two_joined_sources_runs_ahead(spark: SparkSession, folder: Path) -> None:
    """The drift stays within its bound, and the join is that of the batch."""
    write_logs(folder / "slow", SLOW)
    write_logs(folder / "fast", FAST)
    frames = [_source_frame(spark, folder / side, f"group_{side}", maxRowsPerTrigger=80) for side in ("slow", "fast")]
    run = Run(spark, _joined(*frames), folder / "cp")
    eventually(lambda: _last(run) == _last(run, 1) == MAX_WATERMARK, "the ends of both", run.query, 200)
    run.caught_up()
    sides = (_batch(spark, folder / side) for side in ("slow", "fast"))
    assert run.rows == sorted(map(tuple, _joined(*sides).collect()))
    end = int(SLOW["s1"][-1])
    # The first micro-batch of the one is planned before the other is there.
    both = [pair for pair in zip(_announced(run, 0), _announced(run, 1), strict=True) if max(pair) < end][1:]
    ahead = [fast - slow for slow, fast in both]
    assert max(ahead) <= DRIFT
    assert max(ahead) > DRIFT / 2, "the fast side never came near the limit: nothing was shown"


def check_that_one_goes_on_when_the_other_is_gone(spark: SparkSession, folder: Path, end: str) -> None:
    """A source that is stopped, killed, idle or finished was waited for until then, and is not any more."""
    write_logs(folder / "ahead", FAST)
    write_logs(folder / "behind", {"b": T0 - 3600 * SECOND + np.arange(10, dtype=np.int64) * SECOND})
    released = threading.Event()

    def hold(batch: DataFrame, number: int) -> None:
        assert released.wait(120)

    frame = _source_frame(
        spark,
        folder / "behind",
        f"behind_{end}",
        timedelta(seconds=1) if end == "idle" else None,
        bounded=end == "finished",
        maxRowsPerTrigger=5,
    )
    # What ends by itself is in the middle of its records until then. The others have read all, and may get more.
    behind = _query(spark, frame, folder / "cp-behind", hold if end in _BY_ITSELF else None)
    planner = eventually(lambda: _planner_at(spark, _reached(end)), "the one that is behind to say so", behind)
    frame = _source_frame(spark, folder / "ahead", f"ahead_{end}", bounded=False, maxRowsPerTrigger=1)
    run = Run(spark, frame.groupBy().agg(F.count("*")), folder / "cp-ahead", "complete")
    eventually(lambda: _waits(spark, other=planner), "the one ahead to wait", run.query)
    at = _last(run)
    if end == "stopped":
        behind.stop()
    elif end == "killed":
        os.kill(planner, signal.SIGKILL)
    released.set()
    eventually(lambda: _last(run) > at, f"it to go on when the other one is {end}", run.query)
    run.query.stop()
    behind.stop()


def check_whether_the_sources_of_a_query_are_aligned(spark: SparkSession, folder: Path, group: str | None) -> None:
    frames = []
    for name, begin in (("behind", T0 - 3600 * SECOND), ("ahead", T0)):
        write_file(folder / name / "log" / "f.parquet", begin + np.arange(10) * SECOND)
        ordered = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("ts")
        aligned = ordered.with_watermark_alignment(group, timedelta(seconds=2))
        source = FileSource(str(folder / name), bounded=True)
        of_group = f"{name}_{group}".replace(" ", "_")
        frames.append(streaming_source.from_source(spark, source, aligned, of_group, max_rows_per_trigger=5))
    run = available_now(spark, frames[0].union(frames[1]), folder / "cp")
    assert len(run.rows) == 20
    # The second source has seconds from T0 on: in a group it waits for the first one, which is an hour behind.
    assert (_announced(run, 1)[0] < T0) == (group is not None)


# ---- the queries -----------------------------------------------------------------------------------------------------


def _strategy(idle: timedelta | None = None) -> WatermarkStrategy:
    ordered = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("ts")
    ordered = ordered if idle is None else ordered.with_idleness(idle)
    return ordered.with_watermark_alignment("pair", timedelta(microseconds=DRIFT), timedelta(milliseconds=50))


def _source_frame(
    spark: SparkSession, path: Path, name: str, idle: timedelta | None = None, bounded: bool = True, **options: Any
) -> DataFrame:
    return streaming_source.from_source(spark, FileSource(str(path), bounded=bounded), _strategy(idle), name, **options)


def _batch(spark: SparkSession, path: Path) -> DataFrame:
    return spark.read.format("aligned_files").option("eventTimeColumn", "ts").load(str(path))


def _joined(left: DataFrame, right: DataFrame) -> DataFrame:
    left = left.select(F.col("ts").alias("lt"), F.col("k").alias("lk"))
    right = right.select(F.col("ts").alias("rt"), F.col("k").alias("rk"))
    near = F.expr("date_trunc('minute', lt) = date_trunc('minute', rt) and rt between lt - interval 3 seconds and lt")
    return left.join(right, near, "left_outer").select(F.unix_micros("lt"), "lk", F.coalesce("rk", F.lit("none")))


def _query(
    spark: SparkSession, frame: DataFrame, checkpoint: Path, each: Callable[[DataFrame, int], None] | None
) -> StreamingQuery:
    """One that counts, or does something with each batch."""
    if each is None:
        return Run(spark, frame.groupBy().agg(F.count("*")), checkpoint, "complete").query
    return frame.writeStream.foreachBatch(each).option("checkpointLocation", str(checkpoint)).start()


# ---- how far they are ------------------------------------------------------------------------------------------------


def _announced(run: Run, source: int = 0) -> list[int]:
    """The watermarks that a source has announced, one a micro-batch."""
    announced = [end_offset(progress, source)["watermark"] for progress in run.progress if progress["sources"]]
    return [MIN_WATERMARK if watermark is None else watermark for watermark in announced]


def _last(run: Run, source: int = 0) -> int:
    return max(_announced(run, source), default=MIN_WATERMARK)


def _reached(end: str) -> int:
    """The watermark of the source that is behind, as long as it is waited for."""
    rows = 5 if end in _BY_ITSELF else 10
    return T0 - 3600 * SECOND + (rows - 1) * SECOND - 1


def _members(spark: SparkSession) -> dict[int, SourceReport]:
    """What the members of the group that run have said last, by their planners' processes.

    One that was killed stays a member for a while, and its number may be that of another process, or of a thread of the
    driver, by then.
    """
    # Spark's way to it from here, the block manager, has methods whose classes PySpark does not bring along.
    (folder,) = Path(spark.conf.get("spark.local.dir") or "").rglob("blockmgr-*")
    with closing(sqlite3.connect(folder / "watermark-alignment.sqlite")) as file:
        try:
            rows = file.execute("SELECT report FROM member").fetchall()
        except sqlite3.OperationalError:
            return {}  # nobody was there yet
    members = [member_from_json(text) for (text,) in rows]
    return {member.pid: member.report for member in members if is_planner(member.pid)}


def kill_some_planners(spark: SparkSession, run: Run, after: int, rng: np.random.Generator) -> None:
    """After so many micro-batches; the query fails, unless none of its planners was among them."""
    with suppress(StreamingQueryException):
        eventually(lambda: len(run.progress) >= after or not run.query.isActive, "some micro-batches")
        for pid in _members(spark):
            if rng.random() < 0.7:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        run.query.processAllAvailable()
    run.query.stop()


def _planner_at(spark: SparkSession, watermark: int) -> int | None:
    return next((pid for pid, report in _members(spark).items() if report.watermark == watermark), None)


def _waits(spark: SparkSession, other: int) -> bool:
    """Whether a source that is not `other` has a record that it may not read."""
    reports = {str(pid): report for pid, report in _members(spark).items()}
    # Not the first one: queries of the session that ended before may have left a member.
    return any(
        report.next_us is not None and report.next_us > source_limit(pid, reports)
        for pid, report in reports.items()
        if pid != str(other)
    )
