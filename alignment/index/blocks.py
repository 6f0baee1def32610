"""The blocks of many splits, in columns, and questions about many runs of a column at once.

A *run* is a range `[low, high)` of its indices: the blocks of one split, say, or the records of one block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Set
from functools import lru_cache
from math import isqrt
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from alignment.event_time_range import INSIDE, EventTimeRange
from alignment.exceptions import DuplicateSplitError, InvalidArgumentError, UnknownSplitError
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, BoolArray, Int64Array


class _Blocks(NamedTuple):
    """Columns with one entry a block; the blocks of a split stand together, splits in order of their ids.

    A block has the records of the positions `[first, end)`. `low` and `high` are those of `BlockTable.append`;
    `earliest` is a lower bound of its valid event times: `MAX_WATERMARK` if it has none, `NO_TIMESTAMP` if it is not
    known. `loose` says whether it has times beyond the limit: 0 no, 1 yes, 2 perhaps; of such a block the first `skip`
    records, which were read before the limit moved, are of no account.
    `outside` says whether records of it lie outside of the range of event times: `INSIDE`, `PARTLY` or `WHOLLY`. It is
    `unwanted` if it lies outside as a whole and such records are left out: then no record of it is read.
    `at`, `base` and `used` are those of `ExactTimes`: -1, 0 and 0 where the exact times of a block are not kept;
    `opaque` and `head` those of `OpaqueBlocks`: 0 and `NO_TIMESTAMP` where the exact times of a block can be loaded.
    """

    owner: npt.NDArray[np.int32]
    first: Int64Array
    end: Int64Array
    low: Int64Array
    high: Int64Array
    earliest: Int64Array
    loose: npt.NDArray[np.int8]
    skip: npt.NDArray[np.int32]
    opaque: npt.NDArray[np.int8]
    head: Int64Array
    outside: npt.NDArray[np.int8]
    unwanted: BoolArray
    at: npt.NDArray[np.int32]
    base: npt.NDArray[np.int32]
    used: npt.NDArray[np.int32]

    def rows(self, blocks: Int64Array) -> Int64Array:
        return self.end[blocks] - self.first[blocks]

    def where(self, keep: BoolArray | Int64Array) -> _Blocks:
        return _Blocks._make(column[keep] for column in self)

    def followed_by(self, other: _Blocks) -> _Blocks:
        return _Blocks._make(np.append(getattr(self, name), getattr(other, name)) for name in self._fields)


class _Added(NamedTuple):
    """Blocks of one split that are not in the columns yet; the other columns are the same for all new blocks."""

    split_id: str
    opaque: int
    columns: tuple[Int64Array, Int64Array, Int64Array, Int64Array, Int64Array, npt.NDArray[np.int8], BoolArray]
    """`first`, `end`, `low`, `high`, `earliest`, `outside`, `unwanted`."""


PERHAPS_LOOSE: Final = 2

LOADED: Final = 0
TO_ITS_LATEST: Final = 1
TO_A_BOUND: Final = 2
"""Values of `opaque`: it is loaded; it is opaque, and `high` is its latest event time, or a bound of it."""

_FEW: Final = 64
"""Runs that are searched one after another: numpy takes some microseconds for each step of all of them."""

_SAMPLED: Final = 4096
_GOLDEN: Final = 0.6180339887498949

_SMALL: Final = {
    "owner": np.int32,
    "loose": np.int8,
    "skip": np.int32,
    "opaque": np.int8,
    "outside": np.int8,
    "unwanted": np.bool_,
    "at": np.int32,
    "base": np.int32,
    "used": np.int32,
}
"""Narrow columns: `skip`, `at` and `base` count cached records, for which int32 is enough."""
_NO_BLOCKS: Final = _Blocks._make(np.empty(0, _SMALL.get(name, np.int64)) for name in _Blocks._fields)


class BlockTable:
    """Splits and the blocks of their unread records, as columns that change seldom and are read often.

    Changes are collected: where the table `is_stale`, `take_in` and `derive` come before the next question. The blocks
    of the split in slot `i` of the `order` are `[begin[i], stop[i])` of the columns `blocks`. By block: `attained` is
    an event time that some record of it has, the latest known; `prefix_max`, `suffix_max` and `suffix_min` are running
    extremes within its split, and `suffix_earliest` that of the valid event times, which is `NO_TIMESTAMP` where a
    block follows of which it is not known. These are of another `version` after each change. Event times before those
    that are `wanted` count as none; None: all are.
    """

    def __init__(self, wanted: EventTimeRange | None = None) -> None:
        self.wanted = wanted
        self._end_of: dict[str, int] = {}
        self._origin_of: dict[str, int] = {}
        self.order: tuple[str, ...] = ()
        self.blocks = _NO_BLOCKS
        self._added: list[_Added] = []
        self.latest_valid_us = MAX_WATERMARK
        self.is_stale = True
        self.version = 0
        self.begin = self.stop = self.known_ends = self.origins = np.empty(0, np.int64)
        self.attained = self.prefix_max = self.suffix_max = self.suffix_min = np.empty(0, np.int64)
        self.suffix_earliest = self.suffix_min
        # Positions that were looked up last, and the blocks they are in: a plan needs those of two again and again.
        self._current: deque[tuple[Int64Array, Int64Array]] = deque(maxlen=2)

    # ---- changes -------------------------------------------------------------------------------------------------

    def add_split(self, split_id: str, position: int = 0) -> None:
        """Make a split known whose blocks will follow `position`; an error if it is known already. O(1) amortised.

        The first block may be what is left of one that was partly read before: its maximum may then be that of a record
        already read.
        """
        if split_id in self._end_of:
            raise DuplicateSplitError(f"split {split_id!r} is in the event-time index already; unregister it first")
        self._end_of[split_id] = self._origin_of[split_id] = position
        self.is_stale = True

    def append(
        self,
        split_id: str,
        rows: npt.ArrayLike,
        min_us: npt.ArrayLike,
        max_us: npt.ArrayLike,
        earliest_us: npt.ArrayLike | None = None,
    ) -> None:
        """Add the blocks that follow the last known one of a split, `int64[k]` each. O(1) amortised a block.

        Each block has at least 1 of `rows`, and bounds of their event times in microseconds. `min_us` is `NO_TIMESTAMP`
        where a record has no valid event time, `max_us` where none has. No record is earlier than `min_us`, and one is
        at `max_us`: watermarks are made of it. A block with times beyond the limit of `limit_times` is loaded at the
        first question. No valid event time is before `earliest_us`, `NO_TIMESTAMP` where that is not known; by default
        it is `min_us`.
        """
        count, low, high, earliest = (
            np.array(column, np.int64, ndmin=1)
            for column in (rows, min_us, max_us, min_us if earliest_us is None else earliest_us)
        )
        if not count.shape == low.shape == high.shape == earliest.shape:
            raise InvalidArgumentError(
                f"rows, min_us, max_us and earliest_us of split {split_id!r} must have one length, "
                f"got {count.size}, {low.size}, {high.size} and {earliest.size}"
            )
        if np.count_nonzero(count < 1):
            raise InvalidArgumentError(f"a block of split {split_id!r} has {count.min()} rows; must be at least 1")
        if np.count_nonzero(low > high):
            raise InvalidArgumentError(f"a block of split {split_id!r} has min_us > max_us")
        self.add(split_id, count, low, high, earliest, LOADED)

    def limit_times(self, limit_us: int, positions: Int64Array) -> None:
        """From now on event times from `limit_us` on count as none. In opaque blocks there must not be any. O(m).

        Records before `positions` (`int64[n]`) were judged by an earlier limit, and this one changes nothing of them.
        """
        self.latest_valid_us, blocks = limit_us - 1, self.blocks
        loose = (blocks.loose > 0) | ((blocks.high >= limit_us) & (blocks.opaque == 0))
        blocks.loose[loose] = PERHAPS_LOOSE
        read_to = np.clip(positions[blocks.owner[loose]], blocks.first[loose], blocks.end[loose])
        blocks.skip[loose] = read_to - blocks.first[loose]
        self.is_stale = bool(loose.any())

    def valid(self, times: Int64Array) -> Int64Array:
        """The event times that count under the limit of `limit_times`, `NO_TIMESTAMP` in place of others. O(n)."""
        return np.where(times <= self.latest_valid_us, times, NO_TIMESTAMP)

    def remove(self, split_ids: Set[str]) -> None:
        """Forget splits that are known, their blocks and their times. O(m + n)."""
        leaves = np.fromiter((split_id in split_ids for split_id in self.order), np.bool_, len(self.order))
        self.blocks = self.blocks.where(~leaves[self.blocks.owner])
        for split_id in split_ids:
            del self._end_of[split_id], self._origin_of[split_id]
        self.is_stale = True

    def forget_before(self, positions: Int64Array) -> None:
        """Drop the blocks that end at or before `positions` (`int64[n]`). O(m + n)."""
        keep = self.blocks.end > positions[self.blocks.owner]
        if not keep.all():
            self.blocks = self.blocks.where(keep)
            self.is_stale = True

    # ---- what is there -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._end_of)

    def __contains__(self, split_id: object) -> bool:
        return split_id in self._end_of

    def known_end(self, split_id: str) -> int:
        """The position after the last known record of a split; an `UnknownSplitError` if it is not known. O(1)."""
        try:
            return self._end_of[split_id]
        except KeyError:
            raise UnknownSplitError(f"split {split_id!r} is not in the event-time index; register it first") from None

    def add(
        self, split_id: str, rows: Int64Array, low: Int64Array, high: Int64Array, earliest: Int64Array, opaque: int
    ) -> None:
        """Add blocks after the last known one of a split, all of the kind `opaque`. O(1) amortised a block."""
        end = self.known_end(split_id)
        ends = end + np.cumsum(rows)
        outside, unwanted = np.full(low.shape, INSIDE, np.int8), np.zeros(low.shape, np.bool_)
        if self.wanted:
            parts = self.wanted.parts_outside(low, high)
            unwanted = self.wanted.left_out(parts)
            if opaque == LOADED:
                # Of an opaque block only the latest event time is known, or a bound of it.
                outside = parts
                low, high = self.wanted.without_earlier(low), self.wanted.without_earlier(high)
                if self.wanted.from_us is not None:
                    earliest = np.maximum(earliest, self.wanted.from_us)
        if opaque == LOADED:
            earliest = np.where(high == NO_TIMESTAMP, MAX_WATERMARK, earliest)
        if ends.size:
            self._end_of[split_id] = int(ends[-1])
        self._added.append(_Added(split_id, opaque, (ends - rows, ends, low, high, earliest, outside, unwanted)))
        self.is_stale = True

    def _taken_in(self, slots: dict[str, int]) -> _Blocks:
        """Return what was added, as columns: made at once, as there may be a block for each of many splits."""
        added = [blocks for blocks in self._added if blocks.split_id in slots]
        self._added.clear()
        if not added:
            return _NO_BLOCKS
        first, end, low, high, earliest = (np.concatenate([blocks.columns[i] for blocks in added]) for i in range(5))
        outside = np.concatenate([blocks.columns[5] for blocks in added])
        unwanted = np.concatenate([blocks.columns[6] for blocks in added])
        sizes = [blocks.columns[0].size for blocks in added]
        owner = np.repeat(np.array([slots[blocks.split_id] for blocks in added], np.int32), sizes)
        opaque = np.repeat(np.array([blocks.opaque for blocks in added], np.int8), sizes)
        loose = np.where((high > self.latest_valid_us) & (opaque == 0), PERHAPS_LOOSE, 0).astype(np.int8)
        skip, base, used = (np.zeros(first.size, np.int32) for _ in range(3))
        return _Blocks(
            owner=owner,
            first=first,
            end=end,
            low=low,
            high=high,
            earliest=earliest,
            loose=loose,
            skip=skip,
            opaque=opaque,
            head=np.full_like(first, NO_TIMESTAMP),
            outside=outside,
            unwanted=unwanted,
            at=np.full(first.size, -1, np.int32),
            base=base,
            used=used,
        )

    def take_in(self) -> None:
        """Take all changes into the columns. O(m + n)."""
        order = tuple(sorted(self._end_of))
        slots = {split_id: slot for slot, split_id in enumerate(order)}
        renumbered = np.fromiter((slots.get(split_id, -1) for split_id in self.order), np.int32, len(self.order))
        blocks = self.blocks._replace(owner=renumbered[self.blocks.owner]) if self.order else self.blocks
        if self._added:
            blocks = blocks.followed_by(self._taken_in(slots))
        # Stable: blocks of one split stay in the order in which they came.
        self.blocks = blocks = blocks.where(np.argsort(blocks.owner, kind="stable"))
        self.order = order
        self._current.clear()
        bounds: Int64Array = np.searchsorted(blocks.owner, np.arange(len(order) + 1, dtype=np.int32)).astype(np.int64)
        self.begin, self.stop = bounds[:-1], bounds[1:]
        self.known_ends = np.fromiter((self._end_of[split_id] for split_id in order), np.int64, len(order))
        self.origins = np.fromiter((self._origin_of[split_id] for split_id in order), np.int64, len(order))

    def derive(self) -> None:
        """Derive the running extremes that questions need, after `take_in` and where bounds were tightened. O(m)."""
        blocks = self.blocks
        divided = blocks.opaque == TO_A_BOUND
        self.attained = np.where(divided, blocks.head, blocks.high) if divided.any() else blocks.high
        self.prefix_max = running(np.maximum, blocks.high, blocks.owner)
        self.suffix_max = running(np.maximum, self.attained[::-1], blocks.owner[::-1])[::-1]
        self.suffix_min = self.suffix_earliest = running(np.minimum, blocks.low[::-1], blocks.owner[::-1])[::-1]
        if (blocks.earliest != blocks.low).any():
            self.suffix_earliest = running(np.minimum, blocks.earliest[::-1], blocks.owner[::-1])[::-1]
        self.is_stale = False
        self.version += 1

    def current_block(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The block of each split's next record (its last block + 1 if none is unread); the splits that have one."""
        current = next((blocks for asked, blocks in self._current if np.array_equal(asked, positions)), None)
        if current is None:
            current = first_above(self.blocks.end, positions, self.begin, self.stop)
            self._current.append((positions.copy(), current))
        return current.copy(), np.flatnonzero(current < self.stop)

    def after_unwanted(self, positions: Int64Array, bound_us: int) -> Int64Array:
        """Return where the first block of each split begins that has wanted records or passes `bound_us`. O(m).

        `int64[n]`, at or after its next record. Opaque blocks count as wanted.
        """
        if not self.blocks.unwanted.any():
            return positions
        current, _ = self.current_block(positions)
        wanted = np.append(np.flatnonzero(~self.blocks.unwanted), self.blocks.unwanted.size)
        until = np.minimum(wanted[np.searchsorted(wanted, current)], self.stop)
        until = np.minimum(until, first_above(self.prefix_max, bound_us, current, self.stop))
        after = positions.copy()
        passed = np.flatnonzero(until > current)
        after[passed] = self.blocks.end[until[passed] - 1]
        return after

    def is_partly_read(self, blocks: Int64Array, positions: Int64Array) -> BoolArray:
        """Return whether `positions`, one for each of `blocks`, are inside them, or may have been before a restart."""
        first, origin = self.blocks.first[blocks], self.origins[self.blocks.owner[blocks]]
        partly: BoolArray = (positions > first) | ((first == origin) & (origin > 0))
        return partly


