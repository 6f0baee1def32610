"""A query over a table on Spark, whose process is killed again and again while the table changes."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.faults.checks import check_watermarks, files_of_sink
from tests.faults.killed_process import KilledProcess, KilledQueryLog

__all__ = ["KilledQuery", "Kills"]


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
        checkpoint, self._sink = folder / "checkpoint", folder / "sink"
        arguments = [json.dumps(dict(options)), table, str(checkpoint), str(self._sink)]
        self._process = KilledProcess(folder / "log", "tests.tables.killed_query", arguments)
        self._log = KilledQueryLog(checkpoint)
        self._version: int | None = None

    def run_and_kill(self, chance: random.Random, change: Callable[[], None], *, inside: int, behind: int) -> Kills:
        """Kill it at any moment `inside` the snapshot and `behind` that, while the table changes."""
        killed = Kills()
        for number in range(inside + behind):
            killed += self._kill_once(chance, change, behind=number >= inside)
        return killed

    def drain(self) -> Counter[tuple[int, int | None]]:
        """Let it read all that there is, and return the ids and event times in its sink."""
        self._process.finish()
        check_watermarks(self._log.checkpoint)
        rows: Counter[tuple[int, int | None]] = Counter()
        for file in files_of_sink(self._sink):
            read = pq.ParquetFile(file).read(["id", "us"])
            rows.update(zip(read["id"].to_pylist(), read["us"].to_pylist(), strict=True))
        return rows

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _kill_once(self, chance: random.Random, change: Callable[[], None], *, behind: bool) -> Kills:
        before = self._log.last("offsets")
        with self._process.life() as wait_until:
            # While it starts.
            if chance.random() < 0.6:
                change()
            wait_until(lambda: self._log.last("offsets") > before or (behind and self._has_read_all()))
            if behind:
                wait_until(lambda: not self._in_snapshot())
                change()
            time.sleep(chance.random() * 0.5)
        return Kills(1, int(self._in_snapshot()), int(self._log.is_inside))

    def _last_offset(self) -> dict[str, Any]:
        return next(iter(self._log.offsets(self._log.last("offsets"))), {})

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


def _unfinished(offset: dict[str, Any]) -> Iterator[str]:
    """Ids of the splits in an offset that have records to read."""
    return (entry[0][0] for entry in offset["splits"] if entry[2] != "finished")
