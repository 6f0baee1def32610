"""The jobs on Flink: with the source that is written by hand in Java, and with its own file source."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

from benchmarks import flink
from benchmarks.backlog.inputs import DISORDER_MS, Backlog
from benchmarks.backlog.job import MAX_DRIFT_MS, Counted, Job

__all__ = ["BUFFER_0", "BUFFER_3", "FILE_SOURCE", "UNALIGNED", "jobs"]

BUFFER_0 = "Flink, buffer 0"
BUFFER_3 = "Flink, buffer 3"
UNALIGNED = "Flink, not aligned"
FILE_SOURCE = "Flink's file source, buffer 3"


def jobs(stack: ExitStack, folder: Path) -> dict[str, dict[str, Job]]:
    """The contestants of each kind of job; none, and a line that says why, where Flink cannot be run."""
    runner = flink.own_runner(stack, folder)
    if runner is None:
        return {}

    def job(kind: str, source: str, drift: str, buffer: int) -> Job:
        def run(backlog: Backlog) -> Counted:
            output = folder / uuid4().hex
            words = (kind, source, str(flink.PARALLELISM), str(DISORDER_MS), drift, str(buffer), str(output))
            seconds, most_open, *drifts = flink.ask(runner, *words, ",".join(map(str, backlog.sources())))
            over_time = [tuple(map(float, drift.split(":"))) for drift in ",".join(drifts).split(",") if drift]
            windows = flink.written_windows(output)
            return Counted(float(seconds), windows, int(most_open), [(at, int(ms)) for at, ms in over_time])

        return run

    drift = str(MAX_DRIFT_MS)
    limits = {
        BUFFER_0: ("directories", drift, 0),
        BUFFER_3: ("directories", drift, 3),
        UNALIGNED: ("directories", flink.NO_ALIGNMENT, 0),
        FILE_SOURCE: ("files", drift, 3),
    }
    return {kind: {name: job(kind, *limit) for name, limit in limits.items()} for kind in ("count", "join")}
