"""Disorder and lag against counting record by record."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignment.disorder import PACES, Arrivals, DelayCount, DisorderHistogram, KeptState, SplitDisorder, paces_of

SHARES = [Fraction(1, 2), Fraction(99, 100), Fraction(999, 1000), Fraction(1)]
DURATIONS = st.lists(st.one_of(st.integers(0, 300), st.integers(0, 10**7), st.integers(0, 2**60)), min_size=1)


@given(DURATIONS, DURATIONS)
def test_a_histogram_covers_the_share_that_it_should_and_hardly_more(first: list[int], second: list[int]) -> None:
    histogram, other = DisorderHistogram(), DisorderHistogram()
    histogram.add(np.array(first))
    other.add(np.array(second))
    histogram.merge(other)
    durations = sorted(first + second)
    assert histogram.total == len(durations)
    for share in SHARES:
        smallest = durations[max(-(-len(durations) * share.numerator // share.denominator), 1) - 1]
        assert smallest <= histogram.covering_us(share) <= smallest + smallest / 128
    assert histogram.covering_us(Fraction(1)) == durations[-1]


@pytest.mark.parametrize("power", range(62))
def test_a_histogram_is_right_around_every_power_of_two(power: int) -> None:
    for duration in (2**power - 1, 2**power, 2**power + 1):
        histogram = DisorderHistogram()
        histogram.add(np.array([duration, 2**62]))
        assert duration <= histogram.covering_us(Fraction(1, 2)) <= duration + duration / 128


def test_without_records_nothing_is_covered() -> None:
    assert DisorderHistogram().covering_us(Fraction(1)) == 0
    assert paces_of({})[1] == 0


@st.composite
def splits(draw: st.DrawFn) -> dict[str, list[tuple[int, int]]]:
    """Positions, some of which are left out, and event times."""
    found = {}
    for name in ("a", "b", "c")[: draw(st.integers(1, 3))]:
        times = draw(st.lists(st.integers(0, 1000), min_size=1, max_size=150))
        gaps = draw(st.lists(st.integers(1, 3), min_size=len(times), max_size=len(times)))
        first = draw(st.integers(0, 50))
        found[name] = list(zip((first + np.cumsum(gaps) - 1).tolist(), times, strict=True))
    return found


@given(splits(), st.lists(st.integers(0, 1000), min_size=1, max_size=4), st.integers(1, 40))
def test_late_and_behind_are_what_counting_record_by_record_gives(
    logs: dict[str, list[tuple[int, int]]], delays: list[int], size: int
) -> None:
    known = {name: SplitDisorder(log[0][0], log[-1][0] + 1) for name, log in logs.items()}
    parts = [(name, log[i : i + size]) for name, log in logs.items() for i in range(0, len(log), size)]
    for name, part in parts:
        known[name].add(np.array([p for p, _ in part]), np.array([t for _, t in part]), invalid=1)
    count = DelayCount(known, np.array(delays))
    for name, part in parts:
        count.add(name, np.array([p for p, _ in part]), np.array([t for _, t in part]))

    batches: list[list[tuple[str, int]]] = [[] for _ in range(PACES)]
    disorders, lags = [], []
    for name, log in logs.items():
        span = log[-1][0] + 1 - log[0][0]
        for i, (position, time) in enumerate(log):
            batches[(position - log[0][0]) * PACES // span].append((name, time))
            disorders.append(max(t for _, t in log[: i + 1]) - time)
    latest: dict[str, int] = {}
    skew = 0
    seen: list[int | None] = [None, None]
    for batch in batches:
        before = seen[-2]
        if before is not None:
            lags += [max(before - time, 0) for _, time in batch]
        for name, time in batch:
            latest[name] = max(latest.get(name, time), time)
        seen.append(max(latest.values(), default=None))
        skew = max(skew, max(latest.values()) - min(latest.values()))
    assert count.late.tolist() == [sum(d > delay for d in disorders) for delay in delays]
    assert count.behind.tolist() == [sum(lag > delay for lag in lags) for delay in delays]
    assert (count.lag.total, count.lag.largest_us) == (len(lags), max(lags, default=0))
    assert paces_of(known)[1] == skew
    for name, log in logs.items():
        times = [t for _, t in log]
        split = known[name]
        assert (split.rows - split.invalid, split.invalid) == (len(log), sum(n == name for n, _ in parts))
        assert (split.earliest_us, split.latest_us) == (min(times), max(times))
    merged = DisorderHistogram()
    for split in known.values():
        merged.merge(split.disorder)
    assert (merged.total, merged.largest_us) == (len(disorders), max(disorders))


# ---- how records come, and what their order costs --------------------------------------------------------------------

UNITS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.lists(st.integers(0, 50), min_size=1, max_size=5)),
    min_size=1,
    max_size=6,
)


@given(UNITS)
def test_how_late_records_come_is_by_all_that_came_before_them_to_their_log(
    units: list[tuple[str, int, list[int]]],
) -> None:
    known = {str(i): [(0, log, order)] for i, (log, order, _) in enumerate(units)}
    arrivals = Arrivals(known)
    for take in (arrivals.see, arrivals.add):
        for i, (_, _, times) in enumerate(units):
            take(str(i), np.arange(len(times)), np.array(times))
        if take == arrivals.see:
            arrivals.settle()
    naive = []
    for log, order, times in units:
        before = [time for other, number, earlier in units if other == log and number < order for time in earlier]
        naive += [max(max(before) - time, 0) for time in times if before]
    assert (arrivals.disorder.total, arrivals.disorder.largest_us) == (len(naive), max(naive, default=0))


def test_files_of_a_directory_come_one_after_another() -> None:
    arrivals = Arrivals({"d": [(0, "d", 0), (3, "d", 3)]})
    positions, times = np.arange(6), np.array([10, 90, 20, 80, 30, 95])
    arrivals.see("d", positions, times)
    arrivals.settle()
    arrivals.add("d", positions, times)
    assert (len(arrivals), arrivals.disorder.total, arrivals.disorder.largest_us) == (1, 3, 60)


def _kept(splits: dict[str, list[int]]) -> tuple[int, int]:
    """Reads record by record, by event time as far as each split lets it, and looks at what is above the watermark."""
    order = sorted((max(times[: i + 1]), split, i) for split, times in splits.items() for i in range(len(times)))
    read: list[int] = []
    unread = sorted((time for times in splits.values() for time in times), reverse=True)
    span = rows = 0
    for _, split, i in order:
        read.append(splits[split][i])
        unread.remove(splits[split][i])
        above = [time for time in read if unread and time > unread[-1]]
        rows = max(rows, len(above))
        span = max(span, max(above, default=0) - unread[-1] if above else 0)
    return span, rows


@given(st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(0, 10_000), min_size=1, max_size=40), min_size=1))
def test_what_is_kept_is_at_least_that_of_reading_record_by_record(splits: dict[str, list[int]]) -> None:
    first, last = min(map(min, splits.values())), max(map(max, splits.values()))
    state = KeptState(first, last)
    for split, times in splits.items():
        state.add(split, np.array(times))
    span, rows = _kept(splits)
    in_order = 2 * (last - first) // 99 + 1
    seen_span, seen_rows = state.most()
    assert seen_span >= span or (seen_span == 0 and span <= in_order)
    assert seen_rows >= rows or seen_rows == 0
    assert seen_span <= last - first
