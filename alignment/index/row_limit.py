"""Counts of records in an index: the first, by event time, that exceeds a read limit, and those outside of a range."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import numpy as np

from alignment.event_time_range import INSIDE, WHOLLY, EventTimeRange
from alignment.index.blocks import BlockTable, first_above, near, ranges, running, sample
from alignment.index.exact_times import EventTimeLoader, ExactTimes
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import Int64Array


class RowLimit:
    """Searches the blocks of a table, none of them opaque, and the exact times of those among which a limit decides."""

    def __init__(self, table: BlockTable, loaded: ExactTimes) -> None:
        self._table, self._loaded = table, loaded

    def first_out(self, positions: Int64Array, bound_us: int, max_rows: int) -> int | None:
        """Return the bound that admits the first unread record beyond the limit; None if none up to `bound_us` is.

        O(n log m), plus the loading of the blocks that the bounds in question divide; holds `max_rows` of their times,
        and a portion.
        """
        doubtful, rows_left = self.doubtful(positions, bound_us, max_rows)
        return self._admitted_after(doubtful, positions, rows_left) if doubtful.size else None

    def doubtful(self, positions: Int64Array, bound_us: int, max_rows: int) -> tuple[Int64Array, int]:
        """The blocks that `first_out` loads, none if all up to the bound fit; and how many of their rows fit.

        O(n log m), and nothing is loaded.
        """
        blocks, rows_left = self._in_doubt(positions, bound_us, max_rows)
        rows, enter, leave = self._unread(blocks, positions)
        # Below `earliest` even all rows of all blocks that begin fit; at `latest` those of complete blocks do not.
        earliest, latest = _first_too_many(enter, rows, rows_left), _first_too_many(leave, rows, rows_left)
        if earliest is None or earliest > bound_us:
            return np.empty(0, np.int64), rows_left
        until = bound_us if latest is None else min(latest, bound_us)
        doubtful = blocks[(rows > 0) & (enter <= until) & (leave >= earliest)]
        return doubtful, rows_left - int(rows[leave < earliest].sum())

    def _in_doubt(self, positions: Int64Array, bound_us: int, max_rows: int) -> tuple[Int64Array, int]:
        """The blocks among which a limit on rows decides, and how many of their rows fit after those before them.

        What is unread before these blocks is admitted whatever the limit allows, and nothing after them is.
        O(n log m): looks only where a sample of the blocks leaves it open.
        """
        current, unread = self._table.current_block(positions)
        current, stop = current[unread], self._table.stop[unread]
        start, ends = np.maximum(positions[unread], self._table.blocks.first[current]), self._table.blocks.end
        index, _ = sample(current, stop)
        # A split has read a block wholly by a bound that its maxima do not pass; it may get into a block by a bound
        # that something from there on does not pass.
        whole, some = self._table.prefix_max, self._table.suffix_min

        def rows_until(block: Int64Array) -> int:
            return int(np.where(block > current, ends[block - 1] - start, 0).sum())

        def above(values: Int64Array) -> Callable[[int], Int64Array]:
            return lambda bound: first_above(values, bound, current, stop)

        weights, share = self._table.blocks.rows(index), max_rows / max(rows_until(stop), 1)
        fits = near(some[index], weights, share, -1, above(some), lambda block: rows_until(block) <= max_rows)
        too_many = near(whole[index], weights, share, 1, above(whole), lambda block: rows_until(block) > max_rows)
        begin = current if fits is None else above(whole)(min(fits[0], bound_us))
        until = bound_us if too_many is None else min(too_many[0], bound_us)
        return ranges(begin, first_above(some, until, begin, stop)), max_rows - rows_until(begin)

    def _unread(self, blocks: Int64Array, positions: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return, for each block: unread rows; a bound below which none is admitted; a bound from which on all are."""
        owner, low, high = (
            self._table.blocks.owner[blocks],
            self._table.blocks.low[blocks],
            self._table.blocks.high[blocks],
        )
        rows = np.maximum(
            self._table.blocks.end[blocks] - np.maximum(positions[owner], self._table.blocks.first[blocks]), 0
        )
        leave = running(np.maximum, np.where(rows > 0, high, NO_TIMESTAMP), owner)
        # What surely holds the next block back. The maximum of a block that is, or before a restart was, partly read
        # may have been read; its minimum still is a lower bound of the rest.
        partly = self._table.is_partly_read(blocks, positions[owner])
        holds = np.where(rows > 0, np.where(partly, low, high), NO_TIMESTAMP)
        surely_held = running(np.maximum, holds, owner)
        held = np.full_like(leave, NO_TIMESTAMP)
        held[1:] = np.where(owner[1:] == owner[:-1], surely_held[:-1], NO_TIMESTAMP)
        return rows, np.maximum(held, low), leave

    def _admitted_after(self, blocks: Int64Array, positions: Int64Array, rows_left: int) -> int | None:
        """Bound that admits the first unread record of `blocks` that exceeds the limit; None if none does.

        `blocks` hold all that is doubtful of each split, in order. Keeps no more than `rows_left` times and a portion.
        """
        owner, rows = self._table.blocks.owner[blocks], int(self._table.blocks.rows(blocks).sum())
        skip = np.maximum(positions[owner] - self._table.blocks.first[blocks], 0)
        fits = rows <= self._loaded.cached_times
        kept, n_kept = [np.empty(0, np.int64)], 0
        last_owner, before = -1, NO_TIMESTAMP
        for part in self._loaded.portions(blocks, max(rows, 1) + 1 if fits else self._loaded.PORTION_TIMES):
            low, high = self._loaded.runs(blocks[part], skip[part])
            of, latest = owner[part], self._loaded.latest[high - 1]
            if of[0] == last_owner:
                latest[0] = max(int(latest[0]), before)
            latest = running(np.maximum, latest, of)
            # What records of a split wait for that are in its blocks before.
            held = np.where(np.diff(of, prepend=last_owner) == 0, np.append(before, latest[:-1]), NO_TIMESTAMP)
            last_owner, before = int(of[-1]), int(latest[-1])
            if fits:
                low, high, n_before = self._in_doubt_within(low, high, held, rows_left)
                rows_left -= n_before
            kept.append(np.maximum(self._loaded.latest[ranges(low, high)], np.repeat(held, high - low)))
            n_kept += kept[-1].size
            if n_kept > 2 * (rows_left + 1) + self._loaded.PORTION_TIMES:
                kept = [np.partition(np.concatenate(kept), rows_left)[: rows_left + 1]]
                n_kept = rows_left + 1
        if n_kept <= rows_left:
            return None
        return int(np.partition(np.concatenate(kept), rows_left)[rows_left])

    def _in_doubt_within(
        self, low: Int64Array, high: Int64Array, held: Int64Array, rows_left: int
    ) -> tuple[Int64Array, Int64Array, int]:
        """Return the parts of ascending runs, not below their `held`, in which the limit falls.

        And how many are before.
        """

        def passed(bound: int) -> Int64Array:
            return np.where(held > bound, low, first_above(self._loaded.latest, bound, low, high))

        def rows_until(end: Int64Array) -> int:
            return int((end - low).sum())

        index, run = sample(low, high)
        values, ones = np.maximum(self._loaded.latest[index], held[run]), np.ones_like(index)
        share = rows_left / max(rows_until(high), 1)
        fits = near(values, ones, share, -1, passed, lambda end: rows_until(end) <= rows_left)
        too_many = near(values, ones, share, 1, passed, lambda end: rows_until(end) > rows_left)
        begin, end = low if fits is None else fits[1], high if too_many is None else too_many[1]
        return begin, end, rows_until(begin)


