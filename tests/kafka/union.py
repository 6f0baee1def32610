"""A union of sources as Spark runs it: an offset log, the smallest watermark of all, windows in state; and kills."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from alignment.watermarks import FAR_US
from streaming_source.spark.readers import AlignedStreamReader
from streaming_source.spark.watermark_rows import OFFSET_US
from tests.spark.reading import Reading

__all__ = ["Row", "UnionQuery"]

Row = tuple[int, int]
"""Event time (microseconds) and the id of a record."""

_PATIENCE_S: Final = 60.0


@dataclass
class UnionQuery:
    """One query over several sources; `reopen` makes the reader of each, as a restart does.

    `closed` has the ids of each window that was emitted, `state` those of the others, `dropped` the rows below Spark's
    watermark. `kills` counts planners that were killed within a micro-batch, `crossing` those of them in one that has
    records on both sides of `cut_us`.
    """

    reopen: Sequence[Callable[[], AlignedStreamReader]]
    rows_of: Callable[[pa.Table], list[Row]]
    window_us: int
    cut_us: int
    max_rows: int | None = None
    rng: random.Random = field(default_factory=random.Random)
    kill_share: float = 0.0
    kill_share_crossing: float = 0.0
    available_now: bool = False
    log: list[list[dict[str, Any]]] = field(default_factory=list)
    watermark_us: int = 0
    state: dict[int, list[int]] = field(default_factory=dict)
    closed: dict[int, list[int]] = field(default_factory=dict)
    dropped: list[Row] = field(default_factory=list)
    sizes: list[tuple[int, ...]] = field(default_factory=list)
    announced: list[tuple[int, ...]] = field(default_factory=list)
    kills: int = 0
    crossing: int = 0
    crossing_batches: int = 0

    def __post_init__(self) -> None:
        self._open()
        self.log.append([one.offset for one in self._readings])

    def step(self) -> bool:
        """Plan one micro-batch, and read it, unless it is killed on the way; whether there was anything to do."""
        start = self.log[-1]
        ends = self._plan()
        if all(end is begun for end, begun in zip(ends, start, strict=True)):
            return False
        tables = self._read(start, ends)
        rows = [self.rows_of(table) for table in tables]
        times = [us for of_source in rows for us, _ in of_source if us < FAR_US]
        crosses = bool(times) and min(times) < self.cut_us <= max(times)
        if self._is_killed(crosses):
            # Before the offsets were written: this micro-batch has never been.
            self.restart()
            return True
        self.log.append(ends)
        if self._is_killed(crosses):
            # While it was read: the same micro-batch is read again, by new planners.
            self.restart()
            again = [self.rows_of(table) for table in self._read(start, ends)]
            assert [data(one) for one in again] == [data(one) for one in rows], "a micro-batch read again differs"
            # Of one that is read again each source announces what its offset has.
            rows = again
        self.crossing_batches += crosses
        self._take(rows)
        if self._is_killed(crosses):
            self.restart()
        return True

    def run(self, is_done: Callable[[], bool] | None = None) -> None:
        """Step after step until `is_done`, or until there is nothing to do."""
        until = time.monotonic() + _PATIENCE_S
        while not (is_done is not None and is_done()):
            if not self.step():
                if is_done is None:
                    return
                time.sleep(0.02)
            assert time.monotonic() < until, f"not done: {self.sizes[-5:]}, {self.log[-1]}"

    def restart(self) -> None:
        self.close()
        self._open()

    def close(self) -> None:
        for one in self._readings:
            one.reader.stop()

    def windows(self) -> dict[int, list[int]]:
        """All windows, emitted or not, with the ids of their records."""
        assert not self.closed.keys() & self.state.keys(), "a window came back that was emitted"
        return {start: sorted(ids) for start, ids in {**self.closed, **self.state}.items()}

    def _open(self) -> None:
        self._readings = [Reading(reopen()) for reopen in self.reopen]
        # After a restart Spark knows the watermark of the query, and none of its sources.
        self._of_source = [0] * len(self._readings)
        for number, one in enumerate(self._readings):
            if self.log:
                one.offset = self.log[-1][number]
            if self.available_now:
                one.reader.prepareForTriggerAvailableNow()

    def _plan(self) -> list[dict[str, Any]]:
        ends = []
        for one, begun in zip(self._readings, self.log[-1], strict=True):
            limit = one.reader.getDefaultReadLimit()
            ends.append(one.reader.latestOffset(begun, limit))
        return ends

    def _read(self, start: Sequence[dict[str, Any]], ends: Sequence[dict[str, Any]]) -> list[pa.Table]:
        both = zip(self._readings, start, ends, strict=True)
        return [
            one.reader.shaper.schema.empty_table() if end is begun else one.between(begun, end)
            for one, begun, end in both
        ]

    def _take(self, rows: Sequence[list[Row]]) -> None:
        for number, of_source in enumerate(rows):
            for us, record in of_source:
                if us >= FAR_US:
                    self._of_source[number] = max(self._of_source[number], us - OFFSET_US)
                elif self._start(us) + self.window_us <= self.watermark_us:
                    self.dropped.append((us, record))
                else:
                    self.state.setdefault(self._start(us), []).append(record)
        self.sizes.append(tuple([len(data(one)) for one in rows]))
        self.announced.append(tuple(self._of_source))
        self.watermark_us = max(self.watermark_us, min(self._of_source))
        for start in [start for start in self.state if start + self.window_us <= self.watermark_us]:
            self.closed[start] = self.state.pop(start)

    def _start(self, us: int) -> int:
        return us - us % self.window_us

    def _is_killed(self, crosses: bool) -> bool:
        is_killed = self.rng.random() < (self.kill_share_crossing if crosses else self.kill_share)
        self.kills += is_killed
        self.crossing += is_killed and crosses
        return is_killed


def data(rows: Sequence[Row]) -> list[Row]:
    """Without watermark rows, in one order."""
    return sorted(row for row in rows if row[0] < FAR_US)
