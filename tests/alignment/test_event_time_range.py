"""Which records and blocks a range of event times excludes, beside records one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignment import NO_TIMESTAMP, EventTimeRange
from alignment.event_time_range import INSIDE, WHOLLY
from alignment.exceptions import InvalidArgumentError

times = st.one_of(st.integers(-20, 20), st.just(NO_TIMESTAMP))
bounds = st.one_of(st.none(), st.integers(-20, 20))


@st.composite
def ranges(draw: st.DrawFn) -> EventTimeRange:
    first, last = draw(bounds), draw(bounds)
    if first is not None and last is not None:
        first, last = min(first, last), max(first, last) + 1
    if first is not None and last is not None and last - first >= 3 and draw(st.booleans()):
        edges = sorted(draw(st.sets(st.integers(first, last), min_size=4, max_size=8)))
        return EventTimeRange.of_ranges(list(zip(edges[::2], edges[1::2], strict=False)))
    return EventTimeRange(first, last)


def lies_outside(wanted: EventTimeRange, time: int) -> bool:
    if time == NO_TIMESTAMP:
        return False
    if any(start <= time < end for start, end in wanted.gaps):
        return True
    is_early = wanted.from_us is not None and time < wanted.from_us
    return is_early or (wanted.until_us is not None and time >= wanted.until_us)


@given(ranges(), st.lists(st.lists(times, min_size=1, max_size=6), min_size=1, max_size=6))
def test_a_block_is_excluded_if_and_only_if_all_its_records_lie_outside_on_one_side_or_in_one_gap(
    wanted: EventTimeRange, blocks: list[list[int]]
) -> None:
    for block in blocks:
        assert wanted.outside(np.array(block)).tolist() == [lies_outside(wanted, time) for time in block]
    # As they are bounded: by the minimum and the maximum, NO_TIMESTAMP where a record has no event time.
    low, high = np.array([min(block) for block in blocks]), np.array([max(block) for block in blocks])
    for block, is_excluded in zip(blocks, wanted.excludes(low, high).tolist(), strict=True):
        are_before = wanted.from_us is not None and max(block) < wanted.from_us
        are_after = wanted.until_us is not None and min(block) >= wanted.until_us
        in_a_gap = any(start <= min(block) and max(block) < end for start, end in wanted.gaps)
        assert is_excluded == (min(block) > NO_TIMESTAMP and (are_before or are_after or in_a_gap))
        assert not is_excluded or all(lies_outside(wanted, time) for time in block)
    for block, part in zip(blocks, wanted.parts_outside(low, high).tolist(), strict=True):
        found = [lies_outside(wanted, time) for time in block]
        assert any(found) <= (part > INSIDE)
        assert (part == WHOLLY) <= all(found)
    for overlap in ("keep", "fail"):
        kept = EventTimeRange(wanted.from_us, wanted.until_us, overlap)
        assert not kept.excludes(low, high).any()
        assert kept.without_earlier(low).tolist() == low.tolist()


def test_an_unknown_overlap_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="overlap = 'maybe': must be one of drop, keep, fail"):
        EventTimeRange(0, overlap="maybe")  # type: ignore[arg-type]


def test_a_range_without_a_bound_excludes_nothing() -> None:
    assert not EventTimeRange()
    assert EventTimeRange(0)
    assert EventTimeRange(None, 0)
    assert not EventTimeRange().outside(np.array([-5, 5, NO_TIMESTAMP])).any()


@pytest.mark.parametrize("until", [5, 4])
def test_a_range_without_a_time_in_it_is_refused(until: int) -> None:
    with pytest.raises(InvalidArgumentError, match="there are none; let the second be later"):
        EventTimeRange(5, until)
