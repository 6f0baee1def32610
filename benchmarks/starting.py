"""The first row of a query: in a session that has run some, and in a fresh process, beyond an empty Python source.

Beside it the empty source with a watermark and a filter, which every query by event time has: a fresh session takes
time for the first of each.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import streaming_source
from benchmarks import peers
from benchmarks.on_spark import drain, session
from benchmarks.report import Report, in_turn, spread

CONTESTANTS = ("ours", "empty", "empty, with a watermark")


def run(report: Report, folder: Path, *, quick: bool) -> None:
    rounds = 5 if quick else 9
    data = folder / "one-row"
    write(data)
    fresh = in_turn({name: lambda name=name: _in_fresh_process(name, data) for name in CONTESTANTS}, rounds - 2)
    spark = session()
    peers.register(spark)
    # What matters is by the clock, with all that comes before and after the triggers.
    warm = in_turn({name: lambda name=name: first_row(spark, name, data, folder) for name in CONTESTANTS}, rounds)
    spark.stop()
    lines = []
    for kind, seconds, most_s in (("warm session", warm, 0.2), ("fresh session", fresh, 0.5)):
        ours, *others = (statistics.median(seconds[name]) for name in CONTESTANTS)
        lines += [
            [kind, name, spread(seconds["ours"]), spread(seconds[name]), f"{ours - other:.2f}"]
            for name, other in zip(CONTESTANTS[1:], others, strict=True)
        ]
        report.at_most(f"first row, {kind}: beyond an empty Python source", ours - others[0], most_s, " s")
    header = ["", "beside the Python source", "ours", "it", "more"]
    report.table("A query of one row, seconds from its start to its end", header, lines)


def first_row(spark: Any, name: str, data: Path, folder: Path) -> float:
    """Seconds of a query of one row, from making its frame to its end."""
    began = time.perf_counter()
    if name == "ours":
        reader = streaming_source.read_stream(spark).format("aligned_files").option("eventTimeColumn", "ts")
        frame = reader.option("maxOutOfOrderness", "5 seconds").load(str(data))
    else:
        frame = spark.readStream.format("empty").load()
        if name != "empty":
            from pyspark.sql import functions as F

            frame = frame.withWatermark("ts", "5 seconds").where(F.col("ts").isNotNull())
    drain(frame, folder)
    return time.perf_counter() - began


def write(folder: Path) -> None:
    (folder / "split-0").mkdir(parents=True)
    table = pa.table({"ts": pa.array([1_700_000_000_000_000], pa.timestamp("us", "UTC"))})
    pq.write_table(table, folder / "split-0" / "part-0.parquet")


def measure(name: str, data: str, folder: str) -> None:
    """Print the seconds of the first query of this process."""
    # PySpark imports IPython for the first column that a program makes: a notebook has it by then, a job not at all.
    sys.modules["IPython"] = None  # type: ignore[assignment]
    spark = session()
    peers.register(spark)
    print(first_row(spark, name, Path(data), Path(folder)))
    spark.stop()


def _in_fresh_process(name: str, data: Path) -> float:
    code = f"from benchmarks.starting import measure; measure({name!r}, {str(data)!r}, {str(data.parent)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])
