"""Opaque blocks: the same cuts as of plain lists, no query twice, and nothing on time is ever late."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignment.exceptions import InvalidArgumentError
from alignment.index import EventTimeIndex
from alignment.plan import LimitedBy, MicroBatchPlan
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK
from tests.alignment.index_blocks import n_blocks
from tests.alignment.naive_planner import NaivePlan, watermark_of
from tests.alignment.planned_source import CACHED_TIMES, Block, PlannedSource
from tests.alignment.test_planner_random import SourceWalk
from tests.examples import examples

Log = dict[str, list[int]]


class Owner:
    """The owner of some splits: their records, indexed as opaque blocks of given sizes, and a list of the queries."""

    def __init__(self, times: Log, rows: int = 1_000) -> None:
        self.times = times
        self.queries: list[list[tuple[str, int, int, int]]] = []
        self.index = EventTimeIndex(_nothing_to_load, locate=self.locate)
        for split_id, records in times.items():
            self.index.add_split(split_id)
            for begin in range(0, len(records), rows):
                part = records[begin : begin + rows]
                self.index.append_opaque(split_id, len(part), max(part))

    def locate(
        self, split_ids: Sequence[str], starts: np.ndarray, stops: np.ndarray, bound_us: int
    ) -> tuple[np.ndarray, np.ndarray]:
        query = list(zip(split_ids, starts.tolist(), stops.tolist(), [bound_us] * len(split_ids), strict=True))
        self.queries.append(query)
        return located(self.times, split_ids, starts, stops, bound_us)

    def start(self) -> np.ndarray:
        return np.zeros(len(self.index), np.int64)


def located(
    times: Log, split_ids: Sequence[str], starts: np.ndarray, stops: np.ndarray, bound_us: int
) -> tuple[np.ndarray, np.ndarray]:
    """The naive owner of a log: it looks at one record after the other."""
    positions, found = stops.copy(), np.full(stops.size, NO_TIMESTAMP, np.int64)
    for i, split_id in enumerate(split_ids):
        for position in range(int(starts[i]), int(stops[i])):
            if times[split_id][position] > bound_us:
                positions[i], found[i] = position, times[split_id][position]
                break
    return positions, found


def _nothing_to_load(split_id: str, start: int, stop: int) -> np.ndarray:
    raise AssertionError(f"{split_id} was to be loaded from {start} to {stop}")


def at(*positions: int) -> np.ndarray:
    return np.array(positions, np.int64)


# ---- the index -------------------------------------------------------------------------------------------------------

LOGS = st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(0, 20), min_size=1, max_size=12), min_size=1)


@settings(max_examples=examples(300), deadline=None)
@given(data=st.data(), times=LOGS, rows=st.integers(1, 12))
def test_cuts_are_those_of_plain_lists_and_no_query_is_made_twice(data: st.DataObject, times: Log, rows: int) -> None:
    owner = Owner(times, rows)
    index, positions = owner.index, owner.start()
    before = n_blocks(index)
    for _ in range(data.draw(st.integers(1, 6))):
        bound = data.draw(st.integers(-1, 21))
        logs = [times[i][p:] for i, p in zip(index.split_ids, positions.tolist(), strict=True)]
        cut = positions + at(*(next((i for i, t in enumerate(log) if t > bound), len(log)) for log in logs))
        assert index.cut(positions, bound).tolist() == cut.tolist()
        assert index.latest_times(positions).tolist() == [
            max(times[i][p - p % rows :], default=NO_TIMESTAMP) if p < len(times[i]) else NO_TIMESTAMP
            for i, p in zip(index.split_ids, positions.tolist(), strict=True)
        ]
        assert index.nearest_time(positions) == min((log[0] for log in logs if log), default=MAX_WATERMARK)
        following = index.next_times(cut)
        for i, p, time in zip(index.split_ids, cut.tolist(), following.tolist(), strict=True):
            assert time == (times[i][p] if p < len(times[i]) else NO_TIMESTAMP)
        seen = index.maximum_times(positions, cut)
        assert (seen <= bound).all()
        n = len(owner.queries)
        assert index.cut(positions, bound).tolist() == cut.tolist()
        assert index.nearest_time(positions) == min((log[0] for log in logs if log), default=MAX_WATERMARK)
        assert len(owner.queries) == n, "one more query"
        if data.draw(st.booleans()):
            positions = cut
        if data.draw(st.booleans()):
            index.forget_before(positions)
    every = [query for step in owner.queries for query in step]
    assert len(set(every)) == len(every)
    assert n_blocks(index) <= before + 2 * len(every)


@settings(max_examples=examples(300), deadline=None)
@given(data=st.data(), times=LOGS, rows=st.integers(1, 12), max_rows=st.integers(1, 30))
def test_a_limit_on_rows_is_kept_and_something_is_admitted(
    data: st.DataObject, times: Log, rows: int, max_rows: int
) -> None:
    owner = Owner(times, rows)
    index, positions = owner.index, owner.start()
    total = sum(map(len, times.values()))
    while (left := total - int(positions.sum())) > 0:
        logs = [times[i][p:] for i, p in zip(index.split_ids, positions.tolist(), strict=True)]
        bound, ends = index.cut_rows(positions, MAX_WATERMARK, max_rows)
        taken = [log[: e - p] for log, e, p in zip(logs, ends.tolist(), positions.tolist(), strict=True)]
        assert 0 < sum(map(len, taken)) <= max_rows
        assert all(time <= bound for several in taken for time in several)
        admitted = index.cut(positions, bound)
        if int((admitted - positions).sum()) > max_rows:
            # Only records of the very first event time are shared out.
            assert bound == min(log[0] for log in logs if log)
            assert int((ends - positions).sum()) == max_rows
        else:
            assert ends.tolist() == admitted.tolist()
            most = max_rows >= left or 2 * int((ends - positions).sum()) >= max_rows
            behind = min(t for log, several in zip(logs, taken, strict=True) for t in log[len(several) :][:1] or [99])
            assert most or int((index.cut(positions, behind) - positions).sum()) > max_rows
        positions = ends
        if data.draw(st.booleans()):
            index.forget_before(positions)


def test_one_query_is_of_all_splits() -> None:
    owner = Owner({f"s{i:03}": list(range(100)) for i in range(50)})
    assert (owner.index.cut(owner.start(), 41) == 42).all()
    assert [len(query) for query in owner.queries] == [50]
    assert (owner.index.next_times(np.full(50, 42)) == 42).all()
    # What is earlier than a next record that is known needs no query.
    assert (owner.index.cut(np.full(50, 42), 41) == 42).all()
    assert len(owner.queries) == 1


def test_a_search_among_even_records_takes_few_questions() -> None:
    owner = Owner({name: [1_000 * i + k for i in range(50_000)] for k, name in enumerate("abcd")}, rows=1_000_000)
    positions = owner.start()
    for batches in range(1, 101):
        _, positions = owner.index.cut_rows(positions, MAX_WATERMARK, 4_000)
        owner.index.forget_before(positions)
        if positions.sum() == 200_000:
            break
        # The first one asks for the first records, too.
        assert len(owner.queries) <= 2 + 2 * batches
    else:
        pytest.fail("each of 100 micro-batches was less than half full")


def test_a_far_future_record_does_not_lead_a_search_astray() -> None:
    year = 365 * 86_400_000_000
    owner = Owner({"a": [1_000_000 * i if i != 3 else 40 * year for i in range(1, 2_000)], "b": [0]})
    bound, ends = owner.index.cut_rows(owner.start(), MAX_WATERMARK, 1_500)
    assert (bound, ends.tolist()) == (40 * year - 1, [2, 1])
    assert len(owner.queries) < 60
    positions = ends
    bound, ends = owner.index.cut_rows(positions, MAX_WATERMARK, 1_500)
    # What is behind it was behind it for good: of one event time as many as fit.
    assert (bound, ends.tolist()) == (40 * year, [2 + 1_500, 1])


def test_behind_a_far_future_record_that_was_read_micro_batches_stay_full() -> None:
    owner = Owner({"a": [10**9, *range(1, 10_000)]}, rows=10_000)
    positions = np.full(1, 100)
    owner.index.forget_before(positions)
    for _ in range(200):
        before = int(positions[0])
        if before == 10_000:
            break
        _, positions = owner.index.cut_rows(positions, MAX_WATERMARK, 100)
        owner.index.forget_before(positions)
        assert int(positions[0]) - before >= min(50, 10_000 - before)
    assert positions.tolist() == [10_000]


def test_records_that_are_known_to_have_no_event_times_are_not_queried_again() -> None:
    owner = Owner({"a": [5, *[NO_TIMESTAMP] * 9], "b": [100]})
    positions = np.array([1, 0])
    assert [owner.index.nearest_time(positions) for _ in range(3)] == [NO_TIMESTAMP] * 3
    assert len(owner.queries) == 1
    assert owner.index.cut_rows(positions, MAX_WATERMARK, 20)[1].tolist() == [10, 1]


def test_beside_loaded_blocks_of_the_same_split() -> None:
    times = {"a": [5, 1, 9, 2, 20, 12, 30]}
    owner = Owner({})
    owner.times = times
    index = EventTimeIndex(lambda i, start, stop: np.array(times[i][start:stop]), locate=owner.locate)
    index.add_split("a")
    index.append("a", 2, 1, 5)
    index.append_opaque("a", 3, 20)
    index.append("a", 2, 12, 30)
    for bound, end in ((4, 0), (5, 2), (8, 2), (9, 4), (19, 4), (20, 6), (29, 6), (30, 7)):
        assert index.cut(at(0), bound).tolist() == [end]
        assert index.maximum_times(at(0), at(end)).tolist()[0] <= bound
    assert index.cut_rows(at(0), 30, 3) == (8, at(2))
    assert index.earliest_times(at(0)).tolist() == [NO_TIMESTAMP]
    assert index.count_at_or_below(at(0), at(7), 12).tolist() == [3]
    with pytest.raises(InvalidArgumentError, match="is opaque from position"):
        index.times_between("a", 0, 3)


@pytest.mark.parametrize(("rows", "max_us"), [(0, 5), (3, NO_TIMESTAMP)])
def test_an_opaque_block_without_a_record_is_refused(rows: int, max_us: int) -> None:
    owner = Owner({"a": [1]})
    with pytest.raises(InvalidArgumentError, match="at least one record"):
        owner.index.append_opaque("a", rows, max_us)


def test_an_opaque_block_without_an_owner_to_query_is_refused() -> None:
    index = EventTimeIndex(_nothing_to_load)
    index.add_split("a")
    with pytest.raises(InvalidArgumentError, match="locate"):
        index.append_opaque("a", 1, 5)


def test_an_answer_that_is_none_is_refused() -> None:
    index = EventTimeIndex(_nothing_to_load, locate=lambda ids, starts, stops, bound: (starts, starts))
    index.add_split("a")
    index.append_opaque("a", 10, 50)
    with pytest.raises(InvalidArgumentError, match="later than 20"):
        index.cut(at(0), 20)


# ---- the planner -----------------------------------------------------------------------------------------------------


class OpaqueSource(PlannedSource):
    """Indexes every other block as an opaque one."""

    def _new_index(self) -> EventTimeIndex:
        def load(split_id: str, start: int, stop: int) -> np.ndarray:
            return np.array(self.naive[split_id].times[start:stop], np.int64)

        def locate(
            ids: Sequence[str], starts: np.ndarray, stops: np.ndarray, bound: int
        ) -> tuple[np.ndarray, np.ndarray]:
            return located({i: split.times for i, split in self.naive.items()}, ids, starts, stops, bound)

        return EventTimeIndex(load, cached_times=CACHED_TIMES, locate=locate)

    def _index_block(self, index: EventTimeIndex, split_id: str, block: Block, start: int) -> None:
        rest = block.times[start:]
        has_bound = self.rules.out_of_orderness_us is not None
        if has_bound and len(block.times) % 2 and NO_TIMESTAMP not in block.times:
            index.append_opaque(split_id, len(rest), max(rest))
        else:
            super()._index_block(index, split_id, block, start)

    @property
    def knows_unread(self) -> bool:
        return False

    def _has_one_plan(self, max_rows: int | None) -> bool:
        # Bounds that were queried earlier are tried first.
        return max_rows is None

    def _agrees(self, plan: MicroBatchPlan, expected: NaivePlan) -> None:
        ids = plan.after.split_ids
        ends = dict(zip(ids, plan.after.positions.tolist(), strict=True))
        bound_us = self.rules.out_of_orderness_us
        for split_id, watermark in zip(ids, plan.after.watermarks.tolist(), strict=True):
            split = self.naive[split_id]
            assert watermark >= split.watermark
            if bound_us is not None:
                read = split.times[split.position : ends[split_id]]
                assert watermark >= watermark_of(max(read, default=NO_TIMESTAMP), bound_us)
        if LimitedBy.ROWS not in (plan.limited_by, expected.limited_by):
            assert ends == expected.ends
            assert (plan.bound_us, plan.limited_by) == (expected.bound, expected.limited_by)


class OpaqueWalk(SourceWalk):
    """The walk of the planner's own test, with opaque blocks."""

    SOURCE = OpaqueSource


TestPlansOverOpaqueBlocks = OpaqueWalk.TestCase
TestPlansOverOpaqueBlocks.settings = settings(max_examples=examples(150), stateful_step_count=25, deadline=None)
