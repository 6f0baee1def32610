"""Since when the splits of a source have had nothing left to read."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from alignment.combine import SplitStatus
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MIN_WATERMARK

__all__ = ["IdleClock"]

Int64Array: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]


class IdleClock:
    """Measures idleness in processing time, but only up to the last probe: what nobody probed for may be there.

    Since when a split has been silent survives a restart: it is in the state. Arrays have one entry for each split, in
    the order of the engine's table. Processing time is in microseconds since the epoch.

    Parameters
    ----------
    timeout_us
        After how long without anything to read a split is idle; None for never.
    """

    def __init__(self, timeout_us: int | None) -> None:
        self._timeout_us = timeout_us
        self._caught_up_us = np.empty(0, np.int64)
        self._deadline_us: int | None = None

    def begin(self, statuses: npt.NDArray[np.int8], silent_since_us: Int64Array, now_us: int) -> None:
        """Start with restored splits: those that were idle still are. O(n).

        Parameters
        ----------
        statuses
            `int8[n]` of `SplitStatus`.
        silent_since_us
            What `silent_since_us` said.
        now_us
            Processing time.
        """
        # The wall clock may have been put back since.
        since_us = np.where(silent_since_us == NO_TIMESTAMP, now_us, np.minimum(silent_since_us, now_us))
        self._caught_up_us = np.where(statuses == SplitStatus.IDLE, MIN_WATERMARK, since_us)
        self._deadline_us = None

    def silent_since_us(self, is_silent: BoolArray) -> Int64Array:
        """`int64[n]`: since when those splits have had nothing to read; `NO_TIMESTAMP` of all others. O(n)."""
        is_known = is_silent & (self._timeout_us is not None)
        return np.where(is_known, self._caught_up_us, NO_TIMESTAMP)

    def add(self, joined_us: list[int], order: npt.NDArray[np.intp]) -> None:
        """New splits came behind the others at these times, and then all were put in this order. O(n)."""
        self._caught_up_us = np.append(self._caught_up_us, np.array(joined_us, np.int64))[order]

    def keep(self, slots: npt.NDArray[np.intp]) -> None:
        """Only these are left. O(n)."""
        self._caught_up_us = self._caught_up_us[slots]

    def is_due(self, probed_us: int | None) -> bool:
        """Whether, as of the last probe, a split may have become idle. O(1)."""
        return self._deadline_us is not None and probed_us is not None and probed_us >= self._deadline_us

    def idle(self, probed_us: Int64Array) -> BoolArray:
        """`bool[n]`: splits whose last record was read at least the timeout before they were last probed. O(n).

        Parameters
        ----------
        probed_us
            `int64[n]`: when the last probe of each split began; `MIN_WATERMARK` before any.
        """
        if self._timeout_us is None:
            return np.zeros(self._caught_up_us.size, np.bool_)
        since = np.maximum(probed_us, MIN_WATERMARK + self._timeout_us) - self._timeout_us
        # What was idle before a restart is idle until something is found, probed or not.
        is_known = (probed_us > MIN_WATERMARK) | (self._caught_up_us == MIN_WATERMARK)
        return np.asarray((self._caught_up_us <= since) & is_known)

    def track(self, unread: BoolArray, statuses: npt.NDArray[np.int8], probed_us: int | None, now_us: int) -> None:
        """Start anew for every split that has, or just had, something to read. O(n).

        Parameters
        ----------
        unread
            `bool[n]`, before the plan.
        statuses
            `int8[n]` of `SplitStatus`, after the plan.
        probed_us
            When the last completed probe began.
        now_us
            Processing time.
        """
        self._caught_up_us = np.where(unread, now_us, self._caught_up_us)
        self._deadline_us = None
        if self._timeout_us is None:
            return
        active = statuses == SplitStatus.ACTIVE
        waiting = self._caught_up_us[active & ~unread]
        if waiting.size:
            # What was probed and is not idle yet was itself probed too early: it takes another probe.
            self._deadline_us = max(int(waiting.min()) + self._timeout_us, (probed_us or 0) + 1)
        elif (active & unread).any():
            self._deadline_us = now_us + self._timeout_us

    def deadlines_us(self) -> Int64Array | None:
        """`int64[n]`: when each split is idle if nothing comes; None if none ever is. O(n)."""
        return None if self._timeout_us is None else self._caught_up_us + self._timeout_us

    def __len__(self) -> int:
        return int(self._caught_up_us.size)
