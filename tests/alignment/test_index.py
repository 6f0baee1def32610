"""What the index says of unread records, beside plain lists of the same records; and what it loads to say it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignment.exceptions import DuplicateSplitError, InvalidArgumentError, UnknownSplitError
from alignment.index import EventTimeIndex
from alignment.index.row_limit import ExactTimes
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK
from tests.alignment.index_blocks import n_blocks
from tests.alignment.planned_source import Block
from tests.examples import examples


class Records:
    """Known records of some splits, an index over them, and a list of the blocks that were loaded."""

    def __init__(self, splits: dict[str, list[Block]], cached_times: int = 1_000) -> None:
        self.times = {split_id: [t for block in blocks for t in block.times] for split_id, blocks in splits.items()}
        self.loaded: list[tuple[str, int, int]] = []
        self.index = EventTimeIndex(self.load, cached_times=cached_times)
        for split_id, blocks in splits.items():
            self.index.add_split(split_id)
            for block in blocks:
                self.index.append(split_id, len(block.times), block.low, block.high)

    def load(self, split_id: str, start: int, stop: int) -> np.ndarray:
        self.loaded.append((split_id, start, stop))
        return np.array(self.times[split_id][start:stop], np.int64)

    def unread(self, positions: np.ndarray) -> list[list[int]]:
        return [self.times[i][p:] for i, p in zip(self.index.split_ids, positions.tolist(), strict=True)]


def at(*positions: int) -> np.ndarray:
    return np.array(positions, np.int64)


EVENT_TIMES = st.integers(0, 20) | st.sampled_from([NO_TIMESTAMP, NO_TIMESTAMP + 1, MAX_WATERMARK])
LOOSE = st.sampled_from([0, 0, 3])
BLOCKS = st.builds(Block, st.lists(EVENT_TIMES, min_size=1, max_size=4).map(tuple), LOOSE)
SPLITS = st.dictionaries(st.sampled_from("abcd"), st.lists(BLOCKS, max_size=4), min_size=1)


def positions_in(data: st.DataObject, records: Records, least: np.ndarray | None = None) -> np.ndarray:
    lowest = least if least is not None else np.zeros(len(records.index), np.int64)
    ids = records.index.split_ids
    return at(*(data.draw(st.integers(int(low), len(records.times[i]))) for i, low in zip(ids, lowest, strict=True)))


def naive_cut(times: list[int], bound: int) -> int:
    return next((i for i, time in enumerate(times) if time > bound), len(times))


@settings(max_examples=examples(300), deadline=None)
@given(
    data=st.data(),
    splits=SPLITS,
    bound=EVENT_TIMES,
    portion=st.sampled_from([1, 5, 1_000]),
    last=st.sampled_from([1, 3, ExactTimes.LAST_TURN]),
    few=st.sampled_from([0, 64]),
)
def test_every_answer_is_that_of_the_plain_lists(
    data: st.DataObject, splits: dict[str, list[Block]], bound: int, portion: int, last: int, few: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("alignment.index.blocks._FEW", few)
        patch.setattr(ExactTimes, "PORTION_TIMES", portion)
        patch.setattr(ExactTimes, "LAST_TURN", last)
        records = Records(splits, cached_times=data.draw(st.integers(0, 12)))
        index = records.index
        positions = positions_in(data, records)
        ends = positions_in(data, records, positions)
        unread = records.unread(positions)

        assert index.ends().tolist() == [len(records.times[i]) for i in index.split_ids]
        assert index.cut(positions, bound).tolist() == [
            int(p) + naive_cut(times, bound) for p, times in zip(positions, unread, strict=True)
        ]
        assert index.nearest_time(positions) == min((times[0] for times in unread if times), default=MAX_WATERMARK)
        ranges = [times[: int(e - p)] for times, p, e in zip(unread, positions, ends, strict=True)]
        assert index.count_at_or_below(positions, ends, bound).tolist() == [
            sum(NO_TIMESTAMP < time <= bound for time in times) for times in ranges
        ]
        for split_id, start, times in zip(index.split_ids, positions.tolist(), ranges, strict=True):
            assert index.times_between(split_id, start, start + len(times)).tolist() == times
        begun = index.maximum_times(np.zeros_like(positions), positions)
        assert np.maximum(begun, index.maximum_times(positions, ends)).tolist() == [
            max(records.times[i][: int(e)], default=NO_TIMESTAMP) for i, e in zip(index.split_ids, ends, strict=True)
        ]
        assert np.maximum(begun, index.latest_times(positions)).tolist() == [
            max(records.times[i], default=NO_TIMESTAMP) for i in index.split_ids
        ]
        for earliest, times in zip(index.earliest_times(positions).tolist(), unread, strict=True):
            timed = [time for time in times if time != NO_TIMESTAMP]
            assert earliest <= min(timed, default=MAX_WATERMARK)
            assert times or earliest == MAX_WATERMARK


@settings(max_examples=examples(200), deadline=None)
@given(data=st.data(), splits=SPLITS, bound=EVENT_TIMES, max_rows=st.integers(1, 8))
def test_forgetting_and_removing_change_no_answer(
    data: st.DataObject, splits: dict[str, list[Block]], bound: int, max_rows: int
) -> None:
    records = Records(splits)
    index = records.index
    positions = positions_in(data, records)
    ends = positions_in(data, records, positions)
    gone = data.draw(st.sets(st.sampled_from(sorted(splits))))
    stays = np.array([split_id not in gone for split_id in index.split_ids], np.bool_)
    fresh = Records({split_id: blocks for split_id, blocks in splits.items() if split_id not in gone}).index

    before = n_blocks(index)
    index.forget_before(positions)
    assert n_blocks(index) <= before
    index.remove(gone)
    positions, ends = positions[stays], ends[stays]
    assert index.split_ids == fresh.split_ids
    for asked in (index, fresh):
        asked.ends()
    assert index.cut(positions, bound).tolist() == fresh.cut(positions, bound).tolist()
    assert index.latest_times(positions).tolist() == fresh.latest_times(positions).tolist()
    assert index.earliest_times(positions).tolist() == fresh.earliest_times(positions).tolist()
    assert index.maximum_times(positions, ends).tolist() == fresh.maximum_times(positions, ends).tolist()
    assert index.nearest_time(positions) == fresh.nearest_time(positions)
    (bound_us, cut), (fresh_bound, fresh_cut) = (i.cut_rows(positions, bound, max_rows) for i in (index, fresh))
    assert (bound_us, cut.tolist()) == (fresh_bound, fresh_cut.tolist())


# ---- what is loaded -----------------------------------------------------------------------------------------------


def three_splits() -> Records:
    return Records(
        {
            "a": [Block((1, 2, 3)), Block((4, 5, 6)), Block((7, 8, 9))],
            "b": [Block((2, 9)), Block((11, 12))],
            "c": [Block((20, 21))],
        }
    )


def test_only_the_blocks_in_which_a_cut_falls_are_loaded() -> None:
    records = three_splits()
    assert records.index.cut(at(0, 0, 0), 5).tolist() == [5, 1, 0]
    assert records.loaded == [("a", 3, 6), ("b", 0, 2)]


def test_a_cut_between_blocks_loads_nothing() -> None:
    records = three_splits()
    assert records.index.cut(at(0, 0, 0), 10).tolist() == [9, 2, 0]
    assert records.loaded == []


def test_a_block_is_loaded_once_as_long_as_it_is_kept() -> None:
    records = three_splits()
    for bound in (4, 5, 4):
        records.index.cut(at(0, 0, 2), bound)
    assert sorted(records.loaded) == [("a", 3, 6), ("b", 0, 2)]


def test_the_earliest_time_of_a_begun_block_is_that_of_its_rest() -> None:
    records = Records({"a": [Block((1, 9, 6)), Block((8,))], "b": [Block((3, NO_TIMESTAMP))]})
    assert records.index.earliest_times(at(0, 0)).tolist() == [1, 3]
    assert records.loaded == [("b", 0, 2)]
    assert records.index.earliest_times(at(1, 1)).tolist() == [6, MAX_WATERMARK]
    assert records.index.earliest_times(at(1, 1), np.array([False, True])).tolist() == [MAX_WATERMARK] * 2


def test_only_blocks_with_times_beyond_the_limit_are_looked_up_for_their_latest_below_it() -> None:
    records = Records({"a": [Block((1, 5, 105)), Block((7,))]})
    records.index.limit_times(100, at(0))
    assert records.loaded == []
    assert records.index.maximum_times(at(0), at(3)).tolist() == [5]
    assert records.index.latest_times(at(0)).tolist() == [7]
    assert records.loaded == [("a", 0, 3)]


def test_a_time_beyond_the_limit_counts_when_the_limit_has_passed_it_and_it_was_not_read_before() -> None:
    for read, latest in ((0, 105), (2, 105), (3, 60)):
        records = Records({"a": [Block((1, 5, 105, 60))]})
        records.index.limit_times(100, at(0))
        assert records.index.times_between("a", 0, 4).tolist() == [1, 5, NO_TIMESTAMP, 60]
        records.index.limit_times(200, at(read))
        assert records.index.maximum_times(at(read), at(4)).tolist() == [latest]


def test_event_times_of_several_blocks_are_those_of_each_where_few_are_kept() -> None:
    records = Records({"a": [Block((0,)), Block((10, 11))]}, cached_times=3)
    for number in range(3):
        records.index.times_between("a", number, number + 1)
    assert records.index.times_between("a", 0, 3).tolist() == [0, 10, 11]


@settings(max_examples=examples(200), deadline=None)
@given(data=st.data(), splits=SPLITS)
def test_whatever_the_limits_every_answer_is_that_of_the_times_they_left(data: st.DataObject, splits: Any) -> None:
    records, plain = Records(splits, cached_times=3), Records(splits)
    read = np.zeros(len(splits), np.int64)
    for _ in range(data.draw(st.integers(1, 3))):
        limit = data.draw(st.integers(0, 22))
        # Those that were read stay as they were judged then.
        records.index.limit_times(limit, read)
        for split_id, position in zip(records.index.split_ids, read.tolist(), strict=True):
            rest = [t if t < limit else NO_TIMESTAMP for t in records.times[split_id][position:]]
            plain.times[split_id] = plain.times[split_id][:position] + rest
        naive = Records({i: [Block(tuple(plain.times[i]))] if plain.times[i] else [] for i in plain.index.split_ids})
        ends = positions_in(data, records, read)
        for bound in (limit - 1, 7):
            assert records.index.cut(read, bound).tolist() == naive.index.cut(read, bound).tolist()
        for split_id, begin, end in zip(records.index.split_ids, read.tolist(), ends.tolist(), strict=True):
            assert records.index.times_between(split_id, begin, end).tolist() == plain.times[split_id][begin:end]
        latest = [max(t, default=NO_TIMESTAMP) for t in naive.unread(read)]
        assert (records.index.latest_times(read) >= latest).all()
        assert (records.index.latest_times(read) < limit).all() or limit == 0
        read = ends


def test_the_cache_holds_what_it_may_and_always_the_latest_block() -> None:
    records = Records({i: [Block((1, 3, 5))] for i in "abcd"}, cached_times=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExactTimes, "PORTION_TIMES", 3)
        for bound in (3, 1):
            assert records.index.cut(at(0, 0, 0, 0), bound).tolist() == [bound // 2 + 1] * 4
            assert records.index._loaded.exact.size <= 4 + 3
    assert len(records.loaded) == 8


def test_a_row_limit_keeps_no_more_times_than_the_limit_and_a_portion() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExactTimes, "PORTION_TIMES", 4)
        records = Records({f"s{i:02}": [Block(tuple(range(i, i + 40, 2)))] for i in range(30)}, cached_times=0)
        everything = sorted(time for times in records.times.values() for time in times)
        for max_rows in (1, 7, 100, 599):
            bound, ends = records.index.cut_rows(np.zeros(30, np.int64), MAX_WATERMARK, max_rows)
            rows = int(ends.sum())
            assert rows <= max_rows
            if everything[0] != everything[max_rows]:
                assert bound == everything[max_rows] - 1


# ---- row limits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tie", "cached", "few"), [(1, 100_000, 0), (1, 100_000, 1_000), (50, 100_000, 0), (1, 500, 0)]
)
def test_a_row_limit_over_many_splits_is_that_of_all_records_in_order(tie: int, cached: int, few: int) -> None:
    random = np.random.default_rng(tie + cached)
    splits = {}
    for i in range(60):
        # Some splits run ahead, some are dense; records are out of order within and across blocks.
        times = i % 7 * 300 + np.cumsum(random.integers(0, 3 + 20 * (i % 3), 120)) + random.integers(0, 60, 120)
        times //= tie
        splits[f"s{i:02}"] = [Block(tuple(block.tolist())) for block in np.split(times, [7, 30, 31, 90])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExactTimes, "PORTION_TIMES", 400)
        patch.setattr("alignment.index.blocks._FEW", few)
        patch.setattr("alignment.index.row_limit._FEW_BLOCKS", few)
        records = Records(splits, cached_times=cached)
        positions = np.zeros(60, np.int64)
        for max_rows in (1, 40, 700, 90, 2_000, 1_500, 100_000):
            order = [np.maximum.accumulate(times) for times in records.unread(positions)]
            everything = np.sort(np.concatenate(order))
            bound, ends = records.index.cut_rows(positions, MAX_WATERMARK, max_rows)
            if max_rows >= everything.size:
                assert (bound, ends.tolist()) == (MAX_WATERMARK, [120] * 60)
            elif everything[max_rows] > everything[0]:
                assert bound == everything[max_rows] - 1
                assert (ends - positions).tolist() == [int((latest <= bound).sum()) for latest in order]
            else:
                assert (ends - positions).sum() == max_rows
            positions = ends
            if max_rows == 700:
                records.index.forget_before(positions)


def test_after_a_restart_the_maximum_that_was_read_holds_back_no_record() -> None:
    index = EventTimeIndex(lambda split_id, start, stop: np.array([9, 1, 2, 3, 4, 5])[start:stop])
    index.add_split("a", 1)
    # What is left of a block that was told with its whole maximum, then a block behind it.
    index.append("a", [2, 3], [1, 3], [9, 5])
    bound, ends = index.cut_rows(at(1), 8, 3)
    assert (bound, ends.tolist()) == (3, [4])


def test_the_rest_of_a_begun_block_holds_back_what_follows() -> None:
    index = EventTimeIndex(lambda split_id, start, stop: np.array([25, 30, 31, 2, 3, 4])[start:stop])
    index.add_split("a")
    index.append("a", [3, 3], [25, 2], [31, 4])
    assert index.cut_rows(at(1), 10, 2)[1].tolist() == [1]
    assert index.cut_rows(at(1), 10, 2)[0] == 10, "it is not the row limit that holds the split"


def test_more_records_without_a_time_than_the_limit_are_shared_out() -> None:
    records = Records({"a": [Block((NO_TIMESTAMP,) * 4)] * 2, "b": [Block((5,))]})
    bound, ends = records.index.cut_rows(at(0, 0), MAX_WATERMARK, 3)
    assert (bound, ends.tolist()) == (NO_TIMESTAMP, [3, 0])


def test_ties_are_shared_evenly_whatever_the_names() -> None:
    records = Records({"a": [Block((5,) * 9)], "b": [Block((5,) * 9)], "c": [Block((5, 5, 7))]})
    assert records.index.cut_rows(at(0, 0, 0), MAX_WATERMARK, 8)[1].tolist() == [3, 3, 2]


def test_of_ties_that_cannot_be_divided_the_least_read_split_gets_the_rest() -> None:
    records = Records({"a": [Block((5,) * 9)], "b": [Block((5,) * 9)]})
    positions = at(0, 0)
    for expected in ([1, 0], [1, 1], [2, 1], [2, 2]):
        positions = records.index.cut_rows(positions, MAX_WATERMARK, 1)[1]
        assert positions.tolist() == expected


# ---- changes and mistakes -----------------------------------------------------------------------------------------


def test_a_split_that_comes_back_under_its_id_is_another() -> None:
    records = three_splits()
    records.index.cut(at(0, 0, 0), 2)
    records.times["a"] = [5, 5, 50, 5, 60, 50]
    records.index.remove(["a"])
    records.index.add_split("a")
    records.index.append("a", 6, 5, 60)
    assert records.index.cut(at(0, 0, 0), 50).tolist() == [4, 4, 2]


def test_records_that_are_not_there_any_more_are_forgotten_and_what_follows_follows_them() -> None:
    records = three_splits()
    records.index.forget_unread("a", 4)
    assert records.index.ends().tolist() == [4, 4, 2]
    assert records.index.cut(at(4, 0, 0), 100).tolist() == [4, 4, 2]
    assert records.index.nearest_time(at(4, 4, 0)) == 20
    records.index.forget_unread("b", 4)
    assert records.index.ends().tolist() == [4, 4, 2], "nothing of it was unread"
    records.times["a"] = [0, 0, 0, 0, 70, 30]
    records.index.append("a", 2, 30, 70)
    assert records.index.cut(at(4, 4, 2), 50).tolist() == [4, 4, 2]
    assert records.index.cut(at(5, 4, 2), 50).tolist() == [6, 4, 2]
    with pytest.raises(UnknownSplitError, match="nobody"):
        records.index.forget_unread("nobody", 0)


def test_removing_an_unknown_split_removes_none() -> None:
    records = three_splits()
    with pytest.raises(UnknownSplitError, match="nobody"):
        records.index.remove(["a", "nobody"])
    assert records.index.split_ids == ("a", "b", "c")
    assert records.index.ends().tolist() == [9, 4, 2]
    records.index.remove(["a", "a"])
    assert records.index.split_ids == ("b", "c")


def test_a_split_is_added_once() -> None:
    records = three_splits()
    with pytest.raises(DuplicateSplitError, match="'a'"):
        records.index.add_split("a")


def test_the_index_keeps_its_own_copy_of_what_it_is_told() -> None:
    low, high = np.array([1]), np.array([2])
    index = EventTimeIndex(lambda split_id, start, stop: np.array([1, 2]))
    index.add_split("a")
    index.append("a", 2, low, high)
    low[0], high[0] = -50, 99
    assert index.latest_times(at(0)).tolist() == [2]
    assert index.earliest_times(at(0)).tolist() == [1]


@pytest.mark.parametrize(
    ("rows", "low", "high", "rule"),
    [([0], [1], [2], "at least 1"), ([1], [3], [2], "min_us > max_us"), ([1, 2], [1], [2], "one length")],
)
def test_blocks_that_cannot_be_are_refused(rows: list[int], low: list[int], high: list[int], rule: str) -> None:
    records = three_splits()
    with pytest.raises(InvalidArgumentError, match=rule):
        records.index.append("a", rows, low, high)


def test_a_loader_that_gives_another_number_of_times_is_refused() -> None:
    index = EventTimeIndex(lambda split_id, start, stop: np.array([1]))
    index.add_split("a")
    index.append("a", 3, 1, 9)
    with pytest.raises(InvalidArgumentError, match="1 event times for 3 records of split 'a' from 0"):
        index.cut(at(0), 5)


def test_blocks_of_an_unknown_split_are_refused() -> None:
    with pytest.raises(UnknownSplitError, match="nobody"):
        three_splits().index.append("nobody", 1, 1, 1)
