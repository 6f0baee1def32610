"""Watermarks of splits combined: what a query's plans do, and the public class, which is to do the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from alignment import SplitWatermarks
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from tests.coordinator.planned_splits import PlannedSplits
from tests.examples import examples

Splits: TypeAlias = PlannedSplits | SplitWatermarks
Make: TypeAlias = Callable[[], Splits]


@pytest.fixture(params=[PlannedSplits, SplitWatermarks])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


def splits_of(make: Make, *split_ids: str, at: int = MIN_WATERMARK) -> Splits:
    splits = make()
    with splits.together():
        for split_id in split_ids:
            splits.register(split_id, at)
    return splits


def state(splits: Splits) -> tuple[int, bool]:
    return splits.combined, splits.is_idle


# Immediate outputs: each change is looked at.


def test_mx_02_one_split_goes_idle_without_a_watermark(make: Make) -> None:
    splits = splits_of(make, "a")
    splits.mark_idle("a")
    assert state(splits) == (MIN_WATERMARK, True)


def test_mx_04_an_idle_split_holds_nothing_back(make: Make) -> None:
    splits = splits_of(make, "a", "b", "c")
    splits.update("a", 2)
    splits.update("b", 5)
    assert state(splits) == (MIN_WATERMARK, False)
    splits.mark_idle("c")
    assert state(splits) == (2, False)


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_mx_06_two_immediate_outputs_all_idle_give_the_maximum_in_any_order(make: Make, order: str) -> None:
    splits = splits_of(make, "a", "b")
    splits.update("a", 5)
    splits.update("b", 2)
    assert state(splits) == (2, False)
    for split_id in order:
        splits.mark_idle(split_id)
    assert state(splits) == (5, True)


def test_mx_08_a_split_that_comes_back_behind_does_not_pull_the_watermark_back(make: Make) -> None:
    splits = splits_of(make, "a", "b")
    splits.update("a", 2)
    splits.update("b", 5)
    splits.mark_idle("a")
    assert state(splits) == (5, False)
    splits.update("a", 3)
    assert state(splits) == (5, False)
    splits.update("b", 6)
    assert state(splits) == (5, False), "it counts"


# Deferred outputs: the changes of one tick are one change.


def test_mx_10_changes_made_together_are_looked_at_once(make: Make) -> None:
    splits = splits_of(make, "a", "b")
    with splits.together():
        splits.update("a", 0)
        splits.update("b", 1)
        assert splits.combined == MIN_WATERMARK
    assert state(splits) == (0, False)


def test_mx_12_a_deferred_split_goes_idle_at_the_tick(make: Make) -> None:
    splits = splits_of(make, "a")
    with splits.together():
        splits.mark_idle("a")
    assert state(splits) == (MIN_WATERMARK, True)


def test_mx_14_three_deferred_splits_one_of_them_idle(make: Make) -> None:
    splits = splits_of(make, "a", "b", "c")
    with splits.together():
        splits.update("a", 2)
        splits.update("b", 5)
        splits.mark_idle("c")
    assert state(splits) == (2, False)


def test_changes_together_do_not_depend_on_their_order(make: Make) -> None:
    splits = splits_of(make, "a", "b", "c")
    splits.update("c", 1)
    splits.mark_idle("c")
    splits.update("a", 100)
    splits.update("b", 20)
    with splits.together():
        splits.mark_idle("b")
        splits.update("c", 40)
    assert state(splits) == (40, False)


# The set of splits changes.


def test_mx_18_removing_the_slowest_split_releases_what_it_held_at_once(make: Make) -> None:
    splits = splits_of(make, "lower", "higher")
    splits.update("lower", 156765)
    splits.update("higher", 156770)
    splits.unregister("lower")
    assert state(splits) == (156770, False)
    splits.update("higher", 156775)
    assert state(splits) == (156775, False)


def test_mx_20_removal_does_not_take_a_watermark_back(make: Make) -> None:
    splits = splits_of(make, "higher")
    splits.update("higher", 2)
    splits.unregister("higher")
    splits.register("lower")
    splits.update("lower", 1)
    assert state(splits) == (2, False)


def test_mx_22_a_set_that_lost_its_last_split_is_idle(make: Make) -> None:
    splits = splits_of(make, "one")
    splits.update("one", 1)
    splits.unregister("one")
    assert state(splits) == (1, True)


def test_mx_24_a_late_joiner_counts_at_once(make: Make) -> None:
    splits = splits_of(make, "a")
    splits.update("a", 10)
    splits.register("n")
    splits.update("a", 20)
    assert state(splits) == (10, False)
    splits.update("n", 15)
    assert state(splits) == (15, False)


def test_ot_18_a_set_that_never_had_a_split_says_nothing(make: Make) -> None:
    splits = make()
    assert state(splits) == (MIN_WATERMARK, False)


def test_ot_16_the_only_split_decides_alone_whether_the_set_is_idle(make: Make) -> None:
    splits = splits_of(make, "a")
    splits.update("a", 9)
    splits.mark_idle("a")
    assert state(splits) == (9, True)


def test_a_set_is_active_again_with_the_first_new_split(make: Make) -> None:
    splits = splits_of(make, "a", at=7)
    splits.mark_idle("a")
    splits.register("b")
    assert state(splits) == (7, False)


def test_ot_12_splits_restored_together_leak_no_watermark_above_the_slowest(make: Make) -> None:
    splits = make()
    with splits.together():
        splits.register("s0", 1042)
        splits.register("s1", 42)
    assert state(splits) == (42, False)


def test_a_split_may_be_registered_at_the_watermark_of_its_checkpoint(make: Make) -> None:
    splits = make()
    splits.register("a", 42)
    assert state(splits) == (42, False)
    splits.update("a", 41)
    assert state(splits) == (42, False)


# Channels of a downstream combiner.


def test_vl_02_a_watermark_of_an_idle_split_makes_it_active(make: Make) -> None:
    splits = splits_of(make, "0")
    splits.update("0", 25)
    splits.mark_idle("0")
    splits.update("0", 50)
    assert state(splits) == (50, False)


def test_vl_04_the_slowest_of_three_decides(make: Make) -> None:
    splits = splits_of(make, "0", "1", "2", at=0)
    seen = []
    for split_id, watermark in (("0", 12), ("2", 8), ("2", 10), ("1", 15), ("2", 17), ("0", 20)):
        splits.update(split_id, watermark)
        seen.append(splits.combined)
    assert seen == [0, 0, 0, 10, 12, 15]


def test_vl_06_splits_go_idle_one_by_one(make: Make) -> None:
    splits = splits_of(make, "0", "1", "2")
    for split_id, watermark in (("0", 25), ("1", 10), ("2", 17)):
        splits.update(split_id, watermark)
    assert state(splits) == (10, False)
    splits.mark_idle("1")
    assert state(splits) == (17, False)
    splits.mark_idle("2")
    assert state(splits) == (25, False)


def test_vl_08_a_split_that_catches_up_again_is_waited_for(make: Make) -> None:
    splits = splits_of(make, "0", "1", "2")
    for split_id, watermark in (("0", 10), ("1", 7), ("2", 3)):
        splits.update(split_id, watermark)
    assert splits.combined == 3
    splits.mark_idle("2")
    assert splits.combined == 7
    splits.mark_active("2")
    seen = []
    for split_id, watermark in (("2", 5), ("2", 9), ("1", 12)):
        splits.update(split_id, watermark)
        seen.append(splits.combined)
    assert seen == [7, 7, 9]


def test_vl_10_a_split_that_goes_idle_while_behind_changes_nothing(make: Make) -> None:
    splits = splits_of(make, "0", "1")
    splits.update("0", 7)
    splits.update("1", 10)
    assert splits.combined == 7
    splits.mark_idle("0")
    assert splits.combined == 10
    splits.mark_active("0")
    splits.update("0", 9)
    splits.mark_idle("0")
    assert state(splits) == (10, False)


# Idle, active again.


def test_the_first_record_after_all_were_idle_ends_idleness_without_an_advance(make: Make) -> None:
    splits = splits_of(make, "a", "b")
    splits.update("a", 50)
    splits.update("b", 40)
    splits.mark_idle("a")
    splits.mark_idle("b")
    assert state(splits) == (50, True)
    splits.update("b", 45)
    assert state(splits) == (50, False)
    splits.update("b", 51)
    assert state(splits) == (51, False)


def test_the_same_watermark_again_ends_idleness_and_a_smaller_one_does_too(make: Make) -> None:
    for watermark in (40, 30):
        splits = splits_of(make, "b", at=40)
        splits.mark_idle("b")
        splits.update("b", watermark)
        assert state(splits) == (40, False)


# The end. The public class knows of none.


def test_finished_splits_beside_idle_ones_never_give_the_end_of_time() -> None:
    splits = PlannedSplits(bounded=True)
    with splits.together():
        splits.register("a", 100)
        splits.register("b", 60)
        splits.no_more_splits()
    splits.mark_idle("b")
    splits.unregister("a")
    assert state(splits) == (100, True), "its own last watermark, and no more"


def test_a_split_that_finishes_counts_once_more_and_then_holds_nobody() -> None:
    splits = splits_of(PlannedSplits, "a", "b")
    with splits.together():
        splits.update("a", 5)
        splits.update("b", 9)
        splits.unregister("b")
    assert state(splits) == (5, False)
    splits.unregister("a")
    # A query has then read all that is there, also of the split that was ahead.
    assert state(splits) == (9 if isinstance(splits, PlannedSplits) else 5, True)


@pytest.mark.parametrize("told_first", [True, False])
def test_a_bounded_source_ends_when_all_are_finished_and_no_more_will_come(told_first: bool) -> None:
    splits = PlannedSplits(bounded=True)
    with splits.together():
        splits.register("a", 5)
        splits.register("b", 7)
    if told_first:
        splits.no_more_splits()
    splits.unregister("a")
    assert splits.combined == 7
    splits.unregister("b")
    assert (splits.combined == MAX_WATERMARK) is told_first
    splits.no_more_splits()
    assert splits.combined == MAX_WATERMARK


def test_a_bounded_source_without_any_split_has_ended() -> None:
    splits = PlannedSplits(bounded=True)
    splits.no_more_splits()
    assert splits.combined == MAX_WATERMARK


def test_an_unbounded_source_does_not_end_by_its_splits_finishing() -> None:
    splits = PlannedSplits()
    splits.register("a", 5)
    splits.no_more_splits()
    splits.unregister("a")
    assert state(splits) == (5, True)


# In any order.

SPLIT_IDS = st.sampled_from("abcdef")
WATERMARKS = st.integers(-3, 12) | st.sampled_from([MIN_WATERMARK, MAX_WATERMARK])


class NaiveSplits:
    """What the rules say, without a thought for speed.

    Where a split that leaves was read to its end (`ends`), and none is left, the furthest of them counts.
    """

    def __init__(self, *, ends: bool) -> None:
        self.ends = ends
        self.furthest = MIN_WATERMARK
        self.table: dict[str, tuple[int, bool]] = {}
        self.had_splits = False
        self.combined = MIN_WATERMARK

    def counting(self) -> list[int]:
        return [watermark for watermark, is_idle in self.table.values() if not is_idle]

    def settle(self) -> None:
        self.had_splits |= bool(self.table)
        idle = [watermark for watermark, is_idle in self.table.values() if is_idle]
        candidate = min(self.counting(), default=max(idle, default=MIN_WATERMARK))
        if self.ends and not self.table:
            candidate = max(candidate, self.furthest)
        self.combined = max(self.combined, candidate)

    def leave(self, split_id: str) -> None:
        self.furthest = max(self.furthest, self.table.pop(split_id)[0])


class PlannedSplitsWalk(RuleBasedStateMachine):
    make: Make = PlannedSplits
    ends = True

    @initialize()
    def start(self) -> None:
        self.splits = type(self).make()
        self.naive = NaiveSplits(ends=self.ends)
        self.block = self.splits.together()
        self.in_block = False

    def settle(self) -> None:
        if not self.in_block:
            self.naive.settle()

    def a_split(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.naive.table)))

    @rule(split_id=SPLIT_IDS, initial=WATERMARKS)
    def register(self, split_id: str, initial: int) -> None:
        if split_id not in self.naive.table:
            self.splits.register(split_id, initial)
            self.naive.table[split_id] = initial, False
            self.settle()

    @precondition(lambda self: self.naive.table and not self.in_block)
    @rule(data=st.data())
    def unregister(self, data: st.DataObject) -> None:
        split_id = self.a_split(data)
        self.splits.unregister(split_id)
        self.naive.leave(split_id)
        self.settle()

    @precondition(lambda self: self.naive.table)
    @rule(data=st.data(), watermark=WATERMARKS)
    def update(self, data: st.DataObject, watermark: int) -> None:
        split_id = self.a_split(data)
        self.splits.update(split_id, watermark)
        self.naive.table[split_id] = max(self.naive.table[split_id][0], watermark), False
        self.settle()

    @precondition(lambda self: self.naive.table)
    @rule(data=st.data(), is_idle=st.booleans())
    def mark(self, data: st.DataObject, is_idle: bool) -> None:
        split_id = self.a_split(data)
        (self.splits.mark_idle if is_idle else self.splits.mark_active)(split_id)
        self.naive.table[split_id] = self.naive.table[split_id][0], is_idle
        self.settle()

    @rule()
    def open_or_close_a_block(self) -> None:
        if self.in_block:
            self.in_block = False
            self.block.__exit__(None, None, None)
            self.settle()
        else:
            self.block = self.splits.together()
            self.block.__enter__()
            self.in_block = True

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "splits") or self.in_block:
            return
        assert self.splits.combined == self.naive.combined
        assert self.splits.is_idle == (self.naive.had_splits and not self.naive.counting())


class SplitWatermarksWalk(PlannedSplitsWalk):
    make: Make = SplitWatermarks
    ends = False


TestPlannedSplitsAgreeWithTheNaiveModel = PlannedSplitsWalk.TestCase
TestSplitWatermarksAgreeWithTheNaiveModel = SplitWatermarksWalk.TestCase
for _walk in (TestPlannedSplitsAgreeWithTheNaiveModel, TestSplitWatermarksAgreeWithTheNaiveModel):
    _walk.settings = settings(max_examples=examples(50), stateful_step_count=40, deadline=None)
