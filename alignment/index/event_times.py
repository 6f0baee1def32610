"""What a source knows of the event times of its unread records, ahead of reading them.

A split is a sequence of records, numbered by *position*. The index describes it as consecutive *blocks* (the row
groups of Parquet files, say): how many records, and the smallest and largest event time among them. That is enough to
say how far a split reaches and in which block a cut falls; only that one block's exact times are loaded,
through the `EventTimeLoader` that the index was given. Nothing of opaque blocks is loaded: see
`alignment.index.inside`.

A record is *admitted* by a bound when neither it nor an unread record before it in its split is later than the bound.
Every method answers for all splits at once, with numpy arrays in the order of `split_ids`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from itertools import count
from typing import Final

import numpy as np

from alignment.exceptions import InvalidArgumentError
from alignment.index.blocks import first_not_before, near, ranges, running, sample
from alignment.index.inside import TimedBlocks
from alignment.plan.rules import share_evenly, total
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, BoolArray, Int64Array

__all__ = ["EventTimeIndex"]


_EVEN_GUESSES: Final = 8
_AIM: Final = 0.8
"""How a search for a bound begins: guesses as if records came evenly, and the part of the limit that they aim at."""


class EventTimeIndex(TimedBlocks):
    """Event times of the unread records of many splits, by block; `locate` finds where opaque blocks are cut.

    With `n` splits and `m` blocks a change costs O(1) amortised a block, the first question after changes O(m + n), and
    every further one what its docstring says, in numpy steps, plus the loading of the blocks where a cut falls.
    """

    # ---- extremes --------------------------------------------------------------------------------------------------

    def latest_times(self, positions: Int64Array) -> Int64Array:
        """Largest event time at or after `positions`, `int64[n]`; `NO_TIMESTAMP` where nothing is unread. O(n log m).

        A block that is partly read counts with its whole maximum.
        """
        block, unread = self._current_block(positions)
        result = np.full(len(self._order), NO_TIMESTAMP, np.int64)
        result[unread] = self._suffix_max[block[unread]]
        return result

    def no_later_than(self, positions: Int64Array) -> int:
        """A bound that no record at or after `positions` is later than; `NO_TIMESTAMP` if nothing is unread. O(m).

        Unlike `latest_times` it counts what is unread of opaque blocks whose latest record was read or is not known.
        """
        self._settle()
        blocks = self._blocks
        unread = blocks.end > positions[blocks.owner]
        return int(blocks.high[unread].max(initial=NO_TIMESTAMP))

    def earliest_times(self, positions: Int64Array, wanted: BoolArray | None = None) -> Int64Array:
        """A lower bound of the event times at or after `positions`, `int64[n]`. O(n log m).

        Only of the splits that are `wanted` (`bool[n]`, default all). `MAX_WATERMARK` where nothing is unread or
        wanted. Blocks count with their minimum; of one that is partly read, which is loaded, only the rest does. Of an
        opaque block nothing is known: `NO_TIMESTAMP`.
        """
        block, unread = self._current_block(positions)
        unread = unread if wanted is None else unread[wanted[unread]]
        result = np.full(len(self._order), MAX_WATERMARK, np.int64)
        result[unread] = self._suffix_min[block[unread]]
        begun = unread[self._begun(block[unread], positions[unread]) & ~self._is_opaque(block[unread])]
        has_more = block[begun] + 1 < self._stop[begun]
        result[begun] = np.where(has_more, self._suffix_min[block[begun] + has_more], MAX_WATERMARK)
        skip = positions[begun] - self._blocks.first[block[begun]]
        for part, times, starts in self._slices(block[begun], skip, self._blocks.rows(block[begun])):
            timed = np.where(times == NO_TIMESTAMP, MAX_WATERMARK, times)
            result[begun[part]] = np.minimum(result[begun[part]], np.minimum.reduceat(timed, starts))
        return result

    def nearest_time(self, positions: Int64Array) -> int:
        """The smallest bound that admits any record; `MAX_WATERMARK` if nothing is unread.

        Loads only blocks whose minimum is below the answer, and asks for next records that no answer has told yet; of
        opaque blocks records without an event time do not count, unless there are no others. O(n log n).
        """
        nearest = self._nearest_opaque(positions)
        block, unread = self._current_block(positions)
        unread = unread[~self._is_opaque(block[unread])]
        block, skip = block[unread], positions[unread] - self._blocks.first[block[unread]]
        kept = self._is_kept(block)
        nearest = min(nearest, int(self._exact[self._blocks.at[block[kept]] + skip[kept]].min(initial=MAX_WATERMARK)))
        block, skip = block[~kept], skip[~kept]
        for i in np.argsort(self._blocks.low[block], kind="stable"):
            if self._blocks.low[block[i]] >= nearest:
                break
            nearest = min(nearest, int(self._times(int(block[i]))[skip[i]]))
        return nearest

    def maximum_times(self, positions: Int64Array, ends: Int64Array) -> Int64Array:
        """Largest event time among the records of `[positions, ends)`, `int64[n]`; `NO_TIMESTAMP` where there is none.

        Where `positions` fall inside a block, earlier records of that block may count: they were read before, so they
        make no difference to a maximum over all that was read. Loads the blocks in which `ends` fall. Of opaque blocks
        that were divided only what answers told counts: the maximum may be later. O(m + n).
        """
        (begin, _), (last, _) = self._current_block(positions), self._current_block(ends)
        result = np.full(len(self._order), NO_TIMESTAMP, np.int64)
        whole = np.flatnonzero((ends > positions) & (last > begin))
        if whole.size:
            runs = np.column_stack([begin[whole], last[whole]]).ravel()
            result[whole] = np.maximum.reduceat(self._attained, runs[runs < self._attained.size])[::2]
        cut = np.flatnonzero((ends > positions) & (last < self._stop))
        offset = ends[cut] - self._blocks.first[last[cut]]
        cut, offset = cut[offset > 0], offset[offset > 0]
        opaque = self._is_opaque(last[cut])
        result[cut[opaque]] = np.maximum(result[cut[opaque]], self._blocks.head[last[cut[opaque]]])
        cut, offset = cut[~opaque], offset[~opaque]
        skip = np.maximum(positions[cut] - self._blocks.first[last[cut]], 0)
        for part in self._portions(last[cut], self._held_times):
            low, _ = self._runs(last[cut[part]], skip[part])
            read_to = low + (offset - skip)[part]
            result[cut[part]] = np.maximum(result[cut[part]], self._latest[read_to - 1])
        return result

    def count_at_or_below(self, positions: Int64Array, ends: Int64Array, bound_us: int) -> Int64Array:
        """How many records of `[positions, ends)` have an event time at or below `bound_us`, `int64[n]`.

        Loads only blocks whose minimum is at or below `bound_us`; of opaque blocks none is counted. O(n log m).
        """
        (current, _), (last, _) = self._current_block(positions), self._current_block(ends)
        result = np.zeros(len(self._order), np.int64)
        if bound_us == NO_TIMESTAMP:
            return result
        # Nothing as early follows.
        until = _first_above(self._suffix_min, bound_us, current, np.minimum(last + 1, self._stop))
        columns, read = self._blocks, ranges(current, until)
        read = read[(columns.low[read] <= bound_us) & (columns.high[read] > NO_TIMESTAMP) & ~self._is_opaque(read)]
        owner, first, rows = columns.owner[read], columns.first[read], columns.rows(read)
        begin, end = np.clip(positions[owner] - first, 0, rows), np.clip(ends[owner] - first, 0, rows)
        owner, read, begin, end = (column[begin < end] for column in (owner, read, begin, end))
        for part, times, starts in self._slices(read, begin, end):
            counts = np.add.reduceat((times <= bound_us) & (times != NO_TIMESTAMP), starts, dtype=np.int64)
            np.add.at(result, owner[part], counts)
        return result

    def times_between(self, split_id: str, start: int, stop: int) -> Int64Array:
        """Exact event times of the records `[start, stop)` of a split; loads their blocks, which must not be opaque."""
        self._settle()
        self._known_end(split_id)
        parts = [np.empty(0, np.int64)]
        slot = bisect_left(self._order, split_id)
        for block in range(int(self._begin[slot]), int(self._stop[slot])):
            first = int(self._blocks.first[block])
            if first < stop and self._blocks.end[block] > start:
                if self._blocks.opaque[block]:
                    raise InvalidArgumentError(f"the event times of split {split_id!r} from {first} on are only asked")
                parts.append(self._times(block)[max(start - first, 0) : stop - first])
        return np.concatenate(parts)

    def far_next_times(self, positions: Int64Array, later_than_us: int) -> Int64Array:
        """Event time of the record at each of `positions`, or a lower bound, where that is later; `int64[n]`.

        `NO_TIMESTAMP` where it is not, or nothing is unread, or it takes loading to say. O(n log m).
        """
        block, unread = self._current_block(positions)
        result = np.full(len(self._order), NO_TIMESTAMP, np.int64)
        unread = unread[self._blocks.high[block[unread]] > later_than_us]
        skip = positions[unread] - self._blocks.first[block[unread]]
        result[unread] = np.where(skip <= 0, self._blocks.low[block[unread]], NO_TIMESTAMP)
        kept = self._is_kept(block[unread])
        at = self._blocks.at[block[unread]] + np.maximum(skip, 0)
        result[unread[kept]] = self._exact[at[kept]]
        result = np.maximum(result, self.next_times(positions))
        return np.where(result > later_than_us, result, NO_TIMESTAMP)

    # ---- cuts ----------------------------------------------------------------------------------------------------

    def cut(self, positions: Int64Array, bound_us: int) -> Int64Array:
        """Position of each split's first record at or after `positions` that is later than `bound_us`, `int64[n]`.

        Loads exactly those blocks in which a cut may fall. All opaque blocks are located in one question, and in
        another where a split has several of them, and what is unread of the first has no later record after all.
        O(n log m) beside, and O(m) where what is later was read before.
        """
        current, unread = self._current_block(positions)
        ends = np.maximum(self._ends, positions)
        while unread.size:
            block = _first_above(self._prefix_max, bound_us, current[unread], self._stop[unread])
            misled = np.flatnonzero(block < self._stop[unread])
            misled = misled[self._blocks.high[block[misled]] <= bound_us]
            if misled.size:
                # The later record was in a block before.
                later = np.append(np.flatnonzero(self._blocks.high > bound_us), self._blocks.high.size)
                block[misled] = later[np.searchsorted(later, current[unread[misled]])]
            unread, block = unread[block < self._stop[unread]], block[block < self._stop[unread]]
            skip = np.maximum(positions[unread] - self._blocks.first[block], 0)
            # No record of these blocks is admitted: no need to look inside.
            outside = (np.maximum(self._blocks.low[block], self._blocks.head[block]) > bound_us) & (skip == 0)
            ends[unread[outside]] = self._blocks.first[block[outside]]
            unread, block, skip = unread[~outside], block[~outside], skip[~outside]
            first_later = self._first_later(block, skip, bound_us)
            found = first_later >= 0
            ends[unread[found]] = self._blocks.first[block[found]] + skip[found] + first_later[found]
            # The maximum of these was among the records already read: look on behind them.
            unread = unread[~found]
            current[unread] = block[~found] + 1
        self._divide()
        return ends

    def cut_rows(self, positions: Int64Array, bound_us: int, max_rows: int) -> tuple[int, Int64Array]:
        """The latest bound, at most `bound_us`, that admits at most `max_rows` records; and its cut, `int64[n]`.

        Records are admitted by event time, whichever split they are in. Where those of the first event time alone are
        more than `max_rows`, that many of them are admitted, as evenly as can be: every split gets as many as any
        other, or all it has; what cannot be divided goes to those of which least was read. O(n log m), plus the
        loading of the blocks that the bounds in question divide; holds `max_rows` of their times, and a portion.
        """
        self._settle()
        if self._blocks.opaque.any():
            bound_us, found = self._search_bound(positions, bound_us, max_rows)
            return bound_us, self._share(positions, bound_us, max_rows) if found is None else found
        blocks, room = self._in_doubt(positions, bound_us, max_rows)
        rows, enter, leave = self._unread(blocks, positions)
        # Below `earliest` even all rows of all begun blocks fit; at `latest` those of complete blocks do not.
        earliest, latest = _first_too_many(enter, rows, room), _first_too_many(leave, rows, room)
        if earliest is None or earliest > bound_us:
            return bound_us, self.cut(positions, bound_us)
        until = bound_us if latest is None else min(latest, bound_us)
        doubtful = blocks[(rows > 0) & (enter <= until) & (leave >= earliest)]
        room -= int(rows[leave < earliest].sum())
        first_out = self._admitted_after(doubtful, positions, room)
        if first_out is None or first_out > bound_us:
            return bound_us, self.cut(positions, bound_us)
        if first_out > NO_TIMESTAMP:
            ends = self.cut(positions, first_out - 1)
            if (ends > positions).any():
                return first_out - 1, ends
        return first_out, self._share(positions, first_out, max_rows)

    def _first_later(self, blocks: Int64Array, skip: Int64Array, bound_us: int) -> Int64Array:
        """Of each block how many records from `skip` on go before the first later one; -1 if none is later."""
        result = np.full(blocks.size, -1, np.int64)
        opaque = self._is_opaque(blocks)
        result[opaque] = self._locate_later(blocks[opaque], skip[opaque], bound_us)
        loaded = np.flatnonzero(~opaque)
        for part in self._portions(blocks[loaded], self._held_times):
            low, high = self._runs(blocks[loaded[part]], skip[loaded[part]])
            place = _first_above(self._latest, bound_us, low, high)
            result[loaded[part]] = np.where(place < high, place - low, -1)
        return result

    def _nearest_opaque(self, positions: Int64Array) -> int:
        """The event time of the nearest next record that is in an opaque block; `MAX_WATERMARK` if there is none.

        `NO_TIMESTAMP` where what is left of a block has none with an event time.
        """
        block, unread = self._current_block(positions)
        opaque = unread[self._is_opaque(block[unread])]
        if (self._blocks.high[block[opaque]] == NO_TIMESTAMP).any():
            # An answer said so.
            return NO_TIMESTAMP
        unknown = opaque[self.next_times(positions)[opaque] == NO_TIMESTAMP]
        if unknown.size:
            skip = positions[unknown] - self._blocks.first[block[unknown]]
            self._locate_later(block[unknown], np.maximum(skip, 0), NO_TIMESTAMP)
            nearest = min(answer.time for answer in self._answers)
            self._divide()
            self._settle()
            opaque = np.setdiff1d(opaque, unknown)
        else:
            nearest = MAX_WATERMARK
        return min(nearest, int(self.next_times(positions)[opaque].min(initial=MAX_WATERMARK)))

    def _search_bound(self, positions: Int64Array, bound_us: int, max_rows: int) -> tuple[int, Int64Array | None]:
        """A bound, at most `bound_us`, that admits at most `max_rows` records, and at least half as many; and its cut.

        It admits fewer where the next event time has too many records; and too many, with None for the cut, where that
        is the very first one. Bounds are tried first that cost no question, then those at which the limit would be met
        if records came evenly; then what is left is halved. Each question takes the next record behind what fits into
        account, so that a millisecond with too many records ends the search as well.

        Steps: O(log of the span of event times), two or three where records come evenly.
        """
        ends = self.cut(positions, bound_us)
        n_high = _rows(positions, ends)
        if n_high <= max_rows:
            return bound_us, ends
        high = min(bound_us, self.no_later_than(positions))
        low = self.nearest_time(positions)
        if low > NO_TIMESTAMP:
            low -= 1
        fits = self.cut(positions, low)
        if _rows(positions, fits) > max_rows:
            return low, None
        known = [bound for bound in self.divided_at() if low < bound < high]
        for attempt in count():
            n_fits = _rows(positions, fits)
            following = self.nearest_time(fits)
            low = max(low, min(following, high) - 1)
            if following >= high or (n_fits and 2 * n_fits >= max_rows):
                break
            known = [bound for bound in known if following <= bound < high]
            if known:
                tried = known[len(known) // 2]
            elif attempt >= _EVEN_GUESSES:
                # Records come in lumps: halve what is between.
                tried = (following + high) // 2
            else:
                share = (_AIM * max_rows - n_fits) / max(n_high - n_fits, 1)
                tried = min(following + int((high - following) * min(max(share, 0.0), 1.0)), high - 1)
            tried_ends = self.cut(positions, tried)
            n_tried = _rows(positions, tried_ends)
            if n_tried <= max_rows:
                low, fits = tried, tried_ends
            else:
                high, n_high = tried, n_tried
        if (fits > positions).any():
            return low, fits
        return high, None

    def _in_doubt(self, positions: Int64Array, bound_us: int, max_rows: int) -> tuple[Int64Array, int]:
        """The blocks among which a limit on rows decides, and how many of their rows fit beside those before them.

        What is unread before these blocks is admitted whatever the limit allows, and nothing behind them is.
        O(n log m): looks where a sample of the blocks says.
        """
        current, unread = self._current_block(positions)
        current, stop = current[unread], self._stop[unread]
        start, ends = np.maximum(positions[unread], self._blocks.first[current]), self._blocks.end
        index, _ = sample(current, stop)
        # A split has read a block wholly by a bound that its maxima do not pass; it may get into a block by a bound
        # that something from there on does not pass.
        whole, some = self._prefix_max, self._suffix_min

        def rows_until(block: Int64Array) -> int:
            return int(np.where(block > current, ends[block - 1] - start, 0).sum())

        def above(values: Int64Array) -> Callable[[int], Int64Array]:
            return lambda bound: _first_above(values, bound, current, stop)

        weights, share = self._blocks.rows(index), max_rows / max(rows_until(stop), 1)
        fits = near(some[index], weights, share, -1, above(some), lambda block: rows_until(block) <= max_rows)
        too_many = near(whole[index], weights, share, 1, above(whole), lambda block: rows_until(block) > max_rows)
        begin = current if fits is None else above(whole)(min(fits[0], bound_us))
        until = bound_us if too_many is None else min(too_many[0], bound_us)
        return ranges(begin, _first_above(some, until, begin, stop)), max_rows - rows_until(begin)

    def _unread(self, blocks: Int64Array, positions: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Of each block: unread rows; a bound below which none of them is admitted; one from which on all are."""
        owner, low, high = self._blocks.owner[blocks], self._blocks.low[blocks], self._blocks.high[blocks]
        rows = np.maximum(self._blocks.end[blocks] - np.maximum(positions[owner], self._blocks.first[blocks]), 0)
        leave = running(np.maximum, np.where(rows > 0, high, NO_TIMESTAMP), owner)
        # What surely holds the next block back. The maximum of a block that is, or before a restart was, partly read
        # may have been read; its minimum still is a lower bound of the rest.
        begun = self._begun(blocks, positions[owner])
        holds = np.where(rows > 0, np.where(begun, low, high), NO_TIMESTAMP)
        surely_held = running(np.maximum, holds, owner)
        held = np.full_like(leave, NO_TIMESTAMP)
        held[1:] = np.where(owner[1:] == owner[:-1], surely_held[:-1], NO_TIMESTAMP)
        return rows, np.maximum(held, low), leave

    def _admitted_after(self, blocks: Int64Array, positions: Int64Array, room: int) -> int | None:
        """Bound that admits the first unread record of `blocks` for which there is no room; None if there is for all.

        `blocks` hold all that is doubtful of each split, in order. Keeps no more than `room` times and a portion.
        """
        owner, rows = self._blocks.owner[blocks], int(self._blocks.rows(blocks).sum())
        skip = np.maximum(positions[owner] - self._blocks.first[blocks], 0)
        fits = rows <= self._cached_times
        kept, n_kept = [np.empty(0, np.int64)], 0
        last_owner, before = -1, NO_TIMESTAMP
        for part in self._portions(blocks, max(rows, 1) + 1 if fits else self._PORTION_TIMES):
            low, high = self._runs(blocks[part], skip[part])
            of, latest = owner[part], self._latest[high - 1]
            if of[0] == last_owner:
                latest[0] = max(int(latest[0]), before)
            latest = running(np.maximum, latest, of)
            # What records of a split wait for that are in its blocks before.
            held = np.where(np.diff(of, prepend=last_owner) == 0, np.append(before, latest[:-1]), NO_TIMESTAMP)
            last_owner, before = int(of[-1]), int(latest[-1])
            if fits:
                low, high, n_before = self._in_doubt_within(low, high, held, room)
                room -= n_before
            kept.append(np.maximum(self._latest[ranges(low, high)], np.repeat(held, high - low)))
            n_kept += kept[-1].size
            if n_kept > 2 * (room + 1) + self._PORTION_TIMES:
                kept = [np.partition(np.concatenate(kept), room)[: room + 1]]
                n_kept = room + 1
        if n_kept <= room:
            return None
        return int(np.partition(np.concatenate(kept), room)[room])

    def _in_doubt_within(
        self, low: Int64Array, high: Int64Array, held: Int64Array, room: int
    ) -> tuple[Int64Array, Int64Array, int]:
        """Of runs of rising times, none below its `held`, those parts in which the limit falls; how many are before."""

        def first_above(bound: int) -> Int64Array:
            return np.where(held > bound, low, _first_above(self._latest, bound, low, high))

        def rows_until(end: Int64Array) -> int:
            return int((end - low).sum())

        index, run = sample(low, high)
        values, ones = np.maximum(self._latest[index], held[run]), np.ones_like(index)
        share = room / max(rows_until(high), 1)
        fits = near(values, ones, share, -1, first_above, lambda end: rows_until(end) <= room)
        too_many = near(values, ones, share, 1, first_above, lambda end: rows_until(end) > room)
        begin, end = low if fits is None else fits[1], high if too_many is None else too_many[1]
        return begin, end, rows_until(begin)

    def _share(self, positions: Int64Array, bound_us: int, max_rows: int) -> Int64Array:
        """Of the records that `bound_us` admits `max_rows`: each split as many as any other, or all it has."""
        wanted = self.cut(positions, bound_us) - positions
        return positions + share_evenly(wanted, positions, max_rows)


def _first_above(values: Int64Array, bound: int, low: Int64Array, high: Int64Array) -> Int64Array:
    """In each `[low, high)`, where `values` never fall, the first index whose value is above `bound`, or `high`."""
    return first_not_before(low, high, lambda index: values[index] <= bound)


def _first_too_many(bounds: Int64Array, rows: Int64Array, max_rows: int) -> int | None:
    """The least bound such that the rows of the entries at or below it are more than `max_rows`. O(m log m)."""
    order = np.argsort(bounds)
    over = int(np.searchsorted(np.cumsum(rows[order]), max_rows, side="right"))
    return None if over == order.size else int(bounds[order[over]])


def _rows(positions: Int64Array, ends: Int64Array) -> int:
    return total(ends - positions)
