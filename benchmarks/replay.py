"""A backlog of splits of unlike density: what alignment leaves of the state, beside Spark's own source."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import streaming_source
from benchmarks.on_spark import session
from benchmarks.report import Report, in_turn, median_ratio, spread

SPLITS, BATCHES = 8, 16
SPAN_S = 4 * 3600
START_US = 1_700_000_000_000_000
DISORDER_US = 2_000_000
DDL = "ts timestamp, key bigint"


def run(report: Report, folder: Path, *, quick: bool) -> None:
    rows, rounds = (2_000_000, 3) if quick else (16_000_000, 5)
    data = folder / "backlog"
    files = _write(data, rows)
    spark = session()
    most_state: dict[str, list[int]] = {"aligned": [], "unaligned": []}
    results: dict[str, dict[tuple[Any, ...], int]] = {}

    def aligned() -> Any:
        reader = streaming_source.read_stream(spark).format("aligned_files").option("eventTimeColumn", "ts")
        reader = reader.options(bounded="true", maxOutOfOrderness="2 seconds", maxDrift="1 minute")
        return reader.option("maxRowsPerTrigger", str(rows // BATCHES)).load(str(data))

    def unaligned() -> Any:
        reader = spark.readStream.schema(DDL).option("maxFilesPerTrigger", str(files // BATCHES))
        # With a smaller delay it would drop records.
        return reader.parquet(f"{data}/*").withWatermark("ts", f"{SPAN_S} seconds")

    def replay(name: str, frame: Callable[[], Any]) -> Callable[[], float]:
        def once() -> float:
            seconds, state_rows, results[name] = _count(frame(), folder)
            most_state[name].append(state_rows)
            return seconds

        return once

    replays = {"aligned": replay("aligned", aligned), "unaligned": replay("unaligned", unaligned)}
    seconds = in_turn(replays, rounds)
    if results["aligned"] != results["unaligned"]:
        raise RuntimeError("the two replays gave different windows")
    lines = [[name, f"{max(most_state[name]):,}", spread(seconds[name])] for name in replays]
    title = f"Replay of {rows:,} rows, {SPLITS} splits of unlike density"
    report.table(title, ["", "most state rows", "seconds"], lines)
    state = statistics.median(most_state["aligned"]) / statistics.median(most_state["unaligned"])
    report.at_most("replay: state rows, aligned against Spark's own source", state, 0.3)
    slower = median_ratio(seconds["aligned"], seconds["unaligned"])
    report.at_most("replay: time, aligned against Spark's own source", slower, 1.1)
    spark.stop()


def _count(frame: Any, folder: Path) -> tuple[float, int, dict[tuple[Any, ...], int]]:
    """Seconds of all triggers, the most rows that were in state, and the count of each window when it was last said."""
    from pyspark.sql import functions as F

    found: dict[tuple[Any, ...], int] = {}

    def keep(windows: Any, _: int) -> None:
        rows = windows.select("window.start", "key", "count").toArrow().to_pylist()
        found.update({(row["start"], row["key"]): row["count"] for row in rows})

    windows = frame.groupBy(F.window("ts", "1 minute"), "key").count()
    writer = windows.writeStream.outputMode("update").foreachBatch(keep).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(folder / uuid4().hex)).start()
    query.awaitTermination()
    progress = [json.loads(each.json) for each in query.recentProgress]
    seconds = sum(each["durationMs"]["triggerExecution"] for each in progress if each["numInputRows"]) / 1e3
    return seconds, max(each["stateOperators"][0]["numRowsTotal"] for each in progress), found


def _write(folder: Path, rows: int) -> int:
    """How many files: all splits cover the same hours; the densest has 16 times as many records as the thinnest.

    Files have as many rows each and are written in turn, so a thin split is through its hours first.
    """
    rng = np.random.default_rng(7)
    shares = np.geomspace(1, 16, SPLITS)
    size = rows // 160
    number = 0
    for split, share in enumerate(shares / shares.sum()):
        (folder / f"split-{split}").mkdir(parents=True)
        count = int(rows * share)
        times = START_US + np.linspace(0, SPAN_S * 1e6, count).astype(np.int64) + rng.integers(0, DISORDER_US, count)
        columns = {"ts": pa.array(times, pa.timestamp("us", "UTC")), "key": pa.array(rng.integers(0, 100, count))}
        whole = pa.table(columns)
        for part, begin in enumerate(range(0, count, size)):
            path = folder / f"split-{split}" / f"part-{part:03d}.parquet"
            pq.write_table(whole.slice(begin, size), path)
            os.utime(path, (START_US // 1_000_000 + part, START_US // 1_000_000 + part))
            number += 1
    return number
