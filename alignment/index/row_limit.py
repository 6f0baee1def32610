"""Exact event times of the blocks in which cuts fall, kept up to a bound, and what is counted by them.

By them it is known at which row a block is cut, which event times a read limit admits, and how many records of a block
are outside of a range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import ClassVar, Final, NamedTuple, TypeAlias

import numpy as np

from alignment.event_time_range import INSIDE, WHOLLY, EventTimeRange
from alignment.exceptions import InvalidArgumentError
from alignment.index.blocks import BlockTable, first_above, near, ranges, running, sample
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, BoolArray, Int64Array

EventTimeLoader: TypeAlias = Callable[[str, int, int], Int64Array]
"""`(split_id, start, stop) -> int64[stop - start]`: event times of one block; `NO_TIMESTAMP` where there is none."""

FirstLater: TypeAlias = Callable[[Sequence[str], Int64Array, Int64Array, int], tuple[Int64Array, Int64Array]]
"""`(split_ids, starts, stops, bound_us) -> (positions, times)`: all questions of one step about opaque blocks at once.

Of each split the first record in `[start, stop)` whose event time is later than the bound: its position and event time;
`stop` and `NO_TIMESTAMP` where there is none."""

_FEW_BLOCKS: Final = 512
"""So many blocks are all looked at: it takes no longer than a sample of them."""

CACHED_TIMES: Final = 24 * 1024 * 1024
"""Exact event times that are kept by default."""


class ExactTimes:
    """The exact times of some blocks of a table.

    `load` is called for all times of one block; at most `cached_times` of these (16 bytes each) are kept, in addition
    to those in use. `exact` has the times as they were loaded, those of a block from its `at` on; `latest` has
    the latest so far, from the record number `base` of a block on: it rises, so that a cut is found by halving.
    """

    PORTION_TIMES: ClassVar[int] = 4 * 1024 * 1024
    """Exact event times that are copied at once."""
    LAST_TURN: ClassVar[int] = int(np.iinfo(np.int32).max)
    """Recount after this many queries."""

    def __init__(self, table: BlockTable, load: EventTimeLoader, cached_times: int) -> None:
        self._table, self._load = table, load
        self.cached_times = cached_times
        self.exact, self.latest = np.empty(0, np.int64), np.empty(0, np.int64)
        self.filled = self._turn = 0

    def slices(
        self, blocks: Int64Array, begin: Int64Array, end: Int64Array
    ) -> Iterator[tuple[slice, Int64Array, Int64Array]]:
        """Exact event times of the records `[begin, end)` of each of `blocks`, laid end to end, in portions.

        Each is the slice of `blocks` that it covers, the times, and where those of each block start. `begin < end`
        throughout.
        """
        for part in self.portions(blocks, self.PORTION_TIMES):
            at, sizes = self._at(blocks[part]), end[part] - begin[part]
            times = self.exact[ranges(at + begin[part], at + end[part])]
            starts = np.cumsum(sizes) - sizes
            for i in np.flatnonzero(self._table.blocks.loose[blocks[part]]) + part.start:
                valid = self.times(int(blocks[i]))[begin[i] : end[i]]
                times[starts[i - part.start] :][: valid.size] = valid
            yield part, times, starts

    def portions(self, blocks: Int64Array, most: int) -> Iterator[slice]:
        """Slices of `blocks` of about so many records, at least one block each."""
        ends = np.cumsum(self._table.blocks.rows(blocks))
        if ends.size and ends[-1] < most:
            return iter((slice(0, ends.size),))
        portion = ends // most
        borders = np.flatnonzero(np.diff(portion, prepend=-1, append=-1)).tolist()
        return (slice(i, j) for i, j in pairwise(borders))

    def is_kept(self, blocks: Int64Array) -> BoolArray:
        """Return whether the times of blocks are in `_exact` as they count."""
        kept: BoolArray = (self._table.blocks.at[blocks] >= 0) & (self._table.blocks.loose[blocks] == 0)
        return kept

    @property
    def held_times(self) -> int:
        """Return how many exact event times may be there at once."""
        return max(self.cached_times, self.PORTION_TIMES)

    def times(self, block: int) -> Int64Array:
        """Exact event times of one block under the limit, `int64[rows]`: not to be changed.

        The next load moves what is kept: what must outlast it is to be copied.
        """
        one = np.array([block])
        at = int(self._at(one)[0])
        times = self.exact[at : at + int(self._table.blocks.rows(one)[0])]
        if self._table.blocks.loose[block]:
            times = self._table.valid(times)
            times[: self._table.blocks.skip[block]] = NO_TIMESTAMP
        return times

    def tighten(self, block: int) -> None:
        """Replace the bounds of a block by those of its records that are valid under the limit."""
        times = self.times(block)
        self._table.blocks.low[block], self._table.blocks.high[block] = times.min(), times.max()
        self._table.blocks.earliest[block] = times.min(initial=MAX_WATERMARK, where=times != NO_TIMESTAMP)
        at = int(self._table.blocks.at[block])
        self._table.blocks.loose[block] = int((times != self.exact[at : at + times.size]).any())
        self._accumulate(block, 0)

    def runs(self, blocks: Int64Array, skip: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return where `_latest` has, for each of `blocks`, the latest times so far from its record `skip` on."""
        at, base = self._at(blocks), self._table.blocks.base[blocks]
        low = at + skip
        # A record that is later than all before it is the latest, whichever of them count.
        misled = (skip < base) | ((skip > base) & (self.latest[low - 1] >= self.latest[low]))
        for i in np.flatnonzero(misled).tolist():
            self._accumulate(int(blocks[i]), int(skip[i]))
        return low, at + self._table.blocks.rows(blocks)

    def _accumulate(self, block: int, base: int) -> None:
        """Let the latest so far of a block begin with one of its records."""
        times, at = self.times(block), int(self._table.blocks.at[block])
        np.maximum.accumulate(times[base:], out=self.latest[at + base : at + times.size])
        self._table.blocks.base[block] = base

    def _at(self, blocks: Int64Array) -> Int64Array:
        """Return where the exact times of each of `blocks` begin, and load missing ones.

        O(1) for each that is loaded.
        """
        if self._turn == self.LAST_TURN:
            self._table.blocks.used[:] = self._turn = 0
        self._turn += 1
        self._table.blocks.used[blocks] = self._turn
        missing = blocks[self._table.blocks.at[blocks] < 0]
        if missing.size:
            self._make_room(int(self._table.blocks.rows(missing).sum()))
            for block in missing.tolist():
                self._take_in(block)
        return self._table.blocks.at[blocks].astype(np.int64)

    def _take_in(self, block: int) -> None:
        split_id = self._table.order[int(self._table.blocks.owner[block])]
        first, end = int(self._table.blocks.first[block]), int(self._table.blocks.end[block])
        times, rows = np.asarray(self._load(split_id, first, end), np.int64), end - first
        if times.size != rows:
            raise InvalidArgumentError(
                f"the loader gave {times.size} event times for {rows} records of split {split_id!r} from {first}"
            )
        if self._table.wanted:
            times = self._table.wanted.without_earlier(times)
        self.exact[self.filled : self.filled + rows] = times
        self._table.blocks.at[block] = self.filled
        self.filled += rows
        self._accumulate(block, 0)

    def _make_room(self, rows: int) -> None:
        """Make space for so many more: those used longest ago are dropped. O(1) amortised a time, and O(m)."""
        if self.filled + rows <= self.exact.size:
            return
        blocks = self._table.blocks
        kept = np.flatnonzero(blocks.at >= 0)
        kept = kept[np.argsort(-blocks.used[kept], kind="stable")]
        # Of some more than must be, or the next one would have to make space again.
        fits = np.cumsum(blocks.rows(kept)) + rows <= self.cached_times * 3 // 4
        stays = fits | (blocks.used[kept] == self._turn)
        blocks.at[kept[~stays]] = -1
        kept = np.sort(kept[stays])
        sizes = blocks.rows(kept)
        ends = np.cumsum(sizes)
        self.filled = int(ends[-1]) if ends.size else 0
        size = self.filled + rows
        starts = blocks.at[kept].astype(np.int64)
        moved = ranges(starts, starts + sizes)
        has_room = size <= self.exact.size <= 8 * size
        for name in ("exact", "latest"):
            column = before = getattr(self, name)
            if not has_room:
                # Fresh memory takes as long as all else.
                column = np.empty(max(size, min(4 * size, self.cached_times)), np.int64)
            column[: self.filled] = before[moved]
            setattr(self, name, column)
        blocks.at[kept] = ends - sizes


