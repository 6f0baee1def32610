"""Since when a split is silent, over a restart."""

from __future__ import annotations

import numpy as np

from alignment.combine import SplitStatus
from alignment.idle_clock import IdleClock
from alignment.plan import SplitTable

MINUTE = 60_000_000
HOUR = 60 * MINUTE


def test_a_silent_split_is_idle_after_its_timeout_although_the_clock_was_set_back_before_a_restart() -> None:
    active = np.array([SplitStatus.ACTIVE], np.int8)
    clock = IdleClock(MINUTE)
    clock.begin(active, np.zeros(1, np.int64), silent_since_us=np.array([10 * HOUR]), now_us=HOUR)
    table = SplitTable(split_ids=("a",), positions=np.array([5]), watermarks=np.array([7]), statuses=active)
    for passed, is_idle in ((MINUTE - 1, False), (MINUTE, True)):
        clock.probe(HOUR + passed, None)
        assert clock.idle(table).tolist() == [is_idle]
