"""Single decisions of the reactive planner, as sentences; `test_reactive_random.py` walks through all the rest."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignment.combine import SplitStatus
from alignment.events import RangeReport
from alignment.exceptions import InvalidArgumentError
from alignment.plan import LimitedBy, PlanConditions, PlanningRules, SplitTable
from alignment.plan.by_reports import ReactivePlanner
from alignment.plan.observed import ObservedSplits
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from tests.alignment.reported_source import ReportedSource
from tests.examples import examples

ACTIVE, PAUSED, IDLE, FINISHED = SplitStatus


def a_source(rules: PlanningRules, /, first_rows: int = 4, growth: int = 2, **splits: list[int]) -> ReportedSource:
    source = ReportedSource(rules, first_rows, growth)
    for split_id, times in splits.items():
        source.join(split_id, times)
    source.remember()
    return source


def admitted(source: ReportedSource, **limits: int) -> dict[str, int]:
    """What the next plan admits, read and reported."""
    before = {i: split.position for i, split in source.splits.items()}
    source.plan(**limits)
    rows = {i: source.splits[i].position - position for i, position in before.items()}
    source.deliver_all()
    return rows


def of_a(splits: ObservedSplits, column: str) -> float:
    """What is known of the split `a`."""
    return float(getattr(splits, column)[splits._slots["a"]])


@pytest.mark.parametrize(("limit_us", "waits"), [(5, False), (4, True)])
def test_al_08_at_the_limit_a_split_goes_on_and_beyond_it_waits(limit_us: int, waits: bool) -> None:
    at_five = SplitTable(
        split_ids=("a",), positions=np.array([3]), watermarks=np.array([5]), statuses=np.array([ACTIVE], np.int8)
    )
    plan = ReactivePlanner(PlanningRules(0)).plan(at_five, np.array([10]), PlanConditions(group_limit_us=limit_us))
    assert (plan.after.statuses.tolist() == [PAUSED]) is waits
    assert (plan.rows == 0) is waits


# ---- how much is admitted -----------------------------------------------------------------------------------------


def test_a_new_split_is_admitted_its_first_rows_and_no_more() -> None:
    source = a_source(PlanningRules(0, 100), a=list(range(50)), b=[0, 1])
    assert admitted(source) == {"a": 4, "b": 2}


def test_a_split_is_admitted_what_its_density_brings_to_the_limit() -> None:
    source = a_source(PlanningRules(0, 50), first_rows=4, growth=100, a=list(range(0, 4000, 10)))
    assert admitted(source) == {"a": 4}
    # Four records over 30 us: one in 10 us; the limit is 50 us on.
    assert admitted(source) == {"a": 5}
    assert of_a(source.planner.splits, "density") == pytest.approx(0.1)


def test_a_split_never_grows_faster_than_it_may() -> None:
    source = a_source(PlanningRules(0, 10_000), first_rows=2, growth=3, a=list(range(1000)))
    assert [admitted(source)["a"] for _ in range(5)] == [2, 6, 18, 54, 162]


def test_after_a_burst_without_progress_a_split_grows_and_after_a_gap_it_starts_small() -> None:
    times = [*range(100), *[100] * 50, *range(100_000, 100_400)]
    source = a_source(PlanningRules(0, 20), first_rows=4, growth=4, a=times)
    rows = []
    while not source.is_caught_up("a"):
        rows.append(admitted(source)["a"])
    assert all(n <= max(4, 4 * last) for last, n in pairwise(rows))
    assert max(rows) <= 80, "a burst was taken for the density for good"
    gap = next(k for k in range(len(rows)) if sum(rows[: k + 1]) > 150)
    assert rows[gap + 1] == 4


def test_without_a_drift_all_is_admitted_and_under_a_read_limit_evenly() -> None:
    source = a_source(PlanningRules(0), a=list(range(50)), b=list(range(10)))
    assert admitted(source, max_rows=30) == {"a": 20, "b": 10}
    assert admitted(source) == {"a": 30, "b": 0}


def test_a_read_limit_admits_what_is_predicted_to_be_earliest() -> None:
    source = a_source(
        PlanningRules(0, 100), first_rows=4, growth=50, dense=list(range(300)), thin=list(range(0, 3000, 10))
    )
    assert admitted(source) == {"dense": 4, "thin": 4}
    # Dense is at 3 and thin at 30: the first 27 records are dense ones, then it is ten to one.
    rows = admitted(source, max_rows=38)
    assert sum(rows.values()) == 38
    assert rows["thin"] in (1, 2)


def test_a_read_limit_of_one_record_lets_one_go() -> None:
    source = a_source(PlanningRules(0, 5), a=[1, 2], b=[3], c=[900])
    plans = [source.plan(max_rows=1) for _ in range(2)]
    source.deliver_all()
    assert [plan.rows for plan in plans] == [1, 1]
    assert {plan.limited_by for plan in plans} == {LimitedBy.ROWS}


# ---- pause and resume ---------------------------------------------------------------------------------------------


def test_a_split_strictly_past_the_limit_is_paused_and_goes_on_when_it_has_caught_up() -> None:
    source = a_source(PlanningRules(0, 5), first_rows=2, a=[0, 1, 6, 7, 8, 9], b=[3, 7, 8, 9])
    admitted(source)
    # Watermarks 0 and 6: the limit is 5.
    plan = source.plan()
    assert (plan.bound_us, plan.limited_by) == (5, LimitedBy.DRIFT)
    assert source.statuses == {"a": ACTIVE, "b": PAUSED}
    source.deliver_all()
    assert admitted(source)["b"] > 0
    assert source.statuses["b"] is ACTIVE


def test_a_split_at_the_limit_is_not_paused() -> None:
    source = a_source(PlanningRules(0, 6), first_rows=2, a=[0, 1, 2], b=[3, 7, 8])
    admitted(source)
    assert admitted(source) == {"a": 1, "b": 1}


def test_a_new_split_holds_the_others_until_it_has_reported() -> None:
    source = a_source(PlanningRules(0, 5), first_rows=2, a=[10, 11, 12, 13, 14, 15])
    admitted(source)
    source.join("b", [11, 12, 13])
    assert admitted(source) == {"a": 0, "b": 2}
    assert admitted(source)["a"] > 0


def test_the_group_and_the_horizon_hold_even_the_slowest() -> None:
    source = a_source(PlanningRules(0, 50), first_rows=2, a=[10, 11, 12, 13])
    admitted(source)
    assert source.plan(group_limit=9).rows == 0
    assert source.statuses == {"a": PAUSED}
    plan = source.plan(horizon=5)
    assert (plan.rows, plan.limited_by) == (0, LimitedBy.HORIZON)


def test_a_caught_up_split_holds_the_others_until_it_is_idle() -> None:
    source = a_source(PlanningRules(0, 5), first_rows=4, a=[0], b=[0, 50, 51, 52, 53])
    admitted(source)
    assert source.plan().rows == 0
    source.splits["a"].idle = True
    assert source.plan().rows == 1
    source.deliver_all()
    assert source.statuses["a"] is IDLE


def test_an_idle_split_that_comes_back_behind_lowers_the_limit() -> None:
    source = a_source(PlanningRules(0, 5), first_rows=2, a=[0], b=list(range(40, 80)))
    source.splits["a"].idle = False
    admitted(source)
    source.splits["a"].idle = True
    admitted(source)
    source.append("a", [41, 42, 43])
    assert admitted(source) == {"a": 2, "b": 0}
    assert source.statuses["b"] is PAUSED


# ---- reports ------------------------------------------------------------------------------------------------------


def test_a_watermark_alone_makes_a_plan_without_records() -> None:
    source = a_source(PlanningRules(3, 100), a=[10, 11])
    source.plan()
    assert source.combined == MIN_WATERMARK
    source.deliver_all()
    plan = source.plan()
    assert (plan.rows, plan.after.combined) == (0, 11 - 3 - 1)


def test_reports_in_any_order_twice_or_in_parts_come_to_the_same() -> None:
    source = a_source(PlanningRules(0, 1000), first_rows=9, a=list(range(100)))
    source.plan(pieces=3)
    first, second, third = source.in_flight
    assert [source.planner.splits.report(r) for r in (third, first, third, first)] == [True, True, False, False]
    assert not of_a(source.planner.splits, "is_reported")
    assert source.planner.splits.report(second)
    assert of_a(source.planner.splits, "density") == pytest.approx(1.0)
    assert not source.planner.splits.report(second)


def test_a_report_of_what_was_never_handed_out_is_ignored() -> None:
    source = a_source(PlanningRules(0, 10), a=list(range(20)))
    source.plan()
    assert not source.planner.splits.report(RangeReport("a", 0, 5, 0, 99))
    assert not source.planner.splits.report(RangeReport("nobody", 0, 1, 0, 99))
    assert source.plan().after.watermarks.tolist() == [MIN_WATERMARK]


def test_after_going_back_a_report_from_before_is_ignored_until_its_range_is_handed_out_again() -> None:
    source = a_source(PlanningRules(0, 10), a=list(range(20)))
    source.plan()
    early = source.in_flight[0]
    source.rewind(1)
    assert not source.planner.splits.report(early)
    source.plan()
    assert source.planner.splits.report(early)


def test_a_split_whose_report_was_lost_goes_on_with_its_first_rows() -> None:
    source = a_source(PlanningRules(0, 10_000), first_rows=2, growth=10, a=list(range(500)))
    assert [admitted(source)["a"] for _ in range(2)] == [2, 20]
    source.plan()
    source.in_flight.clear()
    assert [admitted(source)["a"] for _ in range(2)] == [2, 20]


def test_after_a_restart_a_split_starts_small() -> None:
    source = a_source(PlanningRules(0, 10_000), first_rows=2, growth=10, a=list(range(500)))
    assert [admitted(source)["a"] for _ in range(2)] == [2, 20]
    source.restart()
    assert admitted(source)["a"] == 2


def test_late_records_are_in_one_plan_only_whatever_is_reported_again() -> None:
    planner = ReactivePlanner(PlanningRules(0, 10))
    table = SplitTable(
        split_ids=("a",), positions=np.array([5]), watermarks=np.array([3]), statuses=np.array([0], np.int8), combined=3
    )
    planner.splits.rewind(table)
    report = RangeReport("a", 0, 5, 0, 3, late=2)
    told = []
    for _ in range(3):
        planner.splits.report(report)
        told += planner.plan(table, np.array([5])).late.tolist()
    assert told == [2, 0, 0]


def test_late_records_of_a_range_of_which_a_part_was_counted_are_not_counted_again() -> None:
    planner = ReactivePlanner(PlanningRules(0, 10))
    table = SplitTable(
        split_ids=("a",),
        positions=np.array([10]),
        watermarks=np.array([3]),
        statuses=np.array([0], np.int8),
        combined=3,
    )
    planner.splits.rewind(table)
    assert planner.splits.report(RangeReport("a", 0, 5, 0, 3, late=2))
    # Cut otherwise, after planning went back: the watermark takes it, the counts do not.
    assert planner.splits.report(RangeReport("a", 3, 8, 0, 7, late=4))
    assert of_a(planner.splits, "_late") == 2
    assert of_a(planner.splits, "latest_us") == 7


def test_after_going_back_late_records_are_counted_once_whether_they_are_read_again_or_not() -> None:
    planner = ReactivePlanner(PlanningRules(0, 10), first_rows=5)
    table = SplitTable(
        split_ids=("a",), positions=np.array([5]), watermarks=np.array([3]), statuses=np.array([0], np.int8), combined=3
    )
    planner.splits.rewind(table)
    read = RangeReport("a", 0, 5, 0, 3, late=2)
    read_again = RangeReport("a", 5, 10, 0, 3, late=4)
    planner.splits.report(read)
    planner.plan(table, np.array([10]))
    planner.splits.report(read_again)
    planner.splits.rewind(table)
    assert not planner.splits.report(read_again)
    planner.splits.report(read)
    first = planner.plan(table, np.array([10]))
    planner.splits.report(read_again)
    second = planner.plan(first.after, np.array([10]))
    assert (first.late.tolist(), second.late.tolist()) == ([0], [4])


def test_a_late_report_of_an_earlier_range_does_not_change_the_density_of_the_last() -> None:
    source = a_source(PlanningRules(0, 10_000), first_rows=5, a=[0, 1000, 2000, 3000, 4000, *range(5000, 5100)])
    source.plan()
    source.plan()
    first, second = source.in_flight
    source.planner.splits.report(replace(second, stop=8, max_us=5002))
    source.planner.splits.report(first)
    source.planner.splits.report(second)
    assert of_a(source.planner.splits, "density") == pytest.approx(1.0)


def test_a_split_of_which_nothing_has_a_time_goes_on_with_its_first_rows() -> None:
    source = a_source(PlanningRules(0, 10), first_rows=3, a=[NO_TIMESTAMP] * 10)
    assert [admitted(source)["a"] for _ in range(4)] == [3, 3, 3, 1]
    assert source.combined == MIN_WATERMARK


def test_of_many_missing_reports_the_oldest_are_given_up_and_then_counted_no_more() -> None:
    splits = ObservedSplits()
    table = SplitTable(
        split_ids=("a",), positions=np.array([0]), watermarks=np.array([MIN_WATERMARK]), statuses=np.array([0], np.int8)
    )
    slots = splits.take_up(table)
    for k in range(100):
        splits.admit(slots, np.array([k + 1]))
        if k % 2:
            splits.report(RangeReport("a", k, k + 1, k, k, late=1))
        splits.check_invariants()
    assert of_a(splits, "_late") == 50
    assert splits.report(RangeReport("a", 98, 99, 98, 98, late=1))
    assert not splits.report(RangeReport("a", 2, 3, 2, 2, late=1))
    assert of_a(splits, "_late") == 51


# ---- the end ------------------------------------------------------------------------------------------------------


def test_a_split_finishes_one_plan_after_its_last_record_with_its_last_report() -> None:
    source = a_source(PlanningRules(0, 100), a=[1, 2])
    source.logs["a"].complete = True
    admitted(source)
    assert source.statuses["a"] is ACTIVE
    source.plan()
    assert (source.statuses["a"], source.combined) == (FINISHED, 1)


@pytest.mark.parametrize("loses", [False, True], ids=["reports arrive", "every report is lost"])
def test_a_bounded_source_ends_with_the_largest_watermark(loses: bool) -> None:
    source = a_source(PlanningRules(2, 5, bounded=True), first_rows=3, a=list(range(40)), b=list(range(0, 400, 10)))
    for log in source.logs.values():
        log.complete = True
    source.no_more_splits = True
    source.read_to_the_end(120, loses=loses)
    assert source.combined == MAX_WATERMARK
    assert all(len(log.times) == 40 for log in source.logs.values())


def test_a_run_that_drains_reads_past_what_has_been_caught_up_with() -> None:
    rules = PlanningRules(0, 5, drains_past_caught_up=True)
    source = a_source(rules, first_rows=4, a=[0, 1], b=list(range(0, 100, 10)))
    source.draining = True
    source.read_to_the_end(20)
    assert source.is_caught_up("b")


def test_in_a_run_that_drains_a_split_that_was_read_to_its_end_is_not_the_slowest() -> None:
    rules = PlanningRules(0, 5, drains_past_caught_up=True)
    source = a_source(rules, first_rows=4, a=[0, 1], b=list(range(0, 100, 10)))
    source.draining = True
    slowest = []
    while not source.is_caught_up("b"):
        slowest.append(source.plan().slowest_us)
        source.deliver_all()
    assert max(at for at in slowest if at is not None) >= 20


# ---- how far a split overshoots -------------------------------------------------------------------------------------


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_no_split_goes_past_the_limit_by_more_than_the_bound(data: st.DataObject) -> None:
    step, factor = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
    first_rows, drift = data.draw(st.integers(1, 5)), data.draw(st.integers(0, 200))
    source = ReportedSource(PlanningRules(data.draw(st.integers(0, 20)), drift), first_rows, 3)
    steps = st.lists(st.integers(step, factor * step), min_size=1, max_size=150)
    for split_id in ("a", "b", "c"):
        source.join(split_id, np.cumsum([data.draw(st.integers(0, 300)), *data.draw(steps)]).tolist())
    lost = dict.fromkeys(source.splits, 0)
    widest = first_rows * factor * step
    for _ in range(25):
        before = {i: split.position for i, split in source.splits.items()}
        plan = source.plan(data.draw(st.none() | st.integers(1, 40)))
        kept = [r for r in source.in_flight if data.draw(st.integers(0, 4))]
        missing = {r.split_id for r in source.in_flight} - {r.split_id for r in kept}
        for split_id, watermark in zip(plan.after.split_ids, plan.after.watermarks.tolist(), strict=True):
            split = source.splits[split_id]
            if (
                split.position > before[split_id]
                and watermark > MIN_WATERMARK
                and plan.limited_by is not LimitedBy.AVAILABLE
            ):
                bound = max(widest, (factor - 1) * (plan.bound_us - watermark)) + lost[split_id] * widest
                latest = source.logs[split_id].times[split.position - 1]
                assert source.rules.out_of_orderness_us is not None
                assert latest - source.rules.out_of_orderness_us - 1 - plan.bound_us <= bound
            if split.position > before[split_id]:
                lost[split_id] = lost[split_id] + 1 if split_id in missing else 0
        source.in_flight = kept
        source.deliver_all()


# ---- what is refused ----------------------------------------------------------------------------------------------


def test_what_needs_the_event_times_themselves_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"lateness = 'none': .* look ahead"):
        ReactivePlanner(PlanningRules(3, 5, lateness="none"))


@pytest.mark.parametrize("wrong", [{"first_rows": 0}, {"growth": 1}])
def test_sizes_below_their_minimum_are_refused(wrong: dict[str, int]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(InvalidArgumentError, match=f"{name} = {value}: must be at least"):
        ReactivePlanner(PlanningRules(3, 5), **wrong)


def test_a_plan_needs_an_end_for_each_split() -> None:
    planner = ReactivePlanner(PlanningRules(3, 5))
    table = SplitTable(
        split_ids=("a",), positions=np.array([0]), watermarks=np.array([MIN_WATERMARK]), statuses=np.array([0], np.int8)
    )
    with pytest.raises(InvalidArgumentError, match="ends has the shape"):
        planner.plan(table, np.array([1, 2]))


def test_what_was_handed_out_by_no_plan_is_taken_up_where_the_table_is() -> None:
    planner = ReactivePlanner(PlanningRules(0, 1000), first_rows=3, growth=10)
    table = SplitTable(
        split_ids=("a",), positions=np.array([0]), watermarks=np.array([MIN_WATERMARK]), statuses=np.array([0], np.int8)
    )
    after = planner.plan(table, np.array([500])).after
    planner.splits.report(RangeReport("a", 0, 3, 0, 2))
    moved = replace(after, positions=np.array([300]))
    assert planner.plan(moved, np.array([500])).after.positions.tolist() == [303]
