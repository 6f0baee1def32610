"""Questions about many runs of one array at once, in numpy steps: a *run* is a range `[low, high)` of its indices."""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import Final

import numpy as np
import numpy.typing as npt

from alignment.watermarks import BoolArray, Int64Array

__all__ = ["first_not_before", "near", "ranges", "running", "sample"]


_SAMPLED: Final = 4096
_GOLDEN: Final = 0.6180339887498949


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


def first_not_before(low: Int64Array, high: Int64Array, before: Callable[[Int64Array], BoolArray]) -> Int64Array:
    """In each run the first index for which `before(indices)` is false; `high` if it always is.

    `before` gets one index of each run, and any index for an empty one. All searches go side by side: O(n) where the
    first index is the answer, else O(n log longest run).
    """
    last = int(high.max(initial=0)) - 1
    if last < 0 or not (before(np.minimum(low, last)) & (low < high)).any():
        return low.copy()
    step = 1 << int((high - low).max()).bit_length()
    while step := step >> 1:
        further = low + step
        fits = further <= high
        fits &= before(np.minimum(further, last + 1) - 1)
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
    # No step of a fixed size: it could fall on the same place of every run.
    at = np.unique((np.arange(min(_SAMPLED, total)) * _GOLDEN % 1 * total).astype(np.int64))
    run = np.searchsorted(ends, at, side="right")
    return low[run] + at - (ends - sizes)[run], run


def near(
    values: Int64Array,
    weights: Int64Array,
    share: float,
    step: int,
    search: Callable[[int], Int64Array],
    is_beyond: Callable[[Int64Array], bool],
) -> tuple[int, Int64Array] | None:
    """Of sampled values, near the one at which a share of the weights is reached, one for which `search` gives enough.

    It is looked for upwards or downwards (`step` 1 or -1), at first as far off as a sample errs, then twice as far.
    That value and what the search gave; None if there is none.
    """
    order = np.argsort(values)
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
