from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignment.combine import CombinedWatermark, SplitStatus, SplitWatermarks, combine_watermarks
from alignment.exceptions import DuplicateSplitError, UnknownSplitError
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK

ACTIVE, PAUSED, IDLE, FINISHED = SplitStatus


def splits_of(*split_ids: str, bounded: bool = False, at: int = MIN_WATERMARK) -> SplitWatermarks:
    splits = SplitWatermarks(bounded)
    with splits.together():
        for split_id in split_ids:
            splits.register(split_id, at)
    return splits


def state(splits: SplitWatermarks) -> tuple[int, bool]:
    splits._check()
    return splits.combined, splits.is_idle


# Immediate outputs: each change is looked at.


def test_mx_02_one_split_goes_idle_without_a_watermark() -> None:
    splits = splits_of("a")
    splits.mark_idle("a")
    assert state(splits) == (MIN_WATERMARK, True)


def test_mx_04_an_idle_split_holds_nothing_back() -> None:
    splits = splits_of("a", "b", "c")
    splits.update("a", 2)
    splits.update("b", 5)
    assert state(splits) == (MIN_WATERMARK, False)
    splits.mark_idle("c")
    assert state(splits) == (2, False)


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_mx_06_two_immediate_outputs_all_idle_give_the_maximum_in_any_order(order: str) -> None:
    splits = splits_of("a", "b")
    splits.update("a", 5)
    splits.update("b", 2)
    assert state(splits) == (2, False)
    for split_id in order:
        splits.mark_idle(split_id)
    assert state(splits) == (5, True)


def test_mx_08_a_split_that_comes_back_behind_does_not_pull_the_watermark_back() -> None:
    splits = splits_of("a", "b")
    splits.update("a", 2)
    splits.update("b", 5)
    splits.mark_idle("a")
    assert state(splits) == (5, False)
    splits.update("a", 3)
    assert state(splits) == (5, False)
    assert splits.status("a") is ACTIVE
    assert splits.holding_back() == ("a",)


# Deferred outputs: the changes of one tick are one change.


def test_mx_10_changes_made_together_are_looked_at_once() -> None:
    splits = splits_of("a", "b")
    with splits.together():
        splits.update("a", 0)
        splits.update("b", 1)
        assert splits.combined == MIN_WATERMARK
    assert state(splits) == (0, False)


def test_mx_12_a_deferred_split_goes_idle_at_the_tick() -> None:
    splits = splits_of("a")
    with splits.together():
        splits.mark_idle("a")
    assert state(splits) == (MIN_WATERMARK, True)


def test_mx_14_three_deferred_splits_one_of_them_idle() -> None:
    splits = splits_of("a", "b", "c")
    with splits.together():
        splits.update("a", 2)
        splits.update("b", 5)
        splits.mark_idle("c")
    assert state(splits) == (2, False)


def test_changes_together_do_not_depend_on_their_order() -> None:
    splits = splits_of("a", "b", "c")
    splits.update("c", 1)
    splits.mark_idle("c")
    splits.update("a", 100)
    splits.update("b", 20)
    with splits.together():
        splits.mark_idle("b")
        splits.update("c", 40)
    assert state(splits) == (40, False)


# The set of splits changes.


def test_mx_18_removing_the_slowest_split_releases_what_it_held_at_once() -> None:
    splits = splits_of("lower", "higher")
    splits.update("lower", 156765)
    splits.update("higher", 156770)
    splits.unregister("lower")
    assert state(splits) == (156770, False)
    splits.update("higher", 156775)
    assert state(splits) == (156775, False)


def test_mx_20_removal_does_not_take_a_watermark_back() -> None:
    splits = splits_of("higher")
    splits.update("higher", 2)
    splits.unregister("higher")
    splits.register("lower")
    splits.update("lower", 1)
    assert state(splits) == (2, False)


def test_mx_22_a_set_that_lost_its_last_split_is_idle() -> None:
    splits = splits_of("one")
    splits.update("one", 1)
    splits.unregister("one")
    assert state(splits) == (1, True)


def test_mx_24_a_late_joiner_counts_at_once() -> None:
    splits = splits_of("a")
    splits.update("a", 10)
    splits.register("n")
    splits.update("a", 20)
    assert state(splits) == (10, False)
    splits.update("n", 15)
    assert state(splits) == (15, False)


def test_ot_18_a_set_that_never_had_a_split_says_nothing() -> None:
    splits = SplitWatermarks()
    assert state(splits) == (MIN_WATERMARK, False)
    assert splits.holding_back() == ()


def test_ot_16_the_only_split_decides_alone_whether_the_set_is_idle() -> None:
    splits = splits_of("a")
    splits.update("a", 9)
    splits.mark_idle("a")
    assert state(splits) == (9, True)


def test_a_set_is_active_again_with_the_first_new_split() -> None:
    splits = splits_of("a", at=7)
    splits.mark_idle("a")
    splits.register("b")
    assert state(splits) == (7, False)


