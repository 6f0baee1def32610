"""A Delta table z-ordered by another column, whose files each span all of its time, beside the sorted one: state."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa

from benchmarks.on_spark import session
from benchmarks.report import Report

ROWS, QUICK_ROWS = 5_000_000, 500_000
FILES, KEYS, MICRO_BATCHES = 40, 100, 10
START_US, EVERY_US = 1_700_000_000_000_000, 100_000
"""A row every tenth of a second: six hundred in each window."""

FILE_BYTES = 2_000_000


def run(report: Report, folder: Path, *, quick: bool) -> None:
    rows = QUICK_ROWS if quick else ROWS
    for name in ("sorted", "z-ordered"):
        write_table(folder / name, rows)
    deltalake.DeltaTable(str(folder / "z-ordered")).optimize.z_order(["key"], target_size=FILE_BYTES * rows // ROWS)
    spark = session()
    lines = [measured(spark, folder / name, rows) for name in ("sorted", "z-ordered")]
    spark.stop()
    report.table(
        f"{rows:,} rows, counted by minute and one of {KEYS} keys, {MICRO_BATCHES} micro-batches",
        ["table", "files", "rows counted", "rows of state, at most", "micro-batches", "seconds"],
        lines,
    )


def write_table(path: Path, rows: int) -> None:
    """Write a table in the order of event time."""
    keys = np.random.default_rng(7).integers(0, KEYS, rows)
    times = START_US + np.arange(rows) * EVERY_US
    for part in np.array_split(np.arange(rows), FILES):
        table = pa.table({"ts": pa.array(times[part], pa.timestamp("us", "UTC")), "key": keys[part]})
        deltalake.write_deltalake(str(path), table, mode="append")


def measured(spark: Any, path: Path, rows: int) -> list[str]:
    from pyspark.sql import functions as F

    from streaming_source import read_stream

    reader = read_stream(spark).format("aligned_delta").option("eventTimeColumn", "ts").option("bounded", True)
    frame = reader.option("maxRowsPerTrigger", rows // MICRO_BATCHES).load(str(path))
    counts = frame.groupBy(F.window("ts", "1 minute"), "key").count()
    writer = counts.writeStream.format("parquet").option("path", f"{path}-counts")
    began = time.perf_counter()
    query = writer.option("checkpointLocation", f"{path}-checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
    taken = time.perf_counter() - began
    progress = [json.loads(each.json) for each in query.recentProgress]
    state = max(each["numRowsTotal"] for one in progress for each in one["stateOperators"])
    files = len(deltalake.DeltaTable(str(path)).file_uris())
    counted = spark.read.parquet(f"{path}-counts").agg(F.sum("count")).head()[0]
    return [path.name, str(files), f"{counted:,}", f"{state:,}", str(len(progress)), f"{taken:.1f}"]
