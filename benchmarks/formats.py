"""A windowed count over each format: ours beside Spark's own source, in one micro-batch and in sixteen.

2 million rows of five columns, 8 directories of 4 files; the sixteen are made by `maxRowsPerTrigger`, with a `maxDrift`
of a minute, of Spark's own by `maxFilesPerTrigger`. Seconds are those of the micro-batches as the progress has them
(`triggerExecution`), without what comes before the first; plans are its `latestOffset`.

`FORMATS=csv,json python -m benchmarks formats` measures some of them.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv, orc
from pyarrow import parquet as pq

import streaming_source
from benchmarks.data import FILES, SPLITS, narrow
from benchmarks.on_spark import session
from benchmarks.report import Report, median_ratio, ratio

DDL = "ts timestamp, key bigint, value double, n bigint, s string"
MICRO_BATCHES = 16
DELAY = "5 seconds"
FORMATS = {"parquet": "", "parquet, columns": "ts,key", "orc": "", "csv": "", "csv, columns": "ts,key", "json": ""}
AT_LEAST = {("parquet, columns", 16): 0.85, ("csv", 16): 1.15, ("json", 16): 1.0}
"""Aims: Spark's seconds by ours."""

FURTHER_MS = 10.0
Figures = npt.NDArray[np.float64]


def run(report: Report, folder: Path, *, quick: bool) -> None:
    rows = 500_000 if quick else 2_000_000
    rounds = 2 if quick else 5
    kinds = {name: name.partition(",")[0] for name in FORMATS}
    wanted = os.environ.get("FORMATS", ",".join(kinds.values())).split(",")
    for kind in dict.fromkeys(wanted):
        _write(folder / "formats" / kind, rows, kind)
    spark, lines = session(), []
    for name, kind in kinds.items():
        if kind not in wanted:
            continue
        columns = FORMATS[name]
        for batches in (1, MICRO_BATCHES):
            data = folder / "formats" / kind
            jobs = {
                "ours": _job(_ours(spark, data, kind, columns, rows, batches), folder),
                "spark": _job(_sparks(spark, data, kind, batches), folder),
            }
            found = _in_both_orders(jobs, rounds)
            ours, sparks = ([float(one[0]) for one in found[who]] for who in ("ours", "spark"))
            first, further = (statistics.median(float(one[at]) for one in found["ours"]) for at in (1, 2))
            rate = f"{rows / statistics.median(ours) / 1e6:.2f} M/s"
            lines.append([name, str(batches), rate, ratio(sparks, ours), f"{first:.0f} ms", f"{further:.0f} ms"])
            print(" | ".join(lines[-1]), flush=True)
            if (aim := AT_LEAST.get((name, batches))) is not None:
                of = f"{name}, {batches} micro-batches: against Spark's own"
                report.at_least(of, median_ratio(sparks, ours), aim)
            if batches > 1 and kind in ("csv", "json"):
                report.at_most(f"{name}: a further plan", further, FURTHER_MS, " ms")
    spark.stop()
    header = ["format", "micro-batches", "rows", "speed against Spark's own", "first plan", "a further plan"]
    report.table(f"Windowed count by key, {rows:,} rows of five columns ({rounds} rounds in turn)", header, lines)


def _in_both_orders(jobs: Mapping[str, Callable[[], Figures]], rounds: int) -> dict[str, list[Figures]]:
    """Figures of rounds after one that does not count: who comes second finds warm caches."""
    found: dict[str, list[Figures]] = {name: [] for name in jobs}
    for number in range(rounds + 1):
        for name in sorted(jobs, reverse=number % 2 == 1):
            figures = jobs[name]()
            found[name] += [figures] if number else []
    return found


def _write(folder: Path, rows: int, kind: str) -> None:
    for split in range(SPLITS):
        (folder / f"split-{split}").mkdir(parents=True)
        rng = np.random.default_rng([17, split])
        whole = narrow(rows // SPLITS, rng)
        words = pa.array([f"word-{word:04d}" for word in range(1000)])
        whole = whole.append_column("s", words.take(pa.array(rng.integers(0, len(words), whole.num_rows))))
        for part in range(FILES):
            some = whole.slice(part * len(whole) // FILES, len(whole) // FILES)
            _write_file(some, folder / f"split-{split}" / f"part-{part}.{kind}", kind)


def _write_file(data: pa.Table, path: Path, kind: str) -> None:
    if kind == "parquet":
        pq.write_table(data, path)
    elif kind == "orc":
        orc.write_table(data, path)
    else:
        data = data.set_column(0, "ts", data["ts"].cast(pa.timestamp("us")).cast(pa.string()))
        if kind == "csv":
            csv.write_csv(data, path, csv.WriteOptions(include_header=False, quoting_style="needed"))
        else:
            path.write_text("".join(f"{json.dumps(row)}\n" for row in data.to_pylist()))


def _ours(spark: Any, data: Path, kind: str, columns: str, rows: int, batches: int) -> Callable[[], Any]:
    def make() -> Any:
        reader = streaming_source.read_stream(spark).format("aligned_files").option("eventTimeColumn", "ts")
        reader = reader.options(fileFormat=kind, splitBy="directory", bounded="true", maxOutOfOrderness=DELAY)
        reader = reader.schema(DDL) if kind in ("csv", "json") else reader
        reader = reader.option("columns", columns) if columns else reader
        if batches > 1:
            reader = reader.options(maxRowsPerTrigger=rows // batches, maxDrift="1 minute")
        return reader.load(str(data))

    return make


def _sparks(spark: Any, data: Path, kind: str, batches: int) -> Callable[[], Any]:
    def make() -> Any:
        reader = spark.readStream.schema(DDL).option("recursiveFileLookup", "true")
        reader = reader.option("maxFilesPerTrigger", SPLITS * FILES // batches) if batches > 1 else reader
        return reader.format(kind).load(str(data)).withWatermark("ts", DELAY)

    return make


def _job(make: Callable[[], Any], folder: Path) -> Callable[[], Figures]:
    """A run to the end: seconds of its micro-batches, ms of the first plan, and of a further one, the median."""

    def measured() -> Figures:
        from pyspark.sql import functions as F

        checkpoint = folder / f"checkpoint-{uuid4().hex}"
        counted = make().groupBy(F.window("ts", "1 minute"), "key").count()
        writer = counted.writeStream.format("noop").trigger(availableNow=True).outputMode("append")
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        query.awaitTermination()
        progress = [json.loads(each.json)["durationMs"] for each in query.recentProgress if each.numInputRows]
        shutil.rmtree(checkpoint)
        plans = [each.get("latestOffset", 0) for each in progress]
        return np.array([_total(progress, "triggerExecution"), plans[0], statistics.median(plans[1:] or plans)])

    return measured


def _total(progress: Sequence[dict[str, int]], phase: str) -> float:
    return sum(each.get(phase, 0) for each in progress) / 1e3
