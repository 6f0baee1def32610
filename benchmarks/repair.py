"""How many rows a repair reads again, by the share of late records and by the size of row groups."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.streaming.datasource import ReadAllAvailable

from alignment.touched_ranges import Ranges, covering
from benchmarks.report import Report
from streaming_source.spark.datasource import AlignedDataSource
from streaming_source.spark.watermark_rows import EMITTED

SPLITS, WINDOW_US, T0_US = 8, 600_000_000, 1_700_006_400_000_000
WINDOWS, QUICK_WINDOWS = 1440, 144
ROWS_OF_WINDOW = 2_400
SHARES = (0.0001, 0.01, 0.1)
GROUPS = (300, 3_000)
"""Rows of a row group: of one window of a split, and of ten."""


def run(report: Report, folder: Path, *, quick: bool) -> None:
    windows = QUICK_WINDOWS if quick else WINDOWS
    rows: list[list[str]] = []
    for of_group in GROUPS:
        root = folder / f"groups-{of_group}"
        times = _write(root, windows, of_group)
        source, offset = _read_once(root)
        for share in SHARES:
            ranges, touched, of_touched = _touched(times, share)
            given, read, taken_s = _read_again(source, offset, ranges)
            assert read == of_touched, "a repair has the rows of the touched windows, and no others"
            ratio = given / of_touched
            name = f"{share:.2%} late, row groups of {of_group:,}"
            if of_group == GROUPS[0]:
                report.at_most(f"repair: rows read again to those of the windows, {name}", ratio, 3, "x")
            figures = [
                f"{touched:,} of {windows:,}",
                f"{of_touched:,}",
                f"{given:,}",
                f"{ratio:.2f}",
                f"{taken_s:.2f} s",
            ]
            rows.append([f"{of_group:,}", f"{share:.2%}", *figures])
    report.table(
        f"{windows * ROWS_OF_WINDOW:,} rows in {SPLITS} splits, windows of ten minutes; processor time",
        ["rows of a row group", "late", "touched windows", "their rows", "rows read again", "ratio", "plan and read"],
        rows,
    )


def _write(root: Path, windows: int, of_group: int) -> Any:
    """Write a file a day and split; return the event times, `int64[rows]`."""
    rows = windows * ROWS_OF_WINDOW // SPLITS
    us = T0_US + np.linspace(0, windows * WINDOW_US, rows, endpoint=False).astype(np.int64)
    of_file = max(min(rows, 144 * ROWS_OF_WINDOW // SPLITS), 1)
    for split in range(SPLITS):
        (root / f"s{split}").mkdir(parents=True)
        for number, first in enumerate(range(0, rows, of_file)):
            some = us[first : first + of_file] + split
            table = pa.table({"ts": pa.array(some, pa.timestamp("us", "UTC")), "n": np.arange(some.size)})
            pq.write_table(table, root / f"s{split}/{number:03}.parquet", row_group_size=of_group)
    return np.concatenate([us + split for split in range(SPLITS)])


def _read_once(root: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """Options, and the offset of a query that has read all there is."""
    options = {"path": str(root), "eventTimeColumn": "ts", "numReaders": "2"}
    source = AlignedDataSource.of_format("aligned_files", {**options, "watermarkRows": EMITTED})
    reader = source.stream_reader(source.schema())
    reader.prepareForTriggerAvailableNow()
    offset = reader.initialOffset()
    while (end := reader.latestOffset(offset, ReadAllAvailable())) != offset:
        offset = end
    reader.stop()
    return options, offset


def _touched(times: Any, share: float) -> tuple[Ranges, int, int]:
    """The ranges of the windows that a share of the records touches, how many these are, and the rows in them."""
    chance = np.random.default_rng(7)
    late = chance.choice(times, max(int(times.size * share), 1), replace=False)
    starts = np.unique(late // WINDOW_US * WINDOW_US)
    return covering(starts, starts + WINDOW_US), starts.size, int(np.isin(times // WINDOW_US * WINDOW_US, starts).sum())


def _read_again(options: dict[str, str], offset: dict[str, Any], ranges: Ranges) -> tuple[int, int, float]:
    """Rows that readers are given, rows that come of it, and processor time."""
    begun_s = time.process_time()
    repair = json.dumps({"ranges": ranges, "offset": offset})
    source = AlignedDataSource.of_format("aligned_files", {**options, "repairRead": repair})
    reader = source.batch_reader(source.schema())
    tasks = reader.partitions()
    read = sum(batch.num_rows for task in tasks for batch in reader.read(task))
    taken_s = time.process_time() - begun_s
    splits: list[Any] = [split for task in tasks for split in task.splits]
    return sum(part.stop - part.start for split in splits for part in split.ranges), read, taken_s
