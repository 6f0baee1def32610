"""Many splits' watermarks, one combined watermark.

A split is ACTIVE (delivers), PAUSED (is ahead and waits), IDLE (has had nothing to read for a while)
or FINISHED (will never deliver again). Splits that are active or paused *count*: the combined watermark is
the minimum over them. Without any it is the maximum over the idle ones (FLINK-38454); finished splits are in
neither (FLINK-38477). The combined watermark never goes back, and is computed anew on every change of a
watermark, a status, or the set of splits (FLINK-39586, FLINK-40504).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from alignment.exceptions import DuplicateSplitError, UnknownSplitError
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK, Int64Array


class SplitStatus(IntEnum):
    """The state of a split at the moment; fits an int8 array."""

    ACTIVE = 0
    PAUSED = 1
    IDLE = 2
    FINISHED = 3


@dataclass(frozen=True, slots=True)
class CombinedWatermark:
    """A combined watermark in microseconds, and whether no split counts at the moment."""

    value: int
    is_idle: bool


def combine_watermarks(watermarks: Int64Array, statuses: npt.NDArray[np.int8]) -> CombinedWatermark:
    """Combine the watermarks of a set of splits (`int64[n]`, and `int8[n]` of `SplitStatus`). O(n), vectorised.

    That is the minimum over active and paused splits; without any, idle and the maximum over the idle ones; without
    those either, idle at ``MIN_WATERMARK``.
    """
    counts = (statuses == SplitStatus.ACTIVE) | (statuses == SplitStatus.PAUSED)
    if counts.any():
        return CombinedWatermark(int(watermarks.min(initial=MAX_WATERMARK, where=counts)), is_idle=False)
    is_idle = statuses == SplitStatus.IDLE
    return CombinedWatermark(int(watermarks.max(initial=MIN_WATERMARK, where=is_idle)), is_idle=True)


class SplitWatermarks:
    """The watermarks of a changing set of splits, for use without a planner: by `combine_watermarks`, as in a query.

    The combined watermark never goes back, and is computed anew after every change. A new split counts at once.
    Splits that are restored together, with different watermarks, have to be registered :meth:`together`: one by one,
    the first would be the minimum for a moment, and the minimum cannot be taken back.

    Notes
    -----
    Every change costs O(n) for n splits, in numpy steps. A method that takes the id of a split, but :meth:`register`,
    raises :class:`UnknownSplitError` if it is not registered.

    Examples
    --------
    >>> splits = SplitWatermarks()
    >>> with splits.together():
    ...     splits.register("a", 10)
    ...     splits.register("b", 7)
    >>> splits.combined
    7
    >>> splits.mark_idle("b")
    >>> splits.combined
    10
    """

    __slots__ = ("_combined", "_had_splits", "_is_idle", "_open_changes", "_splits")

    def __init__(self) -> None:
        self._splits: dict[str, tuple[int, SplitStatus]] = {}
        self._combined: int = MIN_WATERMARK
        self._had_splits = self._is_idle = False
        self._open_changes = 0

    def register(self, split_id: str, initial: int = MIN_WATERMARK) -> None:
        """Add a split, active at the watermark `initial`: that of its checkpoint, or a bound known ahead.

        A `DuplicateSplitError` if a split of this id is registered.
        """
        if split_id in self._splits:
            raise DuplicateSplitError(f"split_id = {split_id!r} is registered already; unregister it first")
        with self.together():
            self._splits[split_id] = int(initial), SplitStatus.ACTIVE
            self._had_splits = True

    def unregister(self, split_id: str) -> None:
        """Forget a split. What it held back is released at once; a set that loses its last split is idle."""
        self._get(split_id)
        with self.together():
            del self._splits[split_id]

    def update(self, split_id: str, watermark: int) -> None:
        """Take a split's own watermark, which never goes back. An idle split is active again with any watermark."""
        self._set(split_id, max(self._get(split_id)[0], int(watermark)), SplitStatus.ACTIVE)

    def mark_idle(self, split_id: str) -> None:
        """Let a split hold nothing back until it is active again."""
        self._set(split_id, self._get(split_id)[0], SplitStatus.IDLE)

    def mark_active(self, split_id: str) -> None:
        """Let a split count again."""
        self._set(split_id, self._get(split_id)[0], SplitStatus.ACTIVE)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Take the changes within the block as one: the watermark is computed once, at its end."""
        self._open_changes += 1
        try:
            yield
        finally:
            self._open_changes -= 1
            if not self._open_changes:
                self._combine()

    @property
    def combined(self) -> int:
        """Combined watermark in microseconds, ``MIN_WATERMARK`` before any split; never goes back. O(1)."""
        return self._combined

    @property
    def is_idle(self) -> bool:
        """True if there were splits and none counts now; False before the first one. O(1)."""
        return self._is_idle

    def __repr__(self) -> str:
        return f"SplitWatermarks({len(self._splits)} splits, combined={self._combined}, is_idle={self._is_idle})"

    def _get(self, split_id: str) -> tuple[int, SplitStatus]:
        split = self._splits.get(split_id)
        if split is None:
            raise UnknownSplitError(f"split_id = {split_id!r} is not registered; register it first")
        return split

    def _set(self, split_id: str, watermark: int, status: SplitStatus) -> None:
        with self.together():
            self._splits[split_id] = watermark, status

    def _combine(self) -> None:
        splits = self._splits.values()
        watermarks = np.fromiter((watermark for watermark, _ in splits), np.int64, len(splits))
        statuses = np.fromiter((status for _, status in splits), np.int8, len(splits))
        now = combine_watermarks(watermarks, statuses)
        self._combined = max(self._combined, now.value)
        self._is_idle = self._had_splits and now.is_idle
