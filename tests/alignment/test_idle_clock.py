"""Since when splits have nothing left to read."""

from __future__ import annotations

import numpy as np

from alignment.combine import SplitStatus
from alignment.idle_clock import IdleClock
from alignment.watermarks import MIN_WATERMARK

TIMEOUT_US = 20_000_000
NEVER = np.full(2, MIN_WATERMARK, np.int64)


def restarted() -> IdleClock:
    clock = IdleClock(TIMEOUT_US)
    clock.begin(np.array([SplitStatus.IDLE, SplitStatus.ACTIVE], np.int8), NEVER, 5)
    return clock


def test_a_split_that_was_idle_before_a_restart_is_so_before_anybody_has_looked_at_it() -> None:
    assert restarted().idle(NEVER).tolist() == [True, False]


def test_it_is_active_with_the_first_record_that_is_found() -> None:
    clock = restarted()
    clock.track(np.array([True, False]), np.full(2, SplitStatus.ACTIVE, np.int8), None, 5)
    assert clock.idle(NEVER).tolist() == [False, False]


def test_one_that_was_active_is_idle_only_after_a_look_that_is_late_enough() -> None:
    clock = restarted()
    assert clock.idle(np.array([MIN_WATERMARK, 5 + TIMEOUT_US - 1])).tolist() == [True, False]
    assert clock.idle(np.array([MIN_WATERMARK, 5 + TIMEOUT_US])).tolist() == [True, True]
