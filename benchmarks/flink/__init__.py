"""The same windowed count over CSV files: Flink beside Spark's own source and ours, each of them exact.

Each contestant runs in a process that stays and has run the job before; its seconds are by the clock, from the making
of the job's environment or frame until its result is there. Start-up is taken off: that is the median of the same job
over one row of each split, run in turn with the others. All windows of all are compared with what numpy counts.

Flink comes from PyPI, into an environment of its own in the cache, once. The source that is written by hand in Java
needs a JDK's `javac`; without one it is left out, and a line says so.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv

import streaming_source
from benchmarks.data import DDL, SPLITS, START_US, narrow
from benchmarks.on_spark import session
from benchmarks.report import Report, in_turn, median_ratio, spread
from tests.kafka.artifacts import cache

VERSION = "2.3.0"
FILES = 52
SPAN_MS = 190 * 60_000
DISORDER_MS = 2_000
WINDOW_MS = 60_000
PARALLELISM = 2
PART = 200
"""PyFlink's DataStream reads one row of so many; its seconds are multiplied."""

HERE = Path(__file__).parent

Windows = npt.NDArray[np.int64]
"""Sorted lines of start in milliseconds, key and count."""


def run(report: Report, folder: Path, *, quick: bool) -> None:
    rows, rounds = (1_000_000, 3) if quick else (8_000_000, 5)
    try:
        python = environment()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"\nFlink is not measured: its environment cannot be made: {error}", flush=True)
        return
    print(f"\nwriting {rows:,} rows as CSV", flush=True)
    inputs = {name: folder / f"csv-{name}" for name in ("all", "part", "few")}
    expected = _write(inputs, rows)
    with ExitStack() as stack:
        count = _flink(stack, python, folder)
        spark = session()
        count |= _on_spark(spark, folder)
        jobs: dict[str, Callable[[], float]] = {}
        for name, job in count.items():
            of = "part" if name == DATA_STREAM else "all"
            jobs[name] = _checked(name, job, inputs[of], expected[of])
            jobs[f"{name}, few"] = _checked(name, job, inputs["few"], expected["few"])
        taken = in_turn(jobs, rounds)
        spark.stop()
    start_up = {name: taken[f"{name}, few"] for name in count}
    seconds = {name: [each - statistics.median(start_up[name]) for each in taken[name]] for name in count}
    seconds[DATA_STREAM] = [PART * each for each in seconds[DATA_STREAM]]
    lines = [[name, spread(taken[name]), spread(start_up[name])] for name in count]
    report.table("CSV: seconds by the clock, start-up included", ["source", "all rows", "one row a split"], lines)
    title = f"CSV, {rows:,} rows, one-minute count by key, exact, start-up taken off, Flink {VERSION}"
    for ours in OURS:
        report.compare(f"{title}: {ours}", rows, seconds, ours)
        for peer, bound in TARGETS.items():
            if peer in seconds:
                name = f"CSV, windowed count: {ours} against {peer}"
                report.at_least(name, median_ratio(seconds[peer], seconds[ours]), bound)


OURS = ("ours", "ours, columns=ts,key")
AHEAD = "ours, columns=ts,key, event times read ahead"
BATCH = "Flink SQL, batch"
STREAM = "Flink SQL, streaming, 4 hours of lag"
OWN = "Flink, own Java source"
DATA_STREAM = f"PyFlink DataStream, Python timestamps, 1/{PART} of the rows"
TARGETS = {BATCH: 2, OWN: 1, DATA_STREAM: 100}


def _checked(name: str, job: Job, data: Path, expected: Windows) -> Callable[[], float]:
    def once() -> float:
        seconds, windows = job(data)
        if not np.array_equal(windows, expected):
            raise RuntimeError(f"{name} gave other windows than there are: {len(windows)} in place of {len(expected)}")
        return seconds

    return once


Job = Callable[[Path], tuple[float, Windows]]
"""Counts the rows in a folder; its seconds, and what it found."""


# ---- data ------------------------------------------------------------------------------------------------------------


