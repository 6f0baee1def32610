"""How many rows a repair reads again, by format, the share of late records and the size of row groups."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog
from pyspark.sql.streaming.datasource import ReadAllAvailable

from alignment.event_time_range import Ranges, covering
from benchmarks.iceberg import properties
from benchmarks.report import Report
from streaming_source.coordinator.rules import EMITTED
from streaming_source.spark.datasource import AlignedDataSource

SPLITS, WINDOW_US, T0_US = 8, 600_000_000, 1_700_006_400_000_000
WINDOWS, QUICK_WINDOWS = 1440, 144
ROWS_OF_WINDOW = 2_400
SHARES = (0.0001, 0.01, 0.1)
COLUMNS = {"ts": pa.timestamp("us", "UTC"), "n": pa.int64()}
GROUPS = (300, 900, 3_000)
"""Rows of a row group: of one window of a split, of three, and of ten."""

Write = Callable[[str, int, pa.Table], None]
"""Writes a split's day, by its number."""


def run(report: Report, folder: Path, *, quick: bool) -> None:
    windows = QUICK_WINDOWS if quick else WINDOWS
    rows: list[list[str]] = []
    for name, layout in (("Parquet", _files), ("Delta", _delta), ("Iceberg", _iceberg)):
        for of_group in GROUPS:
            options, write = layout(folder / f"{name}-{of_group}", of_group)
            times = _write(write, windows)
            offset = _read_once(options)
            for share in SHARES:
                ranges, touched, of_touched = _touched(times, share)
                given, read, taken_s = _read_again(options, offset, ranges)
                assert read == of_touched, "a repair has the rows of the touched windows, and no others"
                ratio = given / of_touched
                case = f"{name}, {share:.2%} late, row groups of {of_group:,}"
                if of_group < GROUPS[-1]:
                    report.at_most(f"repair: rows read again to those of the windows, {case}", ratio, 3, "x")
                figures = [f"{touched:,}", f"{of_touched:,}", f"{given:,}", f"{ratio:.2f}", f"{taken_s:.2f} s"]
                rows.append([name, f"{of_group:,}", f"{share:.2%}", *figures])
    report.table(
        f"{windows * ROWS_OF_WINDOW:,} rows in {SPLITS} splits, {windows:,} windows of ten minutes; processor time",
        [
            "",
            "rows of a row group",
            "late",
            "touched windows",
            "their rows",
            "rows read again",
            "ratio",
            "plan and read",
        ],
        rows,
    )


def _files(root: Path, of_group: int) -> tuple[dict[str, str], Write]:
    def write(split: str, number: int, rows: pa.Table) -> None:
        (root / split).mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, root / split / f"{number:03}.parquet", row_group_size=of_group)

    return {"format": "aligned_files", "path": str(root)}, write


def _delta(root: Path, of_group: int) -> tuple[dict[str, str], Write]:
    written = deltalake.WriterProperties(max_row_group_size=of_group)

    def write(split: str, number: int, rows: pa.Table) -> None:
        deltalake.write_deltalake(str(root), rows, mode="append", writer_properties=written)

    return {"format": "aligned_delta", "path": str(root)}, write


def _iceberg(root: Path, of_group: int) -> tuple[dict[str, str], Write]:
    root.mkdir()
    catalog = load_catalog("default", **properties(root))
    catalog.create_namespace("db")
    limit = {"write.parquet.row-group-limit": str(of_group)}
    table = catalog.create_table("db.t", pa.schema(COLUMNS), properties=limit)
    given = {"table": "db.t", **{f"catalog.{name}": value for name, value in properties(root).items()}}
    return {"format": "aligned_iceberg", **given}, lambda split, number, rows: table.append(rows)


def _write(write: Write, windows: int) -> Any:
    """Write a file a day and split; return the event times, `int64[rows]`."""
    rows = windows * ROWS_OF_WINDOW // SPLITS
    us = T0_US + np.linspace(0, windows * WINDOW_US, rows, endpoint=False).astype(np.int64)
    of_file = max(min(rows, 144 * ROWS_OF_WINDOW // SPLITS), 1)
    for split in range(SPLITS):
        for number, first in enumerate(range(0, rows, of_file)):
            some = us[first : first + of_file] + split
            columns = [pa.array(some, COLUMNS["ts"]), pa.array(np.arange(some.size), COLUMNS["n"])]
            write(f"s{split}", number, pa.table(columns, schema=pa.schema(COLUMNS)))
    return np.concatenate([us + split for split in range(SPLITS)])


def _source(options: dict[str, str], **others: str) -> AlignedDataSource:
    given = {"eventTimeColumn": "ts", "numReaders": "2", **options, **others}
    return AlignedDataSource.of_format(given.pop("format"), given)


def _read_once(options: dict[str, str]) -> dict[str, Any]:
    """The offset of a query that has read all there is."""
    source = _source(options, watermarkRows=EMITTED)
    reader = source.stream_reader(source.schema())
    reader.prepareForTriggerAvailableNow()
    offset = reader.initialOffset()
    while (end := reader.latestOffset(offset, ReadAllAvailable())) != offset:
        offset = end
    reader.stop()
    return offset


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
    source = _source(options, repairRead=repair)
    reader = source.batch_reader(source.schema())
    tasks = reader.partitions()
    read = sum(batch.num_rows for task in tasks for batch in reader.read(task))
    taken_s = time.process_time() - begun_s
    splits: list[Any] = [split for task in tasks for split in task.splits]
    return sum(part.stop - part.start for split in splits for part in split.ranges), read, taken_s
