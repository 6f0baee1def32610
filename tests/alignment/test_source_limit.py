"""How far the sources of one group may read, and that they always get to the end."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from alignment.groups import SourceReport, source_limit
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from tests.examples import examples


def limit(source_id: str, **reports: SourceReport) -> int:
    return source_limit(source_id, reports)


def test_a_source_that_is_alone_has_no_limit() -> None:
    assert limit("a", a=SourceReport(10, 100, 200)) == MAX_WATERMARK


def test_the_slowest_other_source_sets_the_limit_with_the_drift_of_ones_own() -> None:
    reports = {"a": SourceReport(10, 500, 501), "b": SourceReport(99, 100, 101), "c": SourceReport(0, 300, 301)}
    assert [source_limit(i, reports) for i in "abc"] == [110, 399, 100]


def test_a_source_that_counts_no_split_holds_nobody_back() -> None:
    assert limit("a", a=SourceReport(10, 100, 200), b=SourceReport(10)) == MAX_WATERMARK


def test_a_source_without_a_watermark_holds_the_others() -> None:
    assert limit("a", a=SourceReport(10, 100, 200), b=SourceReport(10, MIN_WATERMARK, None)) == MIN_WATERMARK + 10


def test_a_source_that_has_read_all_holds_the_others_until_it_is_idle() -> None:
    assert limit("a", a=SourceReport(10, 100, 200), b=SourceReport(10, 100, None)) == 110


def test_over_a_gap_the_nearest_goes_on_and_only_that() -> None:
    reports = {"a": SourceReport(10, 100, 500), "b": SourceReport(10, 90, 400), "c": SourceReport(10, 95, 400)}
    assert [source_limit(i, reports) for i in "abc"] == [100, 400, 400]


def test_over_a_gap_the_nearest_stays_within_its_drift_of_one_that_has_read_all() -> None:
    caught_up = SourceReport(99, 294, None)
    for next_us, expected in ((304, 304), (305, 10)):
        reports = {"a": SourceReport(10, 0, next_us), "b": SourceReport(10, 0, next_us), "c": caught_up}
        assert [source_limit(i, reports) for i in "ab"] == [expected] * 2


def test_there_is_no_gap_while_another_source_can_go_on() -> None:
    reports = {"a": SourceReport(10, 100, 500), "b": SourceReport(10, 90, 105)}
    assert [source_limit(i, reports) for i in "ab"] == [100, 110]


LOG = st.lists(st.integers(0, 300), min_size=1, max_size=12).map(sorted)


@settings(max_examples=examples(200))
@given(
    logs=st.lists(LOG, min_size=1, max_size=4),
    drifts=st.lists(st.integers(0, 60), min_size=4, max_size=4),
    turns=st.lists(st.integers(0, 3), max_size=60),
)
def test_every_source_gets_to_its_end_and_none_is_ahead_of_the_slowest_by_more_than_its_drift_but_over_gaps(
    logs: list[list[int]], drifts: list[int], turns: list[int]
) -> None:
    read = [0] * len(logs)
    reports = {str(i): SourceReport(drifts[i], MIN_WATERMARK, log[0]) for i, log in enumerate(logs)}

    def take_turn(i: int) -> bool:
        """Read all that the limit allows."""
        bound = source_limit(str(i), reports)
        others = [r.watermark for k, r in reports.items() if k != str(i) and r.watermark is not None]
        waiting = [r.next_us for r in reports.values() if r.next_us is not None]
        allowed = min(others) + drifts[i] if others else MAX_WATERMARK
        assert bound == allowed or bound == min(waiting), "neither within the drift nor the nearest"
        end = sum(time <= bound for time in logs[i])
        moved, read[i] = end > read[i], max(end, read[i])
        if read[i] == len(logs[i]):
            reports[str(i)] = SourceReport(drifts[i])
        else:
            watermark = logs[i][read[i] - 1] - 1 if read[i] else MIN_WATERMARK
            reports[str(i)] = SourceReport(drifts[i], watermark, logs[i][read[i]])
        return moved

    for turn in turns:
        if turn < len(logs):
            take_turn(turn)
    while any(r < len(log) for r, log in zip(read, logs, strict=True)):
        assert sum(take_turn(i) for i in range(len(logs))), f"all wait for each other: {reports}"
