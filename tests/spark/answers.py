"""What a query computes, naively, under Spark's rules of the watermark: windows, distinct rows, a join."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from tests.auditing import naive

__all__ = ["Distinct", "Joined", "Row", "Rows", "Windows", "micros"]

Row = tuple[Any, ...]


class Rows:
    """The rows as they are, by some columns; times in microseconds."""

    has_state = False

    def __init__(self, *columns: str) -> None:
        self.columns = columns

    def run(self, tables: Sequence[pa.Table], times: Sequence[str], late_us: int, done_us: int) -> list[Row]:
        """What comes out of a micro-batch: `late_us` is the watermark of late rows, `done_us` that of what is done."""
        return [row for table in tables for row in _rows(table, self.columns or table.schema.names)]


class Windows(Rows):
    """Rows counted by window and by a key, if there is one, as `support.windows` does, of the union of all frames.

    `updates` are all counts that have changed, in place of those that are final.
    """

    has_state = True

    def __init__(self, size_us: int = 60_000_000, key: str | None = "s", *, updates: bool = False) -> None:
        self._key = key
        self._query = naive.Query(0, size_us, size_us)
        self._updates = updates
        self._open: Counter[tuple[int, Any]] = Counter()

    def run(self, tables: Sequence[pa.Table], times: Sequence[str], late_us: int, done_us: int) -> list[Row]:
        changed = set()
        for table, time in zip(tables, times, strict=True):
            for t, s in _rows(table, (time, self._key or time)):
                for end in self._query.windows(t) if t is not None else ():
                    if end > late_us:
                        window = end, s if self._key else None
                        self._open[window] += 1
                        changed.add(window)
        size_us, closed = self._query.size_us or 0, {window for window in self._open if window[0] <= done_us}
        shown = changed if self._updates else closed
        found = [(end - size_us, end, s, self._open[end, s]) for end, s in sorted(shown, key=str)]
        for window in closed:
            del self._open[window]
        return found


class Distinct(Rows):
    """The event times without duplicates, as `select(ts).dropDuplicates()`."""

    has_state = True

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def run(self, tables: Sequence[pa.Table], times: Sequence[str], late_us: int, done_us: int) -> list[Row]:
        new = []
        for table, time in zip(tables, times, strict=True):
            for (t,) in _rows(table, (time,)):
                if t > late_us and t not in self._seen:
                    self._seen.add(t)
                    new.append((t,))
        self._seen = {t for t in self._seen if t > done_us}
        return new


class Joined(Rows):
    """Two frames, inner, by `s`, where their times are at most so far apart: `(left time, right time, s)`."""

    has_state = True

    def __init__(self, apart_us: int) -> None:
        self._apart_us = apart_us
        self._sides: tuple[list[Row], list[Row]] = [], []

    def run(self, tables: Sequence[pa.Table], times: Sequence[str], late_us: int, done_us: int) -> list[Row]:
        found = []
        for side, (table, time) in enumerate(zip(tables, times, strict=True)):
            for t, s in _rows(table, (time, "s")):
                if t <= late_us:
                    continue
                matches = [u for u, other in self._sides[1 - side] if other == s and abs(t - u) <= self._apart_us]
                found += [((t, u) if side == 0 else (u, t)) + (s,) for u in matches]
                self._sides[side].append((t, s))
        for kept in self._sides:
            kept[:] = [row for row in kept if row[0] + self._apart_us > done_us]
        return found


def _rows(table: pa.Table, columns: Sequence[str]) -> Iterator[Row]:
    arrays = [table.column(name) for name in columns]
    lists = [micros(array) if pa.types.is_timestamp(array.type) else array.to_pylist() for array in arrays]
    return zip(*lists, strict=True)


def micros(array: pa.ChunkedArray) -> list[int | None]:
    return array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64()).to_pylist()  # type: ignore[no-any-return]
