"""What is checked in every micro-batch can fail: a right batch passes, and each wrong one is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from alignment import WatermarkStrategy
from alignment.combine import SplitStatus
from alignment.plan import WatermarkTable
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import LONG_AGO_US, MIN_WATERMARK
from streaming_source.api import RecordSplit
from streaming_source.coordinator import SourceState
from streaming_source.tools.testing.micro_batch import EmittedRecord, ReadBatch, check_batch

STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("10 us")


def state(sequence: int, splits: dict[str, tuple[int, int]], combined: int) -> SourceState[Any, Any]:
    """Of splits by id, each with its position and watermark."""
    ids = tuple(sorted(splits))
    watermarks = np.array([splits[i][1] for i in ids], np.int64)
    statuses = np.full(len(ids), SplitStatus.ACTIVE, np.int8)
    table = WatermarkTable(split_ids=ids, watermarks=watermarks, statuses=statuses, combined=combined)
    made = tuple(RecordSplit(i, splits[i][0], start=0) for i in ids)
    return SourceState(sequence, made, table, np.zeros(len(ids), np.int64), np.full(len(ids), LONG_AGO_US), None)


BEFORE = state(1, {"a": (2, 89), "b": (0, MIN_WATERMARK)}, MIN_WATERMARK)
AFTER = state(2, {"a": (5, 109), "b": (2, 139)}, 109)
A = [EmittedRecord("a", 2, 95), EmittedRecord("a", 3, 120), EmittedRecord("a", 4, NO_TIMESTAMP)]
B = [EmittedRecord("b", 0, 150), EmittedRecord("b", 1, 145)]
RIGHT = ReadBatch(2, (tuple(A), tuple(B)), 150, 109, 5)


def check(batch: ReadBatch = RIGHT, **given: Any) -> None:
    check_batch(batch, given.pop("before", BEFORE), given.pop("after", AFTER), STRATEGY, **given)


def reading(*by_reader: list[EmittedRecord]) -> ReadBatch:
    return replace(RIGHT, records=tuple(map(tuple, by_reader)), planned_rows=None)


def test_a_right_batch_passes() -> None:
    check()
    check(replace(RIGHT, bound_us=None, planned_rows=None))


def test_ranges_of_one_split_may_be_read_by_several_readers() -> None:
    check(reading(A[1:], A[:1] + B))


def test_positions_may_have_gaps() -> None:
    check(reading([EmittedRecord("a", 2, 95), EmittedRecord("a", 4, 120)], B))


@pytest.mark.parametrize(
    ("batch", "complaint"),
    [
        (reading(A[:1] + A[2:], B), "split 'a' has the watermark 109, its records give 89"),
        (replace(RIGHT, records=(tuple(A[:2]), tuple(B))), "5 records were planned, 4 were"),
        (reading(A[:2], B), "split 'a' was not all read"),
        (reading([], B), "split 'a' was not all read"),
        (reading(A, B, A[:1]), "split 'a': records came twice"),
        (reading([A[1], A[0], A[2]], B), "split 'a': reader 0 emitted 2 after 3"),
        (reading([EmittedRecord("a", 1, 90), *A], B), r"split 'a': read \[1\], planned were 2 to 5"),
        (reading([*A, EmittedRecord("a", 5, 120)], B), r"split 'a': read \[5\], planned were 2 to 5"),
        (reading(A, [*B, EmittedRecord("c", 0, 120)]), r"splits came that are not in work: \['c'\]"),
        (replace(RIGHT, bound_us=149), "split 'b' was read past 149"),
    ],
    ids=[
        "one in the middle is missing",
        "fewer than were planned",
        "the last one is missing",
        "a whole split is missing",
        "one came twice",
        "out of order",
        "one before the range",
        "one behind the range",
        "another split",
        "past the bound",
    ],
)
def test_a_batch_with_wrong_records_is_caught(batch: ReadBatch, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check(batch)


def test_a_watermark_that_goes_back_is_caught() -> None:
    with pytest.raises(AssertionError, match="the watermark went back"):
        check(before=state(1, {"a": (2, 89), "b": (0, MIN_WATERMARK)}, 110))


def test_a_split_that_goes_back_is_caught() -> None:
    with pytest.raises(AssertionError, match="split 'a' went back from 6 to 5"):
        check(before=state(1, {"a": (6, 89), "b": (0, MIN_WATERMARK)}, MIN_WATERMARK))


@pytest.mark.parametrize("watermark", [108, 110])
def test_a_split_s_watermark_that_its_records_do_not_give_is_caught(watermark: int) -> None:
    with pytest.raises(AssertionError, match=f"split 'a' has the watermark {watermark}, its records give 109"):
        check(after=state(2, {"a": (5, watermark), "b": (2, 139)}, 109))


def test_an_on_time_record_that_is_late_is_caught() -> None:
    announced = state(1, {"a": (2, 89), "b": (0, MIN_WATERMARK)}, 95)
    with pytest.raises(AssertionError, match="split 'a': the record at 95 is on time, and late to the watermark 95"):
        check(before=announced)


def test_a_late_record_is_excused_up_to_what_was_announced_when_its_split_joined() -> None:
    announced = state(1, {"a": (2, 89), "b": (0, MIN_WATERMARK)}, 95)
    check(before=announced, excused={"a": 95})
    with pytest.raises(AssertionError, match="the record at 95 is on time"):
        check(before=announced, excused={"a": 94, "b": 1000})


def test_a_record_that_is_late_in_its_own_split_needs_no_excuse() -> None:
    before = state(1, {"a": (2, 100), "b": (0, MIN_WATERMARK)}, 100)
    check(before=before)


def test_without_a_bound_on_disorder_only_records_are_checked() -> None:
    strategy = WatermarkStrategy.no_watermarks()
    check_batch(RIGHT, BEFORE, state(2, {"a": (5, 7), "b": (2, 7)}, 109), strategy)
    with pytest.raises(AssertionError, match="was not all read"):
        check_batch(reading([], B), BEFORE, AFTER, strategy)
