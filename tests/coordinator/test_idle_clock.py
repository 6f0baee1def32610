"""Since when splits have nothing left to read, and when they are idle by that."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignment import WatermarkStrategy
from alignment.combine import SplitStatus
from alignment.explain import WaitsFor
from alignment.idle_clock import IdleClock
from alignment.plan import SplitTable
from alignment.watermarks import LONG_AGO_US
from streaming_source.testing import SourceHarness, TestingSource

TIMEOUT_US = 20_000_000


class OneSplit:
    """The clock of one split, which is planned whenever a test says so."""

    def __init__(self, timeout_us: int, now_us: int = 0) -> None:
        self.now_us = now_us
        self.clock = IdleClock(timeout_us)
        self.clock.add([0], [now_us], np.array([0]))

    def plan(self, now_us: int, *, unread: bool = False) -> bool:
        """A probe that has just ended, and the plan after it; whether the split is idle then."""
        self.now_us = now_us
        self.clock.probe(now_us, None)
        table = SplitTable(
            split_ids=("a",), positions=np.array([1]), watermarks=np.array([1]), statuses=np.zeros(1, np.int8)
        )
        idle = bool(self.clock.idle(table)[0]) and not unread
        statuses = np.full(1, SplitStatus.IDLE if idle else SplitStatus.ACTIVE, np.int8)
        self.clock.track(np.array([unread]), statuses, now_us)
        return idle


def test_id_04_without_a_record_for_the_timeout_a_split_is_idle() -> None:
    split = OneSplit(10)
    assert not split.plan(1)
    assert split.plan(11)


def test_a_source_without_a_split_is_idle_at_the_timeout_and_not_before() -> None:
    clock, none = IdleClock(10), np.empty(0, np.int64)
    clock.begin(np.empty(0, np.int8), none, none, 5)
    clock.probe(14, None)
    assert not clock.is_empty_source_idle()
    clock.probe(15, None)
    assert clock.is_empty_source_idle()


def test_id_06_a_record_ends_idleness_at_once() -> None:
    split = OneSplit(10)
    assert split.plan(11)
    assert not split.plan(12, unread=True)
    assert not split.plan(13)


def test_id_08_the_timeout_counts_from_the_record_and_not_from_a_later_look() -> None:
    split = OneSplit(10)
    split.plan(4, unread=True)
    assert [split.plan(now_us) for now_us in (5, 10, 15)] == [False, False, True]


def test_id_10_idleness_is_announced_once() -> None:
    source = TestingSource({"a": [10], "b": [20]})
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("0 us").with_idleness("10 seconds")
    harness = SourceHarness(source, strategy, clock=source.clock)
    harness.run()
    batches = 0
    for _ in range(30):
        source.clock.advance("1 second")
        batches += len(harness.run())
    assert harness.watermark == 19
    assert batches == 1
    harness.close()


def test_id_12_a_clock_that_reads_zero_is_an_instant_like_any_other() -> None:
    split = OneSplit(10, now_us=0)
    assert not split.plan(0)
    assert split.plan(11)


def idle_after(timeout_us: int, interval_us: int, first_look_us: int) -> int:
    """The look, counted from the only record, after which the split is idle."""
    split, now_us = OneSplit(timeout_us), first_look_us
    split.plan(0, unread=True)
    while not split.plan(now_us):
        now_us += interval_us
    return now_us


@pytest.mark.parametrize(
    ("timeout_us", "interval_us", "first_look_us", "expected_us"),
    [(10, 5, 1, 11), (1000, 200, 1, 1001), (1000, 200, 200, 1000), (100, 100, 1, 101), (999, 1000, 1, 1001)],
)
def test_id_14_idle_comes_with_the_first_look_not_less_than_the_timeout_after_the_record(
    timeout_us: int, interval_us: int, first_look_us: int, expected_us: int
) -> None:
    assert idle_after(timeout_us, interval_us, first_look_us) == expected_us


@given(st.integers(1, 500), st.integers(1, 200), st.data())
def test_idle_comes_within_one_interval_after_the_timeout(timeout: int, interval: int, data: st.DataObject) -> None:
    first_look = data.draw(st.integers(1, interval))
    assert timeout <= idle_after(timeout, interval, first_look) < timeout + interval


def test_ck_04_a_split_that_starts_with_a_backlog_does_not_grow_idle_before_that_is_read() -> None:
    split = OneSplit(10)
    assert not any(split.plan(now_us, unread=True) for now_us in range(0, 1000, 7))
    last_us = split.now_us
    assert not split.plan(last_us + 9)
    assert split.plan(last_us + 10)


class NaiveSplit:
    """Counts instant by instant."""

    def __init__(self, timeout_us: int) -> None:
        self.timeout_us, self.quiet_us = timeout_us, 0

    def advance(self, duration_us: int) -> None:
        self.quiet_us += duration_us

    def plan(self, *, unread: bool) -> bool:
        if unread:
            self.quiet_us = 0
        return self.quiet_us >= self.timeout_us


@given(st.lists(st.booleans() | st.integers(0, 8)))
def test_the_clock_agrees_with_one_that_counts_every_instant(steps: list[bool | int]) -> None:
    split, naive, now_us = OneSplit(10), NaiveSplit(10), 0
    for step in steps:
        if isinstance(step, bool):
            assert split.plan(now_us, unread=step) == naive.plan(unread=step)
        else:
            now_us += step
            naive.advance(step)


@given(st.lists(st.integers(1, 30), min_size=1), st.integers(1, 40))
def test_a_plan_is_due_when_a_look_may_make_a_split_idle_and_not_before(looks: list[int], timeout_us: int) -> None:
    split, now_us = OneSplit(timeout_us), 0
    split.plan(0, unread=True)
    split.plan(0)
    for wait_us in looks:
        now_us += wait_us
        split.clock.probe(now_us, None)
        assert split.clock.is_due() == (now_us >= timeout_us)


# ---- restarts --------------------------------------------------------------------------------------------------------


TABLE = SplitTable(
    split_ids=("a", "b"),
    positions=np.array([5, 5]),
    watermarks=np.array([1, 1]),
    statuses=np.array([SplitStatus.IDLE, SplitStatus.ACTIVE], np.int8),
)


def restarted() -> IdleClock:
    clock = IdleClock(TIMEOUT_US)
    clock.begin(TABLE.statuses, np.zeros(2, np.int64), np.full(2, LONG_AGO_US), 5)
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
    clock.blocked["b"] = WaitsFor.TRANSACTION
    assert clock.idle(TABLE).tolist() == [True, False]
    clock.probe(6 + TIMEOUT_US, None)
    assert clock.idle(TABLE).tolist() == [True, True]
