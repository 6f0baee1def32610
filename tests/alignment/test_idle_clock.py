"""Since when splits have nothing left to read."""

from __future__ import annotations

import numpy as np

from alignment.combine import SplitStatus
from alignment.idle_clock import IdleClock
from alignment.micro_batch import SplitTable
from alignment.timestamps import NO_TIMESTAMP

TIMEOUT_US = 20_000_000
TABLE = SplitTable(
    ("a", "b"), np.array([5, 5]), np.array([1, 1]), np.array([SplitStatus.IDLE, SplitStatus.ACTIVE], np.int8)
)


def restarted() -> IdleClock:
    clock = IdleClock(TIMEOUT_US)
    clock.begin(TABLE.statuses, np.zeros(2, np.int64), np.full(2, NO_TIMESTAMP), 5)
    return clock


def test_a_split_that_was_idle_before_a_restart_is_so_before_anybody_has_probed_it() -> None:
    assert restarted().idle(TABLE).tolist() == [True, False]


def test_it_is_active_with_the_first_record_that_is_found() -> None:
    clock = restarted()
    clock.track(np.array([True, False]), np.full(2, SplitStatus.ACTIVE, np.int8), 5)
    assert clock.idle(TABLE).tolist() == [False, False]


def test_one_that_was_active_is_idle_only_after_a_probe_that_is_late_enough() -> None:
    clock = restarted()
    clock.probe(5 + TIMEOUT_US - 1, ["b"])
    assert clock.idle(TABLE).tolist() == [True, False]
    clock.probe(5 + TIMEOUT_US, ["b"])
    assert clock.idle(TABLE).tolist() == [True, True]


def test_one_that_is_blocked_is_not_idle_until_it_is_probed_again() -> None:
    clock = restarted()
    clock.probe(5 + TIMEOUT_US, None)
    clock.blocked.add("b")
    assert clock.idle(TABLE).tolist() == [True, False]
    clock.probe(6 + TIMEOUT_US, None)
    assert clock.idle(TABLE).tolist() == [True, True]
