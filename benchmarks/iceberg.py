"""Listing the files of an Iceberg table of half a million, beside pyiceberg's own `plan_files`: time and memory."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from alignment.timestamps import FieldTimestampAssigner
from benchmarks.report import Report
from streaming_source.connectors.iceberg import IcebergSource
from streaming_source.connectors.iceberg.catalog import properties_of

FILES, QUICK_FILES = 500_000, 40_000
A_COMMIT: Final = 20_000
SECOND: Final = 1_000_000


def run(report: Report, folder: Path, *, quick: bool) -> None:
    files = QUICK_FILES if quick else FILES
    write_table(folder, files)
    found = {}
    for who in ("ours", "theirs"):
        code = f"from benchmarks.iceberg import measure; measure({str(folder)!r}, {who!r})"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        found[who] = json.loads(done.splitlines()[-1])
        assert found[who]["files"] == files
    report.table(
        f"An Iceberg table of {files:,} files in {-(-files // A_COMMIT)} manifests",
        ["who", "all files listed", "processor", "memory grown"],
        [
            [name, f"{of['taken_s']:.1f} s", f"{of['processor_s']:.1f} s", f"{of['rss_mib']:.0f} MiB"]
            for name, of in (("aligned_iceberg", found["ours"]), ("plan_files", found["theirs"]))
        ],
    )
    ours, theirs = (found[who]["rss_mib"] for who in ("ours", "theirs"))
    report.at_most("iceberg: memory beside plan_files", ours / theirs, 1)


def properties(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


def open_catalog(folder: Path) -> Catalog:
    return load_catalog("benchmarks", **properties(folder))


def write_table(folder: Path, files: int) -> None:
    """Write the metadata of so many files, which are not there themselves."""
    catalog = open_catalog(folder)
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", pa.schema([("ts", pa.timestamp("us", "UTC"))]))
    order = np.random.default_rng(7).permutation(files)
    for first in range(0, files, A_COMMIT):
        transaction = table.transaction()
        producer = transaction.update_snapshot().fast_append()
        for number in order[first : first + A_COMMIT].tolist():
            producer.append_data_file(_data_file(table, number))
        producer.commit()
        transaction.commit_transaction()


def _data_file(table: Table, number: int) -> DataFile:
    times = (10 * number * SECOND, (10 * number + 1000) * SECOND)
    low, high = ({1: at.to_bytes(8, "little")} for at in times)
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{table.location()}/data/00000-0-{number:032x}-00001.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=11,
        file_size_in_bytes=1_000,
        column_sizes={1: 100},
        value_counts={1: 11},
        null_value_counts={1: 0},
        nan_value_counts={},
        lower_bounds=low,
        upper_bounds=high,
    )
    file.spec_id = 0
    return file


def measure(folder: str, who: str) -> None:
    """List all files once, and print what it took as JSON."""
    table = open_catalog(Path(folder)).load_table("db.t")
    before_mib, began, processor = _rss_mib(), time.perf_counter(), time.process_time()
    if who == "ours":
        source = IcebergSource("db.t", catalog=properties_of({"name": "benchmarks", **properties(Path(folder))}))
        lister = source.open_lister(source.schema(), FieldTimestampAssigner("ts"))
        files = lister.snapshot(lister.begin().version).num_rows
    else:
        files = len(list(table.scan().plan_files()))
    taken = {"taken_s": time.perf_counter() - began, "processor_s": time.process_time() - processor}
    print(json.dumps({"files": files, **taken, "rss_mib": _rss_mib() - before_mib}))


def _rss_mib() -> float:
    """Return the peak of this program: that of `getrusage` is inherited from what started it."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024
