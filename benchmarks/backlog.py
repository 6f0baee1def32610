"""A backlog of twelve skewed splits, in windows of a minute: ours, Flink with alignment, and Spark's own source.

All splits begin at the same time, and the last of them spans three times as much as the first, with as many rows. The
drift is how far a split is read ahead of the one that was read least far, in event time, until it is read to its end.
In state are the windows, one of each minute and key, that have not come out. Of Spark's own source, the delay is the
least that loses nothing, taken from the data, which no one knows beforehand.

Flink reads the same files with a source written by hand in Java, a directory a split, with a watermark of its own. Its
rows a second are by the clock; the same job over one row a split is taken off, of all contestants.

`ROWS=1000000 python -m benchmarks backlog` is the same with fewer rows. Flink exchanges watermarks once a second: what
it reads in a few seconds is over before it is aligned.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv

import streaming_source
from benchmarks import flink
from benchmarks.data import DDL, START_US, narrow
from benchmarks.on_spark import session
from benchmarks.report import Report

SPLITS = 12
PARTS = 4
DISORDER_MS = 2_000
MAX_DRIFT_MS = 60_000
MICRO_BATCHES = 8

Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Counted:
    """One run: seconds, the windows, the greatest drift, the most windows in state, and the drift after each step."""

    seconds: float
    windows: flink.Windows
    drift_ms: int
    in_state: int
    drifts_ms: Sequence[int] = ()


Job = Callable[[Path], Counted]


def run(report: Report, folder: Path, *, quick: bool) -> None:
    rows = int(os.environ.get("ROWS", 1_000_000 if quick else 8_000_000))
    print(f"\nwriting {rows:,} rows as CSV", flush=True)
    inputs = {"all": folder / "backlog", "few": folder / "backlog-few"}
    times = _write(inputs["all"], rows // SPLITS)
    expected = _windows(inputs["all"])
    _write(inputs["few"], 1)
    total = int(expected[:, 2].sum())
    with ExitStack() as stack:
        spark = session()
        jobs = _on_spark(spark, folder, rows, times) | _on_flink(stack, folder)
        found: dict[str, list[tuple[Counted, float]]] = {name: [] for name in jobs}
        for number in range((1 if quick else 3) + 1):
            for name, job in jobs.items():
                start_up, counted = job(inputs["few"]).seconds, job(inputs["all"])
                if number:
                    found[name].append((counted, start_up))
        spark.stop()
    lines, rates = [], {}
    for name, runs in found.items():
        rates[name] = [rows / (counted.seconds - start_up) for counted, start_up in runs]
        worst = max((counted for counted, _ in runs), key=lambda counted: counted.drift_ms)
        lost = max(total - int(counted.windows[:, 2].sum()) for counted, _ in runs)
        is_equal = all(np.array_equal(counted.windows, expected) for counted, _ in runs)
        in_state = max(counted.in_state for counted, _ in runs)
        rate = f"{statistics.median(rates[name]) / 1e6:.2f} M/s"
        equal = "yes" if is_equal else "NO"
        lines.append([name, f"{lost:,}", f"{worst.drift_ms / 1000:,.0f} s", f"{in_state:,}", rate, equal])
        if worst.drifts_ms:
            print(f"{name}, drift after each micro-batch in s: {[ms // 1000 for ms in worst.drifts_ms]}", flush=True)
    header = ["contestant", "rows lost", "greatest drift", "most windows in state", "rows", "equal to numpy's"]
    report.table(f"A backlog of {rows:,} rows in {SPLITS} skewed splits, Flink {flink.VERSION}", header, lines)
    ours = max(counted.in_state for counted, _ in found[OURS])
    report.at_most("backlog: greatest drift of ours", found[OURS][-1][0].drift_ms / 1000, MAX_DRIFT_MS / 1000, " s")
    if BUFFER_3 in found:
        theirs = max(counted.in_state for counted, _ in found[BUFFER_3])
        report.at_most("backlog: windows in state of ours against Flink's with buffer 3", ours / theirs, 0.5)
        ratio = statistics.median(rates[OURS]) / statistics.median(rates[BUFFER_0])
        report.at_least("backlog: rows a second of ours against Flink's with buffer 0", ratio, 1)


OURS = "ours, maxDrift 1 minute"
SPARKS = "Spark's own CSV stream, least delay"
BUFFER_0 = "Flink, maxDrift 1 minute, buffer 0"
BUFFER_3 = "Flink, maxDrift 1 minute, buffer 3"
UNALIGNED = "Flink, not aligned"


# ---- data ------------------------------------------------------------------------------------------------------------


def _write(folder: Path, n: int) -> list[list[Times]]:
    """Twelve directories of four files, part by part, as they would have come; event times by split and part, in ms."""
    found: list[list[Times]] = [[] for _ in range(SPLITS)]
    splits = []
    for split in range(SPLITS):
        rng = np.random.default_rng([11, split])
        in_order = START_US // 1000 + np.linspace(0, (60 + 10 * split) * 60_000, n).astype(np.int64)
        ms = in_order + rng.integers(0, DISORDER_MS, n)
        splits.append((ms, narrow(n, rng).set_column(0, "ts", pa.array(ms, pa.timestamp("ms")))))
        (folder / f"split-{split:02}").mkdir(parents=True)
    for part in range(PARTS if n > 1 else 1):
        for split, (ms, table) in enumerate(splits):
            begin, end = part * n // PARTS, (part + 1) * n // PARTS if n > 1 else n
            path = folder / f"split-{split:02}" / f"part-{part}.csv"
            csv.write_csv(table.slice(begin, end - begin), path, csv.WriteOptions(include_header=False))
            # Spark's own source reads files in the order in which they were written, by milliseconds.
            at = time.time() - 3600 + part * 60 + split
            os.utime(path, (at, at))
            found[split].append(ms[begin:end])
    return found


def _windows(folder: Path) -> flink.Windows:
    names = csv.ReadOptions(column_names=["ts", "key", "value", "n"])
    only = csv.ConvertOptions(include_columns=["ts", "key"], column_types={"ts": pa.timestamp("ms")})
    return flink.counted(pa.concat_tables([csv.read_csv(file, names, None, only) for file in folder.rglob("*.csv")]))


# ---- on Spark --------------------------------------------------------------------------------------------------------


def _on_spark(spark: Any, folder: Path, rows: int, times: list[list[Times]]) -> dict[str, Job]:
    from pyspark.sql import functions as F

    # As many files a micro-batch as make as many micro-batches; ours has a limit on rows.
    a_batch = SPLITS * PARTS // MICRO_BATCHES

    def ours(data: Path) -> Any:
        reader = streaming_source.read_stream(spark).format("aligned_files").schema(DDL["narrow"])
        reader = reader.options(fileFormat="csv", splitBy="directory", columns="ts,key", bounded="true")
        reader = reader.options(eventTimeColumn="ts", maxOutOfOrderness="2 seconds", maxDrift="1 minute")
        return reader.options(maxRowsPerTrigger=rows // MICRO_BATCHES).load(str(data))

    def sparks(data: Path) -> Any:
        reader = spark.readStream.schema(DDL["narrow"]).option("recursiveFileLookup", "true")
        frame = reader.option("maxFilesPerTrigger", a_batch).csv(str(data))
        return frame.withWatermark("ts", f"{_least_delay_ms(times, a_batch)} milliseconds")

    def job(frame: Callable[[Path], Any], mode: str, drifts: Callable[[Path], list[int]]) -> Job:
        def count(data: Path) -> Counted:
            name = f"windows_{uuid4().hex}"
            began = time.perf_counter()
            windows = frame(data).groupBy(F.window("ts", "1 minute"), "key").count()
            writer = windows.writeStream.format("memory").queryName(name).outputMode(mode).trigger(availableNow=True)
            query = writer.option("checkpointLocation", str(folder / name)).start()
            query.awaitTermination()
            seconds = time.perf_counter() - began
            in_state = max(operator.numRowsTotal for each in query.recentProgress for operator in each.stateOperators)
            found = spark.table(name).select(F.unix_millis("window.start").alias("start"), "key", "count")
            # In update mode a window comes out again with each micro-batch that has rows of it.
            last = found.groupBy("start", "key").agg(F.max("count"))
            drifts_ms = drifts(folder / name)
            counted = Counted(
                seconds, flink.sorted_windows(last.toArrow()), max(drifts_ms, default=0), in_state, drifts_ms
            )
            spark.catalog.dropTempView(name)
            shutil.rmtree(folder / name)
            return counted

        return count

    return {
        OURS: job(ours, "append", _drifts_of_ours),
        SPARKS: job(sparks, "update", lambda checkpoint: _drifts_of_files(checkpoint, times)),
    }


def _drifts_of_ours(checkpoint: Path) -> list[int]:
    """By the watermarks of the splits in the offset log."""
    drifts = []
    for file in sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda file: int(file.name)):
        splits = json.loads(file.read_text().splitlines()[-1])["splits"]
        at = [split[1] for split in splits if split[2] != "finished" and split[1] is not None]
        drifts.append((max(at) - min(at)) // 1000 if at else 0)
    return drifts


def _drifts_of_files(checkpoint: Path, times: list[list[Times]]) -> list[int]:
    """By the files that each micro-batch has read."""
    drifts, read = [], [0] * SPLITS
    for file in sorted((checkpoint / "sources" / "0").glob("[0-9]*"), key=lambda file: int(file.name.split(".")[0])):
        for line in file.read_text().splitlines()[1:]:
            path = Path(json.loads(line)["path"])
            split = int(path.parent.name.removeprefix("split-"))
            read[split] = max(read[split], 1 + int(path.stem.removeprefix("part-")))
        at = [int(times[i][n - 1].max()) if n else START_US // 1000 for i, n in enumerate(read) if n < PARTS]
        drifts.append(max(at) - min(at) if at else 0)
    return drifts


def _least_delay_ms(times: list[list[Times]], a_batch: int) -> int:
    """With which Spark drops no row: its watermark is the latest time of all earlier micro-batches, less the delay."""
    files = [times[split][part] for part in range(PARTS) for split in range(SPLITS)]
    latest, least = 0, 0
    for begin in range(0, len(files), a_batch):
        batch = files[begin : begin + a_batch]
        earliest = min(int(one.min()) for one in batch)
        least = max(least, latest - earliest)
        latest = max(latest, *(int(one.max()) for one in batch))
    return least + 1


# ---- on Flink --------------------------------------------------------------------------------------------------------


def _on_flink(stack: ExitStack, folder: Path) -> dict[str, Job]:
    try:
        python = flink.environment()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"\nFlink is not measured: its environment cannot be made: {error}", flush=True)
        return {}
    own = flink.own_source(next(python.parents[1].glob("lib/python*/site-packages/pyflink")), folder)
    if not own:
        print("\nFlink is not measured: there is no javac; install a JDK, or point JAVA_HOME at one", flush=True)
        return {}
    runner = stack.enter_context(flink.process(*own))

    def job(drift: str, buffer: int) -> Job:
        def count(data: Path) -> Counted:
            output = folder / uuid4().hex
            words = (str(flink.PARALLELISM), str(DISORDER_MS), drift, str(buffer), str(data), str(output))
            seconds, apart_ms, most_open = flink.ask(runner, *words)
            return Counted(float(seconds), flink.written_windows(output), int(apart_ms), int(most_open))

        return count

    drift = str(MAX_DRIFT_MS)
    return {BUFFER_0: job(drift, 0), BUFFER_3: job(drift, 3), UNALIGNED: job(flink.NO_ALIGNMENT, 0)}