def test_ot_12_splits_restored_together_leak_no_watermark_above_the_slowest() -> None:
    splits = SplitWatermarks()
    with splits.together():
        splits.register("s0", 1042)
        splits.register("s1", 42)
    assert state(splits) == (42, False)


def test_a_split_may_be_registered_at_the_watermark_of_its_checkpoint() -> None:
    splits = SplitWatermarks()
    splits.register("a", 42)
    assert state(splits) == (42, False)
    assert splits.watermark("a") == 42


# Channels of a downstream combiner.


def test_vl_02_a_watermark_of_an_idle_split_makes_it_active() -> None:
    splits = splits_of("0")
    splits.update("0", 25)
    splits.mark_idle("0")
    splits.update("0", 50)
    assert state(splits) == (50, False)


def test_vl_04_the_slowest_of_three_decides() -> None:
    splits = splits_of("0", "1", "2", at=0)
    seen = []
    for split_id, watermark in (("0", 12), ("2", 8), ("2", 10), ("1", 15), ("2", 17), ("0", 20)):
        splits.update(split_id, watermark)
        seen.append(splits.combined)
    assert seen == [0, 0, 0, 10, 12, 15]


def test_vl_06_splits_go_idle_one_by_one() -> None:
    splits = splits_of("0", "1", "2")
    for split_id, watermark in (("0", 25), ("1", 10), ("2", 17)):
        splits.update(split_id, watermark)
    assert state(splits) == (10, False)
    splits.mark_idle("1")
    assert state(splits) == (17, False)
    splits.mark_idle("2")
    assert state(splits) == (25, False)


def test_vl_08_a_split_that_catches_up_again_is_waited_for() -> None:
    splits = splits_of("0", "1", "2")
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


def test_vl_10_a_split_that_goes_idle_while_behind_changes_nothing() -> None:
    splits = splits_of("0", "1")
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


def test_the_first_record_after_all_were_idle_ends_idleness_without_an_advance() -> None:
    splits = splits_of("a", "b")
    splits.update("a", 50)
    splits.update("b", 40)
    splits.mark_idle("a")
    splits.mark_idle("b")
    assert state(splits) == (50, True)
    splits.update("b", 45)
    assert state(splits) == (50, False)
    splits.update("b", 51)
    assert state(splits) == (51, False)


def test_the_same_watermark_again_ends_idleness_and_a_smaller_one_does_too() -> None:
    for watermark in (40, 30):
        splits = splits_of("b", at=40)
        splits.mark_idle("b")
        splits.update("b", watermark)
        assert state(splits) == (40, False)
        assert splits.watermark("b") == 40


# Paused.


def test_a_paused_split_counts_and_is_never_idle() -> None:
    splits = splits_of("a", "b")
    splits.update("a", 5)
    splits.mark_paused("a")
    splits.mark_idle("a")
    splits.update("b", 9)
    assert splits.status("a") is PAUSED
    assert state(splits) == (5, False)
    splits.update("a", 6)
    assert splits.status("a") is PAUSED
    assert state(splits) == (6, False)
    splits.mark_active("a")
    assert splits.status("a") is ACTIVE


def test_an_idle_split_is_not_paused() -> None:
    splits = splits_of("a")
    splits.mark_idle("a")
    splits.mark_paused("a")
    assert splits.status("a") is IDLE


# Finished, bounded.


def test_finished_splits_beside_idle_ones_never_give_the_end_of_time() -> None:
    splits = splits_of("a", "b", bounded=True)
    splits.no_more_splits()
    splits.update("a", 100)
    splits.update("b", 60)
    splits.mark_finished("a")
    splits.mark_idle("b")
    assert state(splits) == (60, True)


def test_the_maximum_over_idle_splits_leaves_finished_ones_out() -> None:
    splits = splits_of("a", "b")
    splits.update("a", 100)
    splits.mark_finished("a")
    splits.mark_idle("b")
    assert state(splits) == (MIN_WATERMARK, True)


@pytest.mark.parametrize("told_first", [True, False])
def test_a_bounded_set_ends_when_all_are_finished_and_no_more_will_come(told_first: bool) -> None:
    splits = splits_of("a", "b", bounded=True)
    if told_first:
        splits.no_more_splits()
    splits.mark_finished("a")
    assert splits.combined == MIN_WATERMARK
    splits.mark_finished("b")
    assert (splits.combined == MAX_WATERMARK) is told_first
    splits.no_more_splits()
    assert state(splits) == (MAX_WATERMARK, True)


def test_an_unbounded_set_does_not_end_by_its_splits_finishing() -> None:
    splits = splits_of("a", at=5)
    splits.no_more_splits()
    splits.mark_finished("a")
    assert state(splits) == (5, True)


def test_an_empty_set_does_not_end() -> None:
    splits = SplitWatermarks(bounded=True)
    splits.no_more_splits()
    assert state(splits) == (MIN_WATERMARK, False)


