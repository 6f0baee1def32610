"""A batch read of one hour of a day of files: what is opened and read, and the processor time of plan and read."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from benchmarks.report import Report
from streaming_source.spark.datasource import AlignedDataSource

HOURS, ROWS, QUICK_ROWS = 24, 400_000, 50_000
T0_S = 1_700_006_400  # 2023-11-15 00:00:00 UTC
HOUR = {"eventTimeFrom": "2023-11-15T09:00:00Z", "eventTimeUntil": "2023-11-15T10:00:00Z"}
FORMATS: dict[str, dict[str, str]] = {
    "parquet": {"fileFormat": "parquet"},
    "csv": {"fileFormat": "csv", "header": "true", "dataSchema": "ts timestamp, n bigint, text string"},
}


def run(report: Report, folder: Path, *, quick: bool) -> None:
    rows_of_file = QUICK_ROWS if quick else ROWS
    rows: list[list[str]] = []
    for name, options in FORMATS.items():
        root = folder / f"hours-{name}"
        _write(root, name, rows_of_file)
        taken = {chosen: _measure(root, {**options, **bounds}) for chosen, bounds in (("all", {}), ("one hour", HOUR))}
        for chosen, (opened, read, found, plan_s, read_s) in taken.items():
            rows.append([name, chosen, str(opened), f"{read:,}", f"{found:,}", f"{plan_s:.2f} s", f"{read_s:.2f} s"])
    report.table(
        f"{HOURS} files of {rows_of_file:,} rows, an hour each; processor time",
        ["format", "chosen", "files read", "rows read", "rows in the frame", "plan", "read"],
        rows,
    )


def _write(root: Path, name: str, rows: int) -> None:
    root.mkdir()
    for hour in range(HOURS):
        us = (T0_S + hour * 3600) * 1_000_000 + np.linspace(0, 3600 * 1_000_000, rows, endpoint=False).astype(np.int64)
        columns = {"ts": pa.array(us, pa.timestamp("us", "UTC")), "n": np.arange(rows), "text": ["some text"] * rows}
        table, path = pa.table(columns), root / f"hour-{hour:02}.{name}"
        if name == "parquet":
            pa.parquet.write_table(table, path, row_group_size=rows // 4)
        else:
            pa.csv.write_csv(table, path)


def _measure(root: Path, options: dict[str, str]) -> tuple[int, int, int, float, float]:
    """Files and rows that readers are given, rows that come of it, seconds of the plan and of the read."""
    given = {"path": str(root), "eventTimeColumn": "ts", "splitBy": "file", "numReaders": "2", **options}
    source = AlignedDataSource.of_format("aligned_files", given)
    reader = source.batch_reader(source.schema())
    begun_s = time.process_time()
    tasks = reader.partitions()
    planned_s = time.process_time()
    found = sum(batch.num_rows for task in tasks for batch in reader.read(task))
    read_s = time.process_time()
    splits: list[Any] = [split for task in tasks for split in task.splits]
    parts = [part for split in splits for part in split.ranges]
    opened = len({part.file.path for part in parts})
    return opened, sum(part.stop - part.start for part in parts), found, planned_s - begun_s, read_s - planned_s
