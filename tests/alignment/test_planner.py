"""Single decisions of the planner, as sentences; `test_planner_random.py` walks through all the rest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignment.combine import SplitStatus
from alignment.exceptions import InvalidArgumentError
from alignment.index import EventTimeIndex
from alignment.plan import LimitedBy, PlanConditions, PlanningRules, SplitTable
from alignment.plan.by_index import plan_micro_batch
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from tests.alignment.planned_source import Block, PlannedSource
from tests.examples import examples

ACTIVE, PAUSED, IDLE, FINISHED = SplitStatus


def a_source(rules: PlanningRules, /, **splits: list[int]) -> PlannedSource:
    """A source with one block a split."""
    source = PlannedSource(rules)
    for split_id, times in splits.items():
        source.join(split_id)
        if times:
            source.append(split_id, [Block(tuple(times))])
    return source


# ---- why no more was read -----------------------------------------------------------------------------------------


def test_all_read_is_labelled_available_whatever_the_limits() -> None:
    source = a_source(PlanningRules(1, 100), a=[1, 2], b=[3])
    plan = source.plan(max_rows=3, group_limit=3)
    assert (plan.limited_by, plan.rows) == (LimitedBy.AVAILABLE, 3)


def test_a_split_past_the_drift_is_paused() -> None:
    source = a_source(PlanningRules(1, 5), a=[10], b=[11, 12, 30])
    plan = source.plan()
    assert (plan.limited_by, plan.bound_us) == (LimitedBy.DRIFT, 10 - 1 - 1 + 5)
    assert source.statuses == {"a": ACTIVE, "b": PAUSED}


def test_a_split_that_waits_for_the_row_limit_is_not_paused() -> None:
    source = a_source(PlanningRules(1, 50), a=[10, 13], b=[11, 12, 14])
    plan = source.plan(max_rows=2)
    assert (plan.limited_by, plan.bound_us, plan.rows) == (LimitedBy.ROWS, 11, 2)
    assert source.statuses == {"a": ACTIVE, "b": ACTIVE}


def test_ties_at_the_very_drift_limit_are_held_by_the_row_limit() -> None:
    source = a_source(PlanningRules(0, 1), a=[10, 10], b=[10, 10, 10])
    plan = source.plan(max_rows=4)
    assert (plan.bound_us, plan.limited_by, plan.rows) == (10, LimitedBy.ROWS, 4)
    assert source.statuses == {"a": ACTIVE, "b": ACTIVE}


def test_a_full_row_limit_at_the_drift_limit_is_not_blamed() -> None:
    source = a_source(PlanningRules(0, 1), a=[10, 10], b=[10, 20])
    plan = source.plan(max_rows=3)
    assert (plan.bound_us, plan.limited_by, plan.rows) == (10, LimitedBy.DRIFT, 3)


def test_ties_at_the_end_of_time_are_held_by_the_row_limit() -> None:
    source = a_source(PlanningRules(0), a=[MAX_WATERMARK] * 3)
    assert source.plan(max_rows=2).limited_by is LimitedBy.ROWS
    assert source.plan(max_rows=2).limited_by is LimitedBy.AVAILABLE


def test_over_a_gap_the_nearest_record_goes_on() -> None:
    source = a_source(PlanningRules(3, 0), a=[50, 51], b=[53])
    plan = source.plan()
    assert (plan.limited_by, plan.bound_us, plan.rows) == (LimitedBy.GAP, 50, 1)
    assert source.statuses == {"a": PAUSED, "b": PAUSED}


def test_no_gap_is_crossed_while_a_caught_up_split_may_still_deliver() -> None:
    source = a_source(PlanningRules(3, 0), a=[50, 53], b=[])
    assert source.plan().limited_by is LimitedBy.DRIFT
    assert source.statuses == {"a": PAUSED, "b": ACTIVE}
    source.naive["b"].idle = True
    assert source.plan().limited_by is LimitedBy.GAP


def test_no_gap_is_crossed_past_the_limit_of_the_group() -> None:
    source = a_source(PlanningRules(3, 0), a=[50], b=[60])
    assert source.plan(group_limit=49).rows == 0
    assert source.plan(group_limit=50).rows == 1


# ---- watermarks ----------------------------------------------------------------------------------------------------


def test_an_unread_split_holds_the_watermark_just_below_its_first_time() -> None:
    source = a_source(PlanningRules(2), a=[10, 100], b=[40, 60])
    assert source.plan(max_rows=1).after.combined == 10 - 2 - 1
    source = a_source(PlanningRules(2), a=[100, 101], b=[40, 60])
    source.plan(group_limit=39)
    assert source.combined == 39


def test_a_new_split_of_which_nothing_is_known_holds_the_watermark() -> None:
    source = a_source(PlanningRules(2), a=[10, 100], b=[])
    assert source.plan().after.combined == MIN_WATERMARK


def test_perfect_watermarks_follow_the_rest_of_a_begun_block() -> None:
    source = a_source(PlanningRules(0, lateness="none"), a=[10, 20, 15, 30, 26, 40])
    combined = [source.plan(max_rows=1).after.combined for _ in range(6)]
    assert combined == [9, 14, 19, 25, 29, 39]


def test_perfect_watermarks_stay_below_what_is_visible_however_late_it_is() -> None:
    perfect, bounded = (a_source(PlanningRules(1, lateness=p), a=[10, 90, 5, 91]) for p in ("none", "bounded"))
    for source in (perfect, bounded):
        source.plan(group_limit=10)
        source.plan(max_rows=1)
    assert (perfect.combined, bounded.combined) == (4, 88)
    assert perfect.plan().late.tolist() == [0]
    assert bounded.plan().late.tolist() == [1]


def test_what_is_there_is_never_late_with_a_generator_of_ones_own_either() -> None:
    source = a_source(PlanningRules(None, lateness="none"), a=[10, 90, 5, 91])
    source.plan(max_rows=1)
    assert source.plan(max_rows=1).after.combined == 4
    assert source.plan().late.tolist() == [0]


def test_a_record_without_an_event_time_hides_none_that_has_one() -> None:
    source = a_source(PlanningRules(0, lateness="none"), a=[10], b=[20])
    source.append("a", [Block((90, 91)), Block((NO_TIMESTAMP, 12, 95))])
    source.plan(max_rows=3)
    assert source.combined == 11
    assert source.plan().late.tolist() == [0, 0]


def test_where_the_earliest_event_time_is_not_told_the_block_is_looked_into() -> None:
    source = a_source(PlanningRules(0, lateness="none"), a=[10], b=[20])
    source.append("a", [Block((90, 91)), Block((NO_TIMESTAMP, 12, 95), tells_earliest=False)])
    source.plan(max_rows=3)
    assert source.combined == 11
    assert source.plan().late.tolist() == [0, 0]


def test_when_all_that_is_there_was_read_the_watermark_is_that_of_the_furthest() -> None:
    source = a_source(PlanningRules(2), a=[10, 20], b=[10, 90], c=[10, 40])
    for split in source.naive.values():
        split.complete = True
    assert source.plan(group_limit=40).after.combined == 7
    source.leave_finished()
    assert source.plan().after.combined == 87


def test_the_furthest_is_not_looked_at_while_another_split_may_get_more() -> None:
    source = a_source(PlanningRules(2), a=[90], b=[10])
    source.naive["a"].complete = True
    assert source.plan().after.combined == 7
    source.leave_finished()
    source.naive["b"].complete = True
    assert source.plan().after.combined == 87


def test_a_split_that_ends_holds_nothing_and_the_last_one_ends_time() -> None:
    source = a_source(PlanningRules(2, bounded=True), a=[10], b=[50, 60])
    for split in source.naive.values():
        split.complete = True
    source.no_more_splits = True
    assert source.plan(max_rows=2).after.combined == 47
    assert source.statuses == {"a": FINISHED, "b": ACTIVE}
    assert source.plan().after.combined == MAX_WATERMARK


def test_splits_that_end_in_the_batch_that_reads_them_move_the_watermark_before_they_leave() -> None:
    source = a_source(PlanningRules(2), a=[10, 20], b=[50, 60], c=[NO_TIMESTAMP])
    for split in source.naive.values():
        split.complete = True
    # That of the furthest: all that is there was read. No more splits are told of, so time does not end.
    assert source.plan().after.combined == 57
    assert set(source.statuses.values()) == {FINISHED}
    source.leave_finished()
    assert source.plan().after.combined == 57


def test_no_split_is_read_further_past_the_end_of_a_finite_one_than_the_drift() -> None:
    source = a_source(PlanningRules(5, max_drift_us=10), a=[100], b=[100, 110, 111])
    for split in source.naive.values():
        split.complete = True
    plan = source.plan()
    assert (plan.bound_us, plan.rows, plan.limited_by) == (110, 3, LimitedBy.DRIFT)
    assert source.statuses == {"a": FINISHED, "b": PAUSED}
    assert source.plan().rows == 1


def test_records_without_a_time_are_read_and_move_no_watermark() -> None:
    source = a_source(PlanningRules(1), a=[NO_TIMESTAMP, 10, NO_TIMESTAMP], b=[NO_TIMESTAMP] * 3)
    plan = source.plan(max_rows=4)
    assert (plan.rows, plan.after.combined) == (4, MIN_WATERMARK)
    assert plan.after.watermarks.tolist() == [MIN_WATERMARK] * 2


@pytest.mark.parametrize("bound", [0, 1, MAX_WATERMARK])
def test_the_ends_of_time_saturate(bound: int) -> None:
    source = a_source(PlanningRules(bound), a=[MIN_WATERMARK + 1, MAX_WATERMARK], b=[MAX_WATERMARK - 1])
    while source.unread:
        assert source.plan(max_rows=1).rows == 1
    assert source.combined == MAX_WATERMARK - 1 - bound - 1


# ---- liveness ------------------------------------------------------------------------------------------------------

LOGS = st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=8), min_size=1, max_size=4)


@settings(max_examples=examples(150), deadline=None)
@given(logs=LOGS, max_rows=st.integers(1, 9), rules=st.builds(PlanningRules, out_of_orderness_us=st.integers(0, 5)))
def test_two_plans_in_a_row_read_more_than_the_row_limit_until_all_is_read(
    logs: list[list[int]], max_rows: int, rules: PlanningRules
) -> None:
    """Records of one event time that do not fit any more come with the next plan; so no split starves."""
    source = a_source(rules, **{f"s{i}": times for i, times in enumerate(logs)})
    total, taken = source.unread, [max_rows]
    while source.unread:
        taken.append(source.plan(max_rows=max_rows).rows)
        assert not source.unread or taken[-1] == max_rows or len(taken) < 3 or taken[-2] + taken[-1] >= max_rows
    assert len(taken) - 1 <= 2 * -(-total // max_rows)


@settings(max_examples=examples(150), deadline=None)
@given(logs=LOGS, drift=st.none() | st.integers(0, 5), bound=st.integers(0, 5), max_rows=st.none() | st.integers(1, 9))
def test_draining_in_exact_mode_reads_all_in_as_many_plans_as_there_are_records(
    logs: list[list[int]], drift: int | None, bound: int, max_rows: int | None
) -> None:
    rules = PlanningRules(bound, drift, drains_past_caught_up=True)
    source = a_source(rules, **{f"s{i}": times for i, times in enumerate(logs)})
    source.draining = True
    for _ in range(source.unread):
        source.plan(max_rows)
    assert source.unread == 0


# ---- the horizon ---------------------------------------------------------------------------------------------------


def test_nothing_is_read_past_the_horizon_and_the_watermark_stays_below_it() -> None:
    source = a_source(PlanningRules(0), a=[5, 10, 15], b=[6, 11])
    plan = source.plan(horizon=10)
    assert (plan.rows, plan.bound_us, plan.limited_by) == (3, 10, LimitedBy.HORIZON)
    assert source.combined == 5
    assert source.statuses == {"a": ACTIVE, "b": ACTIVE}


def test_splits_that_are_read_to_their_ends_do_not_carry_the_watermark_to_the_horizon() -> None:
    source = a_source(PlanningRules(0), a=[5, 10])
    source.naive["a"].complete = True
    source.plan(horizon=10)
    assert (source.combined, source.statuses) == (9, {"a": FINISHED})


@settings(max_examples=examples(200))
@given(
    logs=st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=6), min_size=1, max_size=8),
    bound=st.integers(0, 5),
    drift=st.none() | st.integers(0, 20),
    max_rows=st.none() | st.integers(1, 7),
    at_once=st.integers(1, 4),
)
def test_splits_that_join_when_it_is_their_turn_are_all_read_and_none_of_their_records_is_late(
    logs: list[list[int]], bound: int, drift: int | None, max_rows: int | None, at_once: int
) -> None:
    source = PlannedSource(PlanningRules(bound, drift, bounded=True))
    waiting = sorted(enumerate(logs), key=lambda log: min(log[1]))
    for _ in range(sum(map(len, logs)) + len(logs)):
        while waiting and _has_room(source, at_once, min(waiting[0][1])):
            number, times = waiting.pop(0)
            assert min(times) > source.combined
            source.join(f"s{number}")
            source.append(f"s{number}", [Block(tuple(times))])
            source.naive[f"s{number}"].complete = True
        source.no_more_splits = not waiting
        # Checks of every record that is on time by its split that it is not late.
        source.plan(max_rows, horizon=min(waiting[0][1]) if waiting else MAX_WATERMARK)
    assert not waiting
    assert source.unread == 0
    assert source.combined == MAX_WATERMARK


def _has_room(source: PlannedSource, at_once: int, horizon: int) -> bool:
    """Whether fewer splits than wanted can be read, or none of them before the horizon."""
    heads = [split.unread[0] for split in source.naive.values() if split.unread]
    return len(heads) < at_once or min(heads) > horizon


# ---- arguments -----------------------------------------------------------------------------------------------------


def test_a_limit_of_no_rows_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="max_rows = 0"):
        PlanConditions(max_rows=0)


def test_a_state_of_other_splits_than_the_index_is_refused() -> None:
    index = EventTimeIndex(_nothing)
    index.add_split("a")
    with pytest.raises(InvalidArgumentError, match="the state has 0 splits"):
        plan_micro_batch(SplitTable.empty(), index, PlanningRules(0))


@pytest.mark.parametrize("name", ["out_of_orderness_us", "max_drift_us"])
def test_negative_spans_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{name} = -1"):
        PlanningRules(**{"out_of_orderness_us": 0, name: -1})


def test_without_splits_there_is_nothing_to_plan() -> None:
    plan = plan_micro_batch(SplitTable.empty(), EventTimeIndex(_nothing), PlanningRules(5, 5))
    assert (plan.rows, plan.after.combined, plan.limited_by) == (0, MIN_WATERMARK, LimitedBy.AVAILABLE)


def _nothing(split_id: str, start: int, stop: int) -> np.ndarray:
    return np.empty(0, np.int64)


# ---- cost ----------------------------------------------------------------------------------------------------------