def _write(inputs: dict[str, Path], rows: int) -> dict[str, Windows]:
    """The files of each input, and the windows that are in them. Of a part there are the first rows of each split."""
    n = rows // SPLITS
    found: dict[str, list[pa.Table]] = {name: [] for name in inputs}
    for split in range(SPLITS):
        rng = np.random.default_rng([7, split])
        in_order = START_US // 1000 + np.linspace(0, SPAN_MS, n).astype(np.int64)
        times = pa.array(in_order + rng.integers(0, DISORDER_MS, n), pa.timestamp("ms"))
        whole = narrow(n, rng).set_column(0, "ts", times)
        files = FILES // SPLITS + (split < FILES % SPLITS)
        for name, size, parts in (("all", n, files), ("part", n // PART, 1), ("few", 1, 1)):
            (inputs[name] / f"split-{split}").mkdir(parents=True)
            for part in range(parts):
                begin, end = part * size // parts, (part + 1) * size // parts
                path = inputs[name] / f"split-{split}" / f"part-{part}.csv"
                csv.write_csv(whole.slice(begin, end - begin), path, csv.WriteOptions(include_header=False))
            found[name].append(whole.slice(0, size))
    return {name: counted(pa.concat_tables(tables)) for name, tables in found.items()}


def counted(records: pa.Table) -> Windows:
    """The windows that numpy counts."""
    ms = records["ts"].cast(pa.int64()).to_numpy()
    pairs = np.stack([ms - ms % WINDOW_MS, records["key"].to_numpy()], axis=1)
    windows, counts = np.unique(pairs, axis=0, return_counts=True)
    return np.column_stack([windows, counts])


# ---- on Spark --------------------------------------------------------------------------------------------------------


def _on_spark(spark: Any, folder: Path) -> dict[str, Job]:
    from pyspark.sql import functions as F

    def ours(data: Path, **more: str) -> Any:
        reader = streaming_source.read_stream(spark).format("aligned_files").schema(DDL["narrow"])
        reader = reader.options(fileFormat="csv", eventTimeColumn="ts", maxOutOfOrderness="2 seconds", bounded="true")
        return reader.options(**more).load(str(data))

    def sparks(data: Path) -> Any:
        reader = spark.readStream.schema(DDL["narrow"]).option("recursiveFileLookup", "true")
        return reader.csv(str(data)).withWatermark("ts", "2 seconds")

    def job(frame: Callable[[Path], Any], mode: str) -> Job:
        def count(data: Path) -> tuple[float, Windows]:
            name = f"windows_{uuid4().hex}"
            began = time.perf_counter()
            windows = frame(data).groupBy(F.window("ts", "1 minute"), "key").count()
            writer = windows.writeStream.format("memory").queryName(name).outputMode(mode).trigger(availableNow=True)
            writer.option("checkpointLocation", str(folder / name)).start().awaitTermination()
            seconds = time.perf_counter() - began
            found = spark.table(name).select(F.unix_millis("window.start"), "key", "count").toArrow()
            spark.catalog.dropTempView(name)
            shutil.rmtree(folder / name)
            return seconds, sorted_windows(found)

        return count

    return {
        # It leaves the last windows open, so it gives what it has of them; all files are one micro-batch.
        "Spark's own CSV stream": job(sparks, "update"),
        OURS[0]: job(ours, "append"),
        OURS[1]: job(lambda data: ours(data, columns="ts,key"), "append"),
        # As where a plan depends on event times, such as that of an unbounded source.
        AHEAD: job(lambda data: ours(data, columns="ts,key", indexing="scan"), "append"),
    }


# ---- on Flink --------------------------------------------------------------------------------------------------------


def _flink(stack: ExitStack, python: Path, folder: Path) -> dict[str, Job]:
    pyflink = next(python.parents[1].glob("lib/python*/site-packages/pyflink"))
    jobs = stack.enter_context(process(str(python), str(HERE / "jobs.py")))

    def job(runner: subprocess.Popen[str], *words: str) -> Job:
        def count(data: Path) -> tuple[float, Windows]:
            output = folder / uuid4().hex
            seconds = float(ask(runner, *words, str(output), str(data))[0])
            return seconds, written_windows(output)

        return count

    found = {BATCH: job(jobs, "batch", str(PARALLELISM)), STREAM: job(jobs, "streaming", str(PARALLELISM))}
    found[DATA_STREAM] = job(jobs, "data-stream", str(PARALLELISM))
    if own := own_source(pyflink, folder):
        runner = stack.enter_context(process(*own))
        found[OWN] = job(runner, "count", "directories", str(PARALLELISM), str(DISORDER_MS), NO_ALIGNMENT, "0")
    else:
        print(f"\n{OWN} is not measured: there is no javac; install a JDK, or point JAVA_HOME at one", flush=True)
    return found


NO_ALIGNMENT = "-1"


def own_source(pyflink: Path, folder: Path) -> list[str]:
    """Compile the source that is written by hand, and return how it is run; nothing where there is no `javac`."""
    return java_program(HERE / "OwnSource.java", pyflink, folder)


def own_runner(stack: ExitStack, folder: Path) -> subprocess.Popen[str] | None:
    """Start the source that is written by hand; None, and a line that says why, where Flink cannot be run."""
    try:
        python = environment()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"\nFlink is not measured: its environment cannot be made: {error}", flush=True)
        return None
    own = own_source(next(python.parents[1].glob("lib/python*/site-packages/pyflink")), folder)
    if not own:
        print("\nFlink is not measured: there is no javac; install a JDK, or point JAVA_HOME at one", flush=True)
        return None
    return stack.enter_context(process(*own))


def java_program(source: Path, pyflink: Path, folder: Path, jars: Sequence[Path] = ()) -> list[str]:
    """Compile a program of one file against Flink and `jars`, and return how it is run; nothing without a `javac`."""
    java_home = os.environ.get("JAVA_HOME")
    javac = shutil.which("javac", path=f"{java_home}/bin" if java_home else None)
    if javac is None:
        return []
    libraries = os.pathsep.join([f"{pyflink}/lib/*", *map(str, jars)])
    classes = folder / f"classes-of-{source.stem}"
    subprocess.run([javac, "-cp", libraries, "-d", classes, source], check=True)
    java = [str(Path(javac).with_name("java")), "-cp", f"{classes}{os.pathsep}{libraries}"]
    java.append(f"-Dlog4j.configurationFile={pyflink}/conf/log4j.properties")
    return [*java, f"-Dlog.file={folder / 'flink.log'}", source.stem]


def written_windows(output: Path) -> Windows:
    """What a job has written; the folder is removed."""
    names = csv.ReadOptions(column_names=["start_ms", "key", "count"])
    files = [file for file in output.rglob("*") if file.is_file() and file.stat().st_size]
    found = pa.concat_tables([csv.read_csv(file, names) for file in files])
    shutil.rmtree(output)
    return sorted_windows(found)


def environment() -> Path:
    """Python of an environment that has Flink, which is made where there is none."""
    folder = cache() / f"flink-{VERSION}"
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        print(f"\nmaking {folder}, 900 MB", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", f"apache-flink=={VERSION}"], check=True)
        (folder / "installed").touch()
    return python


@contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A process that runs a job for each line that it is given, and ends when there are no more."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment
    ) as process:
        yield process


def ask(runner: subprocess.Popen[str], *words: str) -> list[str]:
    """Run a job; its seconds by the clock, and what else it has counted."""
    assert runner.stdin is not None
    assert runner.stdout is not None
    print(*words, file=runner.stdin)
    said = []
    for line in runner.stdout:
        if line.startswith("seconds "):
            return line.split()[1:]
        said.append(line)
    raise RuntimeError(f"the job {' '.join(words)} failed: {''.join(said[-20:])}")


def sorted_windows(found: pa.Table) -> Windows:
    """The windows of a table of start, key and count."""
    windows = np.column_stack([column.to_numpy() for column in found.columns])
    return windows[np.lexsort((windows[:, 1], windows[:, 0]))]
