"""A range of event times: which records a query wants, and which blocks of them it need not read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from alignment.arrow_times import format_timestamp
from alignment.exceptions import InvalidArgumentError
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import BoolArray, Int64Array

__all__ = ["ALL_TIMES", "EventTimeRange"]


@dataclass(frozen=True, slots=True)
class EventTimeRange:
    """The event times `from_us <= t < until_us`, in microseconds since the epoch; None where there is no bound.

    A record without a valid event time is in no range and outside of none: what becomes of it is decided elsewhere, so
    that a block in which there may be one is never left out.

    Raises
    ------
    InvalidArgumentError
        If `until_us` is not after `from_us`.

    Examples
    --------
    >>> morning = EventTimeRange(6_000_000, 12_000_000)
    >>> morning.outside(np.array([5_999_999, 6_000_000, 12_000_000, NO_TIMESTAMP]))
    array([ True, False,  True, False])
    >>> morning.excludes(np.array([0, 0, NO_TIMESTAMP]), np.array([5_000_000, 7_000_000, 5_000_000]))
    array([ True, False, False])
    """

    from_us: int | None = None
    until_us: int | None = None

    def __post_init__(self) -> None:
        if self.from_us is not None and self.until_us is not None and self.until_us <= self.from_us:
            raise InvalidArgumentError(
                f"the event times from {format_timestamp(self.from_us)} until {format_timestamp(self.until_us)}: there "
                "are none; let the second be later than the first"
            )

    def __bool__(self) -> bool:
        """Whether there is a bound at all."""
        return self.from_us is not None or self.until_us is not None

    def outside(self, times: Int64Array) -> BoolArray:
        """`bool[n]`: which event times, `int64[n]`, are valid and lie outside. O(n)."""
        return self.excludes(times, times)

    def without_earlier(self, times: Int64Array) -> Int64Array:
        """The event times with `NO_TIMESTAMP` in place of those before the range, `int64[n]`. O(n).

        A stream is planned by these: what comes before the range counts for nothing. What comes behind it goes on
        counting, so that the watermark passes the end of the range.
        """
        return times if self.from_us is None else np.where(times < self.from_us, NO_TIMESTAMP, times)

    def excludes(self, low: Int64Array, high: Int64Array) -> BoolArray:
        """`bool[n]`: which blocks have no record that is wanted, by bounds of their event times, `int64[n]` each. O(n).

        Bounds may be wide. A block with `low` of `NO_TIMESTAMP` may have records without a valid event time, and is
        excluded by nothing.
        """
        excluded: BoolArray = np.zeros(low.shape, np.bool_)
        if self.from_us is not None:
            excluded |= high < self.from_us
        if self.until_us is not None:
            excluded |= low >= self.until_us
        excluded &= low != NO_TIMESTAMP
        return excluded


ALL_TIMES: Final = EventTimeRange()
"""Without a bound."""
