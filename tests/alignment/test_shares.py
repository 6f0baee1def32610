from __future__ import annotations

import heapq

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from alignment.plan import share_evenly
from alignment.plan.by_reports import share_by_time

SPLITS = st.lists(
    st.tuples(
        st.integers(0, 30),
        st.integers(0, 20),
        st.sampled_from([0, 3, 50, 10**9]),
        st.sampled_from([1e-6, 0.1, 0.5, 1.0, 40.0]),
    ),
    min_size=1,
    max_size=6,
)


def columns(splits: list[tuple[int, int, int, float]]) -> list[np.ndarray]:
    return [np.array(column) for column in zip(*splits, strict=True)]


def dealt_evenly(wanted: list[int], positions: list[int], max_rows: int) -> list[int]:
    shared = [0] * len(wanted)
    while sum(shared) < min(max_rows, sum(wanted)):
        for slot in sorted(range(len(wanted)), key=lambda slot: positions[slot]):
            if shared[slot] < wanted[slot] and sum(shared) < max_rows:
                shared[slot] += 1
    return shared


def dealt_by_time(splits: list[tuple[int, int, int, float]], max_rows: int) -> list[int]:
    shared = [0] * len(splits)
    slowest = min(time for wanted, _, time, _ in splits if wanted)
    queue = [(float(s[2]) - float(slowest), s[1], slot) for slot, s in enumerate(splits) if s[0]]
    heapq.heapify(queue)
    while queue and sum(shared) < max_rows:
        _, position, slot = heapq.heappop(queue)
        wanted, _, time, density = splits[slot]
        shared[slot] += 1
        if shared[slot] < wanted:
            heapq.heappush(queue, (float(time) - float(slowest) + shared[slot] / density, position, slot))
    return shared


@given(SPLITS, st.integers(0, 100))
def test_sharing_evenly_is_dealing_cards(splits: list[tuple[int, int, int, float]], max_rows: int) -> None:
    wanted, positions, _, _ = columns(splits)
    shared = share_evenly(wanted, positions, max_rows)
    assert shared.tolist() == dealt_evenly(wanted.tolist(), positions.tolist(), max_rows)


@given(SPLITS, st.integers(1, 100), st.sampled_from([0, 1_700_000_000_000_000]))
def test_sharing_by_time_takes_the_earliest_predicted_one_after_another(
    splits: list[tuple[int, int, int, float]], max_rows: int, epoch: int
) -> None:
    wanted, positions, times, density = columns(splits)
    shared = share_by_time(wanted, positions, times + epoch, density, max_rows)
    expected = dealt_by_time(splits, max_rows) if wanted.any() else [0] * len(splits)
    assert shared.sum() == min(max_rows, int(wanted.sum()))
    # Where predictions are equal but for rounding, the one or the other may come first.
    assert np.abs(shared - expected).max() <= 1


def test_the_slowest_split_gets_the_first_record_however_thin_it_is() -> None:
    wanted, positions = np.array([5, 5]), np.array([9, 0])
    shared = share_by_time(wanted, positions, np.array([0, 1]), np.array([1e-12, 1e3]), 3)
    assert shared.tolist() == [1, 2]


def test_the_records_of_one_microsecond_are_shared_as_well() -> None:
    wanted, positions = np.array([10**6, 10**6]), np.array([0, 0])
    shared = share_by_time(wanted, positions, np.array([1_700_000_000_000_000] * 2), np.array([1e6, 1e6]), 1001)
    assert shared.tolist() == [501, 500]


def test_something_is_shared_between_the_ends_of_time() -> None:
    wanted, times = np.array([5, 5]), np.array([-(2**63), 2**63 - 1])
    shared = share_by_time(wanted, np.array([0, 0]), times, np.array([1e-6, 1e3]), 6)
    assert shared.tolist() == [5, 1]