# ---- runs ------------------------------------------------------------------------------------------------------------


def running(ufunc: np.ufunc, values: Int64Array, owner: npt.NDArray[np.signedinteger]) -> Int64Array:
    """Running maximum or minimum within each run of equal owners, `int64[m]`. O(m log longest run).

    O(m) where the values rise, or fall, anyway: it is the values themselves then.
    """
    result, step = values, 1
    while step < result.size:
        inside = owner[step:] == owner[:-step]
        merged = np.where(inside, ufunc(result[step:], result[:-step]), result[step:])
        # Each entry is that of the last `step` values. If it is also that of those before, it is that of all.
        if not inside.any() or (merged == result[step:]).all():
            break
        result = np.concatenate([result[:step], merged])
        step *= 2
    return result


def first_above(values: Int64Array, bound: int | Int64Array, low: Int64Array, high: Int64Array) -> Int64Array:
    """Return the first index in each `[low, high)`, of ascending `values`, with a value above `bound`; else `high`.

    `low` for an empty run; the bound may be another one for each run, `int64[n]`. A few runs are searched one after
    another, and all of many side by side: O(n) where the first index is the answer, else O(n log longest run).
    """
    if low.size <= _FEW:
        runs = zip(low.tolist(), high.tolist(), np.broadcast_to(bound, low.shape).tolist(), strict=True)
        found = [begin + int(values[begin:end].searchsorted(above, "right")) for begin, end, above in runs]
        return np.array(found, np.int64)
    last = int(high.max()) - 1
    if last < 0 or not ((values[np.minimum(low, last)] <= bound) & (low < high)).any():
        return low.copy()
    step = 1 << int((high - low).max()).bit_length()
    while step := step >> 1:
        further = low + step
        fits = further <= high
        fits &= values[np.minimum(further, last + 1) - 1] <= bound
        low = np.where(fits, further, low)
    return low


