"""Since when the splits of a source have had nothing left to read."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from alignment.combine import SplitStatus
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MIN_WATERMARK

__all__ = ["IdleClock", "monotonic_us", "processing_time_us"]

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


_BEGAN_US: Final = (time.time_ns() - time.monotonic_ns()) // 1000


def monotonic_us() -> int:
    """Processing time in microseconds, as far as only its passing matters."""
    return time.monotonic_ns() // 1000


def processing_time_us() -> int:
    """Processing time in microseconds since the epoch: monotonic, and by the wall clock as of when this process began.

    So it can be compared with what an earlier process wrote down.
    """
    return _BEGAN_US + time.monotonic_ns() // 1000


class IdleClock:
    """Measures idleness in processing time, but only as far as has been looked whether something is there.

    Since when a split has been silent survives a restart: it is in the state.

    Arrays have one entry for each split, in the order of the coordinator's table.

    Parameters
    ----------
    timeout_us
        After how long without anything to read a split is idle; None for never.
    now_us
        Processing time in microseconds since the epoch, monotonic.
    """

    def __init__(self, timeout_us: int | None, now_us: Callable[[], int]) -> None:
        self._timeout_us = timeout_us
        self._now_us = now_us
        self._caught_up_us = np.empty(0, np.int64)
        self._deadline_us: int | None = None

    def begin(self, statuses: npt.NDArray[np.int8], silent_since_us: Int64Array) -> None:
        """Start with restored splits: those that were idle still are. O(n).

        Parameters
        ----------
        statuses
            `int8[n]` of `SplitStatus`.
        silent_since_us
            What `silent_since` said.
        """
        now_us = self._now_us()
        # The wall clock may have been put back since.
        since_us = np.where(silent_since_us == NO_TIMESTAMP, now_us, np.minimum(silent_since_us, now_us))
        self._caught_up_us = np.where(statuses == SplitStatus.IDLE, MIN_WATERMARK, since_us)
        self._deadline_us = None

    def silent_since(self, is_silent: BoolArray) -> Int64Array:
        """`int64[n]`: since when those splits have had nothing to read; `NO_TIMESTAMP` of all others. O(n)."""
        is_known = is_silent & (self._timeout_us is not None)
        return np.where(is_known, self._caught_up_us, NO_TIMESTAMP)

    def add(self, count: int, order: npt.NDArray[np.intp]) -> None:
        """New splits came behind the others, and then all were put in this order. O(n)."""
        self._caught_up_us = np.append(self._caught_up_us, np.full(count, self._now_us()))[order]

    def keep(self, slots: npt.NDArray[np.intp]) -> None:
        """Only these are left. O(n)."""
        self._caught_up_us = self._caught_up_us[slots]

    def is_due(self, observed_us: int | None) -> bool:
        """Whether, as of the last look, a split may have become idle. O(1)."""
        return self._deadline_us is not None and observed_us is not None and observed_us >= self._deadline_us

    def idle(self, observed_us: int | Int64Array) -> BoolArray:
        """`bool[n]`: splits whose last record was read at least the timeout before they were last looked at. O(n)."""
        if self._timeout_us is None:
            return np.zeros(self._caught_up_us.size, np.bool_)
        since = np.maximum(np.asarray(observed_us, np.int64), MIN_WATERMARK + self._timeout_us) - self._timeout_us
        # What was idle before a restart is idle until something is found, looked at or not.
        is_known = (np.asarray(observed_us) > MIN_WATERMARK) | (self._caught_up_us == MIN_WATERMARK)
        return np.asarray((self._caught_up_us <= since) & is_known)

    def track(self, unread: BoolArray, statuses: npt.NDArray[np.int8], observed_us: int | None) -> None:
        """Start anew for every split that has, or just had, something to read. O(n).

        Parameters
        ----------
        unread
            `bool[n]`, before the plan.
        statuses
            `int8[n]` of `SplitStatus`, after the plan.
        observed_us
            When the last completed look began.
        """
        now_us = self._now_us()
        self._caught_up_us = np.where(unread, now_us, self._caught_up_us)
        self._deadline_us = None
        if self._timeout_us is None:
            return
        active = statuses == SplitStatus.ACTIVE
        waiting = self._caught_up_us[active & ~unread]
        if waiting.size:
            # What was looked at and is not idle yet was itself looked at too early: it takes another look.
            self._deadline_us = max(int(waiting.min()) + self._timeout_us, (observed_us or 0) + 1)
        elif (active & unread).any():
            self._deadline_us = now_us + self._timeout_us
