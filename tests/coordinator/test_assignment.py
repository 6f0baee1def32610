"""Ranges are shared out evenly, in order within a reader, and the same way every time."""

from __future__ import annotations

from itertools import pairwise, product

from hypothesis import given
from hypothesis import strategies as st

from streaming_source.api import SplitRange
from streaming_source.connectors.files.split import FileSplit
from streaming_source.connectors.kafka.split import KafkaSplit
from streaming_source.coordinator import assign_ranges
from streaming_source.coordinator.ranges import MOST_PARTS

RANGES = st.lists(st.integers(1, 1000), max_size=12).map(
    lambda rows: [SplitRange(FileSplit(f"s{number:02d}"), n) for number, n in enumerate(rows)]
)


@given(RANGES, st.integers(1, 5))
def test_every_range_goes_to_one_reader_and_no_reader_is_left_empty(
    ranges: list[SplitRange[FileSplit]], readers: int
) -> None:
    assigned = assign_ranges(ranges, readers)
    assert sorted(split.split_id for splits in assigned for split in splits) == [r.split.split_id for r in ranges]
    assert len(assigned) == min(readers, len(ranges))
    assert all(assigned)
    assert all(splits == sorted(splits, key=lambda split: split.split_id) for splits in assigned)
    assert assigned == assign_ranges(ranges, readers)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(1, 3))
def test_no_reader_has_more_than_four_thirds_of_the_best_possible(rows: list[int], readers: int) -> None:
    ranges = [SplitRange(FileSplit(str(number)), n) for number, n in enumerate(rows)]
    largest = max(sum(rows[int(split.split_id)] for split in splits) for splits in assign_ranges(ranges, readers))
    best = min(
        max(sum(n for n, reader in zip(rows, chosen, strict=True) if reader == r) for r in range(readers))
        for chosen in product(range(readers), repeat=len(rows))
    )
    assert 3 * largest <= 4 * best


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(1, 3), st.integers(1, 20))
def test_with_a_limit_no_reader_has_more_and_every_record_is_read_once(
    rows: list[int], readers: int, limit: int
) -> None:
    ranges = [SplitRange(KafkaSplit("s", i, 5, 5, n + 5), n) for i, n in enumerate(rows)]
    assigned = assign_ranges(ranges, readers, limit)
    assert max(sum((split.stop or 0) - split.position for split in splits) for splits in assigned) <= limit
    read = [(split.split_id, at) for splits in assigned for split in splits for at in range(split.position, split.stop)]
    assert sorted(read) == [(f"s-{i}", at) for i, n in enumerate(rows) for at in range(5, n + 5)]


def test_a_range_over_a_wide_gap_is_cut_into_no_more_tasks_than_spark_can_run() -> None:
    width = 2**40
    assigned = assign_ranges([SplitRange(KafkaSplit("s", 0, 5, 5, width + 5), width)], 2, 10_000)
    assert len(assigned) == MOST_PARTS
    parts = sorted((split.position, split.stop or 0) for splits in assigned for split in splits)
    assert (parts[0][0], parts[-1][1]) == (5, width + 5)
    assert all(before[1] == after[0] for before, after in pairwise(parts))