def ranges(begin: Int64Array, end: Int64Array) -> Int64Array:
    """All indices of the runs, laid end to end; `begin <= end`."""
    sizes = end - begin
    return np.repeat(begin - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())


def sample(low: Int64Array, high: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Some of the indices of the runs, spread evenly over all, and the runs that they are of. The same each time."""
    sizes = np.maximum(high - low, 0)
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if ends.size else 0
    at = (_spread(min(_SAMPLED, total)) * total).astype(np.int64)
    run = np.searchsorted(ends, at, side="right")
    return low[run] + at - (ends - sizes)[run], run


@lru_cache(maxsize=4)
def _spread(n: int) -> npt.NDArray[np.float64]:
    """So many numbers from 0 to 1, ascending. No step of a fixed size: it could fall on the same place of every run."""
    return np.sort(np.arange(n) * _GOLDEN % 1)


def near(
    values: Int64Array,
    weights: Int64Array,
    share: float,
    step: int,
    search: Callable[[int], Int64Array],
    is_beyond: Callable[[Int64Array], bool],
) -> tuple[int, Int64Array] | None:
    """Of sampled values, near the one at which a share of the weights is reached, one for which `search` gives enough.

    The search goes upwards or downwards (`step` 1 or -1), at first as far off as a sample errs, then twice as far.
    That value and what the search gave; None if there is none.
    """
    # Stable: values of one run after another are nearly in order.
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    step *= isqrt(values.size) + 1
    at = int(np.searchsorted(reached, share * reached[-1])) + step if values.size else -1
    while 0 <= at < values.size:
        value = int(values[order[at]])
        if is_beyond(found := search(value)):
            return value, found
        step *= 2
        at += step
    return None