class RowLimit:
    """Searches the blocks of a table, none of them opaque, and the exact times of those among which a limit decides."""

    def __init__(self, table: BlockTable, loaded: ExactTimes) -> None:
        self._table, self._loaded = table, loaded
        # What was in doubt last, and for which question: blocks are loaded ahead by it before the plan asks again.
        self._asked: tuple[int, int, int, bytes] | None = None
        self._in_doubt: tuple[Int64Array, int] = np.empty(0, np.int64), 0

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
        asked = self._table.version, bound_us, max_rows, positions.tobytes()
        if asked != self._asked:
            self._asked, self._in_doubt = asked, self._find_doubtful(positions, bound_us, max_rows)
        return self._in_doubt

    def _find_doubtful(self, positions: Int64Array, bound_us: int, max_rows: int) -> tuple[Int64Array, int]:
        blocks, rows_left = self._around_limit(positions, bound_us, max_rows)
        rows, enter, leave = self._unread(blocks, positions)
        # Below `earliest` even all rows of all blocks that begin fit; at `latest` those of complete blocks do not.
        earliest, latest = _first_too_many(enter, rows, rows_left), _first_too_many(leave, rows, rows_left)
        if earliest is None or earliest > bound_us:
            return np.empty(0, np.int64), rows_left
        until = bound_us if latest is None else min(latest, bound_us)
        doubtful = blocks[(rows > 0) & (enter <= until) & (leave >= earliest)]
        return doubtful, rows_left - int(rows[leave < earliest].sum())

    def _around_limit(self, positions: Int64Array, bound_us: int, max_rows: int) -> tuple[Int64Array, int]:
        """The blocks among which a limit on rows decides, and how many of their rows fit after those before them.

        What is unread before these blocks is admitted whatever the limit allows, and nothing after them is.
        O(n log m): looks only where a sample of the blocks leaves it open.
        """
        current, unread = self._table.current_block(positions)
        current, stop = current[unread], self._table.stop[unread]
        if (stop - current).sum() <= _FEW_BLOCKS:
            return ranges(current, stop), max_rows
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
        of = self._table.blocks
        owner, low, high = of.owner[blocks], of.low[blocks], of.high[blocks]
        rows = np.maximum(of.end[blocks] - np.maximum(positions[owner], of.first[blocks]), 0)
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
