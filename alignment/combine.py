"""Many splits' watermarks, one combined watermark.

A split is ACTIVE (delivers), PAUSED (is ahead and told to wait), IDLE (has had nothing to read for a while)
or FINISHED (will never deliver again). Splits that are active or paused *count*: the combined watermark is
the minimum over them. Without any it is the maximum over the idle ones (FLINK-38454); finished splits are in
neither (FLINK-38477). The combined watermark never goes back, and is looked at again on every change of a
watermark, a status, or the set of splits (FLINK-39586, FLINK-40504).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from itertools import takewhile

import numpy as np
import numpy.typing as npt
from sortedcontainers import SortedList

from alignment.exceptions import DuplicateSplitError, UnknownSplitError
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK

__all__ = ["CombinedWatermark", "SplitStatus", "SplitWatermarks", "combine_watermarks"]


class SplitStatus(IntEnum):
    """What a split does at the moment; fits an int8 array."""

    ACTIVE = 0
    PAUSED = 1
    IDLE = 2
    FINISHED = 3


_COUNTING = (SplitStatus.ACTIVE, SplitStatus.PAUSED)


@dataclass(frozen=True, slots=True)
class CombinedWatermark:
    """A combined watermark in microseconds, and whether no split counts at the moment."""

    value: int
    is_idle: bool


def combine_watermarks(watermarks: npt.NDArray[np.int64], statuses: npt.NDArray[np.int8]) -> CombinedWatermark:
    """Combine the watermarks of a set of splits, without regard to what was announced before.

    Parameters
    ----------
    watermarks : int64[n]
        Of each split, in microseconds.
    statuses : int8[n]
        A :class:`SplitStatus` each.

    Returns
    -------
    CombinedWatermark
        The minimum over active and paused splits; without any, idle and the maximum over the idle ones;
        without those either, idle at ``MIN_WATERMARK``. O(n), vectorised.
    """
    counts = (statuses == SplitStatus.ACTIVE) | (statuses == SplitStatus.PAUSED)
    if counts.any():
        return CombinedWatermark(int(watermarks.min(initial=MAX_WATERMARK, where=counts)), is_idle=False)
    is_idle = statuses == SplitStatus.IDLE
    return CombinedWatermark(int(watermarks.max(initial=MIN_WATERMARK, where=is_idle)), is_idle=True)


@dataclass(slots=True)
class _Split:
    watermark: int
    status: SplitStatus


class SplitWatermarks:
    """The watermarks of a changing set of splits, combined incrementally.

    A new split counts at once. Splits that are restored together, with different watermarks, have to be
    registered :meth:`together`: one by one, the first would be the minimum for a moment, and the minimum
    cannot be taken back.

    Parameters
    ----------
    bounded : bool
        Whether the source ends. Only then does the combined watermark reach ``MAX_WATERMARK`` by splits
        finishing: when :meth:`no_more_splits` was called, at least one split has finished, and no other is
        left.

    Notes
    -----
    Every change costs O(log n), :attr:`combined` and :attr:`is_idle` O(1). Every method that takes the id of
    a split, but :meth:`register`, raises :class:`UnknownSplitError` if it is not registered.

    Examples
    --------
    >>> splits = SplitWatermarks()
    >>> with splits.together():
    ...     splits.register("a", 10)
    ...     splits.register("b", 7)
    >>> splits.combined, splits.holding_back()
    (7, ('b',))
    >>> splits.mark_idle("b")
    >>> splits.combined
    10
    """

    __slots__ = (
        "_abandoned",
        "_bounded",
        "_combined",
        "_counting",
        "_had_finished",
        "_had_splits",
        "_idle",
        "_no_more_splits",
        "_open_changes",
        "_splits",
    )

    def __init__(self, bounded: bool = False) -> None:
        self._bounded = bounded
        self._splits: dict[str, _Split] = {}
        # (watermark, split id), ascending; which one a split is in follows its status.
        self._counting: SortedList[tuple[int, str]] = SortedList()
        self._idle: SortedList[tuple[int, str]] = SortedList()
        self._combined: int = MIN_WATERMARK
        # Unregistered unfinished: taken away, not done. Kept only where the end depends on it.
        self._abandoned: set[str] = set()
        self._had_splits = False
        self._had_finished = False
        self._no_more_splits = False
        self._open_changes = 0

    # The set of splits.

    def register(self, split_id: str, initial: int = MIN_WATERMARK) -> None:
        """Add a split, active at the watermark `initial`: that of its checkpoint, or a bound known ahead.

        Raises
        ------
        DuplicateSplitError
            If a split of this id is registered.
        """
        if split_id in self._splits:
            raise DuplicateSplitError(f"split_id = {split_id!r} is registered already; unregister it first")
        split = self._splits[split_id] = _Split(int(initial), SplitStatus.ACTIVE)
        self._counting.add((split.watermark, split_id))
        self._abandoned.discard(split_id)
        self._had_splits = True
        self._recompute()

    def unregister(self, split_id: str) -> None:
        """Forget a split. What it held back is released at once; a set that loses its last split is idle."""
        split = self._get(split_id)
        self._leave(split_id, split)
        del self._splits[split_id]
        if self._bounded and split.status is not SplitStatus.FINISHED:
            self._abandoned.add(split_id)
        self._recompute()

    def no_more_splits(self) -> None:
        """Say that no split will be added: a bounded set ends when all that it has are finished."""
        self._no_more_splits = True
        self._recompute()

    # One split.

    def update(self, split_id: str, watermark: int) -> None:
        """Raise a split's watermark, and make it active if it was idle.

        A watermark that is not above the split's own changes nothing but that. A paused split stays paused
        (records that were fetched before the pause still come), a finished one finished.
        """
        split = self._get(split_id)
        status = SplitStatus.ACTIVE if split.status is SplitStatus.IDLE else split.status
        self._change(split_id, split, max(int(watermark), split.watermark), status)

    def mark_idle(self, split_id: str) -> None:
        """Let a split hold nothing back until it is active again.

        A paused split stays paused: it waits, it does not lack records. A finished one stays finished.
        """
        split = self._get(split_id)
        if split.status is SplitStatus.ACTIVE:
            self._change(split_id, split, split.watermark, SplitStatus.IDLE)

    def mark_active(self, split_id: str) -> None:
        """End idleness or a pause. A finished split stays finished."""
        split = self._get(split_id)
        if split.status is not SplitStatus.FINISHED:
            self._change(split_id, split, split.watermark, SplitStatus.ACTIVE)

    def mark_paused(self, split_id: str) -> None:
        """Note that a split has to wait for the others; it still counts.

        An idle split stays idle (FLINK-39073): look again when it is active. A finished one stays finished.
        """
        split = self._get(split_id)
        if split.status is SplitStatus.ACTIVE:
            self._change(split_id, split, split.watermark, SplitStatus.PAUSED)

    def mark_finished(self, split_id: str) -> None:
        """Note that a split has no more records, for ever: it is left out of every minimum and maximum."""
        split = self._get(split_id)
        self._had_finished = True
        self._change(split_id, split, split.watermark, SplitStatus.FINISHED)

    def status(self, split_id: str) -> SplitStatus:
        """Status of a split. O(1)."""
        return self._get(split_id).status

    def watermark(self, split_id: str) -> int:
        """The split's own watermark in microseconds: it never goes back, and is kept while idle. O(1)."""
        return self._get(split_id).watermark

    # All of them.

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make the changes within the block one change, looked at once, at its end."""
        self._open_changes += 1
        try:
            yield
        finally:
            self._open_changes -= 1
            self._recompute()

    @property
    def combined(self) -> int:
        """Combined watermark in microseconds, ``MIN_WATERMARK`` before any split; never goes back. O(1)."""
        return self._combined

    @property
    def is_idle(self) -> bool:
        """Whether there were splits and none counts now; False before the first one. O(1)."""
        return self._had_splits and not self._counting

    def holding_back(self) -> tuple[str, ...]:
        """The counting splits with the smallest watermark, by id. O(log n + k) for k of them."""
        if not self._counting:
            return ()
        lowest = self._counting[0][0]
        return tuple(split_id for _, split_id in takewhile(lambda entry: entry[0] == lowest, self._counting))

    def __len__(self) -> int:
        return len(self._splits)

    def __contains__(self, split_id: object) -> bool:
        return split_id in self._splits

    def __iter__(self) -> Iterator[str]:
        """Split ids in the order in which they were registered."""
        return iter(self._splits)

    def __repr__(self) -> str:
        return f"SplitWatermarks({len(self)} splits, combined={self._combined}, is_idle={self.is_idle})"

    def _get(self, split_id: str) -> _Split:
        split = self._splits.get(split_id)
        if split is None:
            raise UnknownSplitError(f"split_id = {split_id!r} is not registered; register it first")
        return split

    def _change(self, split_id: str, split: _Split, watermark: int, status: SplitStatus) -> None:
        if watermark == split.watermark and status is split.status:
            return
        self._leave(split_id, split)
        split.watermark, split.status = watermark, status
        if status in _COUNTING:
            self._counting.add((watermark, split_id))
        elif status is SplitStatus.IDLE:
            self._idle.add((watermark, split_id))
        self._recompute()

    def _leave(self, split_id: str, split: _Split) -> None:
        if split.status in _COUNTING:
            self._counting.remove((split.watermark, split_id))
        elif split.status is SplitStatus.IDLE:
            self._idle.remove((split.watermark, split_id))

    def _recompute(self) -> None:
        if self._open_changes:
            return
        self._combined = max(self._combined, self._candidate())

    def _candidate(self) -> int:
        if self._counting:
            return self._counting[0][0]
        if self._idle:
            return self._idle[-1][0]
        return MAX_WATERMARK if self._has_ended() else MIN_WATERMARK

    def _has_ended(self) -> bool:
        if self._counting or self._idle or self._abandoned:
            return False
        return self._bounded and self._no_more_splits and self._had_finished

    def _check(self) -> None:
        """Assert all invariants, with a dump of the fields when one does not hold. O(n log n)."""
        try:
            entries = [(s.watermark, split_id, s.status) for split_id, s in self._splits.items()]
            counting = sorted((watermark, split_id) for watermark, split_id, s in entries if s in _COUNTING)
            idle = sorted((watermark, split_id) for watermark, split_id, s in entries if s is SplitStatus.IDLE)
            assert list(self._counting) == counting, "counting splits are out of step"
            assert list(self._idle) == idle, "idle splits are out of step"
            assert self._had_splits or not entries, "splits without a first one"
            finished = any(s is SplitStatus.FINISHED for _, _, s in entries)
            assert self._had_finished or not finished, "finished splits without a first one"
            assert self._abandoned.isdisjoint(self._splits), "a registered split is abandoned"
            assert self._bounded or not self._abandoned, "an unbounded set remembers abandoned splits"
            if self._open_changes == 0:
                assert self._combined >= self._candidate(), "combined watermark is behind"
            if entries:
                watermarks = np.array([watermark for watermark, _, _ in entries], dtype=np.int64)
                statuses = np.array([s for _, _, s in entries], dtype=np.int8)
                assert combine_watermarks(watermarks, statuses).is_idle == self.is_idle, "idleness is wrong"
            assert MIN_WATERMARK <= self._combined <= MAX_WATERMARK, "combined watermark is outside int64"
        except AssertionError as error:
            dump = {name: getattr(self, name) for name in self.__slots__}
            raise AssertionError(f"{error}: {dump}") from error
