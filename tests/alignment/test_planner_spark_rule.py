"""What Spark would drop of the planned batches with a plain `withWatermark`: nothing at `required_delay`.

Spark drops a row at or below its watermark, and a window that ends at or before it; that watermark is the largest event
time of the batches before, floored to milliseconds, minus the delay.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignment.durations import parse_duration_us
from alignment.plan import PlanningRules
from alignment.strategy import WatermarkStrategy
from streaming_source.spark.watermark_rows import required_delay
from tests.alignment.planned_source import Block, PlannedSource
from tests.examples import examples

MS = 1000


def delay_ms(bound_us: int, drift_us: int | None, *, per_row: bool) -> int:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(microseconds=bound_us))
    if drift_us is not None:
        strategy = strategy.with_watermark_alignment("all", timedelta(microseconds=drift_us))
    return parse_duration_us(required_delay(strategy, per_row=per_row), name="delay") // MS


def plain(bound_us: int, drift_us: int | None = None) -> PlannedSource:
    """A source as it is planned for a plain watermark: drift is bounded, by `B` unless told otherwise."""
    return PlannedSource(PlanningRules(bound_us, bound_us if drift_us is None else drift_us))


# Around whole milliseconds, where flooring decides.
TIMES = st.builds(lambda ms, us: ms * MS + us, st.integers(1, 40), st.sampled_from([-1, 0, 0, 1, 500]))
SPANS = st.builds(lambda ms, us: ms * MS + us, st.integers(1, 6), st.sampled_from([-1, 0, 0, 1])) | st.just(0)
ARRIVAL = st.tuples(st.sampled_from("abc"), st.lists(TIMES, min_size=1, max_size=4))
STEP = st.tuples(
    st.lists(ARRIVAL, max_size=3),
    st.sampled_from(["", "", "", "", "a idle", "b idle", "c complete", "restart", "forget", "draining"]),
    st.none() | st.integers(1, 6),
)


@settings(max_examples=examples(250), deadline=None)
@given(bound=SPANS, drift=st.none() | SPANS, joined=st.sets(st.sampled_from("abc"), min_size=1), steps=st.lists(STEP))
def test_no_on_time_record_is_lost_at_the_required_delay(
    bound: int,
    drift: int | None,
    joined: set[str],
    steps: list[tuple[list[tuple[str, list[int]]], str, int | None]],
) -> None:
    source = plain(bound, drift)
    for split_id in sorted(joined):
        source.join(split_id)
    for arrivals, event, max_rows in steps:
        for split_id, times in arrivals:
            if split_id not in source.naive:
                source.join(split_id)
            if not source.naive[split_id].complete:
                source.append(split_id, [Block(tuple(times))])
                source.naive[split_id].idle = False
        happens(source, event)
        source.plan(max_rows)
        assert source.spark_loses(delay_ms(bound, drift, per_row=False), per_row=False) == []
        assert source.spark_loses(delay_ms(bound, drift, per_row=True), per_row=True) == []


def happens(source: PlannedSource, event: str) -> None:
    split = source.naive.get(event[:1])
    if event == "restart":
        source.restart()
    elif event == "forget":
        source.forget_read()
    elif event == "draining":
        source.draining = True
    elif split is not None and event.endswith("idle") and not split.unread:
        split.idle = True
    elif split is not None and event.endswith("complete"):
        split.complete = True


def read_in_turn(source: PlannedSource, *arrivals: tuple[str, list[int]]) -> PlannedSource:
    for split_id, times in arrivals:
        source.append(split_id, [Block(tuple(times))])
        source.plan()
    return source


def one_split_as_late_as_allowed() -> PlannedSource:
    """B = 5 ms; after a record at 10 ms one at 5 ms is still on time."""
    source = plain(5 * MS)
    source.join("a")
    return read_in_turn(source, ("a", [10 * MS]), ("a", [5 * MS]))


def one_split_ahead_by_the_whole_drift() -> PlannedSource:
    """B = 2.001 ms and a drift of 7 ms: `b` is read up to 14.998 ms while `a` may still bring 7.999 ms."""
    source = plain(2 * MS + 1, 7 * MS)
    source.join("a")
    source.join("b")
    source.append("b", [Block((14 * MS + 998, 20 * MS))])
    return read_in_turn(source, ("a", [10 * MS]), ("a", [8 * MS - 1]))


def test_with_one_millisecond_less_a_window_is_lost_that_was_on_time() -> None:
    source = one_split_as_late_as_allowed()
    needed = delay_ms(5 * MS, None, per_row=False)
    assert source.spark_loses(needed, per_row=False) == []
    assert source.spark_loses(needed - 1, per_row=False) == [("a", 5 * MS)]


def test_a_row_needs_one_millisecond_more_than_its_window() -> None:
    source = one_split_as_late_as_allowed()
    needed = delay_ms(5 * MS, None, per_row=True)
    assert needed == delay_ms(5 * MS, None, per_row=False) + 1
    assert source.spark_loses(needed, per_row=True) == []
    assert source.spark_loses(needed - 1, per_row=True) == [("a", 5 * MS)]


@pytest.mark.parametrize("per_row", [False, True])
def test_with_one_millisecond_less_than_the_drift_a_record_of_the_slower_split_is_lost(per_row: bool) -> None:
    source = one_split_ahead_by_the_whole_drift()
    assert source.spark_max == 14 * MS + 998
    needed = delay_ms(2 * MS + 1, 7 * MS, per_row=per_row)
    assert needed == 7
    assert source.spark_loses(needed, per_row=per_row) == []
    assert source.spark_loses(needed - 1, per_row=per_row) == [("a", 8 * MS - 1)]


def test_without_a_bound_on_drift_the_same_delay_loses_the_split_behind() -> None:
    source = PlannedSource(PlanningRules(5 * MS))
    source.join("a")
    source.join("b")
    source.append("b", [Block((500 * MS,))])
    read_in_turn(source, ("a", [10 * MS]), ("a", [20 * MS]))
    assert source.spark_loses(delay_ms(5 * MS, None, per_row=False), per_row=False) == [("a", 20 * MS)]
