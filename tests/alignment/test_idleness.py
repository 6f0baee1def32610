from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignment.exceptions import AlignmentError, InvalidArgumentError
from alignment.idleness import IdlenessTimer, WatermarksWithIdleness
from alignment.watermarks import BoundedOutOfOrdernessWatermarks, WatermarkGenerator, WatermarkOutput


class ManualClock:
    def __init__(self) -> None:
        self.now_us = 0

    def __call__(self) -> int:
        return self.now_us


class CountingGenerator(WatermarkGenerator):
    """Emits nothing and counts how often it is asked."""

    def __init__(self) -> None:
        self.ticks = 0

    def on_event(self, timestamp: int, output: WatermarkOutput) -> None:
        pass

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        self.ticks += 1


def idle_after(timeout_us: int, interval_us: int, first_tick_us: int) -> int:
    """The tick, counted from the only record, at which the output is marked idle."""
    clock = ManualClock()
    generator = WatermarksWithIdleness(CountingGenerator(), timeout_us, clock)
    silent: Any = type("Silent", (), {"mark_idle": lambda self: None})()
    generator.on_event(1, silent)
    clock.now_us = first_tick_us
    while True:
        generator.on_periodic_emit(silent)
        if generator.is_idle:
            return clock.now_us
        clock.now_us += interval_us


def test_id_04_without_a_record_for_the_timeout_the_output_is_idle(output: Any) -> None:
    clock = ManualClock()
    generator = WatermarksWithIdleness(CountingGenerator(), 10, clock)
    generator.on_periodic_emit(output)
    assert output.said == []
    clock.now_us = 11
    generator.on_periodic_emit(output)
    assert output.said == ["IDLE"]


def test_id_06_a_record_ends_idleness_at_once(output: Any) -> None:
    clock = ManualClock()
    generator = WatermarksWithIdleness(CountingGenerator(), 10, clock)
    generator.on_periodic_emit(output)
    clock.now_us = 11
    generator.on_periodic_emit(output)
    generator.on_event(5, output)
    assert output.said == ["IDLE", "ACTIVE"]
    generator.on_periodic_emit(output)
    assert output.said == ["IDLE", "ACTIVE"]
    assert not generator.is_idle


def test_id_08_the_timeout_counts_from_the_record_and_not_from_a_later_tick(output: Any) -> None:
    clock = ManualClock()
    generator = WatermarksWithIdleness(CountingGenerator(), 10, clock)
    clock.now_us = 4
    generator.on_event(1, output)
    for clock.now_us in (5, 10):
        generator.on_periodic_emit(output)
        assert output.said == []
    clock.now_us = 15
    generator.on_periodic_emit(output)
    assert output.said == ["IDLE"]


def test_id_10_idleness_is_said_once_and_the_wrapped_generator_rests(output: Any) -> None:
    clock = ManualClock()
    wrapped = CountingGenerator()
    generator = WatermarksWithIdleness(wrapped, 10, clock)
    generator.on_periodic_emit(output)
    clock.now_us = 10
    for _ in range(6):
        generator.on_periodic_emit(output)
    assert output.said == ["IDLE"]
    assert wrapped.ticks == 1


def test_id_12_a_clock_that_reads_zero_is_an_instant_like_any_other(output: Any) -> None:
    clock = ManualClock()
    generator = WatermarksWithIdleness(CountingGenerator(), 10, clock)
    generator.on_periodic_emit(output)
    clock.now_us = 11
    generator.on_periodic_emit(output)
    assert output.said == ["IDLE"]


@pytest.mark.parametrize(
    ("timeout_us", "interval_us", "first_tick_us", "expected_us"),
    [(10, 5, 1, 11), (1000, 200, 1, 1001), (1000, 200, 200, 1000), (100, 100, 1, 101), (999, 1000, 1, 1001)],
)
def test_id_14_idle_comes_with_the_first_tick_not_less_than_the_timeout_after_the_record(
    timeout_us: int, interval_us: int, first_tick_us: int, expected_us: int
) -> None:
    assert idle_after(timeout_us, interval_us, first_tick_us) == expected_us


@given(st.integers(1, 500), st.integers(1, 200), st.data())
def test_idle_comes_within_one_interval_after_the_timeout(timeout: int, interval: int, data: st.DataObject) -> None:
    first_tick = data.draw(st.integers(1, interval))
    assert timeout <= idle_after(timeout, interval, first_tick) < timeout + interval


