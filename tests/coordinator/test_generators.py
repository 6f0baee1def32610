"""Watermarks of splits: by a bound on out-of-orderness, and by generators of a user's own."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from alignment import WatermarkStrategy
from alignment.combine import SplitStatus
from alignment.exceptions import InvalidArgumentError
from alignment.split_generators import LatestWatermark
from alignment.watermarks import MIN_WATERMARK, WatermarkGenerator, WatermarkOutput
from streaming_source.testing import Pause, SourceHarness, TestingSource
from tests.coordinator.support import available

ACTIVE, IDLE = SplitStatus.ACTIVE, SplitStatus.IDLE


class Quiet(WatermarkGenerator):
    """Emits the latest event time; says after five periods without a record what a test wants it to say."""

    def __init__(self, after_five: str = "nothing") -> None:
        self.latest = MIN_WATERMARK
        self.quiet = 0
        self.after_five = after_five

    def on_event(self, record: Mapping[str, Any], timestamp: int, output: WatermarkOutput) -> None:
        self.latest = max(self.latest, timestamp)
        self.quiet = 0

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        self.quiet += 1
        if self.quiet == 1:
            output.emit_watermark(self.latest)
        elif self.quiet == 6 and self.after_five == "idle":
            output.mark_idle()
        elif self.quiet == 6 and self.after_five == "later":
            output.emit_watermark(self.latest + 1000)
        elif self.quiet == 11:
            output.mark_active()

    def snapshot_state(self) -> list[int]:
        return [self.latest, self.quiet]

    def restore_state(self, version: int, state: list[int]) -> None:
        self.latest, self.quiet = state


class Made:
    """A harness over generators that a test can look at."""

    def __init__(self, source: TestingSource, after_five: str = "nothing", **options: object) -> None:
        self.made: list[Quiet] = []
        self.source = source
        strategy = WatermarkStrategy.for_generator(lambda: self.make(after_five))
        self.harness = SourceHarness(source, strategy, clock=source.clock, **options)  # type: ignore[arg-type]

    def make(self, after_five: str) -> Quiet:
        self.made.append(Quiet(after_five))
        return self.made[-1]

    @property
    def generators(self) -> list[Quiet]:
        """Those that saw records, or were called for more."""
        return [generator for generator in self.made if generator.quiet]

    def let_pass(self, ms: int) -> int:
        """Poll every 10 ms, as Spark does; how many micro-batches there were."""
        batches = 0
        for _ in range(ms // 10):
            self.source.clock.advance("10 ms")
            batches += len(self.harness.run())
        return batches

    @property
    def statuses(self) -> dict[str, SplitStatus]:
        table = self.harness.state.table
        return dict(zip(table.split_ids, map(SplitStatus, table.statuses.tolist()), strict=True))


# ---- by a bound ------------------------------------------------------------------------------------------------------


def watermark_of(strategy: WatermarkStrategy, *times: int) -> int:
    """What a query announces of one split with these records."""
    harness = SourceHarness(TestingSource({"a": times}), strategy)
    harness.run()
    harness.close()
    return harness.watermark


def bounded(bound_us: int) -> WatermarkStrategy:
    return WatermarkStrategy.for_bounded_out_of_orderness(timedelta(microseconds=bound_us))


def test_wg_02_ascending_times_give_the_latest_less_one() -> None:
    assert watermark_of(WatermarkStrategy.for_monotonous_timestamps(), 1337) == 1336


def test_wg_04_without_a_record_there_is_no_watermark() -> None:
    assert watermark_of(bounded(10)) == MIN_WATERMARK


def test_wg_06_disorder_within_the_bound_follows_the_maximum() -> None:
    assert watermark_of(bounded(10), 12345, 12300, 12340, 12280) == 12334


def test_wg_08_a_negative_bound_is_refused_and_zero_is_not() -> None:
    with pytest.raises(InvalidArgumentError, match="must be at least 0"):
        bounded(-1)
    assert watermark_of(bounded(0), 7) == 6


def test_wg_10_no_watermarks_never_announces_any() -> None:
    assert watermark_of(WatermarkStrategy.no_watermarks(), 1, 2, 3, 4) == MIN_WATERMARK


# ---- what a generator says -------------------------------------------------------------------------------------------


def test_ot_04_a_watermark_that_was_emitted_only_goes_forward() -> None:
    said, seen = LatestWatermark(), []
    for watermark in (12, 17, 10, 18, 17, 18):
        said.emit_watermark(watermark)
        seen.append(said.watermark)
    assert seen == [12, 17, 17, 18, 18, 18]


def test_ot_08_event_times_out_of_order_give_a_rising_watermark() -> None:
    class PerEvent(WatermarkGenerator):
        def on_event(self, record: Mapping[str, Any], timestamp: int, output: WatermarkOutput) -> None:
            output.emit_watermark(timestamp)

        def on_periodic_emit(self, output: WatermarkOutput) -> None:
            """Nothing."""

        def snapshot_state(self) -> None:
            """Nothing."""

    source = TestingSource({"a": [100, 120, 110]})
    harness = SourceHarness(source, WatermarkStrategy.for_generator(PerEvent), max_rows=1)
    harness.run()
    # What is there is never late, whatever a generator emits.
    assert [batch.watermark for batch in harness.batches] == [100, 109, 120]
    harness.close()


def test_a_watermark_that_does_not_advance_still_ends_idleness() -> None:
    said = LatestWatermark()
    said.emit_watermark(50)
    said.mark_idle()
    assert said.is_idle
    said.emit_watermark(45)
    assert (said.watermark, said.is_idle) == (50, False)


# ---- when it is called -----------------------------------------------------------------------------------------------


def test_a_generator_is_called_every_200_ms_although_no_record_comes() -> None:
    made = Made(TestingSource({"a": [10], "b": []}))
    made.let_pass(500)
    before = [generator.quiet for generator in made.generators]
    assert made.let_pass(2000) == 0, "it says nothing new"
    assert [generator.quiet for generator in made.generators] == [calls + 10 for calls in before]
    made.harness.close()


def test_what_it_emits_between_records_makes_a_micro_batch_without_any() -> None:
    made = Made(TestingSource({"a": [10, 20], "b": [15]}), "later")
    made.let_pass(100)
    assert made.harness.watermark == 15
    assert made.let_pass(1500) > 0
    assert made.harness.batches[-1].all_records == []
    assert made.harness.watermark == 1015
    made.harness.restart()
    made.let_pass(100)
    assert made.harness.watermark == 1015
    made.harness.close()


def test_a_split_that_it_marks_idle_holds_nothing_back_until_it_is_active_again() -> None:
    later = [Pause("600 ms"), 20, Pause("600 ms"), 30, Pause("600 ms"), 40]
    made = Made(TestingSource({"a": [10], "b": later}), "idle")
    made.let_pass(900)
    assert made.harness.watermark == 10
    made.let_pass(800)
    assert made.statuses == {"a": IDLE, "b": ACTIVE}
    assert made.harness.watermark == 30
    made.let_pass(1000)
    assert made.statuses["a"] is ACTIVE, "by its own word"
    assert made.harness.watermark == 40
    made.harness.close()


def test_a_record_makes_a_split_active_that_was_marked_idle() -> None:
    made = Made(TestingSource({"a": [10], "b": [20]}), "idle")
    made.let_pass(1400)
    assert made.statuses == {"a": IDLE, "b": IDLE}
    assert made.harness.watermark == 20
    made.source.go_on("a", 5)
    made.let_pass(600)
    assert made.statuses == {"a": ACTIVE, "b": IDLE}
    assert made.harness.watermark == 20
    made.harness.close()


def test_a_split_with_something_to_read_is_not_idle_whatever_its_generator_says() -> None:
    made = Made(TestingSource({"a": [10, 11, 12], "b": [50] * 50}, records_per_fetch=100), "idle", max_rows=1)
    for _ in range(20):
        made.source.clock.advance("1 second")
        made.harness.run_batch()
        waits = {split_id for split_id, (at, end) in available(made.harness.coordinator).items() if at < end}
        assert not any(made.statuses[split_id] is IDLE for split_id in waits)
    made.harness.close()


def test_in_a_run_to_the_end_of_what_is_there_no_time_passes() -> None:
    made = Made(TestingSource({"a": [10], "b": [20]}), "later", available_now=True)
    made.let_pass(2000)
    assert made.harness.watermark == 10
    assert {generator.quiet for generator in made.generators} == {1}
    made.harness.close()


def test_what_a_generator_raises_ends_the_query() -> None:
    class Broken(Quiet):
        def on_periodic_emit(self, output: WatermarkOutput) -> None:
            raise ZeroDivisionError("by a user")

    source = TestingSource({"a": [10]})
    harness = SourceHarness(source, WatermarkStrategy.for_generator(Broken), clock=source.clock)
    with pytest.raises(ZeroDivisionError, match="by a user"):
        harness.run()
    harness.close()
