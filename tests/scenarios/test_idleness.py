"""Splits that have nothing to read, come back, end or are new: what they hold, and whom."""

from __future__ import annotations

import pytest

from alignment.combine import SplitStatus
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from streaming_source.testing import EOF, Pause, SourceHarness, TestingSource
from tests.coordinator.support import STRATEGY
from tests.scenarios.support import Group

ACTIVE, PAUSED, IDLE, FINISHED = SplitStatus


def test_a_split_that_comes_back_counts_at_once_although_the_watermark_stands_still(group: Group) -> None:
    """FLINK-40504: the reader stayed idle until its watermark advanced; what came until then was dropped as late."""
    source = group.source({"a": [50], "b": [40]}, drift="1 hour", idle="10 seconds")
    other = group.source({"o": [45, 56, 300]})
    group.let_pass(20)
    assert source.statuses == {"a": IDLE, "b": IDLE}
    assert source.watermark == 49
    assert other.read == [45, 56, 300], "nobody holds it back"
    source.source.go_on("b", 45)
    group.next_plan(source)
    assert source.statuses == {"a": IDLE, "b": ACTIVE}
    assert source.watermark == 49
    other.source.go_on("o", 301)
    group.let_pass(2)
    assert other.read == [45, 56, 300], "the one that is back is waited for"


def test_a_split_that_is_new_to_an_idle_source_makes_it_active(group: Group) -> None:
    """FLINK-22926: a reader that was idle remained so when it was given a split."""
    source = group.source({"a": [50]}, idle="10 seconds")
    other = group.source({"o": [45]})
    group.let_pass(20)
    assert source.statuses == {"a": IDLE}
    source.source.go_on("b")
    other.source.go_on("o", 300)
    group.let_pass(3)
    assert source.statuses == {"a": IDLE, "b": ACTIVE}
    assert other.read == [45], "of the new one nothing is known yet"


def test_a_source_whose_last_split_has_ended_holds_nobody_and_counts_again_with_the_next_one(group: Group) -> None:
    """FLINK-39586, FLINK-40094: without splits a reader neither advanced nor was idle, and held the job for ever."""
    source = group.source({"a": [5, EOF]})
    other = group.source({"o": [5, 300]})
    group.let_pass(3)
    assert other.read == [5, 300]
    assert source.statuses == {"a": FINISHED}
    assert source.watermark == 4
    source.source.go_on("b", 7)
    group.let_pass(2)
    other.source.go_on("o", 301)
    group.let_pass(2)
    assert source.watermark == 6
    assert other.read == [5, 300]


def test_what_has_ended_does_not_end_time_for_what_is_idle(group: Group) -> None:
    """FLINK-38477: finished readers said MAX, all others were idle, and everything that came later was late."""
    splits = {"ends": [20, Pause("30 seconds"), 500, EOF], "idle": [10]}
    source = group.source(splits, drift="1 hour", idle="10 seconds")
    group.let_pass(20)
    assert source.statuses == {"ends": IDLE, "idle": IDLE}
    group.let_pass(20)
    assert source.read == [10, 20, 500]
    assert source.watermark == 499
    source.source.go_on("idle", 501)
    group.let_pass(5)
    assert source.read == [10, 20, 500, 501]
    assert source.state.late.tolist() == [0]


def test_who_went_idle_last_makes_no_difference(group: Group) -> None:
    """FLINK-38454: with all splits idle the watermark depended on the order in which they became so."""
    for first, last in (("a", "b"), ("b", "a")):
        ends = {"a": 7, "b": 9}
        splits = {first: [ends[first]], last: [1, Pause("5 seconds"), ends[last]]}
        source = group.source(splits, drift="1 hour", idle="10 seconds")
        group.let_pass(30)
        assert source.statuses == {"a": IDLE, "b": IDLE}
        assert source.watermark == 8
        source.close()


