"""The clocks of a planner: for durations, for times that an earlier process stored, and the wall clock."""

from __future__ import annotations

import time
from typing import Final

__all__ = ["monotonic_us", "processing_time_us", "wall_clock_us"]


def monotonic_us() -> int:
    """Return a monotonic time in microseconds, for durations."""
    return time.monotonic_ns() // 1000


_BEGAN_US: Final = (time.time_ns() - time.monotonic_ns()) // 1000


def processing_time_us() -> int:
    """Return processing time in microseconds since the epoch: monotonic, from the wall clock at the process's start.

    It can be compared with times that an earlier process stored.
    """
    return _BEGAN_US + monotonic_us()


def wall_clock_us() -> int:
    """Return the wall clock, in microseconds since the epoch; never less than `processing_time_us`."""
    return max(time.time_ns() // 1000, processing_time_us())
