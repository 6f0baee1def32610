"""A query over a table on Spark, whose process is killed again and again while the table changes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.faults.checks import files_of_sink

__all__ = ["KilledQuery", "Kills"]

LIMIT_S = 240.0


@dataclass(frozen=True)
class Kills:
    """How often a query was killed, and how many of these times it had not read all of the snapshot.

    `planned` of the kills were between the plan of a micro-batch and its commit.
    """

    total: int = 0
    in_snapshot: int = 0
    planned: int = 0

    def __add__(self, other: Kills) -> Kills:
        return Kills(self.total + other.total, self.in_snapshot + other.in_snapshot, self.planned + other.planned)

    def __str__(self) -> str:
        return f"{self.total} kills, {self.in_snapshot} inside the snapshot, {self.planned} inside a micro-batch"


class KilledQuery:
    """A query into Parquet files that is killed by SIGKILL, with its JVM and planner, and started again.

    Parameters
    ----------
    folder
        Where its checkpoint, sink and log are.
    options
        Of the reader, with its `format`.
    table
        What is given to `load`.
    """

    def __init__(self, folder: Path, options: Mapping[str, str], table: str) -> None:
        self._checkpoint, self._sink, self._log = folder / "checkpoint", folder / "sink", folder / "log"
        self._version: int | None = None
        self._command = [sys.executable, "-m", "tests.tables.killed_query", json.dumps(dict(options)), table]

    def run_and_kill(self, chance: random.Random, change: Callable[[], None], *, inside: int, behind: int) -> Kills:
        """Kill it at any moment `inside` the snapshot and `behind` that, while the table changes."""
        killed = Kills()
        for number in range(inside + behind):
            killed += self._kill_once(chance, change, behind=number >= inside)
        return killed

    def drain(self) -> Counter[tuple[int, int | None]]:
        """Let it read all that there is, and return the ids and event times in its sink."""
        command = [*self._command, str(self._checkpoint), str(self._sink), "availableNow"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        self._check_watermarks()
        rows: Counter[tuple[int, int | None]] = Counter()
        for file in files_of_sink(self._sink):
            read = pq.ParquetFile(file).read(["id", "us"])
            rows.update(zip(read["id"].to_pylist(), read["us"].to_pylist(), strict=True))
        return rows

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _kill_once(self, chance: random.Random, change: Callable[[], None], *, behind: bool) -> Kills:
        command = [*self._command, str(self._checkpoint), str(self._sink), "0 seconds"]
        before = self._last("offsets")
        with self._log.open("ab") as written:
            process = subprocess.Popen(command, stdout=written, stderr=written, start_new_session=True)
            try:
                # While it starts.
                if chance.random() < 0.6:
                    change()
                self._await(process, lambda: self._last("offsets") > before or (behind and self._has_read_all()))
                if behind:
                    self._await(process, lambda: not self._in_snapshot())
                    change()
                time.sleep(chance.random() * 0.5)
                planned, committed = self._last("offsets"), self._last("commits")
                found = Kills(1, int(self._in_snapshot()), int(planned > committed))
            finally:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return found

    def _await(self, process: subprocess.Popen[bytes], is_true: Callable[[], bool]) -> None:
        until = time.monotonic() + LIMIT_S
        while not is_true():
            assert process.poll() is None, self._log.read_text()[-4000:]
            assert time.monotonic() < until, self._log.read_text()[-4000:]
            time.sleep(0.005)

    def _last(self, folder: str) -> int:
        names = (path.name for path in (self._checkpoint / folder).glob("[0-9]*"))
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def _last_offset(self) -> dict[str, Any]:
        last = self._last("offsets")
        if last < 0:
            return {}
        offset: dict[str, Any] = json.loads((self._checkpoint / f"offsets/{last}").read_text().splitlines()[2])
        return offset

    def _in_snapshot(self) -> bool:
        """Whether there are rows of the first version to read, by the last offset."""
        offset = self._last_offset()
        if not offset:
            return True
        if self._version is None:
            self._version = offset["enumerator"][1]["after"]
        waits = offset["enumerator"][1].get("snapshot", False)
        return waits or any(name.endswith(f"@v{self._version}") for name in _unfinished(offset))

    def _has_read_all(self) -> bool:
        offset = self._last_offset()
        state = offset["enumerator"][1] if offset else {"snapshot": True}
        return not state.get("snapshot") and not state.get("steps") and not any(_unfinished(offset))

    def _check_watermarks(self) -> None:
        """That the watermark never goes back, by the offsets that Spark has kept."""
        last: int | None = None
        for file in sorted((self._checkpoint / "offsets").glob("[0-9]*"), key=lambda file: int(file.name)):
            watermark = json.loads(file.read_text().splitlines()[2])["watermark"]
            assert last is None or watermark >= last, f"{file}: the watermark goes back from {last} to {watermark}"
            last = watermark


def _unfinished(offset: dict[str, Any]) -> Iterator[str]:
    """Ids of the splits in an offset that have records to read."""
    return (entry[0][0] for entry in offset["splits"] if entry[2] != "finished")
