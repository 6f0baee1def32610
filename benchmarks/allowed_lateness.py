"""Late records beside Flink: windows that are kept for half an hour, or repaired from the source."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyarrow import csv

import streaming_source
from benchmarks import flink
from benchmarks.data import DDL, SPLITS, START_US, narrow
from benchmarks.on_spark import session
from benchmarks.report import Report

DISORDER_MS, LATE_MS, LATE = 2_000, 30 * 60_000, 0.01
"""The bound; how far behind late records are at most, and their share."""

WITHOUT, WITH = "ours, late=drop", "ours, late=route and repair"

Found = tuple[float, flink.Windows, int]
"""Seconds, the windows in the end, and how many were in state at most."""


def run(report: Report, folder: Path, *, quick: bool) -> None:
    rows = 200_000 if quick else 2_000_000
    data = folder / "late"
    expected = _write(data, rows)
    lines: list[list[str]] = []
    wrong, in_state = dict[str, int](), dict[str, int]()
    with ExitStack() as stack:
        spark = session()
        jobs = _on_flink(stack, folder) | {WITHOUT: _ours(spark, folder, repairs=False)}
        jobs[WITH] = _ours(spark, folder, repairs=True)
        for name, job in jobs.items():
            for _ in range(2):
                # The first round does not count.
                seconds, windows, in_state[name] = job(data)
            wrong[name] = len(expected) - int(np.isin(_coded(windows), _coded(expected)).sum())
            lines.append([name, f"{wrong[name]:,} of {len(expected):,}", f"{in_state[name]:,}", f"{seconds:.1f} s"])
        spark.stop()
    report.at_most("allowed_lateness: wrong windows after the repair", wrong[WITH], 0)
    kept = in_state[WITH] / in_state[WITHOUT]
    report.at_most("allowed_lateness: state of the query that is repaired to that of one that is not", kept, 1, "x")
    report.table(
        f"{rows:,} rows, {LATE:.0%} of them up to {LATE_MS // 60_000} minutes behind, in {SPLITS} directories of CSV; "
        f"one-minute count by key; Flink {flink.VERSION}",
        ["", "wrong windows in the end", "windows in state at most", "seconds, start of the job included"],
        lines,
    )


def _coded(windows: flink.Windows) -> Any:
    return np.ascontiguousarray(windows).view([("", windows.dtype)] * 3).ravel()


def _write(root: Path, rows: int) -> flink.Windows:
    found = []
    for split in range(SPLITS):
        rng, n = np.random.default_rng([7, split]), rows // SPLITS
        ms = START_US // 1000 + np.linspace(LATE_MS, LATE_MS + flink.SPAN_MS, n).astype(np.int64)
        ms -= np.where(rng.random(n) < LATE, rng.integers(0, LATE_MS, n), rng.integers(0, DISORDER_MS, n))
        table = narrow(n, rng).set_column(0, "ts", pa.array(ms, pa.timestamp("ms")))
        (root / f"split-{split}").mkdir(parents=True)
        csv.write_csv(table, root / f"split-{split}/part.csv", csv.WriteOptions(include_header=False))
        found.append(table)
    return flink.counted(pa.concat_tables(found))


def _on_flink(stack: ExitStack, folder: Path) -> dict[str, Callable[[Path], Found]]:
    runner = flink.own_runner(stack, folder)
    if runner is None:
        return {}

    def job(lateness_ms: int) -> Callable[[Path], Found]:
        def count(data: Path) -> Found:
            output = folder / uuid4().hex
            words = (f"count:{lateness_ms}", "directories", str(flink.PARALLELISM), str(DISORDER_MS), "-1", "0")
            seconds, most_open, *_ = flink.ask(runner, *words, str(output), str(data))
            return float(seconds), _last(flink.written_windows(output)), int(most_open)

        return count

    return {"Flink": job(0), "Flink, allowedLateness of 30 minutes": job(LATE_MS)}


def _last(windows: flink.Windows) -> flink.Windows:
    """The last result of each window, which has the largest count; they are sorted by start and key."""
    ordered = windows[np.lexsort((windows[:, 2], windows[:, 1], windows[:, 0]))]
    is_last = np.append((ordered[1:, :2] != ordered[:-1, :2]).any(axis=1), True)
    return ordered[is_last]


def _ours(spark: Any, folder: Path, *, repairs: bool) -> Callable[[Path], Found]:
    from pyspark.sql import functions as F

    def by_minute(frame: Any) -> Any:
        return frame.groupBy(F.window("ts", "1 minute"), "key").count()

    def job(data: Path) -> Found:
        root, target = folder / uuid4().hex, dict[tuple[int, int], int]()

        def put(windows: Any, _: object) -> None:
            found = windows.select(F.unix_millis("window.start"), "key", "count").toArrow()
            starts, keys, counts = (column.to_pylist() for column in found.columns)
            target.update(zip(zip(starts, keys, strict=True), counts, strict=True))

        reader = streaming_source.read_stream(spark).format("aligned_files").schema(DDL["narrow"])
        reader = reader.options(fileFormat="csv", eventTimeColumn="ts", maxOutOfOrderness="2 seconds", bounded="true")
        reader = reader.options(columns="ts,key", lateness="bounded", maxRowsPerTrigger=50_000)
        late = {"late": "route", "lateLocation": str(root / "late")} if repairs else {"late": "drop"}
        frame = reader.options(**late).load(str(data))
        began = time.perf_counter()
        writer = by_minute(frame).writeStream.foreachBatch(put).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(root / "query")).start()
        query.awaitTermination()
        if repairs:
            again = streaming_source.repair(frame, str(root / "query"), by_minute, put, window="1 minute", keys=["key"])
            again.option("checkpointLocation", str(root / "repairs")).trigger(
                availableNow=True
            ).start().awaitTermination()
        seconds = time.perf_counter() - began
        in_state = max(p["stateOperators"][0]["numRowsTotal"] for p in query.recentProgress if p["stateOperators"])
        rows = [(start, key, count) for (start, key), count in sorted(target.items())]
        return seconds, np.array(rows, np.int64), int(in_state)

    return job