def test_finished_splits_may_be_forgotten_before_the_end() -> None:
    splits = splits_of("a", "b", bounded=True, at=5)
    splits.no_more_splits()
    splits.mark_finished("a")
    splits.unregister("a")
    splits.mark_finished("b")
    splits.unregister("b")
    assert state(splits) == (MAX_WATERMARK, True)


def test_a_split_taken_away_unfinished_puts_the_end_off_until_it_is_back_and_done() -> None:
    splits = splits_of("a", "b", bounded=True, at=5)
    splits.no_more_splits()
    splits.mark_finished("a")
    splits.unregister("b")
    assert state(splits) == (5, True)
    splits.register("b", 5)
    splits.mark_finished("b")
    assert state(splits) == (MAX_WATERMARK, True)


def test_a_finished_split_stays_finished_whatever_is_still_reported_of_it() -> None:
    splits = splits_of("a", at=5)
    splits.mark_finished("a")
    splits.update("a", 6)
    splits.mark_idle("a")
    splits.mark_active("a")
    splits.mark_paused("a")
    assert splits.status("a") is FINISHED
    assert splits.watermark("a") == 6
    assert state(splits) == (5, True)


# Ids.


def test_registering_twice_is_an_error_and_changes_nothing() -> None:
    splits = splits_of("a", at=5)
    with pytest.raises(DuplicateSplitError, match="'a' is registered already"):
        splits.register("a", 9)
    assert state(splits) == (5, False)


@pytest.mark.parametrize(
    "method",
    ["unregister", "mark_idle", "mark_active", "mark_paused", "mark_finished", "status", "watermark"],
)
def test_an_unknown_split_is_an_error(method: str) -> None:
    with pytest.raises(UnknownSplitError, match="split_id = 'b' is not registered"):
        getattr(splits_of("a"), method)("b")


def test_an_update_of_an_unknown_split_is_an_error() -> None:
    with pytest.raises(UnknownSplitError):
        splits_of("a").update("b", 5)


def test_a_set_is_a_collection_of_split_ids() -> None:
    splits = splits_of("b", "a")
    assert list(splits) == ["b", "a"]
    assert len(splits) == 2
    assert "a" in splits
    assert "c" not in splits


def test_all_splits_at_the_minimum_hold_it_back() -> None:
    splits = splits_of("c", "a", "b", at=5)
    splits.update("b", 6)
    splits.mark_paused("c")
    assert splits.holding_back() == ("a", "c")


def test_numpy_watermarks_are_taken_as_plain_ints() -> None:
    splits = SplitWatermarks()
    splits.register("a", np.int64(5))  # type: ignore[arg-type]
    splits.update("a", np.int64(7))  # type: ignore[arg-type]
    assert type(splits.combined) is int
    assert type(splits.watermark("a")) is int


def test_the_check_reports_a_broken_invariant_with_the_fields() -> None:
    splits = splits_of("a", at=5)
    splits._splits["a"].watermark = 9
    with pytest.raises(AssertionError, match=r"out of step: \{.*'_combined': 5"):
        splits._check()


# The pure rule over arrays.


@pytest.mark.parametrize(
    ("watermarks", "statuses", "expected"),
    [
        ([], [], CombinedWatermark(MIN_WATERMARK, True)),
        ([3, 5, 1], [ACTIVE, PAUSED, IDLE], CombinedWatermark(3, False)),
        ([7, 5, 1], [ACTIVE, PAUSED, FINISHED], CombinedWatermark(5, False)),
        ([7, 5, 9], [IDLE, IDLE, FINISHED], CombinedWatermark(7, True)),
        ([7, 5], [FINISHED, FINISHED], CombinedWatermark(MIN_WATERMARK, True)),
        ([MAX_WATERMARK], [ACTIVE], CombinedWatermark(MAX_WATERMARK, False)),
    ],
)
def test_the_rule_over_arrays(watermarks: list[int], statuses: list[int], expected: CombinedWatermark) -> None:
    assert combine_watermarks(np.array(watermarks, np.int64), np.array(statuses, np.int8)) == expected


@given(st.lists(st.tuples(st.integers(MIN_WATERMARK, MAX_WATERMARK), st.sampled_from(SplitStatus))))
def test_the_rule_over_arrays_is_the_rule_over_a_list(splits: list[tuple[int, SplitStatus]]) -> None:
    counting = [watermark for watermark, status in splits if status in (ACTIVE, PAUSED)]
    idle = [watermark for watermark, status in splits if status is IDLE]
    expected = (min(counting), False) if counting else (max(idle, default=MIN_WATERMARK), True)
    combined = combine_watermarks(np.array([w for w, _ in splits], np.int64), np.array([s for _, s in splits], np.int8))
    assert (combined.value, combined.is_idle) == expected
    assert type(combined.value) is int
