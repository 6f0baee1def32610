"""Memory of the process that reads: a large Parquet file, and a large row group, beyond that of an empty worker."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import streaming_source
from benchmarks import peers
from benchmarks.on_spark import drain, session
from benchmarks.report import Report

ROW_BYTES = 32
MOST_MIB = 256


def run(report: Report, folder: Path, *, quick: bool) -> None:
    mib = {"a file of 1 GiB": (1024, 128), "a row group of 512 MiB": (512, 512)}
    empty = _largest_worker("empty", folder, folder)
    lines = []
    for name, (size, group) in mib.items():
        data = folder / f"memory-{group}"
        _write(data, size, group)
        beyond = _largest_worker("ours", data, folder) - empty
        lines.append([name, f"{beyond:.0f} MiB"])
        report.at_most(f"memory of a reader: {name}", beyond, MOST_MIB, " MiB")
    report.table(f"Memory beyond an empty worker ({empty:.0f} MiB)", ["what is read", "largest"], lines)


def measure(name: str, data: str, folder: str) -> None:
    """Read it on Spark, and print the largest memory that a Python worker ever had, in MiB."""
    spark = session()
    peers.register(spark)
    drain(_frame(spark, name, data), Path(folder))
    print(json.dumps(max(_worker_peaks_mib())))
    spark.stop()


def _frame(spark: Any, name: str, data: str) -> Any:
    if name == "empty":
        return spark.readStream.format("empty").load()
    reader = streaming_source.read_stream(spark).format("aligned_files").option("eventTimeColumn", "ts")
    return reader.options(bounded="true", maxOutOfOrderness="5 seconds").load(data)


def _largest_worker(name: str, data: Path, folder: Path) -> float:
    code = f"from benchmarks.memory import measure; measure({name!r}, {str(data)!r}, {str(folder)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def _worker_peaks_mib() -> list[float]:
    """Peak resident memory of each of Spark's Python workers that are still there: they are kept for the next task."""
    peaks = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            status = (process / "status").read_text()
        except OSError:
            continue
        if b"pyspark.daemon" in command:
            line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
            peaks.append(int(line.split()[1]) / 1024)
    return peaks


def _write(folder: Path, mib: int, group_mib: int) -> None:
    rows, group = (size * 1024 * 1024 // ROW_BYTES for size in (mib, group_mib))
    (folder / "split-0").mkdir(parents=True)
    rng = np.random.default_rng(7)
    schema = pa.schema(
        [("ts", pa.timestamp("us", "UTC")), ("key", pa.int64()), ("value", pa.float64()), ("n", pa.int64())]
    )
    with pq.ParquetWriter(folder / "split-0" / "part-0.parquet", schema) as writer:
        for begin in range(0, rows, group):
            columns = [
                pa.array(1_700_000_000_000_000 + np.arange(begin, begin + group), pa.timestamp("us", "UTC")),
                pa.array(rng.integers(0, 1 << 62, group)),
                pa.array(rng.random(group)),
                pa.array(rng.integers(0, 1 << 62, group)),
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=group)
