"""The windows of an aggregation, from the keys that Spark's default state store has written.

A checkpoint keeps no size of windows, but each key in the state has the start and the end of one.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from streaming_source.auditing.checkpoint import Checkpoint
from streaming_source.auditing.rule import Windows
from streaming_source.auditing.state_keys import entries_of, partitions_of, versions_of, window_in

__all__ = ["windows_of_state"]

_FILES: Final = 20
"""How many of the latest files of each partition are read."""
_ENOUGH: Final = 1_000


def windows_of_state(checkpoint: Checkpoint, operator: int, keys: int, place: int) -> Windows | None:
    """Return size, slide and start of the windows; None if the state does not show them.

    Parameters
    ----------
    operator
        Its number.
    keys, place
        How many columns the key has, and which of them is the window.

    Notes
    -----
    All windows must have one size. If each row is in one window, the windows begin at multiples of the size. If a row
    is in several, they overlap, and the nearest two are one slide apart, since a row that was not dropped from its
    earliest windows wrote both. There must be at least two windows.
    """
    found: set[tuple[int, int]] = set()
    for partition in partitions_of(checkpoint, operator):
        if len(found) >= _ENOUGH:
            break
        for file in versions_of(checkpoint, partition)[:_FILES]:
            windows = (window_in(key, keys, place) for key, _ in entries_of(checkpoint, file) or ())
            found.update(window for window in windows if window is not None)
    sizes = {end - start for start, end in found}
    starts = sorted(start for start, _ in found)
    if len(sizes) != 1 or len(starts) < 2:
        return None
    (size,) = sizes
    nearest = min(b - a for a, b in pairwise(starts))
    slide = min(nearest, size)
    if size <= 0 or any((start - starts[0]) % slide for start in starts):
        return None
    return Windows(size, slide, starts[0] % slide)