def test_the_minimum_follows_every_change_of_a_status(group: Group) -> None:
    """FLINK-40475: a watermark was skipped, or stood still, when the ones behind went idle and came back."""
    source = group.source({"a": [10], "b": [30], "c": [20]}, drift="1 hour", idle="10 seconds")
    group.plan_all()
    assert source.watermark == 9
    for _ in range(12):
        group.let_pass(1)
        source.source.go_on("b", 30)
        source.source.go_on("c", 20)
    group.let_pass(1)
    assert source.statuses == {"a": IDLE, "b": ACTIVE, "c": ACTIVE}
    assert source.watermark == 19
    source.source.go_on("a", 25)
    group.let_pass(3)
    assert source.statuses["a"] is ACTIVE
    source.source.go_on("c", 40)
    group.let_pass(3)
    assert source.watermark == 24, "that of the one that came back"


def test_the_only_split_of_a_source_waits_for_the_group_without_being_idle(group: Group) -> None:
    """FLINK-36751, FLINK-35886: a reader with one split did not pause it, and its time to idleness went on."""
    behind = group.source({"s": [1]})
    source = group.source({"a": [1, 2, 300]}, idle="10 seconds")
    group.let_pass(60)
    assert source.read == [1, 2]
    assert source.statuses == {"a": PAUSED}
    behind.source.go_on("s", 299)
    group.let_pass(2)
    assert source.read == [1, 2, 300]
    group.let_pass(5)
    assert source.statuses == {"a": ACTIVE}, "it has had nothing to read for seven seconds only"


def test_records_that_move_no_watermark_keep_a_split_from_being_idle(group: Group) -> None:
    """FLINK-34252: a split with a record every second was taken for idle since its watermark stood still."""
    source = group.source({"a": [50], "b": [40]}, drift="1 hour", idle="10 seconds")
    for _ in range(30):
        group.let_pass(1)
        source.source.go_on("b", 40)
    assert source.statuses == {"a": IDLE, "b": ACTIVE}


def test_restored_splits_hold_the_watermark_before_their_first_record(group: Group) -> None:
    """FLINK-32828, FLINK-26018: after a start only splits counted that had brought a record."""
    source = group.source({"slow": [10, Pause("30 seconds"), 11], "fast": [10]}, drift="1 hour", max_rows=1)
    group.plan_all()
    assert source.watermark == 9
    source.source.go_on("fast", *range(100, 120))
    source.restart()
    group.let_pass(5)
    assert source.read[-1] == 119
    assert source.watermark == 9
    group.let_pass(30)
    assert source.watermark == 10


def test_splits_of_which_nothing_came_yet_hold_the_watermark_from_the_start(group: Group) -> None:
    """FLINK-26018: the first splits to bring something set the watermark for all."""
    source = group.source({"slow": [Pause("30 seconds"), 11], "fast": [100]}, drift="1 hour")
    group.let_pass(10)
    assert source.watermark == MIN_WATERMARK
    group.let_pass(30)
    assert source.watermark == 10


def test_a_source_that_never_had_a_split_says_nothing_however_long(group: Group) -> None:
    """FLINK-23767, FLINK-8001, FLINK-7721: without splits a reader went idle, or said MAX; the first one was late."""
    source = group.source({}, idle="10 seconds")
    group.let_pass(100)
    assert source.watermark == MIN_WATERMARK
    source.source.go_on("a", 5)
    group.let_pass(2)
    assert source.read == [5]
    assert source.state.late.tolist() == [0]


@pytest.mark.parametrize("bounded", [False, True])
def test_only_a_bounded_source_that_has_read_all_ends_time(bounded: bool) -> None:
    """FLINK-8001: the end of time was announced where nothing had ended."""
    source = TestingSource({"a": [1, EOF], "b": [2, EOF]}, bounded=bounded)
    reading = SourceHarness(source, STRATEGY, clock=source.clock)
    reading.run()
    assert reading.watermark == (MAX_WATERMARK if bounded else 1)


def test_while_all_are_idle_the_watermark_does_not_follow_the_wall_clock(group: Group) -> None:
    """FLINK-18523: a wish. Time that is not in the data would make late what was only delayed."""
    source = group.source({"a": [50]}, idle="10 seconds")
    group.let_pass(1000, step_s=1)
    assert source.watermark == 49
