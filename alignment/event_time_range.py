"""Ranges of event times: which records a query wants, and which are read again where late ones have touched windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from alignment.arrow_times import format_timestamp
from alignment.exceptions import InvalidArgumentError
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, BoolArray, Int64Array

Overlap: TypeAlias = Literal["drop", "keep", "fail"]
"""The fate of records outside of a range: they are left out, handed on, or an error."""

INSIDE: Final = 0
PARTLY: Final = 1
WHOLLY: Final = 2
"""Of a block: none of its records is outside of a range, some may be, or all are."""


@dataclass(frozen=True, slots=True)
class EventTimeRange:
    """The event times `from_us <= t < until_us`, in microseconds since the epoch; None where there is no bound.

    A batch may want several ranges: between them are `gaps`, each `[from, until)`, ascending and apart from each other.

    A record without a valid event time is in no range and outside of none: what becomes of it is decided elsewhere, so
    that a block in which there may be one is never left out. With an `overlap` of `keep` or `fail` no block is left out
    either: the records outside are handed on, or must be found.

    Raises
    ------
    InvalidArgumentError
        If `until_us` is not after `from_us`, or `overlap` is none of the three.

    Examples
    --------
    >>> morning = EventTimeRange(6_000_000, 12_000_000)
    >>> morning.outside(np.array([5_999_999, 6_000_000, 12_000_000, NO_TIMESTAMP]))
    array([ True, False,  True, False])
    >>> morning.excludes(np.array([0, 0, NO_TIMESTAMP]), np.array([5_000_000, 7_000_000, 5_000_000]))
    array([ True, False, False])
    >>> EventTimeRange(6_000_000, overlap="keep").excludes(np.array([0]), np.array([5_000_000]))
    array([False])
    """

    from_us: int | None = None
    until_us: int | None = None
    overlap: Overlap = "drop"
    gaps: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of_ranges(cls, ranges: Sequence[tuple[int, int]]) -> EventTimeRange:
        """Return the event times of ranges `[from_us, until_us)`, at least one, ascending and apart from each other.

        Examples
        --------
        >>> EventTimeRange.of_ranges([(0, 10), (50, 60)]).gaps
        ((10, 50),)
        """
        gaps = tuple((before, after) for (_, before), (after, _) in pairwise(ranges))
        return cls(ranges[0][0], ranges[-1][1], gaps=gaps)

    def __post_init__(self) -> None:
        if self.from_us is not None and self.until_us is not None and self.until_us <= self.from_us:
            raise InvalidArgumentError(
                f"the event times from {format_timestamp(self.from_us)} until {format_timestamp(self.until_us)}: there "
                "are none; let the second be later than the first"
            )
        if self.overlap not in get_args(Overlap):
            raise InvalidArgumentError(f"overlap = {self.overlap!r}: must be one of {', '.join(get_args(Overlap))}")

    def __bool__(self) -> bool:
        """Return whether there is a bound at all."""
        return self.from_us is not None or self.until_us is not None

    def outside(self, times: Int64Array) -> BoolArray:
        """`bool[n]`: which event times, `int64[n]`, are valid and lie outside. O(n)."""
        outside: BoolArray = np.zeros(times.shape, np.bool_)
        if self.from_us is not None:
            outside |= times < self.from_us
        if self.until_us is not None:
            outside |= times >= self.until_us
        outside |= self._gap_from(times, times)
        outside &= times != NO_TIMESTAMP
        return outside

    def parts_outside(self, low: Int64Array, high: Int64Array) -> npt.NDArray[np.int8]:
        """`int8[n]`: whether records of blocks lie outside, by bounds of their event times, `int64[n]` each. O(n).

        `INSIDE`, `PARTLY` or `WHOLLY`. Bounds may be wide: a block that is `PARTLY` outside may have no such record.
        """
        if not self:
            return np.full(low.shape, INSIDE, np.int8)
        touched, wholly = np.zeros(low.shape, np.bool_), np.zeros(low.shape, np.bool_)
        if self.from_us is not None:
            touched, wholly = touched | (low < self.from_us), wholly | (high < self.from_us)
        if self.until_us is not None:
            touched, wholly = touched | (high >= self.until_us), wholly | (low >= self.until_us)
        if self.gaps:
            starts, ends = self._edges
            # The first gap that ends after the block's earliest time.
            gap = np.searchsorted(ends, low, side="right")
            touched |= np.append(starts, MAX_WATERMARK)[gap] <= high
            wholly |= self._gap_from(low, high)
        touched &= high != NO_TIMESTAMP
        wholly &= low != NO_TIMESTAMP
        return touched.astype(np.int8) + wholly

    def _gap_from(self, low: Int64Array, high: Int64Array) -> BoolArray:
        """`bool[n]`: whether all of `[low, high]` lies in one gap, `int64[n]` each. O(n log gaps)."""
        if not self.gaps:
            return np.zeros(low.shape, np.bool_)
        starts, ends = self._edges
        gap = np.searchsorted(starts, low, side="right") - 1
        inside: BoolArray = (gap >= 0) & (high < ends[gap])
        return inside

    @property
    def _edges(self) -> tuple[Int64Array, Int64Array]:
        starts, ends = np.array(self.gaps, np.int64).T
        return starts, ends

    def without_earlier(self, times: Int64Array) -> Int64Array:
        """The event times with `NO_TIMESTAMP` in place of those before the range, `int64[n]`. O(n).

        A stream is planned by these: what comes before the range, and is left out, counts for nothing. What comes
        after it goes on counting, so that the watermark passes the end of the range.
        """
        if self.from_us is None or self.overlap != "drop":
            return times
        return np.where(times < self.from_us, NO_TIMESTAMP, times)

    def excludes(self, low: Int64Array, high: Int64Array) -> BoolArray:
        """`bool[n]`: which blocks need not be read, by bounds of their event times, `int64[n]` each. O(n).

        Bounds may be wide. A block with `low` of `NO_TIMESTAMP` may have records without a valid event time, and is
        excluded by nothing.
        """
        return self.left_out(self.parts_outside(low, high))

    def left_out(self, parts: npt.NDArray[np.int8]) -> BoolArray:
        """`bool[n]`: which blocks need not be read, by what of them lies outside (`parts_outside`). O(n)."""
        left_out: BoolArray = (parts == WHOLLY) & (self.overlap == "drop")
        return left_out


ALL_TIMES: Final = EventTimeRange()
"""Without a bound."""


Ranges: TypeAlias = list[tuple[int, int]]


def covering(starts_us: Int64Array, ends_us: Int64Array) -> Ranges:
    """Return the ranges that have the event times of these windows and no others. O(n log n).

    Windows that overlap, or follow each other without a gap, are in one range.

    Parameters
    ----------
    starts_us, ends_us
        `int64[n]` each, in any order: the windows `[start, end)`.

    Examples
    --------
    >>> covering(np.array([60, 0, 10]), np.array([70, 10, 20]))
    [(0, 20), (60, 70)]
    """
    if not starts_us.size:
        return []
    order = np.argsort(starts_us, kind="stable")
    starts, reach = starts_us[order], np.maximum.accumulate(ends_us[order])
    first = np.flatnonzero(np.append(True, starts[1:] > reach[:-1]))
    last = np.append(first[1:], starts.size) - 1
    return list(zip(starts[first].tolist(), reach[last].tolist(), strict=True))


def covering_sessions(
    times_us: Int64Array, gap_us: int, sessions_in: Callable[[Ranges], tuple[Int64Array, Int64Array]]
) -> Ranges:
    """Return the ranges that have the sessions of these event times, and the gap before and after each.

    They grow until they stand still: a record there may join sessions, and each of them may be longer than what was
    read of it.

    Parameters
    ----------
    times_us
        `int64[n]`: records that sessions have, in any order.
    gap_us
        The gap of the sessions.
    sessions_in
        Returns the sessions of these records in what ranges have, `int64[m]` each: from the first record of a session
        to `gap_us` after its last one.

    Examples
    --------
    >>> records = np.array([3, 11, 18, 50])
    >>> def sessions_in(ranges):
    ...     read = [t for t in records if any(low <= t < high for low, high in ranges)]
    ...     return np.array([min(t for t in read if t < 40)]), np.array([max(t for t in read if t < 40) + 10])
    >>> covering_sessions(np.array([11]), 10, sessions_in)
    [(-22, 53)]
    """
    ranges = covering(times_us - gap_us - 1, times_us + 2 * gap_us + 1)
    while True:
        starts, ends = sessions_in(ranges)
        if not starts.size:
            return ranges
        low, high = np.array(ranges, np.int64).T
        found = np.searchsorted(low, starts, side="right") - 1
        # A session is whole if a record that would join it had been read.
        may_grow = (starts - gap_us - 1 < low[found]) | (ends + 1 > high[found])
        if not may_grow.any():
            return ranges
        # By as much as it is long, so that few reads find a long one.
        reach = np.maximum(ends - starts, gap_us + 1)[may_grow]
        starts, ends = starts[may_grow] - reach, ends[may_grow] + reach
        ranges = covering(np.concatenate([low, starts]), np.concatenate([high, ends]))
