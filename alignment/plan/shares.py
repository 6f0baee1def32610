"""Who gets how many of the records that a read limit allows, where more could be read."""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from alignment.watermarks import Int64Array

__all__ = ["share_by_time", "share_evenly"]

FloatArray: TypeAlias = npt.NDArray[np.float64]

_HALVINGS: Final = 80
"""From the widest range of event times down to what a float can tell apart."""


def share_evenly(wanted: Int64Array, positions: Int64Array, max_rows: int) -> Int64Array:
    """Each split as many as any other, or all that it wants: together `max_rows`, or all. O(n log(max_rows)).

    `wanted` is how many each could take, `int64[n]`. What cannot be divided goes to those of which least was read, by
    `positions`.
    """
    level, too_high = 0, max_rows + 1
    while too_high - level > 1:
        middle = (level + too_high) // 2
        fits = int(np.minimum(wanted, middle).sum()) <= max_rows
        level, too_high = (middle, too_high) if fits else (level, middle)
    shared: Int64Array = np.minimum(wanted, level)
    wanting = np.flatnonzero(wanted > level)
    least_read = wanting[np.argsort(positions[wanting], kind="stable")]
    shared[least_read[: max_rows - int(shared.sum())]] += 1
    return shared


def share_by_time(
    wanted: Int64Array, positions: Int64Array, times_us: Int64Array, density: FloatArray, max_rows: int
) -> Int64Array:
    """Those records that are predicted to be earliest. O(n) in 80 numpy steps, and O(n log n).

    Record `k` of a split, counted from 0, is predicted at `times_us + k / density`, with the density in records per
    microsecond, above 0 where any are wanted. So the slowest split is the first to get one, however thin it is. All
    else is as in `share_evenly`; of records that are predicted at one time those go first of which least was read.
    """
    if int(wanted.sum()) <= max_rows:
        return wanted.copy()
    wants = np.flatnonzero(wanted > 0)
    most, rate = wanted[wants], density[wants]
    # From the slowest on: near zero a float tells more apart.
    since = times_us[wants].astype(np.float64) - float(times_us[wants].min())

    def admitted(until: float) -> Int64Array:
        count = np.floor(np.minimum((until - since) * rate, most.astype(np.float64))) + 1
        return np.asarray(np.clip(count, 0, most).astype(np.int64))

    fits, too_many = -1.0, float((since + most / rate).max())
    shared = np.zeros(wants.size, np.int64)
    for _ in range(_HALVINGS):
        middle = (fits + too_many) / 2
        if middle in (fits, too_many) or int(shared.sum()) == max_rows:
            break
        count = admitted(middle)
        if int(count.sum()) <= max_rows:
            fits, shared = middle, count
        else:
            too_many = middle
    # What is left are some of those predicted at one and the same time.
    left = max_rows - int(shared.sum())
    wanting = np.flatnonzero(shared < most)
    following = since[wanting] + shared[wanting] / rate[wanting]
    shared[wanting[np.lexsort((positions[wants[wanting]], following))[:left]]] += 1
    # And where a float cannot tell their times apart, more than one of a split.
    shared += share_evenly(most - shared, positions[wants], max_rows - int(shared.sum()))
    result = np.zeros_like(wanted)
    result[wants] = shared
    return result
