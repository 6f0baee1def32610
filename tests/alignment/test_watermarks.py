from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK, WatermarkGenerator, WatermarkOutput, bounded_watermark

INT64 = st.integers(-(2**63), 2**63 - 1)


def test_the_default_batch_calls_a_plain_generator_for_each_record() -> None:
    seen: list[tuple[int, int]] = []

    class PerEvent(WatermarkGenerator):
        columns = ("k",)

        def on_event(self, record: Mapping[str, Any], timestamp: int, output: WatermarkOutput) -> None:
            seen.append((record["k"], timestamp))

        def on_periodic_emit(self, output: WatermarkOutput) -> None:
            """Nothing."""

        def snapshot_state(self) -> None:
            """Nothing."""

    nowhere: WatermarkOutput = None  # type: ignore[assignment]
    PerEvent().on_batch(pa.record_batch({"k": [7, 8, 9]}), np.array([3, 1, 2]), nowhere)
    assert seen == [(7, 3), (8, 1), (9, 2)]
    assert all(type(timestamp) is int for _, timestamp in seen)


@given(st.lists(INT64), st.integers(0, 2**63 - 1))
def test_the_bound_is_subtracted_without_wrapping(times: list[int], bound_us: int) -> None:
    expected = [max(MIN_WATERMARK, time - bound_us - 1) for time in times]
    assert [bounded_watermark(time, bound_us) for time in times] == expected
    together = bounded_watermark(np.array(times, dtype=np.int64), bound_us)
    assert together.dtype == np.int64
    assert together.tolist() == expected


def test_no_timestamp_gives_no_watermark() -> None:
    assert bounded_watermark(NO_TIMESTAMP, 5) == MIN_WATERMARK
    assert bounded_watermark(np.array([NO_TIMESTAMP, 20]), 5).tolist() == [MIN_WATERMARK, 14]
    assert bounded_watermark(MAX_WATERMARK, 0) == MAX_WATERMARK - 1
