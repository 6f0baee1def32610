"""Event times of the unread records of a source, known ahead of reading them.

A split is a sequence of records, numbered by *position*. The index describes it as consecutive *blocks* (the row
groups of Parquet files, say): how many records, and the smallest and largest event time among them. That is enough to
find how far a split reaches and in which block a cut falls; only that one block's exact times are loaded,
through the `EventTimeLoader` that the index was given. Nothing of opaque blocks is loaded: see
`alignment.index.opaque`.

A record is *admitted* by a bound when neither it nor an unread record before it in its split is later than the bound.
Every method answers for all splits at once, with numpy arrays in the order of `split_ids`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import count
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from alignment.exceptions import InvalidArgumentError
from alignment.index.blocks import LOADED, PERHAPS_LOOSE, BlockTable, first_above, ranges
from alignment.index.row_limit import (
    CACHED_TIMES,
    EventTimeLoader,
    ExactTimes,
    FirstLater,
    OutsideBlock,
    OutsideRecords,
    RowLimit,
)
from alignment.plan.rules import share_evenly, total
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK, BoolArray, Int64Array

if TYPE_CHECKING:
    from alignment.event_time_range import EventTimeRange
    from alignment.index.opaque import OpaqueBlocks

_EVEN_GUESSES: Final = 8
_AIM: Final = 0.8
"""The first step of a search for a bound: guesses as if records came evenly, and the part of the limit they aim at."""


class EventTimeIndex:
    """Event times of the unread records of many splits, by block; `locate` finds where opaque blocks are cut.

    Only records of the `wanted` event times are read, all of them if it is None. Those before them count as records
    without an event time; those after them count as they are.

    With `n` splits and `m` blocks a change costs O(1) amortised a block, the first question after changes O(m + n), and
    every further one the cost in its docstring, in numpy steps, plus the loading of the blocks where a cut falls.

    It has a table of the blocks, the exact times of some of them (of which `cached_times` are kept), the queries that
    find where opaque ones are cut, and the count of what lies outside of the wanted range.
    """

    def __init__(
        self,
        load: EventTimeLoader,
        *,
        cached_times: int = CACHED_TIMES,
        locate: FirstLater | None = None,
        wanted: EventTimeRange | None = None,
    ) -> None:
        self._table = BlockTable(wanted)
        self._loaded = ExactTimes(self._table, load, cached_times)
        self._row_limit = RowLimit(self._table, self._loaded)
        self._opaque: OpaqueBlocks | None = None
        self._outside: OutsideRecords | None = None
        # Imported here: few sources have opaque blocks, and few queries want a range.
        if locate is not None:
            from alignment.index.opaque import OpaqueBlocks

            self._opaque = OpaqueBlocks(self._table, locate)
        if wanted:
            self._outside = OutsideRecords(self._table, self._loaded, load, wanted)

    # ---- splits and blocks ---------------------------------------------------------------------------------------

    def add_split(self, split_id: str, position: int = 0) -> None:
        """Make a split known whose blocks will follow `position`; see `BlockTable.add_split`. O(1) amortised."""
        self._table.add_split(split_id, position)

    def append(
        self,
        split_id: str,
        rows: npt.ArrayLike,
        min_us: npt.ArrayLike,
        max_us: npt.ArrayLike,
        earliest_us: npt.ArrayLike | None = None,
    ) -> None:
        """Add the blocks that follow the last known one of a split; see `BlockTable.append`. O(1) amortised a block."""
        self._table.append(split_id, rows, min_us, max_us, earliest_us)

    def append_opaque(self, split_id: str, rows: int, max_us: int) -> None:
        """Add one block that is never loaded; see `OpaqueBlocks.append`. O(1) amortised."""
        if self._opaque is None:
            raise InvalidArgumentError(f"split {split_id!r}: opaque blocks need EventTimeIndex(locate=...)")
        self._opaque.append(split_id, rows, max_us)

    def limit_times(self, limit_us: int, positions: Int64Array) -> None:
        """Make event times from `limit_us` on invalid; see `BlockTable.limit_times`. O(m)."""
        self._settle()
        self._table.limit_times(limit_us, positions)

    def valid(self, times: Int64Array) -> Int64Array:
        """Return event times with `NO_TIMESTAMP` in place of invalid ones. O(n).

        Invalid are those at or above the limit of `limit_times`, and those before the wanted range.
        """
        times = self._table.valid(times)
        return self._table.wanted.without_earlier(times) if self._table.wanted else times

    def remove(self, split_ids: Iterable[str]) -> None:
        """Forget splits, with their blocks and times; raises an error, and forgets none, if one is unknown.

        O(m + n).
        """
        removed = frozenset(split_ids)
        for split_id in removed:
            self._table.known_end(split_id)
        self._settle()
        self._table.remove(removed)

    def forget_unread(self, split_id: str, position: int) -> None:
        """Remove the records of a split from `position` on; records that are added later begin there. O(m + n)."""
        if self._table.known_end(split_id) > position:
            self.remove([split_id])
            self.add_split(split_id, position)

    def forget_before(self, positions: Int64Array) -> None:
        """Drop the blocks that end at or before `positions` (`int64[n]`). O(m + n)."""
        self._settle()
        self._table.forget_before(positions)

    @property
    def split_ids(self) -> tuple[str, ...]:
        """Ids of the known splits, sorted: the order of every array here."""
        self._settle()
        return self._table.order

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, split_id: object) -> bool:
        return split_id in self._table

    def ends(self) -> Int64Array:
        """Return the position after the last known record of each split, `int64[n]`. O(n)."""
        self._settle()
        return self._table.known_ends.copy()

    def _settle(self) -> None:
        """Take in what changed since the last question."""
        if self._table.is_stale:
            self._table.take_in()
            for block in np.flatnonzero(self._table.blocks.loose == PERHAPS_LOOSE):
                self._loaded.tighten(int(block))
            self._table.derive()

    def _current_block(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        self._settle()
        return self._table.current_block(positions)

    # ---- extremes --------------------------------------------------------------------------------------------------

    def latest_times(self, positions: Int64Array) -> Int64Array:
        """Largest event time at or after `positions`, `int64[n]`; `NO_TIMESTAMP` where nothing is unread. O(n log m).

        A block that is partly read counts with its whole maximum.
        """
        block, unread = self._current_block(positions)
        result = np.full(len(self._table.order), NO_TIMESTAMP, np.int64)
        result[unread] = self._table.suffix_max[block[unread]]
        return result

    def no_later_than(self, positions: Int64Array) -> int:
        """A bound that no record at or after `positions` is later than; `NO_TIMESTAMP` if nothing is unread. O(m).

        Unlike `latest_times` it counts what is unread of opaque blocks whose latest record was read or is not known.
        """
        self._settle()
        blocks = self._table.blocks
        unread = blocks.end > positions[blocks.owner]
        return int(blocks.high[unread].max(initial=NO_TIMESTAMP))

    def earliest_times(self, positions: Int64Array, wanted: BoolArray | None = None) -> Int64Array:
        """A lower bound of the event times at or after `positions`, `int64[n]`. O(n log m).

        Only of the splits that are `wanted` (`bool[n]`, default all). `MAX_WATERMARK` where nothing with a valid event
        time is unread, or nothing wanted. Blocks count with their minimum; of one that is partly read, which is loaded,
        only the rest does. A block of which it is not known is loaded once. `NO_TIMESTAMP` where an opaque one follows.
        """
        block, unread = self._current_block(positions)
        unread = unread if wanted is None else unread[wanted[unread]]
        self._find_earliest(block[unread], self._table.stop[unread])
        result = np.full(len(self._table.order), MAX_WATERMARK, np.int64)
        result[unread] = self._table.suffix_earliest[block[unread]]
        is_loaded = self._table.blocks.opaque[block[unread]] == LOADED
        partly = unread[self._table.is_partly_read(block[unread], positions[unread]) & is_loaded]
        has_more = block[partly] + 1 < self._table.stop[partly]
        result[partly] = np.where(has_more, self._table.suffix_earliest[block[partly] + has_more], MAX_WATERMARK)
        skip = positions[partly] - self._table.blocks.first[block[partly]]
        for part, times, starts in self._loaded.slices(block[partly], skip, self._table.blocks.rows(block[partly])):
            timed = np.where(times == NO_TIMESTAMP, MAX_WATERMARK, times)
            result[partly[part]] = np.minimum(result[partly[part]], np.minimum.reduceat(timed, starts))
        return result

    def _find_earliest(self, begin: Int64Array, stop: Int64Array) -> None:
        """Load the blocks of these runs of which the earliest valid event time is not known. O(m) where there are any.

        An invalid event time is the smallest of its block, by which bounds alone do not show the earliest valid one.
        """
        if (self._table.suffix_earliest[begin] > NO_TIMESTAMP).all():
            return
        blocks = ranges(begin, stop)
        of = self._table.blocks
        unknown = blocks[(of.earliest[blocks] == NO_TIMESTAMP) & (of.opaque[blocks] == LOADED)]
        for block in unknown.tolist():
            self._loaded.tighten(block)
        if unknown.size:
            self._table.derive()

    def end_of(self, split_id: str) -> int:
        """Return the position after the last known record of a split. O(1)."""
        return self._table.known_end(split_id)

    def earliest_record(self, split_id: str, position: int) -> tuple[int, int] | None:
        """Return position and event time of the earliest record of a split at or after `position`.

        None if none has a valid event time, or there are opaque blocks. Loads the blocks that may have it.
        """
        self._settle()
        slot, columns = bisect_left(self._table.order, split_id), self._table.blocks
        blocks = np.arange(int(self._table.begin[slot]), int(self._table.stop[slot]))
        blocks = blocks[columns.end[blocks] > position]
        if (columns.opaque[blocks] != LOADED).any():
            return None
        found: tuple[int, int] | None = None
        for block in blocks[np.argsort(columns.earliest[blocks], kind="stable")].tolist():
            if columns.earliest[block] == MAX_WATERMARK or (found is not None and found[1] <= columns.earliest[block]):
                break
            first = int(columns.first[block])
            skip = max(position - first, 0)
            times = self._loaded.times(block)[skip:]
            times = np.where(times == NO_TIMESTAMP, MAX_WATERMARK, times)
            earliest = int(times.argmin())
            if times[earliest] < MAX_WATERMARK and (found is None or times[earliest] < found[1]):
                found = first + skip + earliest, int(times[earliest])
        return found

    def nearest_time(self, positions: Int64Array) -> int:
        """The smallest bound that admits any record; `MAX_WATERMARK` if nothing is unread.

        Loads only blocks whose minimum is below the answer, and queries next records that no answer has given yet; of
        opaque blocks records without an event time do not count, unless there are no others. O(n log n).
        """
        nearest = MAX_WATERMARK if self._opaque is None else self._nearest_opaque(self._opaque, positions)
        (block, unread), of = self._current_block(positions), self._table.blocks
        unread = unread[of.opaque[block[unread]] == LOADED]
        block, skip = block[unread], positions[unread] - of.first[block[unread]]
        kept = self._loaded.is_kept(block)
        nearest = min(nearest, int(self._loaded.exact[of.at[block[kept]] + skip[kept]].min(initial=MAX_WATERMARK)))
        block, skip = block[~kept], skip[~kept]
        if (of.high[block] == NO_TIMESTAMP).any():
            # None of their records has an event time: no need to load them.
            return NO_TIMESTAMP
        for i in np.argsort(of.low[block], kind="stable"):
            if of.low[block[i]] >= nearest:
                break
            nearest = min(nearest, int(self._loaded.times(int(block[i]))[skip[i]]))
        return nearest

    def maximum_times(self, positions: Int64Array, ends: Int64Array) -> Int64Array:
        """Largest event time among the records of `[positions, ends)`, `int64[n]`; `NO_TIMESTAMP` where there is none.

        Where `positions` fall inside a block, earlier records of that block may count: they were read before, so they
        make no difference to a maximum over all that was read. Loads the blocks in which `ends` fall. Of opaque blocks
        that were divided only what answers gave counts: the maximum may be later. O(m + n).
        """
        (begin, _), (last, _) = self._current_block(positions), self._current_block(ends)
        result = np.full(len(self._table.order), NO_TIMESTAMP, np.int64)
        whole = np.flatnonzero((ends > positions) & (last > begin))
        if whole.size:
            runs = np.column_stack([begin[whole], last[whole]]).ravel()
            result[whole] = np.maximum.reduceat(self._table.attained, runs[runs < self._table.attained.size])[::2]
        cut = np.flatnonzero((ends > positions) & (last < self._table.stop))
        offset = ends[cut] - self._table.blocks.first[last[cut]]
        cut, offset = cut[offset > 0], offset[offset > 0]
        opaque = self._table.blocks.opaque[last[cut]] != LOADED
        result[cut[opaque]] = np.maximum(result[cut[opaque]], self._table.blocks.head[last[cut[opaque]]])
        cut, offset = cut[~opaque], offset[~opaque]
        skip = np.maximum(positions[cut] - self._table.blocks.first[last[cut]], 0)
        for part in self._loaded.portions(last[cut], self._loaded.held_times):
            low, _ = self._loaded.runs(last[cut[part]], skip[part])
            read_to = low + (offset - skip)[part]
            result[cut[part]] = np.maximum(result[cut[part]], self._loaded.latest[read_to - 1])
        return result

    def count_at_or_below(self, positions: Int64Array, ends: Int64Array, bound_us: int) -> Int64Array:
        """Return how many records of `[positions, ends)` have an event time at or below `bound_us`, `int64[n]`.

        Loads only blocks whose minimum is at or below `bound_us`; of opaque blocks none is counted. O(n log m).
        """
        (current, _), (last, _) = self._current_block(positions), self._current_block(ends)
        result = np.zeros(len(self._table.order), np.int64)
        if bound_us == MIN_WATERMARK:
            return result
        # Nothing as early follows.
        until = first_above(self._table.suffix_earliest, bound_us, current, np.minimum(last + 1, self._table.stop))
        columns, read = self._table.blocks, ranges(current, until)
        has_times = (columns.high[read] > NO_TIMESTAMP) & (columns.opaque[read] == LOADED)
        read = read[has_times & (columns.earliest[read] <= bound_us)]
        owner, first, rows = columns.owner[read], columns.first[read], columns.rows(read)
        begin, end = np.clip(positions[owner] - first, 0, rows), np.clip(ends[owner] - first, 0, rows)
        owner, read, begin, end = (column[begin < end] for column in (owner, read, begin, end))
        for part, times, starts in self._loaded.slices(read, begin, end):
            counts = np.add.reduceat((times <= bound_us) & (times != NO_TIMESTAMP), starts, dtype=np.int64)
            np.add.at(result, owner[part], counts)
        return result

    def count_outside(self, positions: Int64Array, ends: Int64Array) -> int:
        """Count the records of `[positions, ends)` outside of the wanted range; see `OutsideRecords.count`. O(m)."""
        if self._outside is None:
            return 0
        (current, _), (last, _) = self._current_block(positions), self._current_block(ends)
        return self._outside.count(ranges(current, np.minimum(last + 1, self._table.stop)), positions, ends)

    def first_outside(self) -> OutsideBlock | None:
        """A block that lies outside of the wanted range as a whole, None if there is none. O(m)."""
        self._settle()
        return None if self._outside is None else self._outside.first()

    def count(self, positions: Int64Array, ends: Int64Array) -> Int64Array:
        """Count the records of `[positions, ends)`, `int64[n]`; of opaque blocks at most: see `OpaqueBlocks`. O(m)."""
        self._settle()
        return ends - positions if self._opaque is None else self._opaque.records(positions, ends)

    def after_unwanted(self, positions: Int64Array, bound_us: int) -> Int64Array:
        """Return where the first block of each split begins that has wanted records or passes `bound_us`; `int64[n]`.

        At or after its next record: what lies between does not count in a read limit. O(m).
        """
        self._settle()
        return self._table.after_unwanted(positions, bound_us)

    def times_between(self, split_id: str, start: int, stop: int) -> Int64Array:
        """Exact event times of the records `[start, stop)` of a split; loads their blocks, which must not be opaque."""
        self._settle()
        self._table.known_end(split_id)
        parts = [np.empty(0, np.int64)]
        slot = bisect_left(self._table.order, split_id)
        for block in range(int(self._table.begin[slot]), int(self._table.stop[slot])):
            first = int(self._table.blocks.first[block])
            if first < stop and self._table.blocks.end[block] > start:
                if self._table.blocks.opaque[block]:
                    raise InvalidArgumentError(
                        f"split {split_id!r} is opaque from position {first} on: its exact event times cannot be loaded"
                    )
                parts.append(self._loaded.times(block)[max(start - first, 0) : stop - first].copy())
        return np.concatenate(parts)

    def far_next_times(self, positions: Int64Array, later_than_us: int) -> Int64Array:
        """Event time of the record at each of `positions`, or a lower bound, where that is later; `int64[n]`.

        `NO_TIMESTAMP` where it is not, or nothing is unread, or only loading would show it. O(n log m).
        """
        block, unread = self._current_block(positions)
        result = np.full(len(self._table.order), NO_TIMESTAMP, np.int64)
        unread = unread[self._table.blocks.high[block[unread]] > later_than_us]
        skip = positions[unread] - self._table.blocks.first[block[unread]]
        result[unread] = np.where(skip <= 0, self._table.blocks.low[block[unread]], NO_TIMESTAMP)
        kept = self._loaded.is_kept(block[unread])
        at = self._table.blocks.at[block[unread]] + np.maximum(skip, 0)
        result[unread[kept]] = self._loaded.exact[at[kept]]
        result = np.maximum(result, self.next_times(positions))
        return np.where(result > later_than_us, result, NO_TIMESTAMP)

    def next_times(self, positions: Int64Array) -> Int64Array:
        """Event times of the next records of opaque blocks, as far as queries found them; see `OpaqueBlocks`."""
        self._settle()
        if self._opaque is None:
            return np.full(len(self._table.order), NO_TIMESTAMP, np.int64)
        return self._opaque.next_times(positions)

    # ---- cuts ----------------------------------------------------------------------------------------------------

    def cut(self, positions: Int64Array, bound_us: int) -> Int64Array:
        """Position of each split's first record at or after `positions` that is later than `bound_us`, `int64[n]`.

        Loads exactly those blocks in which a cut may fall. All opaque blocks are located in one question, and in
        another where a split has several of them, and what is unread of the first has no later record after all.
        O(n log m) beside, and O(m) where what is later was read before.
        """
        (current, unread), of, stop = self._current_block(positions), self._table.blocks, self._table.stop
        ends = np.maximum(self._table.known_ends, positions)
        while unread.size:
            block = first_above(self._table.prefix_max, bound_us, current[unread], stop[unread])
            misled = np.flatnonzero(block < stop[unread])
            misled = misled[of.high[block[misled]] <= bound_us]
            if misled.size:
                # The later record was in a block before.
                later = np.append(np.flatnonzero(of.high > bound_us), of.high.size)
                block[misled] = later[np.searchsorted(later, current[unread[misled]])]
            unread, block = unread[block < stop[unread]], block[block < stop[unread]]
            skip = np.maximum(positions[unread] - of.first[block], 0)
            # No record of these blocks is admitted: no need to look inside.
            outside = (np.maximum(of.low[block], of.head[block]) > bound_us) & (skip == 0)
            ends[unread[outside]] = of.first[block[outside]]
            unread, block, skip = unread[~outside], block[~outside], skip[~outside]
            first_later = self._first_later(block, skip, bound_us)
            found = first_later >= 0
            ends[unread[found]] = of.first[block[found]] + skip[found] + first_later[found]
            # The maximum of these was among the records already read: look on after them.
            unread = unread[~found]
            current[unread] = block[~found] + 1
        if self._opaque is not None:
            self._opaque.divide()
        return ends

    def no_cut_behind(self, positions: Int64Array, bound_us: int) -> Int64Array:
        """Return where the block ends in which the cut of each split falls, `int64[n]`. O(n log m), loads nothing."""
        current, unread = self._current_block(positions)
        ends, stop = positions.copy(), self._table.stop[unread]
        block = first_above(self._table.prefix_max, bound_us, current[unread], stop)
        ends[unread] = self._table.blocks.end[np.minimum(block, stop - 1)]
        return ends

    def to_load(self, positions: Int64Array, bound_us: int, max_rows: int | None) -> list[tuple[str, int, int]]:
        """Return `(split_id, first, end)` of the blocks that a cut at a bound or a limit on rows will load. O(n log m).

        Without those that are kept, and opaque ones; nothing is loaded, so it may take other blocks in the end.
        """
        current, unread = self._current_block(positions)
        blocks = np.empty(0, np.int64)
        if max_rows is not None:
            blocks, _ = self._row_limit.doubtful(positions, bound_us, max_rows)
        if not blocks.size:
            blocks = first_above(self._table.prefix_max, bound_us, current[unread], self._table.stop[unread])
            blocks = blocks[blocks < self._table.stop[unread]]
        of = self._table.blocks
        blocks = blocks[(of.opaque[blocks] == LOADED) & (of.at[blocks] < 0)]
        owners = [self._table.order[owner] for owner in of.owner[blocks]]
        return list(zip(owners, of.first[blocks].tolist(), of.end[blocks].tolist(), strict=True))

    def cut_rows(self, positions: Int64Array, bound_us: int, max_rows: int) -> tuple[int, Int64Array]:
        """The latest bound, at most `bound_us`, that admits at most `max_rows` records; and its cut, `int64[n]`.

        Records are admitted by event time, whichever split they are in. Where those of the first event time alone are
        more than `max_rows`, that many of them are admitted, as evenly as can be: every split gets as many as any
        other, or all it has; what cannot be divided goes to those of which least was read. O(n log m), plus the
        loading of the blocks that the bounds in question divide; holds `max_rows` of their times, and a portion.
        """
        self._settle()
        if self._opaque is not None and self._table.blocks.opaque.any():
            bound_us, found = self._search_bound(self._opaque, positions, bound_us, max_rows)
            return bound_us, self._share(positions, bound_us, max_rows) if found is None else found
        first_out = self._row_limit.first_out(positions, bound_us, max_rows)
        if first_out is None or first_out > bound_us:
            return bound_us, self.cut(positions, bound_us)
        if first_out > NO_TIMESTAMP:
            ends = self.cut(positions, first_out - 1)
            if (ends > positions).any():
                return first_out - 1, ends
        return first_out, self._share(positions, first_out, max_rows)

    def _first_later(self, blocks: Int64Array, skip: Int64Array, bound_us: int) -> Int64Array:
        """Return, for each block, how many records from `skip` on precede the first later one; -1 if none is later."""
        result = np.full(blocks.size, -1, np.int64)
        opaque = self._table.blocks.opaque[blocks] != LOADED
        if self._opaque is not None:
            result[opaque] = self._opaque.locate_later(blocks[opaque], skip[opaque], bound_us)
        loaded = np.flatnonzero(~opaque)
        for part in self._loaded.portions(blocks[loaded], self._loaded.held_times):
            low, high = self._loaded.runs(blocks[loaded[part]], skip[loaded[part]])
            place = first_above(self._loaded.latest, bound_us, low, high)
            result[loaded[part]] = np.where(place < high, place - low, -1)
        return result

    def _nearest_opaque(self, blocks: OpaqueBlocks, positions: Int64Array) -> int:
        """The event time of the nearest next record that is in an opaque block; `MAX_WATERMARK` if there is none.

        `NO_TIMESTAMP` where what is left of a block has none with an event time.
        """
        block, unread = self._current_block(positions)
        opaque = unread[self._table.blocks.opaque[block[unread]] != LOADED]
        if (self._table.blocks.high[block[opaque]] == NO_TIMESTAMP).any():
            # An answer gave it.
            return NO_TIMESTAMP
        unknown = opaque[self.next_times(positions)[opaque] == NO_TIMESTAMP]
        if unknown.size:
            skip = positions[unknown] - self._table.blocks.first[block[unknown]]
            blocks.locate_later(block[unknown], np.maximum(skip, 0), NO_TIMESTAMP)
            nearest = min(answer.time for answer in blocks.answers)
            blocks.divide()
            self._settle()
            opaque = np.setdiff1d(opaque, unknown)
        else:
            nearest = MAX_WATERMARK
        return min(nearest, int(self.next_times(positions)[opaque].min(initial=MAX_WATERMARK)))

    def _search_bound(
        self, blocks: OpaqueBlocks, positions: Int64Array, bound_us: int, max_rows: int
    ) -> tuple[int, Int64Array | None]:
        """A bound, at most `bound_us`, that admits at most `max_rows` records, and at least half as many; and its cut.

        It admits fewer where the next event time has too many records; and too many, with None for the cut, where that
        is the very first one. Bounds are tried first that cost no question, then those at which the limit would be met
        if records came evenly; then what is left is halved. Each question takes the next record after what fits into
        account, so that a millisecond with too many records ends the search as well.

        Steps: O(log of the span of event times), two or three where records come evenly.
        """
        ends = self.cut(positions, bound_us)
        n_high = total(self.count(positions, ends))
        if n_high <= max_rows:
            return bound_us, ends
        high = min(bound_us, self.no_later_than(positions))
        low = self.nearest_time(positions)
        # It has shown the gaps before the next records.
        n_high = total(self.count(positions, ends))
        if n_high <= max_rows:
            return bound_us, ends
        if low > NO_TIMESTAMP:
            low -= 1
        fits = self.cut(positions, low)
        if total(self.count(positions, fits)) > max_rows:
            return low, None
        known = [bound for bound in blocks.divided_at() if low < bound < high]
        for attempt in count():
            n_fits = total(self.count(positions, fits))
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
            n_tried = total(self.count(positions, tried_ends))
            if n_tried <= max_rows:
                low, fits = tried, tried_ends
            else:
                high, n_high = tried, n_tried
        if (fits > positions).any():
            return low, fits
        return high, None

    def _share(self, positions: Int64Array, bound_us: int, max_rows: int) -> Int64Array:
        """Admit `max_rows` of the records up to `bound_us`: as many of each split, or all that it has."""
        shared = share_evenly(self.count(positions, self.cut(positions, bound_us)), positions, max_rows)
        return positions + shared if self._opaque is None else self._opaque.positions_after(positions, shared)
