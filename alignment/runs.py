"""Work on columns in which the entries of each split stand together: on all runs at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["first_not_before", "running"]

Int64Array: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]


def running(ufunc: np.ufunc, values: Int64Array, owner: Int64Array) -> Int64Array:
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


def first_not_before(
    low: Int64Array,
    high: Int64Array,
    before: Callable[[Int64Array, Int64Array], BoolArray],
) -> Int64Array:
    """In each `[low, high)` the first index for which `before(index, slot)` is false; `high` if it always is.

    `int64[n]`. All searches go side by side: O(n log longest run).
    """
    low, high = low.copy(), high.copy()
    slots = np.flatnonzero(low < high)
    while slots.size:
        middle = (low[slots] + high[slots]) // 2
        right = before(middle, slots)
        low[slots[right]] = middle[right] + 1
        high[slots[~right]] = middle[~right]
        slots = slots[low[slots] < high[slots]]
    return low
