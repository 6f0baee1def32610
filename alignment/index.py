"""What a source knows of the event times of its unread records, ahead of reading them.

A split is a sequence of records, numbered by *position*. The index describes it as consecutive *blocks* (the row
groups of Parquet files, say): how many records, and the smallest and largest event time among them. That is enough to
say how far a split reaches and in which block a cut falls; only for that one block are the exact times asked for,
through the `EventTimeLoader` that the index was given.

A record is *admitted* by a bound when neither it nor an unread record before it in its split is later than the bound.
All questions are asked of every split at once and answered with numpy arrays in the order of `split_ids`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from alignment.exceptions import DuplicateSplitError, InvalidArgumentError, UnknownSplitError
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK

__all__ = ["EventTimeIndex", "EventTimeLoader"]

Int64Array: TypeAlias = npt.NDArray[np.int64]

EventTimeLoader: TypeAlias = Callable[[str, int, int], Int64Array]
"""`(split_id, start, stop) -> int64[stop - start]`: event times of one block; `NO_TIMESTAMP` where there is none."""

_CACHED_TIMES = 32 * 1024 * 1024


class _Blocks(NamedTuple):
    """Columns with one entry a block; the blocks of a split stand together, splits in order of their ids."""

    owner: Int64Array
    first: Int64Array
    rows: Int64Array
    low: Int64Array
    high: Int64Array

    def where(self, keep: npt.NDArray[np.bool_] | Int64Array) -> _Blocks:
        return _Blocks(*(column[keep] for column in self))


_NO_BLOCKS = _Blocks(*(np.empty(0, np.int64) for _ in range(5)))


class EventTimeIndex:
    """Event times of the unread records of many splits, by block.

    Parameters
    ----------
    load
        Called for the exact times of one whole block when a cut falls inside it. The latest answers are kept.
    cached_times
        How many exact event times (8 bytes each) are kept at most; the latest block always is.

    Notes
    -----
    With `n` splits and `m` blocks a change costs O(1) amortised a block, the first question after changes O(m + n),
    and every further one what its docstring says, in numpy steps, plus the loading of the blocks where a cut falls.
    """

    def __init__(self, load: EventTimeLoader, *, cached_times: int = _CACHED_TIMES) -> None:
        self._load = load
        self._cached_times = cached_times
        self._cache: OrderedDict[tuple[str, int], Int64Array] = OrderedDict()
        self._cache_size = 0
        self._end_of: dict[str, int] = {}
        self._order: tuple[str, ...] = ()
        self._blocks = _NO_BLOCKS
        self._added: list[tuple[str, _Blocks]] = []
        self._stale = True

    # ---- changes -------------------------------------------------------------------------------------------------

    def add_split(self, split_id: str, position: int = 0) -> None:
        """Make a split known whose blocks will follow `position`. O(1) amortised.

        Raises
        ------
        DuplicateSplitError
            If the split is known already.
        """
        if split_id in self._end_of:
            raise DuplicateSplitError(f"split {split_id!r} is in the event-time index already")
        self._end_of[split_id] = position
        self._stale = True

    def append(self, split_id: str, rows: npt.ArrayLike, min_us: npt.ArrayLike, max_us: npt.ArrayLike) -> None:
        """Add the blocks that follow the last known one of a split. O(1) amortised a block.

        Parameters
        ----------
        rows
            `int64[k]`, records of each block, at least 1.
        min_us, max_us
            `int64[k]`, bounds of the event times of each block in microseconds. `min_us` is `NO_TIMESTAMP` where a
            record has no valid event time, `max_us` where none has.
        """
        count, low, high = (np.atleast_1d(np.asarray(column, np.int64)) for column in (rows, min_us, max_us))
        if not count.shape == low.shape == high.shape:
            raise InvalidArgumentError(
                f"rows, min_us and max_us of split {split_id!r} must have one length, "
                f"got {count.size}, {low.size} and {high.size}"
            )
        if (count < 1).any():
            raise InvalidArgumentError(f"a block of split {split_id!r} has {count.min()} rows; must be at least 1")
        if (low > high).any():
            raise InvalidArgumentError(f"a block of split {split_id!r} has min_us > max_us")
        end = self._known_end(split_id)
        first = end + np.cumsum(count) - count
        self._end_of[split_id] = int(end + count.sum())
        self._added.append((split_id, _Blocks(np.zeros_like(count), first, count, low, high)))
        self._stale = True

    def remove(self, split_ids: Iterable[str]) -> None:
        """Forget splits and their blocks. O(m + n), however many are removed."""
        self._settle()
        gone = np.zeros(len(self._order), np.bool_)
        for split_id in split_ids:
            self._known_end(split_id)
            gone[self._slots[split_id]] = True
            del self._end_of[split_id]
        self._blocks = self._blocks.where(~gone[self._blocks.owner])
        self._stale = True

    def forget_before(self, positions: Int64Array) -> None:
        """Drop the blocks that end at or before `positions` (`int64[n]`). O(m + n)."""
        self._settle()
        keep = self._blocks.first + self._blocks.rows > positions[self._blocks.owner]
        if not keep.all():
            self._blocks = self._blocks.where(keep)
            self._stale = True

    # ---- what is there -------------------------------------------------------------------------------------------

    @property
    def split_ids(self) -> tuple[str, ...]:
        """Ids of the known splits, sorted: the order of every array here."""
        self._settle()
        return self._order

    @property
    def n_blocks(self) -> int:
        """How many blocks are kept."""
        self._settle()
        return int(self._blocks.rows.size)

    def __len__(self) -> int:
        return len(self._end_of)

    def __contains__(self, split_id: object) -> bool:
        return split_id in self._end_of

    def ends(self) -> Int64Array:
        """`int64[n]`: the position after the last known record of each split. O(n)."""
        self._settle()
        return self._ends.copy()

    def latest_times(self, positions: Int64Array) -> Int64Array:
        """Largest event time at or after `positions`, `int64[n]`; `NO_TIMESTAMP` where nothing is unread. O(n log m).

        A block that is partly read counts with its whole maximum.
        """
        self._settle()
        return self._of_current_block(positions, self._suffix_max, NO_TIMESTAMP)

    def earliest_times(self, positions: Int64Array) -> Int64Array:
        """A lower bound of the event times at or after `positions`, `int64[n]`. O(n log m).

        `MAX_WATERMARK` where nothing is unread. A block that is partly read counts with its whole minimum.
        """
        self._settle()
        return self._of_current_block(positions, self._suffix_min, MAX_WATERMARK)

    def nearest_time(self, positions: Int64Array) -> int:
        """The smallest bound that admits any record; `MAX_WATERMARK` if nothing is unread.

        Loads only blocks whose minimum is below the answer. O(n log n).
        """
        block, unread = self._current_block(positions)
        lowest = self._blocks.low[block[unread]]
        nearest = MAX_WATERMARK
        for i in np.argsort(lowest, kind="stable"):
            if lowest[i] >= nearest:
                break
            slot = unread[i]
            offset = int(positions[slot] - self._blocks.first[block[slot]])
            nearest = min(nearest, int(self._times(int(block[slot]))[offset]))
        return nearest

    def maximum_times(self, positions: Int64Array, ends: Int64Array) -> Int64Array:
        """Largest event time among the records of `[positions, ends)`, `int64[n]`; `NO_TIMESTAMP` where there is none.

        Where `positions` fall inside a block, earlier records of that block may count: they were read before, so they
        make no difference to a maximum over all that was read. Loads the blocks in which `ends` fall.
        """
        result = np.full(len(self._order), NO_TIMESTAMP, np.int64)
        (begin, _), (last, _) = self._current_block(positions), self._current_block(ends)
        whole = np.flatnonzero((ends > positions) & (last > begin))
        if whole.size:
            runs = np.column_stack([begin[whole], last[whole]]).ravel()
            result[whole] = np.maximum.reduceat(np.append(self._blocks.high, NO_TIMESTAMP), runs)[::2]
        for slot in np.flatnonzero((ends > positions) & (last < self._stop)):
            offset = int(ends[slot] - self._blocks.first[last[slot]])
            if offset > 0:
                result[slot] = max(result[slot], self._times(int(last[slot]))[:offset].max())
        return result

    def count_at_or_below(self, positions: Int64Array, ends: Int64Array, bound_us: int) -> Int64Array:
        """How many records of `[positions, ends)` have an event time at or below `bound_us`, `int64[n]`.

        Loads only blocks whose minimum is at or below `bound_us`. O(m + n).
        """
        self._settle()
        result = np.zeros(len(self._order), np.int64)
        blocks = self._blocks
        overlaps = (blocks.first < ends[blocks.owner]) & (blocks.first + blocks.rows > positions[blocks.owner])
        for block in np.flatnonzero(overlaps & (blocks.low <= bound_us)):
            slot, first = int(blocks.owner[block]), int(blocks.first[block])
            times = self._times(int(block))[max(int(positions[slot]) - first, 0) : int(ends[slot]) - first]
            result[slot] += np.count_nonzero((times <= bound_us) & (times != NO_TIMESTAMP))
        return result

    def times_between(self, split_id: str, start: int, stop: int) -> Int64Array:
        """Exact event times of the records `[start, stop)` of one split, `int64[stop - start]`; loads their blocks."""
        self._settle()
        self._known_end(split_id)
        parts = [np.empty(0, np.int64)]
        slot = self._slots[split_id]
        for block in range(int(self._begin[slot]), int(self._stop[slot])):
            first, rows = int(self._blocks.first[block]), int(self._blocks.rows[block])
            if first < stop and first + rows > start:
                parts.append(self._times(block)[max(start - first, 0) : stop - first])
        return np.concatenate(parts)

    # ---- cuts ----------------------------------------------------------------------------------------------------

    def cut(self, positions: Int64Array, bound_us: int) -> Int64Array:
        """Position of each split's first record at or after `positions` that is later than `bound_us`, `int64[n]`.

        Loads exactly those blocks in which a cut falls. O(n log m) beside.
        """
        current, _ = self._current_block(positions)
        block = _bisect(current, self._stop, lambda block, _: self._running_max[block] <= bound_us)
        # The running maximum covers blocks before the current one too; where one of those was later, look again.
        found = np.flatnonzero(block < self._stop)
        for slot in found[self._blocks.high[block[found]] <= bound_us]:
            later = np.flatnonzero(self._blocks.high[block[slot] : self._stop[slot]] > bound_us)
            block[slot] = block[slot] + later[0] if later.size else self._stop[slot]
        ends = self._ends.copy()
        found = np.flatnonzero(block < self._stop)
        # No record of these blocks is admitted: no need to look inside.
        whole = (self._blocks.low[block[found]] > bound_us) & (self._blocks.first[block[found]] >= positions[found])
        ends[found[whole]] = self._blocks.first[block[found[whole]]]
        for slot in found[~whole]:
            ends[slot] = self._cut_inside(int(block[slot]), int(self._stop[slot]), int(positions[slot]), bound_us)
        return ends

    def cut_rows(self, positions: Int64Array, bound_us: int, max_rows: int) -> tuple[int, Int64Array]:
        """The latest bound, at most `bound_us`, that admits at most `max_rows` records; and its cut.

        Records are admitted by event time, whichever split they are in. Where those of the first event time alone are
        more than `max_rows`, that many of them are admitted, splits in order of their ids. O((m + n) log m), plus the
        loading of the blocks that the bounds in question divide.

        Returns
        -------
        bound_us : int
        ends : int64[n]
        """
        self._settle()
        rows, enter, leave = self._unread(positions)
        # Up to `surely` even all rows of all begun blocks fit; from `too_late` on those of complete blocks do not.
        surely = _last_that_fits(enter, rows, max_rows)
        too_late = _last_that_fits(leave, rows, max_rows) + 1
        if surely < bound_us:
            doubtful = np.flatnonzero((rows > 0) & (enter <= min(too_late, bound_us)) & (leave > surely))
            admitted_at = self._admitted_at(doubtful, positions)
            room = max_rows - int(rows[(leave <= surely)].sum())
            if admitted_at.size > room:
                first_out = int(np.partition(admitted_at, room)[room])
                if first_out <= bound_us:
                    if first_out > NO_TIMESTAMP:
                        ends = self.cut(positions, first_out - 1)
                        if (ends > positions).any():
                            return first_out - 1, ends
                    return first_out, self._share(positions, first_out, max_rows)
        return bound_us, self.cut(positions, bound_us)

    # ---- inside --------------------------------------------------------------------------------------------------

    def _known_end(self, split_id: str) -> int:
        try:
            return self._end_of[split_id]
        except KeyError:
            raise UnknownSplitError(f"split {split_id!r} is not in the event-time index") from None

    def _settle(self) -> None:
        """Take all changes into the columns, and derive what the questions need."""
        if not self._stale:
            return
        order = tuple(sorted(self._end_of))
        slots = {split_id: slot for slot, split_id in enumerate(order)}
        renumbered = np.fromiter((slots.get(split_id, -1) for split_id in self._order), np.int64, len(self._order))
        blocks = self._blocks._replace(owner=renumbered[self._blocks.owner]) if self._order else self._blocks
        if self._added:
            added = [b._replace(owner=np.full_like(b.owner, slots[s])) for s, b in self._added if s in slots]
            blocks = _Blocks(*(np.concatenate(columns) for columns in zip(blocks, *added, strict=True)))
            self._added.clear()
        # Stable: blocks of one split stay in the order in which they came.
        self._blocks = blocks = blocks.where(np.argsort(blocks.owner, kind="stable"))
        self._order, self._slots = order, slots
        numbers = np.arange(len(order))
        self._begin: Int64Array = np.searchsorted(blocks.owner, numbers, side="left").astype(np.int64)
        self._stop: Int64Array = np.searchsorted(blocks.owner, numbers, side="right").astype(np.int64)
        self._ends: Int64Array = np.fromiter((self._end_of[split_id] for split_id in order), np.int64, len(order))
        self._running_max = _running(np.maximum, blocks.high, blocks.owner)
        self._suffix_max = _running(np.maximum, blocks.high[::-1], blocks.owner[::-1])[::-1]
        self._suffix_min = _running(np.minimum, blocks.low[::-1], blocks.owner[::-1])[::-1]
        self._stale = False

    def _current_block(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The block of each split's next record (its last block + 1 if none is unread); the splits that have one."""
        self._settle()
        end_of_block = self._blocks.first + self._blocks.rows
        block = _bisect(self._begin, self._stop, lambda block, slot: end_of_block[block] <= positions[slot])
        return block, np.flatnonzero(block < self._stop)

    def _of_current_block(self, positions: Int64Array, values: Int64Array, default: int) -> Int64Array:
        block, unread = self._current_block(positions)
        result = np.full(len(self._order), default, np.int64)
        result[unread] = values[block[unread]]
        return result

    def _cut_inside(self, block: int, stop: int, position: int, bound_us: int) -> int:
        """The first record later than `bound_us` from `position` on, in `block` or one that follows."""
        for candidate in range(block, stop):
            if self._blocks.high[candidate] > bound_us:
                first = int(self._blocks.first[candidate])
                skip = max(position - first, 0)
                later = self._times(candidate)[skip:] > bound_us
                if later.any():
                    return first + skip + int(later.argmax())
        return int(self._blocks.first[stop - 1] + self._blocks.rows[stop - 1])

    def _unread(self, positions: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Of each block: unread rows; a bound below which none of them is admitted; one from which on all are."""
        blocks = self._blocks
        begun_at = positions[blocks.owner] - blocks.first
        rows = np.clip(blocks.rows - np.maximum(begun_at, 0), 0, None)
        leave = _running(np.maximum, np.where(rows > 0, blocks.high, NO_TIMESTAMP), blocks.owner)
        # The maximum of a block that is partly read may have been read: it does not surely hold the next block back.
        surely_held = _running(np.maximum, np.where(begun_at <= 0, blocks.high, NO_TIMESTAMP), blocks.owner)
        held = np.full_like(leave, NO_TIMESTAMP)
        held[1:] = np.where(blocks.owner[1:] == blocks.owner[:-1], surely_held[:-1], NO_TIMESTAMP)
        return rows, np.maximum(held, blocks.low), leave

    def _admitted_at(self, blocks: Int64Array, positions: Int64Array) -> Int64Array:
        """For every unread record of consecutive `blocks` of some splits, the smallest bound that admits it."""
        parts, last_owner, before = [np.empty(0, np.int64)], -1, NO_TIMESTAMP
        for block in blocks:
            owner = int(self._blocks.owner[block])
            before = before if owner == last_owner else NO_TIMESTAMP
            unread = self._times(int(block))[max(int(positions[owner] - self._blocks.first[block]), 0) :]
            parts.append(np.maximum(np.maximum.accumulate(unread), before))
            last_owner, before = owner, int(parts[-1][-1])
        return np.concatenate(parts)

    def _share(self, positions: Int64Array, bound_us: int, max_rows: int) -> Int64Array:
        """Of the records that `bound_us` admits the first `max_rows`, splits in order of their ids."""
        wanted = self.cut(positions, bound_us) - positions
        shared: Int64Array = np.clip(max_rows - (np.cumsum(wanted) - wanted), 0, wanted)
        return positions + shared

    def _times(self, block: int) -> Int64Array:
        """Exact event times of one block, `int64[rows]`."""
        split_id = self._order[int(self._blocks.owner[block])]
        first, rows = int(self._blocks.first[block]), int(self._blocks.rows[block])
        times = self._cache.get((split_id, first))
        if times is None:
            times = np.asarray(self._load(split_id, first, first + rows), np.int64)
            if times.size != rows:
                raise InvalidArgumentError(
                    f"the loader gave {times.size} event times for {rows} records of split {split_id!r} from {first}"
                )
            self._cache_size += rows
            self._cache[split_id, first] = times
            while self._cache_size > self._cached_times and len(self._cache) > 1:
                self._cache_size -= self._cache.popitem(last=False)[1].size
        else:
            self._cache.move_to_end((split_id, first))
        return times


def _last_that_fits(bounds: Int64Array, rows: Int64Array, max_rows: int) -> int:
    """The latest bound such that the rows of all entries at or below it are at most `max_rows`. O(m log m)."""
    order = np.argsort(bounds, kind="stable")
    over = int(np.searchsorted(np.cumsum(rows[order]), max_rows, side="right"))
    return MAX_WATERMARK - 1 if over == order.size else max(int(bounds[order[over]]), NO_TIMESTAMP + 1) - 1


def _running(ufunc: np.ufunc, values: Int64Array, owner: Int64Array) -> Int64Array:
    """Running maximum or minimum within each run of equal owners, `int64[m]`. O(m log longest run)."""
    result = values.copy()
    starts = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1], True])
    longest = int(np.diff(starts).max()) if owner.size else 0
    step = 1
    while step < longest:
        merged = ufunc(result[step:], result[:-step])
        result[step:] = np.where(owner[step:] == owner[:-step], merged, result[step:])
        step *= 2
    return result


def _bisect(
    low: Int64Array,
    high: Int64Array,
    before: Callable[[Int64Array, Int64Array], npt.NDArray[np.bool_]],
) -> Int64Array:
    """In each `[low, high)` the first index for which `before(index, slot)` is false: all searches side by side."""
    low, high = low.copy(), high.copy()
    slots = np.flatnonzero(low < high)
    while slots.size:
        middle = (low[slots] + high[slots]) // 2
        right = before(middle, slots)
        low[slots[right]] = middle[right] + 1
        high[slots[~right]] = middle[~right]
        slots = slots[low[slots] < high[slots]]
    return low
