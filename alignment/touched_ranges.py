"""Which event times are read again where late records have touched windows: ranges that cover all of each window.

A range is `[from_us, until_us)` in microseconds since the epoch. Ranges are ascending and apart from each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from alignment.watermarks import Int64Array

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
