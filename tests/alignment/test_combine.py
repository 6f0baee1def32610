from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignment.combine import CombinedWatermark, SplitStatus, SplitWatermarks, combine_watermarks
from alignment.exceptions import DuplicateSplitError, UnknownSplitError
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK

ACTIVE, PAUSED, IDLE, FINISHED = SplitStatus


def registered(split_id: str, initial: int = MIN_WATERMARK) -> SplitWatermarks:
    splits = SplitWatermarks()
    splits.register(split_id, initial)
    return splits


# Ids.


def test_registering_twice_is_an_error_and_changes_nothing() -> None:
    splits = registered("a", 5)
    with pytest.raises(DuplicateSplitError, match="'a' is registered already"):
        splits.register("a", 9)
    assert splits.combined == 5


@pytest.mark.parametrize(
    "method",
    ["unregister", "mark_idle", "mark_active"],
)
def test_an_unknown_split_is_an_error(method: str) -> None:
    with pytest.raises(UnknownSplitError, match="split_id = 'b' is not registered"):
        getattr(registered("a"), method)("b")


def test_an_update_of_an_unknown_split_is_an_error() -> None:
    with pytest.raises(UnknownSplitError):
        registered("a").update("b", 5)


def test_numpy_watermarks_are_taken_as_plain_ints() -> None:
    splits = SplitWatermarks()
    splits.register("a", np.int64(5))  # type: ignore[arg-type]
    splits.update("a", np.int64(7))  # type: ignore[arg-type]
    assert type(splits.combined) is int


# The pure rule over arrays.


@pytest.mark.parametrize(
    ("watermarks", "statuses", "expected"),
    [
        ([], [], CombinedWatermark(MIN_WATERMARK, True)),
        ([3, 5, 1], [ACTIVE, PAUSED, IDLE], CombinedWatermark(3, False)),
        ([7, 5, 1], [ACTIVE, PAUSED, FINISHED], CombinedWatermark(5, False)),
        ([7, 5, 9], [IDLE, IDLE, FINISHED], CombinedWatermark(7, True)),
        ([7, 5], [FINISHED, FINISHED], CombinedWatermark(MIN_WATERMARK, True)),
        ([MAX_WATERMARK], [ACTIVE], CombinedWatermark(MAX_WATERMARK, False)),
    ],
)
def test_the_rule_over_arrays(watermarks: list[int], statuses: list[int], expected: CombinedWatermark) -> None:
    assert combine_watermarks(np.array(watermarks, np.int64), np.array(statuses, np.int8)) == expected


@given(st.lists(st.tuples(st.integers(MIN_WATERMARK, MAX_WATERMARK), st.sampled_from(SplitStatus))))
def test_the_rule_over_arrays_is_the_rule_over_a_list(splits: list[tuple[int, SplitStatus]]) -> None:
    counting = [watermark for watermark, status in splits if status in (ACTIVE, PAUSED)]
    idle = [watermark for watermark, status in splits if status is IDLE]
    expected = (min(counting), False) if counting else (max(idle, default=MIN_WATERMARK), True)
    combined = combine_watermarks(np.array([w for w, _ in splits], np.int64), np.array([s for _, s in splits], np.int8))
    assert (combined.value, combined.is_idle) == expected
    assert type(combined.value) is int
