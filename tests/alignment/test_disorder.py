"""Disorder and lag against counting record by record."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignment.disorder import PACES, DelayCount, DisorderHistogram, SplitDisorder, paces_of

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