def test_batches_count_as_records_and_empty_ones_do_not(output: Any) -> None:
    clock = ManualClock()
    generator = WatermarksWithIdleness(BoundedOutOfOrdernessWatermarks(0), 10, clock)
    generator.on_batch(np.array([7, 9]), output)
    clock.now_us = 10
    generator.on_batch(np.array([], dtype=np.int64), output)
    generator.on_periodic_emit(output)
    assert output.said == ["IDLE"]
    generator.on_batch(np.array([3]), output)
    generator.on_periodic_emit(output)
    assert output.said == ["IDLE", "ACTIVE", 8]


def test_active_comes_before_the_watermark_of_the_record_that_ends_idleness(output: Any) -> None:
    class PerEvent(CountingGenerator):
        def on_event(self, timestamp: int, output: WatermarkOutput) -> None:
            output.emit_watermark(timestamp)

    clock = ManualClock()
    generator = WatermarksWithIdleness(PerEvent(), 10, clock)
    generator.on_periodic_emit(output)
    clock.now_us = 10
    generator.on_periodic_emit(output)
    generator.on_event(5, output)
    assert output.said == ["IDLE", "ACTIVE", 5]


def test_ck_02_nested_pauses_stop_the_timer_once() -> None:
    timer = IdlenessTimer(28)
    now = 0
    timer.caught_up(now)
    timer.pause(now := now + 14)
    timer.pause(now := now + 14)
    timer.resume(now := now + 14)
    assert timer.deadline_us() is None
    timer.resume(now := now + 14)
    timer.pause(now := now + 14)
    now += 14
    assert not timer.is_idle(now)
    timer.resume(now)
    assert timer.deadline_us() == now
    assert timer.is_idle(now)


def test_ck_04_a_split_that_starts_paused_does_not_grow_idle_before_it_is_resumed() -> None:
    timer = IdlenessTimer(10)
    timer.pause(0)
    timer.caught_up(3)
    assert not timer.is_idle(1000)
    timer.resume(1000)
    assert timer.deadline_us() == 1010


def test_resuming_more_often_than_pausing_is_an_error() -> None:
    timer = IdlenessTimer(10)
    timer.pause(0)
    timer.resume(1)
    with pytest.raises(AlignmentError, match="without pause"):
        timer.resume(2)


def test_a_split_with_a_backlog_is_never_idle_however_long_it_waits() -> None:
    timer = IdlenessTimer(10)
    assert not timer.is_idle(10**15)
    assert timer.deadline_us() is None


def test_the_timer_counts_from_the_first_time_the_split_had_caught_up() -> None:
    timer = IdlenessTimer(10)
    timer.caught_up(0)
    timer.caught_up(6)
    assert not timer.is_idle(9)
    assert timer.is_idle(10)


def test_activity_takes_the_timer_back_even_during_a_pause() -> None:
    timer = IdlenessTimer(10)
    timer.caught_up(0)
    timer.pause(5)
    timer.activity()
    timer.resume(6)
    assert timer.deadline_us() is None
    timer.caught_up(7)
    assert timer.deadline_us() == 17


@pytest.mark.parametrize("build", [IdlenessTimer, lambda t: WatermarksWithIdleness(CountingGenerator(), t, int)])
def test_a_timeout_must_be_above_zero(build: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="timeout_us = 0 must be above 0"):
        build(0)


class NaiveTimer:
    """Counts instant by instant."""

    def __init__(self, timeout_us: int) -> None:
        self.timeout_us, self.elapsed_us, self.pauses, self.caught_up = timeout_us, 0, 0, False

    def advance(self, duration_us: int) -> None:
        if self.caught_up and self.pauses == 0:
            self.elapsed_us += duration_us

    @property
    def is_idle(self) -> bool:
        return self.caught_up and self.pauses == 0 and self.elapsed_us >= self.timeout_us


@given(st.lists(st.sampled_from(["caught_up", "activity", "pause", "resume"]) | st.integers(0, 8)))
def test_the_timer_agrees_with_one_that_counts_every_instant(steps: list[str | int]) -> None:
    timer, naive, now = IdlenessTimer(10), NaiveTimer(10), 0
    for step in steps:
        if isinstance(step, int):
            now += step
            naive.advance(step)
        elif step == "caught_up":
            timer.caught_up(now)
            naive.caught_up = True
        elif step == "activity":
            timer.activity()
            naive.caught_up, naive.elapsed_us = False, 0
        elif step == "pause":
            timer.pause(now)
            naive.pauses += 1
        elif naive.pauses:
            timer.resume(now)
            naive.pauses -= 1
        assert timer.is_idle(now) == naive.is_idle
        assert timer.is_paused == (naive.pauses > 0)
