"""Which event times are read again where late records have touched windows: ranges that cover all of each window.

A range is `[from_us, until_us)` in microseconds since the epoch. Ranges are ascending and apart from each other.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from alignment.watermarks import Int64Array

__all__ = ["Ranges", "covering"]

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
