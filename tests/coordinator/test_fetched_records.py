"""Records that were seen ahead of their readers, beside a plain list of them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from alignment.timestamps import NO_TIMESTAMP
from streaming_source.coordinator.event_times.ahead_reader import FetchedBlock
from streaming_source.coordinator.event_times.split_scan import FetchedRecords
from tests.examples import examples


def block(positions: list[int], first_time: int = 0) -> FetchedBlock:
    """With the times `first_time`, and one more each."""
    has_gaps = positions[-1] - positions[0] >= len(positions)
    where = np.array(positions, np.int64) if has_gaps else positions[0]
    return FetchedBlock(where, np.arange(first_time, first_time + len(positions)))


def test_a_block_says_where_its_records_are_with_gaps_and_without() -> None:
    assert [block([5, 6, 7])[row] for row in range(3)] == [5, 6, 7]
    assert [block([5, 8, 9])[row] for row in range(3)] == [5, 8, 9]
    assert (block([5, 6, 7]).end, block([5, 8, 9]).end) == (8, 10)


def test_the_bounds_of_a_block_are_its_extremes_and_a_record_without_a_time_is_the_smallest() -> None:
    assert FetchedBlock(0, np.array([4, 2, 3])).bounds() == (2, 4)
    assert FetchedBlock(0, np.array([4, NO_TIMESTAMP])).bounds() == (NO_TIMESTAMP, 4)
    assert FetchedBlock(0, np.array([NO_TIMESTAMP])).bounds() == (NO_TIMESTAMP, NO_TIMESTAMP)


def test_a_gap_however_wide_is_no_record() -> None:
    seen = FetchedRecords(10)
    seen.append(block([10, 1_000_000]))
    seen.append(block([9_000_000]))
    assert seen.unread == 3
    assert [seen.position_at(number) for number in (10, 11, 12, 13)] == [10, 11, 1_000_001, 9_000_001]


def test_records_are_cut_between_blocks_into_ranges_that_are_worth_it() -> None:
    seen = FetchedRecords(0)
    for first in range(0, 50, 10):
        seen.append(block(list(range(first, first + 10))))
    seen.commit_plan(50)
    assert seen.cut(0, 50, 20) == [(0, 20, 20), (20, 40, 20), (40, 50, 10)]
    assert seen.cut(0, 50, 1) == [(first, first + 10, 10) for first in range(0, 50, 10)]
    assert seen.cut(0, 50, 1000) == [(0, 50, 50)]


def test_where_nothing_is_known_of_what_lies_between_there_is_one_range() -> None:
    seen = FetchedRecords(30)
    assert seen.cut(10, 30, 5) == [(10, 30, 20)]
    assert seen.cut(10, 25, 5) == [(10, 25, 15)]


def test_a_state_inside_of_a_block_divides_it() -> None:
    seen = FetchedRecords(0)
    seen.append(block([0, 2, 4, 6]))
    seen.commit_plan(1)
    seen.commit_plan(3)
    assert seen.cut(1, 5, 1) == [(1, 5, 2)]
    assert seen.unread == 1


@pytest.mark.parametrize("count", [1, 2, 5])
def test_what_was_handed_out_twice_over_takes_no_room(count: int) -> None:
    seen = FetchedRecords(0)
    for number in range(1000):
        seen.append(block(list(range(number * count, (number + 1) * count))))
        seen.commit_plan((number + 1) * count)
    assert (len(seen._blocks), len(seen._ends)) == (0, 0)
    assert len(seen._borders) <= 3


class SeenWalk(RuleBasedStateMachine):
    """Against a list of all records that were ever seen."""

    @initialize(start=st.integers(0, 20))
    def take_over(self, start: int) -> None:
        self.start = start
        self.seen = FetchedRecords(start)
        self.positions: list[int] = []
        self.times: list[int] = []
        # Numbers at which blocks begin, and those that states have.
        self.begins: list[int] = []
        self.states = [start]

    @rule(gaps=st.lists(st.sampled_from([0, 0, 0, 1, 7]), min_size=1, max_size=6), data=st.data())
    def append(self, gaps: list[int], data: st.DataObject) -> None:
        at = self.positions[-1] + 1 if self.positions else self.start
        positions = []
        for gap in gaps:
            positions.append(at + gap)
            at = positions[-1] + 1
        times = data.draw(st.lists(st.integers(-5, 5), min_size=len(gaps), max_size=len(gaps)))
        has_gaps = positions[-1] - positions[0] >= len(positions)
        where = np.array(positions, np.int64) if has_gaps else positions[0]
        self.begins.append(self.start + len(self.positions))
        self.seen.append(FetchedBlock(where, np.array(times, np.int64)))
        self.positions += positions
        self.times += times

    @precondition(lambda self: self.end > self.states[-1])
    @rule(data=st.data())
    def commit_plan(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(self.states[-1] + 1, self.end))
        self.seen.commit_plan(number)
        self.states.append(number)
        begin, stop = self.position(self.states[-2]), self.position(number)
        rows = data.draw(st.integers(1, 10))
        parts = self.seen.cut(begin, stop, rows)
        assert [a for a, _, _ in parts] == [begin, *(b for _, b, _ in parts[:-1])], "they follow one another"
        assert parts[-1][1] == stop
        for a, b, n in parts:
            assert n == sum(a <= position < b for position in self.positions)
        assert all(n >= rows for _, _, n in parts[:-1])

    @property
    def end(self) -> int:
        return self.start + len(self.positions)

    def position(self, number: int) -> int:
        return self.positions[number - self.start - 1] + 1 if number > self.start else self.start

    @invariant()
    def agrees_with_the_list(self) -> None:
        if not hasattr(self, "seen"):
            return
        committed_to = self.states[-1]
        assert self.seen.unread == self.end - committed_to
        for number in range(committed_to, self.end + 1):
            assert self.seen.position_at(number) == self.position(number)
        for first, stop in pairwise([*self.begins, self.end]):
            if stop > committed_to:
                assert self.seen.times(first, stop).tolist() == self.times[first - self.start : stop - self.start]


TestSeenRecordsAgreeWithAList = SeenWalk.TestCase
TestSeenRecordsAgreeWithAList.settings = settings(max_examples=examples(80), stateful_step_count=20, deadline=None)
