"""An Iceberg table of a million files: as of the Delta table, beside pyiceberg's own `plan_files`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from alignment.timestamps import FieldTimestampAssigner
from benchmarks.report import Report
from benchmarks.tables import WRITTEN, peak_mib, report_plans, times_of
from benchmarks.tables import measure_plans as plans_of
from streaming_source.connectors.iceberg import IcebergSource
from streaming_source.connectors.iceberg.catalog import properties_of

FILES, QUICK_FILES = 1_000_000, 40_000
A_COMMIT: Final = 20_000


def run(report: Report, folder: Path, *, quick: bool) -> None:
    files = QUICK_FILES if quick else FILES
    write_table(folder, files)
    title = f"An Iceberg table of {files:,} files in {-(-files // A_COMMIT)} manifests"
    report_plans(report, "iceberg", title, _run("measure_plans", folder))
    found = {who: json.loads(_run(f"measure_{who}", folder).splitlines()[-1]) for who in ("ours", "theirs")}
    assert {of["files"] for of in found.values()} == {files}
    report.table(
        "All of its files listed",
        ["who", "time", "processor", "memory grown"],
        [
            [name, f"{of['taken_s']:.1f} s", f"{of['processor_s']:.1f} s", f"{of['rss_mib']:.0f} MiB"]
            for name, of in (("aligned_iceberg", found["ours"]), ("plan_files", found["theirs"]))
        ],
    )
    ours, theirs = (found[who]["rss_mib"] for who in ("ours", "theirs"))
    report.at_most("iceberg: memory beside plan_files", ours / theirs, 1)


def _run(function: str, folder: Path) -> str:
    code = f"from pathlib import Path; from benchmarks import iceberg; iceberg.{function}(Path({str(folder)!r}))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def properties(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


def open_catalog(folder: Path) -> Catalog:
    return load_catalog("benchmarks", **properties(folder))


def write_table(folder: Path, files: int) -> None:
    """Write the metadata of so many files, and the first files by event time."""
    catalog = open_catalog(folder)
    catalog.create_namespace("db")
    schema = pa.schema([("ts", pa.timestamp("us", "UTC"))])
    table = catalog.create_table("db.t", schema)
    (folder / "warehouse/db/t/data").mkdir(parents=True, exist_ok=True)
    order = np.random.default_rng(7).permutation(files)
    for first in range(0, files, A_COMMIT):
        transaction = table.transaction()
        producer = transaction.update_snapshot().fast_append()
        for number in order[first : first + A_COMMIT].tolist():
            producer.append_data_file(_data_file(table, number))
        producer.commit()
        transaction.commit_transaction()


def _data_file(table: Table, number: int) -> DataFile:
    path = f"{table.location()}/data/00000-0-{number:032x}-00001.parquet"
    times = times_of(number)
    if number < WRITTEN:
        rows = pa.table([pa.array(times, pa.timestamp("us", "UTC"))], names=["ts"])
        pq.write_table(rows.cast(schema_to_pyarrow(table.schema())), path.removeprefix("file://"))
    low, high = ({1: int(at).to_bytes(8, "little")} for at in (times[0], times[-1]))
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=len(times),
        file_size_in_bytes=1_000,
        column_sizes={1: 100},
        value_counts={1: len(times)},
        null_value_counts={1: 0},
        nan_value_counts={},
        lower_bounds=low,
        upper_bounds=high,
    )
    file.spec_id = 0
    return file


def _source(folder: Path) -> IcebergSource:
    return IcebergSource("db.t", catalog=properties_of({"name": "benchmarks", **properties(folder)}))


def measure_plans(folder: Path) -> None:
    """Measure a source over the table."""
    plans_of(_source(folder))


def measure_ours(folder: Path) -> None:
    """List all files once, and print what it took as JSON."""
    source = _source(folder)
    lister = source.open_lister(source.schema(), FieldTimestampAssigner("ts"))
    _measure(lambda: lister.snapshot(lister.start().version).num_rows)


def measure_theirs(folder: Path) -> None:
    """Do so by `plan_files`."""
    table = open_catalog(folder).load_table("db.t")
    _measure(lambda: len(list(table.scan().plan_files())))


def _measure(count_files: Callable[[], int]) -> None:
    before_mib, began, processor = peak_mib(), time.perf_counter(), time.process_time()
    files = count_files()
    taken = {"taken_s": time.perf_counter() - began, "processor_s": time.process_time() - processor}
    print(json.dumps({"files": files, **taken, "rss_mib": peak_mib() - before_mib}))
