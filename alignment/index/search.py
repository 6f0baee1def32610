"""The search for a bound where a limit on rows falls inside of opaque blocks."""

from __future__ import annotations

from itertools import count
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from alignment.timestamps import NO_TIMESTAMP

__all__ = ["SearchedIndex", "search_bound"]

Int64Array: TypeAlias = npt.NDArray[np.int64]

_EVEN_GUESSES: Final = 8
_AIM: Final = 0.8
"""How a search for a bound begins: guesses as if records came evenly, and the part of the limit that they aim at."""


class SearchedIndex(Protocol):
    """What the search needs of an `EventTimeIndex`."""

    def cut(self, positions: Int64Array, bound_us: int) -> Int64Array:
        """See there."""
        ...

    def no_later_than(self, positions: Int64Array) -> int:
        """See there."""
        ...

    def nearest_time(self, positions: Int64Array) -> int:
        """See there."""
        ...

    def divided_at(self) -> list[int]:
        """See `OpaqueBlocks`."""
        ...


def search_bound(
    index: SearchedIndex, positions: Int64Array, bound_us: int, max_rows: int
) -> tuple[int, Int64Array | None]:
    """A bound, at most `bound_us`, that admits at most `max_rows` records, and at least half as many; and its cut.

    It admits fewer where the next event time has too many records; and too many, with None for the cut, where that is
    the very first one. Bounds are tried first that cost no question, then those at which the limit would be met if
    records came evenly; then what is left is halved. Each question takes the next record behind what fits into account,
    so that a millisecond with too many records ends the search as well.

    Steps: O(log of the span of event times), two or three where records come evenly.
    """
    ends = index.cut(positions, bound_us)
    if _rows(positions, ends) <= max_rows:
        return bound_us, ends
    high = min(bound_us, index.no_later_than(positions))
    n_high = _rows(positions, ends)
    low = index.nearest_time(positions)
    if low > NO_TIMESTAMP:
        low -= 1
    fits = index.cut(positions, low)
    if _rows(positions, fits) > max_rows:
        return low, None
    known = [bound for bound in index.divided_at() if low < bound < high]
    for attempt in count():
        n_fits = _rows(positions, fits)
        following = index.nearest_time(fits)
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
        tried_ends = index.cut(positions, tried)
        n_tried = _rows(positions, tried_ends)
        if n_tried <= max_rows:
            low, fits = tried, tried_ends
        else:
            high, n_high = tried, n_tried
    if (fits > positions).any():
        return low, fits
    return high, None


def _rows(positions: Int64Array, ends: Int64Array) -> int:
    return int((ends - positions).sum())
