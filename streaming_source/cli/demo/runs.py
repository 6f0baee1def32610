"""The same count three ways: batch, Spark's own stream, the aligned stream."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from streaming_source import read_stream
from streaming_source.cli.demo.flights import FlightFile
from streaming_source.cli.demo.history import split_positions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Counts", "Plan", "StreamRun", "run_aligned", "run_batch", "run_spark"]

Counts: TypeAlias = dict[tuple[str, int], int]
"""`(carrier, start of the hour in epoch seconds) -> flights`."""

Advance: TypeAlias = Callable[[int], None]
"""Told how many rows have been read so far."""

_SCHEMA: Final = "carrier STRING, flight BIGINT, origin STRING, dest STRING, scheduled TIMESTAMP, departure TIMESTAMP"
_ROWS_PER_TRIGGER: Final = 50_000
_POLL_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Plan:
    """What both streams are given.

    Attributes
    ----------
    logs
        Directory with one directory of files per carrier.
    files
        In the order in which they were written.
    scratch
        For checkpoints.
    out_of_orderness, max_drift
        Durations.
    files_per_trigger
        Of Spark's own stream.
    """

    logs: Path
    files: Sequence[FlightFile]
    scratch: Path
    out_of_orderness: str
    max_drift: str
    files_per_trigger: int = 4


@dataclass(slots=True)
class StreamRun:
    """What came out of a stream.

    Attributes
    ----------
    batches
        The windows that each micro-batch gave out; a batch that is run twice replaces itself.
    progress
        `StreamingQueryProgress` of each micro-batch.
    """

    batches: dict[int, Counts] = field(default_factory=dict)
    progress: list[Mapping[str, Any]] = field(default_factory=list)

    def take(self, windows: DataFrame, batch_id: int) -> None:
        """For `foreachBatch`."""
        self.batches[batch_id] = _counts(windows.toArrow())

    def latest(self) -> Counts:
        """Of a stream in update mode: of each window the last count that was given out."""
        counts: Counts = {}
        for batch_id in sorted(self.batches):
            counts.update(self.batches[batch_id])
        return counts

    def appended(self) -> Counts:
        """Of a stream in append mode: each window comes once, and if one came twice it counts twice."""
        counts: Counter[tuple[str, int]] = Counter()
        for windows in self.batches.values():
            counts.update(windows)
        return dict(counts)


def run_batch(spark: SparkSession, plan: Plan) -> Counts:
    """The truth."""
    frame = spark.read.schema(_SCHEMA).option("recursiveFileLookup", "true").parquet(str(plan.logs))
    return _counts(_hourly(frame, "departure").toArrow())


def run_spark(spark: SparkSession, plan: Plan, advance: Advance) -> StreamRun:
    """Spark's Parquet stream, files in the order of their modification times, with the same bound as watermark delay.

    In update mode every window that a row was counted in is given out, closed or still open: what is missing was
    dropped. The trigger is AvailableNow: which files are there already makes no difference to this source.
    """
    frame = (
        spark.readStream.schema(_SCHEMA)
        .option("recursiveFileLookup", "true")
        .option("maxFilesPerTrigger", plan.files_per_trigger)
        .parquet(str(plan.logs))
        .withWatermark("departure", plan.out_of_orderness)
    )
    run = StreamRun()
    query = _start(_hourly(frame, "departure"), run, plan, "spark", "update", availableNow=True)
    while not query.awaitTermination(_POLL_SECONDS):  # type: ignore[arg-type]
        advance(_rows(query))
    run.progress.extend(query.recentProgress)
    return run


def run_aligned(spark: SparkSession, plan: Plan, advance: Advance) -> StreamRun:
    """The aligned stream, in append mode: only windows that the exact watermark has closed are given out.

    First it runs while the files arrive, in the order in which they were written, with all that comes from arrival:
    the source knows nothing of later files, and carriers that are ahead stay at the limit. When the last file is there
    the query is stopped; it goes on from its checkpoint with `bounded`, reads what was held back, and closes the last
    windows.
    """
    arriving = plan.scratch / "arriving"
    for carrier in {file.carrier for file in plan.files}:
        (arriving / carrier).mkdir(parents=True)
    run = StreamRun()
    query: StreamingQuery | None = None
    published: dict[str, _Published] = {}
    # A carrier's next full file and the last files that are closed meanwhile: one wave.
    for _, wave in groupby(plan.files, key=lambda file: file.number):
        for file in wave:
            os.link(plan.logs / file.path, arriving / file.path)
            published[file.carrier] = published.get(file.carrier, _Published()).with_file(file)
        if query is None:
            frame = _aligned_frame(spark, plan, arriving, bounded=False)
            query = _start(_hourly(frame, "departure"), run, plan, "aligned", "append", processingTime="0 seconds")
        slowest = min(published, key=lambda carrier: published[carrier].latest_us)
        while _position(query, slowest) < published[slowest].rows:
            # Returns early only to raise the error that has ended the query.
            query.awaitTermination(_POLL_SECONDS)  # type: ignore[arg-type]
        query.processAllAvailable()
        advance(_rows(query))
    assert query is not None, "there are flights"
    query.stop()
    read = _rows(query)
    run.progress.extend(query.recentProgress)

    frame = _aligned_frame(spark, plan, arriving, bounded=True)
    query = _start(_hourly(frame, "departure"), run, plan, "aligned", "append", availableNow=True)
    while not query.awaitTermination(_POLL_SECONDS):  # type: ignore[arg-type]
        advance(read + _rows(query))
    run.progress.extend(query.recentProgress)
    return run


def _aligned_frame(spark: SparkSession, plan: Plan, path: Path, *, bounded: bool) -> DataFrame:
    return (
        read_stream(spark)
        .format("aligned_files")
        .option("eventTimeColumn", "departure")
        .option("maxOutOfOrderness", plan.out_of_orderness)
        .option("maxDrift", plan.max_drift)
        .option("idleTimeout", "none")
        .option("maxRowsPerTrigger", _ROWS_PER_TRIGGER)
        .option("discoveryInterval", "50 ms")
        .option("bounded", bounded)
        .load(str(path))
    )


def _hourly(frame: DataFrame, event_time: str) -> DataFrame:
    from pyspark.sql import functions as F

    hour = F.window(event_time, "1 hour").alias("hour")
    counted = frame.groupBy("carrier", hour).agg(F.count(F.lit(1)).alias("flights"))
    return counted.select("carrier", F.unix_seconds("hour.start").alias("hour"), "flights")


def _start(windows: DataFrame, run: StreamRun, plan: Plan, name: str, mode: str, **trigger: Any) -> StreamingQuery:
    return (
        windows.writeStream.foreachBatch(run.take)
        .outputMode(mode)
        .option("checkpointLocation", str(plan.scratch / f"checkpoint-{name}"))
        .trigger(**trigger)
        .start()
    )


def _counts(windows: pa.Table) -> Counts:
    columns = (windows[name].to_pylist() for name in ("carrier", "hour", "flights"))
    return {(carrier, hour): flights for carrier, hour, flights in zip(*columns, strict=True)}


@dataclass(frozen=True, slots=True)
class _Published:
    """What has arrived of a carrier. The one whose latest flight is the earliest is never held back by drift."""

    rows: int = 0
    latest_us: int = 0

    def with_file(self, file: FlightFile) -> _Published:
        return _Published(self.rows + file.rows, max(self.latest_us, file.latest_us))


def _position(query: StreamingQuery, carrier: str) -> int:
    """The next record of a carrier, after the last micro-batch."""
    splits = split_positions(query.lastProgress)
    return splits.get(carrier, 0)


def _rows(query: StreamingQuery) -> int:
    return sum(batch["sources"][0]["numInputRows"] for batch in query.recentProgress)
