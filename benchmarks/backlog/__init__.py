"""A backlog of skewed splits, counted and joined by minutes: ours, Flink with alignment, and Spark's own source.

All splits begin at the same time, and the last of them spans three times as much as the first, with as many rows. The
drift is how far a split is read ahead of the one that was read least far, in event time, until it is read to its end:
of Flink whenever a split was read, on Spark after each micro-batch, which tasks read in any order. What that costs is
in the state: the most windows, one of each minute and key, that have not come out, and of the join the most records.
Of Spark's own source, the delay is the least that loses nothing, taken from the data, which no one knows beforehand.

Flink reads the same files with a source written by hand in Java, a directory a split, with a watermark of its own; and
with its own file source, which takes a file when it has read one, so that what comes last is late. Rows a second are by
the clock; the same job over one row a split is taken off, of all contestants.

`ROWS=24000000 python -m benchmarks backlog` is the same with more rows. Flink exchanges watermarks once a second: what
it reads in a few seconds is over before it is aligned.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks import flink
from benchmarks.backlog import on_flink, on_spark
from benchmarks.backlog.inputs import Backlog, write_join, write_windows
from benchmarks.backlog.job import MAX_DRIFT_MS, Counted, Job
from benchmarks.backlog.on_flink import BUFFER_0, BUFFER_3
from benchmarks.backlog.on_spark import OURS
from benchmarks.backlog.picture import draw
from benchmarks.on_spark import session
from benchmarks.report import Report

__all__ = ["run"]

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "backlog.png"

MICRO_BATCHES = 16
"""Of ours by a limit on rows, of Spark's own by one on files. State is their price: more of them keep less."""

_TITLES = {"count": "One-minute count by key", "join": "Join of two sources"}
_IN_STATE = {"count": "most windows in state", "join": "most records in state"}


@dataclass
class Runs:
    """All runs of one contestant that count, and seconds of the same job over one row a split."""

    counted: list[Counted] = field(default_factory=list)
    start_up: list[float] = field(default_factory=list)

    def rate(self, rows: int) -> float:
        """Rows a second beyond start-up, the median."""
        taken = zip(self.counted, self.start_up, strict=True)
        return statistics.median(rows / max(counted.seconds - start_up, 1e-3) for counted, start_up in taken)

    @property
    def drift_ms(self) -> int:
        return max(counted.drift_ms for counted in self.counted)

    @property
    def in_state(self) -> int:
        return max(counted.in_state for counted in self.counted)


def run(report: Report, folder: Path, *, quick: bool) -> None:
    rows = int(os.environ.get("ROWS", 1_000_000 if quick else 8_000_000))
    print(f"\nwriting {rows:,} rows for the count and {rows // 4:,} for the join as CSV", flush=True)
    backlogs = {
        "count": (write_windows(folder / "count", rows, MICRO_BATCHES), write_windows(folder / "count-few", 12, 1)),
        "join": (write_join(folder / "join", rows // 4, MICRO_BATCHES), write_join(folder / "join-few", 12, 1)),
    }
    found: dict[str, dict[str, Runs]] = {}
    with ExitStack() as stack:
        spark = session()
        of_flink = on_flink.jobs(stack, folder)
        for kind, (all_rows, few) in backlogs.items():
            jobs = on_spark.jobs(spark, folder, kind) | of_flink.get(kind, {})
            found[kind] = _in_turn(jobs, all_rows, few, 1 if quick or kind == "join" else 2)
        spark.stop()
    for kind, runs in found.items():
        _tell(report, kind, backlogs[kind][0], runs)
    if not quick:
        last = {_TITLES[kind]: {name: one.counted[-1] for name, one in runs.items()} for kind, runs in found.items()}
        draw(last, PICTURE)
        print(f"\nwritten: {PICTURE}", flush=True)


def _in_turn(jobs: Mapping[str, Job], backlog: Backlog, few: Backlog, rounds: int) -> dict[str, Runs]:
    """Rounds in turn, after one that does not count.

    In that one Flink with buffer 0 has one row a split alone: it waits most of its time, and its JVM runs the others.
    """
    found: dict[str, Runs] = {name: Runs() for name in jobs}
    for number in range(rounds + 1):
        for name, job in jobs.items():
            start_up = job(few).seconds
            if number:
                counted = job(backlog)
                found[name].counted.append(counted)
                found[name].start_up.append(start_up)
                print(f"{name}: {counted.seconds:.1f} s, of which {start_up:.1f} s start-up", flush=True)
            elif name != BUFFER_0:
                job(backlog)
    return found


def _tell(report: Report, kind: str, backlog: Backlog, runs: dict[str, Runs]) -> None:
    total, lines = int(backlog.expected[:, 2].sum()), []
    for name, one in runs.items():
        lost = max(total - int(counted.windows[:, 2].sum()) for counted in one.counted)
        is_equal = all(np.array_equal(counted.windows, backlog.expected) for counted in one.counted)
        drift, rate = f"{one.drift_ms / 1000:,.0f} s", f"{one.rate(backlog.rows) / 1e6:.2f} M/s"
        lines.append([name, f"{lost:,}", drift, f"{one.in_state:,}", rate, "yes" if is_equal else "NO"])
    header = ["contestant", "rows lost", "greatest drift", _IN_STATE[kind], "rows", "equal to numpy's"]
    splits = sum(map(len, backlog.times.values()))
    title = (
        f"{_TITLES[kind]}: {backlog.rows:,} rows in {splits} skewed splits, maxDrift 1 minute, Flink {flink.VERSION}"
    )
    report.table(title, header, lines)
    ours = runs[OURS]
    report.at_most(f"backlog, {kind}: greatest drift of ours", ours.drift_ms / 1000, MAX_DRIFT_MS / 1000, " s")
    if BUFFER_3 in runs:
        name = f"backlog, {kind}: state of ours against Flink's with buffer 3"
        report.at_most(name, ours.in_state / runs[BUFFER_3].in_state, 0.5)
        name = f"backlog, {kind}: rows a second of ours against Flink's with buffer 0"
        report.at_least(name, ours.rate(backlog.rows) / runs[BUFFER_0].rate(backlog.rows), 1)
