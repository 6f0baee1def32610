"""Parquet into a no-op sink and into a windowed count: ours, the plainest Python source, Spark's own, the ceiling."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import streaming_source
from alignment.timestamps import EventTimes, TimestampAssigner
from benchmarks import peers
from benchmarks.data import DDL, write_parquet
from benchmarks.on_spark import drain, session
from benchmarks.report import Report, in_turn, median_ratio
from streaming_source.spark.datasource import AlignedDataSource

ROWS = {"narrow": 16_000_000, "wide": 2_000_000}
DELAY = "5 seconds"


def run(report: Report, folder: Path, *, quick: bool) -> None:
    rounds = 3 if quick else 7
    spark = session()
    peers.register(spark)
    for kind, most in ROWS.items():
        rows = most // 4 if quick else most
        data = folder / f"parquet-{kind}"
        print(f"\nwriting {rows:,} {kind} rows as Parquet", flush=True)
        write_parquet(data, rows, kind)
        share = _share_of_event_times(data)
        report.at_most(f"Parquet, {kind}: finding event times, of a worker's processor time", 100 * share, 2, " %")
        sources = _sources(spark, data, kind, rows)
        noop = {name: _drained(make, folder) for name, make in sources.items()}
        seconds = in_turn(noop, rounds)
        report.compare(f"Parquet, {rows:,} {kind} rows, into a no-op sink", rows, seconds)
        name = f"Parquet, {kind}, no-op: ours against the plainest"
        report.at_least(name, median_ratio(seconds["plainest"], seconds["ours"]), 0.95)
        for columns in ("ts,key", None) if kind == "narrow" and not quick else ("ts,key",):
            counts = {name: _counted(make, columns, folder) for name, make in sources.items()}
            seconds = in_turn(counts, rounds)
            of = f"windowed count, {f'columns={columns}' if columns else 'all columns'}"
            report.compare(f"Parquet, {rows:,} {kind} rows, {of}", rows, seconds)
            name = f"Parquet, {kind}, {of}: ours against"
            report.at_least(f"{name} the plainest", median_ratio(seconds["plainest"], seconds["ours"]), 0.95)
            if columns:
                report.at_least(f"{name} Spark's own", median_ratio(seconds["spark"], seconds["ours"]), 0.75)
    spark.stop()


def _sources(spark: Any, data: Path, kind: str, rows: int) -> dict[str, Callable[[str | None], Any]]:
    """Frames of the same rows with these columns, or with all; Spark's own source finds out what a query needs."""

    def ours(columns: str | None) -> Any:
        reader = streaming_source.read_stream(spark).format("aligned_files").option("eventTimeColumn", "ts")
        reader = reader.option("bounded", "true").option("maxOutOfOrderness", DELAY)
        return (reader.option("columns", columns) if columns else reader).load(str(data))

    def python(name: str, columns: str | None) -> Any:
        schema = "ts timestamp, key bigint" if columns else DDL[kind]
        reader = spark.readStream.format(name).option("schema", schema).option("rows", str(rows))
        reader = reader.option("columns", columns) if columns else reader
        return reader.load(str(data)).withWatermark("ts", DELAY)

    def sparks(columns: str | None) -> Any:
        reader = spark.readStream.schema(DDL[kind]).option("recursiveFileLookup", "true")
        return reader.parquet(str(data)).withWatermark("ts", DELAY)

    return {
        "ours": ours,
        "plainest": lambda columns: python("plainest", columns),
        "prebuilt batch": lambda columns: python("prebuilt", columns),
        "spark": sparks,
    }


class _Timed(TimestampAssigner):
    """Another assigner, and how long it took."""

    def __init__(self, assigner: TimestampAssigner) -> None:
        self._assigner = assigner
        self.seconds = 0.0

    def extract(self, batch: pa.RecordBatch, source_timestamps: npt.NDArray[np.int64] | None) -> EventTimes:
        began = time.thread_time()
        times = self._assigner.extract(batch, source_timestamps)
        self.seconds += time.thread_time() - began
        return times


def _share_of_event_times(data: Path) -> float:
    """Of what a worker does: it reads all there is, and sends it as Spark's workers do."""
    options = {"path": str(data), "eventTimeColumn": "ts", "bounded": "true"}
    source = AlignedDataSource.of_format("aligned_files", options)
    reader = source.stream_reader(source.schema())
    start = reader.initialOffset()
    partitions = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
    timed = _Timed(reader.shaper.assigner)
    reader.shaper = replace(reader.shaper, assigner=timed)
    began = time.process_time()
    for partition in partitions:
        batches = reader.read(partition)
        first = next(batches)
        with (
            subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as spark,
            pa.ipc.new_stream(spark.stdin, first.schema) as stream,
        ):
            for batch in (first, *batches):
                stream.write_batch(batch)
    return timed.seconds / (time.process_time() - began)


def _drained(make: Callable[[str | None], Any], folder: Path) -> Callable[[], float]:
    return lambda: drain(make(None), folder)


def _counted(make: Callable[[str | None], Any], columns: str | None, folder: Path) -> Callable[[], float]:
    from pyspark.sql import functions as F

    return lambda: drain(make(columns).groupBy(F.window("ts", "1 minute"), "key").count(), folder)
