"""The clocks of a planner: for what only passes, for what an earlier process wrote down, for times of the world."""

from __future__ import annotations

import time
from typing import Final

__all__ = ["monotonic_us", "processing_time_us", "wall_clock_us"]


def monotonic_us() -> int:
    """Processing time in microseconds, as far as only its passing matters."""
    return time.monotonic_ns() // 1000


_BEGAN_US: Final = (time.time_ns() - time.monotonic_ns()) // 1000


def processing_time_us() -> int:
    """Processing time in microseconds since the epoch: monotonic, and by the wall clock as of when this process began.

    So it can be compared with what an earlier process wrote down.
    """
    return _BEGAN_US + monotonic_us()


def wall_clock_us() -> int:
    """The wall clock, in microseconds since the epoch; where it was put back since this process began, it goes on."""
    return max(time.time_ns() // 1000, processing_time_us())
