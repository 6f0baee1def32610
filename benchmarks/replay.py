"""A backlog of splits of unlike density: what alignment leaves of the state, beside the same query without it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import streaming_source
from benchmarks.on_spark import session
from benchmarks.report import Report, in_turn, median_ratio, spread

SPLITS = 8
SPAN_S = 4 * 3600
START_US = 1_700_000_000_000_000
DISORDER_US = 2_000_000


def run(report: Report, folder: Path, *, quick: bool) -> None:
    rows, rounds = (2_000_000, 3) if quick else (16_000_000, 5)
    data = folder / "backlog"
    _write(data, rows)
    spark = session()
    most_state: dict[str, list[int]] = {"aligned": [], "unaligned": []}
    results: dict[str, set[tuple[Any, ...]]] = {}
    options = {"unaligned": {"indexing": "off"}, "aligned": {"maxDrift": "1 minute"}}

    def replay(name: str) -> Callable[[], float]:
        def once() -> float:
            seconds, state_rows, results[name] = _count(spark, data, folder, rows // 16, options[name])
            most_state[name].append(state_rows)
            return seconds

        return once

    seconds = in_turn({name: replay(name) for name in options}, rounds)
    if results["aligned"] != results["unaligned"]:
        raise RuntimeError("the two replays gave different windows")
    lines = [[name, f"{max(most_state[name]):,}", spread(seconds[name])] for name in options]
    report.table(
        f"Replay of {rows:,} rows, {SPLITS} splits of unlike density", ["", "most state rows", "seconds"], lines
    )
    state = statistics.median(most_state["aligned"]) / statistics.median(most_state["unaligned"])
    report.at_most("replay: state rows, aligned against unaligned", state, 0.3)
    report.at_most(
        "replay: time, aligned against unaligned", median_ratio(seconds["aligned"], seconds["unaligned"]), 1.1
    )
    spark.stop()


def _count(
    spark: Any, data: Path, folder: Path, max_rows: int, options: dict[str, str]
) -> tuple[float, int, set[tuple[Any, ...]]]:
    """Seconds of all triggers, the most rows that were in state, and the windows."""
    from pyspark.sql import functions as F

    reader = streaming_source.read_stream(spark).format("aligned_files").option("eventTimeColumn", "ts")
    reader = reader.options(bounded="true", maxOutOfOrderness="2 seconds", maxRowsPerTrigger=str(max_rows), **options)
    windows = reader.load(str(data)).groupBy(F.window("ts", "1 minute"), "key").count()
    writer = windows.writeStream.format("memory").queryName("replayed").trigger(availableNow=True)
    query = writer.start()
    query.awaitTermination()
    progress = [json.loads(each.json) for each in query.recentProgress]
    seconds = sum(each["durationMs"]["triggerExecution"] for each in progress) / 1e3
    state_rows = max(each["stateOperators"][0]["numRowsTotal"] for each in progress)
    found = {(row["window"]["start"], row["key"], row["count"]) for row in spark.table("replayed").collect()}
    return seconds, state_rows, found


def _write(folder: Path, rows: int) -> None:
    """All splits cover the same hours; the densest has 16 times as many records as the thinnest."""
    rng = np.random.default_rng(7)
    shares = np.geomspace(1, 16, SPLITS)
    for split, share in enumerate(shares / shares.sum()):
        (folder / f"split-{split}").mkdir(parents=True)
        count = int(rows * share)
        times = START_US + np.linspace(0, SPAN_S * 1e6, count).astype(np.int64) + rng.integers(0, DISORDER_US, count)
        columns = {"ts": pa.array(times, pa.timestamp("us", "UTC")), "key": pa.array(rng.integers(0, 100, count))}
        pq.write_table(pa.table(columns), folder / f"split-{split}" / "part-0.parquet", row_group_size=50_000)
