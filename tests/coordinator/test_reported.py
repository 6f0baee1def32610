"""Sources whose event times are learnt from reports: what is read, what is announced, and what a lost report costs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignment import WatermarkStrategy
from alignment.combine import SplitStatus
from alignment.events import RangeReport
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from streaming_source.api import RecordSplit, SourceReaderContext, SplitReader
from streaming_source.exceptions import OptionError, SourceError, UnsupportedOperationError
from streaming_source.testing import EOF, Gap, Pause, SourceHarness, TestingSource
from streaming_source.tools.testing.source import Element
from tests.examples import examples

BOUND = 5
STEPS = ("batch", "batch", "plan", "second", "restart", "lose", "rewind", "scale", "append")


def all_arrive(reports: list[RangeReport]) -> list[RangeReport]:
    return reports


def strategy(drift_us: int | None = None, idle: str | None = None) -> WatermarkStrategy:
    bounded = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(microseconds=BOUND))
    bounded = bounded if idle is None else bounded.with_idleness(idle)
    if drift_us is None:
        return bounded
    return bounded.with_watermark_alignment("own", timedelta(microseconds=drift_us))


def reading(source: TestingSource, using: WatermarkStrategy | None = None, **options: object) -> SourceHarness:
    options = {"reports": all_arrive, **options}
    return SourceHarness(source, using or strategy(), clock=source.clock, **options)  # type: ignore[arg-type]


def settle(harness: SourceHarness, source: TestingSource, seconds: int = 3) -> None:
    """Read all there is, and let what is asked again be asked."""
    for _ in range(seconds):
        harness.run()
        source.clock.advance("1 second")
    harness.run()


def test_the_watermark_is_announced_after_the_records_by_a_micro_batch_without_any() -> None:
    source = TestingSource({"a": [10, 30, 20], "b": [50, 40]})
    harness = reading(source)
    first, second = harness.run()
    assert (len(first.all_records), first.watermark) == (5, MIN_WATERMARK)
    assert (len(second.all_records), second.watermark) == (0, 30 - BOUND - 1)
    harness.close()


def test_a_split_that_is_ahead_is_paused_until_the_slowest_has_caught_up() -> None:
    rows = 9000
    source = TestingSource({"fast": [100 * n for n in range(rows)], "slow": list(range(rows))}, records_per_fetch=1000)
    harness = reading(source, strategy(drift_us=1000))
    statuses = []
    while harness.run_batch() is not None:
        table = harness.state.table
        statuses.append(dict(zip(table.split_ids, map(SplitStatus, table.statuses.tolist()), strict=True)))
    assert statuses[1] == {"fast": SplitStatus.PAUSED, "slow": SplitStatus.ACTIVE}
    assert not any(status["slow"] is SplitStatus.PAUSED for status in statuses)
    # It waits for one that has nothing left, and is not idle.
    assert len(harness.records()["fast"]) == 4096
    assert len(harness.records()["slow"]) == rows
    harness.close()


def test_a_lost_report_is_waited_for_by_the_watermark_alone(caplog: pytest.LogCaptureFixture) -> None:
    source = TestingSource({"a": [10, 20], "b": [10, 30]})
    arrives = False
    harness = reading(source, reports=lambda reports: reports if arrives else [])
    settle(harness, source)
    assert harness.records() == source.expected()
    assert harness.watermark == MIN_WATERMARK
    assert "of 2 splits ('a', 'b') not all that was read last is reported" in caplog.text
    arrives = True
    source.go_on("a", 40)
    source.go_on("b", 50)
    settle(harness, source)
    assert harness.watermark == 40 - BOUND - 1
    harness.close()


def test_records_that_are_not_reported_yet_are_not_said_to_have_no_event_times() -> None:
    source = TestingSource({"a": [10, 20, 30, 40], "none": [None, None, None, None]})
    harness = reading(source, max_rows=4)

    def invalid() -> dict[str, int]:
        explanation = harness.coordinator.explain()
        assert explanation is not None
        return {split.split_id: split.invalid for split in explanation.splits}

    assert harness.plan()
    assert invalid() == {"a": 0, "none": 0}
    harness.commit(harness.read())
    harness.coordinator.advance()
    # The report that these two had none was taken; those of the next ones are still to come.
    assert invalid() == {"a": 0, "none": 0}
    harness.restart(loses_plan=True)
    settle(harness, source)
    # Two were read before the restart.
    assert invalid() == {"a": 0, "none": 2}
    harness.close()


def test_a_split_with_nothing_left_to_read_is_idle_after_the_timeout_even_if_its_report_was_lost() -> None:
    source = TestingSource({"a": [10, 20], "b": [10, 30]})
    harness = reading(
        source, strategy(idle="10 seconds"), reports=lambda reports: [r for r in reports if r.split_id == "b"]
    )
    settle(harness, source, 9)
    assert harness.watermark == MIN_WATERMARK
    source.go_on("b", 40)
    settle(harness, source, 4)
    assert harness.watermark == 40 - BOUND - 1
    harness.close()


def test_a_run_to_the_end_of_what_is_there_reads_it_and_announces_what_it_gave() -> None:
    source = TestingSource({"a": [10, 20, 30], "b": [1000, 2000]})
    harness = reading(source, strategy(drift_us=1), available_now=True)
    harness.run()
    assert harness.records() == source.expected()
    assert harness.watermark == 2000 - BOUND - 1 or harness.watermark == 30 - BOUND - 1
    source.go_on("a", 40)
    assert harness.run() == [], "what comes later is for the next run"
    harness.close()


class _Stopped(TestingSource):
    """Its splits say where they stop."""

    def discover(self) -> list[RecordSplit]:
        return [split.until(len(self.scripts[split.split_id].records)) for split in super().discover()]


@pytest.mark.parametrize("step", ["restart", "again", "lose", "rewind"])
def test_a_bounded_source_goes_on_from_a_state_with_a_finished_split(step: str) -> None:
    source = _Stopped({"a": [10, 20], "b": list(range(40))}, bounded=True)
    harness = reading(source, max_rows=10)
    for _ in range(20):
        if step != "restart" and harness.plan():
            if step == "again":
                harness.restart()
            elif SplitStatus.FINISHED in harness.state.table.statuses:
                # What was planned is given up, and the state before it has the finished split.
                harness.commit(harness.read())
                if harness.plan():
                    harness.rewind() if step == "rewind" else harness.restart(loses_plan=True)
        harness.run_batch()
        if step == "restart":
            harness.restart()
        source.clock.advance("1 second")
    assert harness.records() == source.expected()
    assert harness.watermark == MAX_WATERMARK
    harness.close()


def test_a_bounded_source_whose_reader_alone_knows_its_ends_is_read_to_the_end() -> None:
    source = TestingSource({"short": [0, 1], "long": list(range(0, 600, 10))}, bounded=True)
    harness = reading(source, strategy(drift_us=50))
    settle(harness, source)
    assert harness.records() == source.expected()
    assert harness.watermark == MAX_WATERMARK
    harness.close()


def test_a_split_that_has_ended_holds_nobody_in_a_source_that_goes_on() -> None:
    source = TestingSource({"ends": [0, 1, Pause("5 seconds"), EOF], "goes-on": list(range(0, 600, 10))})
    harness = reading(source, strategy(drift_us=50), max_rows=10)
    settle(harness, source, 4)
    assert harness.watermark == 1 - BOUND - 1
    settle(harness, source, 20)
    assert harness.records() == source.expected()
    assert harness.state.table.split_ids == ("goes-on",)
    assert harness.watermark == 590 - BOUND - 1
    harness.close()


@pytest.mark.parametrize("bounded", [False, True])
def test_a_run_to_the_end_of_what_is_there_knows_which_splits_have_ended(bounded: bool) -> None:
    source = TestingSource({"ends": [0, 1, EOF], "goes-on": [500]}, bounded=bounded)
    harness = reading(source, strategy(), available_now=True)
    harness.run()
    assert harness.records() == source.expected()
    assert harness.watermark == (MAX_WATERMARK if bounded else 500 - BOUND - 1)
    harness.close()


@settings(max_examples=examples(60), deadline=None)
@given(
    steps=st.lists(st.sampled_from(STEPS), max_size=14),
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=3),
    pauses=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_whatever_happens_each_split_ends_once_and_with_all_its_records(
    steps: list[str], lengths: list[int], pauses: bool, seed: int
) -> None:
    late_end: list[Element] = [Pause("2 seconds")] if pauses else []
    source = TestingSource({f"s{i}": [*range(n), *late_end, EOF] for i, n in enumerate(lengths)}, bounded=True)
    chance = random.Random(seed)
    harness = reading(
        source, strategy(drift_us=2), max_rows=3, reports=lambda reports: [r for r in reports if chance.random() < 0.5]
    )
    for step in steps:
        if step in ("batch", "plan") and (harness.is_planned or harness.plan()) and step == "batch":
            harness.commit(harness.read())
        elif step == "second":
            source.clock.advance("1 second")
        elif step == "rewind" and harness.is_planned:
            harness.rewind()
        elif step in ("restart", "lose"):
            harness.restart(loses_plan=step == "lose")
    settle(harness, source, 30)
    read = harness.records()
    assert {split_id: read.get(split_id, []) for split_id in source.scripts} == source.expected()
    assert harness.watermark == MAX_WATERMARK


class _EndsByRecord(TestingSource):
    end_of_stream = cast("Any", object())


def test_splits_that_end_with_a_record_are_refused() -> None:
    with pytest.raises(OptionError, match="indexing = 'off': testing has records that end their splits"):
        reading(_EndsByRecord({"a": [1]})).plan()


class _CannotBeLookedAt(TestingSource):
    """Its reader works for the tasks alone, which are given a stop."""

    def create_split_reader(self, context: SourceReaderContext) -> SplitReader[RecordSplit]:
        reader = super().create_split_reader(context)
        take = reader.handle_splits_changes

        def refuse(change: Any) -> None:
            if any(split.stop is None for split in change.splits):
                raise ConnectionError("no way from here")
            take(change)

        reader.handle_splits_changes = refuse  # type: ignore[method-assign]
        return reader


def test_a_split_that_cannot_be_looked_at_is_read_on_and_said_to_be_so(caplog: pytest.LogCaptureFixture) -> None:
    source = _CannotBeLookedAt({"a": [10, 20, EOF], "b": [10, 30]})
    harness = reading(source, strategy(idle="10 seconds"), available_now=True)
    harness.run()
    assert harness.records() == source.expected()
    assert "whether split 'a' has ended could not be found out" in caplog.text
    assert "no way from here" in caplog.text
    harness.close()


class _StoppedBefore(TestingSource):
    """Its splits stop at their third record, and more follow."""

    def discover(self) -> list[RecordSplit]:
        return [split.until(3) for split in super().discover()]


def test_a_split_is_not_read_past_its_stop_where_records_go_on() -> None:
    source = _StoppedBefore({"a": list(range(10))})
    harness = reading(source)
    settle(harness, source)
    assert harness.records() == {"a": [(0, 0), (1, 1), (2, 2)]}
    harness.close()


class _Lost(TestingSource):
    """Of its split b nothing is there any more, and where it ends is not known."""

    def end_positions(self, splits: Sequence[RecordSplit]) -> list[int | None]:
        ends = super().end_positions(splits)
        return [None if split.split_id == "b" else end for split, end in zip(splits, ends, strict=True)]


def test_a_run_to_the_end_does_not_wait_for_a_split_that_is_gone() -> None:
    source = _Lost({"a": [10, 20], "b": [10, 20]})
    harness = reading(source, available_now=True)
    harness.coordinator.start()
    harness.coordinator.host.abandon_split("b")
    harness.run()
    assert harness.records() == {"a": [(0, 10), (1, 20)]}
    assert harness.watermark == 20 - BOUND - 1
    harness.close()


class _Silent(TestingSource):
    def end_positions(self, splits: Sequence[RecordSplit]) -> list[int]:
        return []


class _Unasked(TestingSource):
    def end_positions(self, splits: Sequence[RecordSplit]) -> list[int | None]:
        return list(super(TestingSource, self).end_positions(splits))


def test_an_enumerator_that_does_not_say_where_records_end_is_refused() -> None:
    with pytest.raises(UnsupportedOperationError, match=r"_Unasked: split 'a' has no stop.* Override end_positions"):
        reading(_Unasked({"a": [1]})).plan()


def test_an_answer_for_fewer_splits_is_an_error() -> None:
    with pytest.raises(SourceError, match="gave 0 positions for 1 splits"):
        reading(_Silent({"a": [1]})).plan()


def naive_watermark(harness: SourceHarness, splits: dict[str, list[Element]]) -> int:
    """What the records give that were read so far, if all of them were reported."""
    read = harness.records()
    latest = [max((time for _, time in read.get(split_id, [])), default=NO_TIMESTAMP) for split_id in splits]
    return min(MIN_WATERMARK if time == NO_TIMESTAMP else time - BOUND - 1 for time in latest)


@st.composite
def scripts(draw: st.DrawFn) -> dict[str, list[Element]]:
    record = st.integers(0, 60)
    gap = st.integers(1, 3).map(Gap)
    return {
        name: draw(st.lists(st.one_of(record, record, st.none(), gap), max_size=12))
        for name in "abc"[: draw(st.integers(1, 3))]
    }


@settings(max_examples=examples(150), deadline=None)
@given(
    splits=scripts(),
    steps=st.lists(st.sampled_from(STEPS), max_size=14),
    drift_us=st.none() | st.sampled_from([0, 7, 100]),
    max_rows=st.none() | st.integers(1, 6),
    seed=st.integers(0, 2**20),
)
def test_whatever_happens_every_record_is_read_once_and_no_on_time_one_late(
    splits: dict[str, list[Element]], steps: list[str], drift_us: int | None, max_rows: int | None, seed: int
) -> None:
    source, chance = TestingSource(splits), random.Random(seed)
    seen: list[RangeReport] = []

    def some_arrive(reports: list[RangeReport]) -> list[RangeReport]:
        """Lost, late, twice, in another order."""
        seen.extend(reports)
        chance.shuffle(seen)
        return [report for report in seen if chance.random() < 0.5]

    arriving = [some_arrive]
    harness = reading(source, strategy(drift_us), max_rows=max_rows, reports=lambda reports: arriving[0](reports))
    for step in steps:
        if step in ("batch", "plan") and (harness.is_planned or harness.plan()) and step == "batch":
            harness.commit(harness.read())
            assert harness.watermark <= naive_watermark(harness, splits)
        elif step == "second":
            source.clock.advance("1 second")
        elif step == "rewind" and harness.is_planned:
            harness.rewind()
        elif step in ("restart", "lose"):
            harness.restart(loses_plan=step == "lose")
        elif step == "scale":
            harness.restart(readers=harness.readers % 3 + 1)
        elif step == "append":
            source.go_on(chance.choice(sorted(splits)), chance.randrange(60))
    arriving[0] = all_arrive
    for split_id in splits:
        source.go_on(split_id, 1000)
    settle(harness, source, 40)
    read = harness.records()
    assert {split_id: read.get(split_id, []) for split_id in splits} == source.expected()
    assert harness.watermark == 1000 - BOUND - 1 != MAX_WATERMARK
    harness.close()


class _FinishesWithItsLastRecord(TestingSource):
    """Its `SplitReader` finishes a split with the last record, and not when it begins behind that."""

    def create_split_reader(self, context: SourceReaderContext) -> SplitReader[RecordSplit]:
        reader = super().create_split_reader(context)
        available = reader._available  # type: ignore[attr-defined]

        def with_records(split_id: str, first: int) -> tuple[int, bool]:
            stop, has_ended = available(split_id, first)
            return stop, has_ended and stop > first

        reader._available = with_records  # type: ignore[attr-defined]
        return reader


def test_a_split_that_ends_while_a_run_to_the_end_goes_on_does_not_hold_the_watermark() -> None:
    source = TestingSource({"short": [10, 20, Pause("10 seconds"), EOF], "long": list(range(10, 500, 10))})
    harness = reading(source, available_now=True)
    assert harness.run_batch() is not None
    source.clock.advance("10 seconds")
    harness.run()
    assert harness.records() == source.expected()
    assert harness.watermark == 490 - BOUND - 1
    harness.close()


def test_a_split_that_its_reader_finishes_with_its_last_record_does_not_hold_the_watermark() -> None:
    source = _FinishesWithItsLastRecord({"short": [10, 20, EOF], "long": list(range(10, 500, 10))})
    harness = reading(source, available_now=True)
    harness.run()
    assert harness.records() == source.expected()
    assert harness.watermark == 490 - BOUND - 1
    harness.close()