def _first_too_many(bounds: Int64Array, rows: Int64Array, max_rows: int) -> int | None:
    """The least bound such that the rows of the entries at or below it are more than `max_rows`. O(m log m)."""
    order = np.argsort(bounds)
    over = int(np.searchsorted(np.cumsum(rows[order]), max_rows, side="right"))
    return None if over == order.size else int(bounds[order[over]])


class OutsideBlock(NamedTuple):
    """The records of the positions `[start, stop)` of a split, all outside: their event times lie within two bounds."""

    split_id: str
    start: int
    stop: int
    low_us: int
    high_us: int


class OutsideRecords:
    """The records of a table of blocks outside of its range; of opaque blocks nothing is known, so none counts."""

    MOST_LOADED: ClassVar[int] = 4 * 1024 * 1024
    """Of how many records event times are loaded for one count alone: a fifth of a second."""

    def __init__(self, table: BlockTable, loaded: ExactTimes, load: EventTimeLoader, wanted: EventTimeRange) -> None:
        self._table, self._loaded, self._load, self._wanted = table, loaded, load, wanted

    def count(self, read: Int64Array, positions: Int64Array, ends: Int64Array) -> int:
        """Count the records of the blocks `read` outside, within the `[positions, ends)` of each split. O(read).

        Of blocks that lie partly outside, and of which no times are kept, about `MOST_LOADED` records are loaded; what
        is outside of the others is not counted.
        """
        columns, wanted = self._table.blocks, self._wanted
        read = read[columns.outside[read] > INSIDE]
        owner, first, rows = columns.owner[read], columns.first[read], columns.rows(read)
        begin, end = np.clip(positions[owner] - first, 0, rows), np.clip(ends[owner] - first, 0, rows)
        is_whole = columns.outside[read] == WHOLLY
        count = int((end - begin)[is_whole].sum())
        partly = ~is_whole & (begin < end)
        read, begin, end = read[partly], begin[partly], end[partly]
        # The times that are kept lack those that count as none: before the range, and beyond a limit.
        as_loaded = self._loaded.is_kept(read) & (wanted.from_us is None or wanted.overlap != "drop")
        for _, times, _ in self._loaded.slices(read[as_loaded], begin[as_loaded], end[as_loaded]):
            count += int(np.count_nonzero(wanted.outside(times)))
        loaded = np.cumsum(np.where(as_loaded, 0, columns.rows(read)))
        for i in np.flatnonzero(~as_loaded & (loaded - columns.rows(read) < self.MOST_LOADED)).tolist():
            block = int(read[i])
            split_id = self._table.order[columns.owner[block]]
            times = np.asarray(self._load(split_id, int(columns.first[block]), int(columns.end[block])), np.int64)
            count += int(np.count_nonzero(wanted.outside(times[begin[i] : end[i]])))
        return count

    def first(self) -> OutsideBlock | None:
        """Return the first block that lies outside as a whole; None if there is none. O(m)."""
        columns = self._table.blocks
        for block in np.flatnonzero(columns.outside == WHOLLY)[:1].tolist():
            place = (int(column[block]) for column in (columns.first, columns.end, columns.low, columns.high))
            return OutsideBlock(self._table.order[columns.owner[block]], *place)
        return None
