from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignment.exceptions import InvalidArgumentError
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    BoundedOutOfOrdernessWatermarks,
    MonotoneWatermarkOutput,
    MonotonousWatermarks,
    NoWatermarks,
    WatermarkGenerator,
    WatermarkOutput,
    bounded_watermark,
)

INT64 = st.integers(-(2**63), 2**63 - 1)


def feed(generator: WatermarkGenerator, times: list[int], output: WatermarkOutput) -> None:
    for time in times:
        generator.on_event(time, output)


def test_wg_02_ascending_times_give_the_latest_less_one(output: Any) -> None:
    generator = MonotonousWatermarks()
    feed(generator, [1337], output)
    generator.on_periodic_emit(output)
    assert output.said == [1336]


def test_wg_04_without_a_record_the_watermark_is_emitted_as_min(output: Any) -> None:
    BoundedOutOfOrdernessWatermarks(10).on_periodic_emit(output)
    assert output.said == [MIN_WATERMARK]


def test_wg_06_disorder_within_the_bound_follows_the_maximum(output: Any) -> None:
    generator = BoundedOutOfOrdernessWatermarks(10)
    feed(generator, [12345, 12300, 12340, 12280], output)
    assert output.said == []
    generator.on_periodic_emit(output)
    assert output.said == [12334]


def test_wg_08_a_negative_bound_is_refused_and_zero_is_not() -> None:
    with pytest.raises(InvalidArgumentError, match="bound_us = -1 must be at least 0"):
        BoundedOutOfOrdernessWatermarks(-1)
    assert BoundedOutOfOrdernessWatermarks(0).current_watermark == MIN_WATERMARK


def test_wg_10_no_watermarks_never_emits(output: Any) -> None:
    generator = NoWatermarks()
    feed(generator, [1, 2], output)
    generator.on_batch(np.array([3, 4]), output)
    generator.on_periodic_emit(output)
    assert output.said == []


def test_a_tick_without_news_emits_the_same_watermark_again(output: Any) -> None:
    generator = BoundedOutOfOrdernessWatermarks(10)
    feed(generator, [723456], output)
    generator.on_periodic_emit(output)
    generator.on_periodic_emit(output)
    assert output.said == [723445, 723445]


@given(st.lists(st.lists(INT64)), st.integers(0, 2**63 - 1))
def test_a_batch_does_what_its_records_would_one_by_one(batches: list[list[int]], bound_us: int) -> None:
    by_batch, by_record = (BoundedOutOfOrdernessWatermarks(bound_us) for _ in range(2))
    silent: Any = None
    for batch in batches:
        by_batch.on_batch(np.array(batch, dtype=np.int64), silent)
        feed(by_record, batch, silent)
        assert by_batch.current_watermark == by_record.current_watermark


def test_the_default_batch_calls_a_plain_generator_for_each_record(output: Any) -> None:
    class PerEvent(WatermarkGenerator):
        def on_event(self, timestamp: int, output: WatermarkOutput) -> None:
            output.emit_watermark(timestamp)

        def on_periodic_emit(self, output: WatermarkOutput) -> None:
            pass

    PerEvent().on_batch(np.array([3, 1, 2]), output)
    assert output.said == [3, 1, 2]
    assert all(type(watermark) is int for watermark in output.said)


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


def test_ot_04_a_terminal_output_only_goes_forward(output: Any) -> None:
    terminal = MonotoneWatermarkOutput(output)
    for watermark in (12, 17, 10, 18, 17, 18):
        terminal.emit_watermark(watermark)
    assert output.said == [12, 17, 18]
    assert terminal.current_watermark == 18


def test_ot_08_events_out_of_order_give_a_rising_sequence(output: Any) -> None:
    terminal = MonotoneWatermarkOutput(output)
    for watermark in (100, 120, 110):
        terminal.emit_watermark(watermark)
    assert output.said == [100, 120]


def test_a_terminal_output_says_a_status_once_and_active_before_the_watermark(output: Any) -> None:
    terminal = MonotoneWatermarkOutput(output)
    terminal.mark_active()
    terminal.mark_idle()
    terminal.mark_idle()
    assert terminal.is_idle
    terminal.emit_watermark(5)
    terminal.mark_active()
    assert output.said == ["IDLE", "ACTIVE", 5]


def test_a_watermark_that_does_not_advance_still_ends_idleness(output: Any) -> None:
    terminal = MonotoneWatermarkOutput(output)
    terminal.emit_watermark(50)
    terminal.mark_idle()
    terminal.emit_watermark(45)
    assert output.said == [50, "IDLE", "ACTIVE"]
    assert not terminal.is_idle
