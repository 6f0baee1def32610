"""Alignment, pausing and idleness as the planner keeps them, before anything is read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from alignment import WatermarkStrategy
from alignment.combine import SplitStatus
from alignment.watermarks import MIN_WATERMARK
from streaming_source.api import Fetching
from streaming_source.spark.datasource import AlignedDataSource
from streaming_source.spark.input_partition import AlignedInputPartition
from streaming_source.testing import EOF, Gap, Pause, SourceHarness, TestingSource
from streaming_source.tools.testing.source import Element
from tests.coordinator.support import STRATEGY, available, coordinator

ACTIVE, PAUSED, IDLE, FINISHED = SplitStatus


def aligned(drift: str) -> WatermarkStrategy:
    """A watermark one microsecond below the latest event time; idle after 100 ms."""
    return STRATEGY.with_idleness("100 ms").with_watermark_alignment("group", drift)


class Stages:
    """A query whose clock a test moves from one stage to the next."""

    def __init__(self, drift: str = "1 us", max_rows: int | None = None, **splits: list[Element]) -> None:
        self.source = TestingSource(splits, fetching=Fetching.per_split())
        self.reading = SourceHarness(self.source, aligned(drift), clock=self.source.clock, max_rows=max_rows)

    def until_ms(self, now_ms: int) -> dict[str, list[int]]:
        """Run all micro-batches up to a time; event times that were read in it, by split."""
        self.source.clock.advance_to(now_ms * 1000)
        read: dict[str, list[int]] = {}
        for batch in self.reading.run():
            for record in batch.all_records:
                read.setdefault(record.split_id, []).append(record.time_us)
        return read

    def statuses(self) -> dict[str, SplitStatus]:
        table = self.reading.state.table
        return {split: SplitStatus(status) for split, status in zip(table.split_ids, table.statuses, strict=True)}


# ---- splits ----------------------------------------------------------------------------------------------------------


def test_sp_02_a_split_whose_records_wait_is_not_idle_however_long_a_micro_batch_takes() -> None:
    stages = Stages(max_rows=1, a=[42, 44, 46], b=[43, 45, 47])
    for _ in range(4):
        assert stages.reading.plan()
        stages.source.clock.advance("10 minutes")
        stages.reading.commit(stages.reading.read())
        assert stages.statuses() == {"a": ACTIVE, "b": ACTIVE}
    assert stages.until_ms(40 * 60_000) == {"a": [46]}
    assert stages.statuses() == {"a": ACTIVE, "b": PAUSED}
    assert stages.until_ms(41 * 60_000) == {"b": [47]}
    assert stages.statuses() == {"a": IDLE, "b": ACTIVE}, "only now it had nothing left, for long enough"


def test_sp_04_a_split_that_is_ahead_waits_and_is_not_taken_for_idle() -> None:
    slow: list[Element] = [3]
    for _ in range(6):
        slow += [Pause("99 ms"), 3]
    stages = Stages("2 us", a=[5, 105], b=[*slow, Pause("99 ms"), 105])
    for step in range(7):
        assert stages.until_ms(99 * step) == {"b": [3]}
        assert stages.statuses() == {"a": PAUSED, "b": ACTIVE}
        assert stages.reading.watermark == 2, "nothing above the limit of 4 was read"
    assert stages.until_ms(99 * 7) == {"a": [5, 105], "b": [105]}
    assert stages.statuses() == {"a": ACTIVE, "b": ACTIVE}


def test_sp_06_from_active_over_paused_and_idle_and_back() -> None:
    stages = Stages(a=[5, 6], b=[3, Pause("250 ms"), 8])
    assert stages.until_ms(0) == {"b": [3]}
    assert stages.statuses() == {"a": PAUSED, "b": ACTIVE}
    # The one that held the other back is idle: it holds it no longer.
    assert stages.until_ms(200) == {"a": [5, 6]}
    assert stages.statuses() == {"a": ACTIVE, "b": IDLE}
    # It comes back with a record beyond the limit, and is paused at once.
    assert stages.until_ms(250) == {}
    assert stages.statuses() == {"a": ACTIVE, "b": PAUSED}
    assert stages.until_ms(400) == {"b": [8]}
    assert stages.statuses() == {"a": IDLE, "b": ACTIVE}


def test_sp_08_an_idle_split_beyond_the_limit_is_idle_and_paused_with_its_next_record() -> None:
    stages = Stages(
        a=[5, 6, 7, Pause("450 ms"), 8],
        b=[1, Pause("400 ms"), 2, Pause("150 ms"), 2],
    )
    assert stages.until_ms(0) == {"b": [1]}
    assert stages.until_ms(150) == {"a": [5, 6, 7]}
    stages.until_ms(300)
    assert stages.statuses() == {"a": IDLE, "b": IDLE}
    # The other one is back, and far behind: the limit is 2 now, the watermark of the idle one 6.
    assert stages.until_ms(400) == {"b": [2]}
    assert stages.statuses() == {"a": IDLE, "b": ACTIVE}
    assert stages.until_ms(600) == {"b": [2]}
    assert stages.statuses() == {"a": PAUSED, "b": ACTIVE}


def test_sp_10_each_split_in_work_tells_how_far_it_is_and_none_that_is_finished() -> None:
    source = TestingSource({"a": [1000, 2000], "b": [Gap(3), 1500]}, bounded=True)
    reading = SourceHarness(source, STRATEGY, clock=source.clock, max_rows=1)
    planning = reading.coordinator
    assert available(planning) == {}
    watermarks = []
    while reading.run_batch() is not None:
        table = reading.state.table
        watermarks.append(dict(zip(table.split_ids, table.watermarks.tolist(), strict=True)))
        assert available(planning).keys() == {
            split for split, status in zip(table.split_ids, table.statuses, strict=True) if status != FINISHED
        }
    assert watermarks[0] == {"a": 999, "b": MIN_WATERMARK}
    assert watermarks[1] == {"a": 999, "b": 1499}
    assert available(planning) == {}


# ---- sources ---------------------------------------------------------------------------------------------------------


def test_co_04_a_planner_that_was_closed_before_it_started_does_nothing_and_its_successor_all() -> None:
    source = TestingSource({"a": [1, 2]})
    looked: list[int] = []
    discover = source.discover
    source.discover = lambda: (looked.append(len(looked)), discover())[1]  # type: ignore[method-assign]
    first = coordinator(source)
    first.restore(first.state)
    first.close()
    assert looked == []
    second = coordinator(source)
    second.restore(second.state)
    assert second.advance().table.combined == 1
    assert looked == [0]
    second.close()


@pytest.mark.parametrize("max_rows", [None, 7])
def test_co_10_with_no_more_splits_alignment_goes_on_and_all_records_come(max_rows: int | None) -> None:
    source = TestingSource({"low": list(range(51)), "high": list(range(51, 101))}, bounded=True)
    reading = SourceHarness(source, aligned("10 us"), clock=source.clock, readers=2, max_rows=max_rows)
    batches = reading.run()
    times = [record.time_us for batch in batches for record in batch.all_records]
    assert sorted(times) == list(range(101))


def test_the_ends_of_splits_cost_a_bounded_source_no_micro_batches() -> None:
    """Each of them stopped the plan a drift behind it: a year of hourly files was 8,760 micro-batches."""
    splits: dict[str, list[Element]] = {f"{i:02}": [*range(100 * i, 100 * (i + 1)), EOF] for i in range(20)}
    source = TestingSource(splits, bounded=True, records_per_fetch=2_000)
    reading = SourceHarness(source, aligned("10 us"), clock=source.clock, readers=2)
    batches = [batch for batch in reading.run() if batch.all_records]
    assert sum(len(batch.all_records) for batch in batches) == 2_000
    assert len(batches) <= 2


def test_al_10_a_source_without_splits_says_nothing_whatever_time_passes() -> None:
    source = TestingSource({})
    planning = coordinator(source, aligned("10 us"))
    before = planning.state
    planning.restore(before)
    for _ in range(10):
        assert planning.advance() is before
        source.clock.advance("100 ms")
    planning.close()


# ---- one micro-batch -------------------------------------------------------------------------------------------------


def test_ot_02_records_are_read_under_the_watermark_that_was_announced_before_them() -> None:
    source = TestingSource({"a": [12_345, Pause("1 second"), 12_345, 12_344]})
    reading = SourceHarness(source, STRATEGY, clock=source.clock)
    first = reading.run_batch()
    assert first is not None
    assert reading.state.late.tolist() == [0]
    assert first.watermark == 12_344, "announced with the record, and held against the next ones"
    source.clock.advance("2 seconds")
    second = reading.run_batch()
    assert second is not None
    assert [record.time_us for record in second.all_records] == [12_345, 12_344]
    assert reading.state.late.tolist() == [1]


def test_the_message_about_late_records_names_the_splits_that_have_most(caplog: pytest.LogCaptureFixture) -> None:
    late = {f"s{i:02d}": [100, Pause("1 second"), *[1] * (i + 1)] for i in range(12)}
    reading = SourceHarness(source := TestingSource(late), STRATEGY, clock=source.clock)
    assert reading.run_batch()
    source.clock.advance("2 seconds")
    assert reading.run_batch()
    (said,) = [record.getMessage() for record in caplog.records if "late records" in record.getMessage()]
    assert said.startswith("78 late records")
    assert "in 12 splits" in said
    assert "{'s11': 12, 's10': 11," in said
    assert "'s02': 3}" in said
    assert "s01" not in said


def test_ot_14_a_batch_query_has_no_watermark(tmp_path: Path) -> None:
    for name in ("a", "b"):
        pq.write_table(pa.table({"ts": pa.array([10, 20, 30]).cast(pa.timestamp("us"))}), tmp_path / f"{name}.parquet")
    options = {"path": str(tmp_path), "eventTimeColumn": "ts", "splitBy": "file", "watermarkRows": "true"}
    source = AlignedDataSource.of_format("aligned_files", options)
    parts = source.batch_reader(source.schema()).partitions()
    assert sum(len(part.splits) for part in parts if isinstance(part, AlignedInputPartition)) == 2
    for part in parts:
        assert isinstance(part, AlignedInputPartition)
        assert part.watermark_row_us is None
        assert part.announced == MIN_WATERMARK
