"""The harness: its steps, what survives a restart, and that it does the same every time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from alignment import WatermarkStrategy
from alignment.combine import SplitStatus
from alignment.engine import Engine
from alignment.events import Event
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import FAR_US, MAX_WATERMARK, MIN_WATERMARK
from streaming_source.api import (
    BlockEmitter,
    InputStatus,
    RecordBlock,
    RecordSplit,
    SourceOutput,
    SourceReader,
    SourceReaderContext,
    SplitReader,
    SplitsAddition,
    SplitState,
)
from streaming_source.exceptions import UnsupportedOperationError
from streaming_source.testing import CollectingOutput, Gap, Pause, ReadBatch, SourceHarness, TestingSource
from streaming_source.tools.testing.micro_batch import create_inline_reader

ROOT = Path(__file__).resolve().parents[2]
STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("10 us")
SKEWED = {"a": [100, 110, 105, 300], "b": [Gap(3), 200, 210, None, 220], "c": [150, 400]}


def harness(source: TestingSource, strategy: WatermarkStrategy = STRATEGY, **options: Any) -> SourceHarness:
    return SourceHarness(source, strategy, clock=source.clock, **options)


def bounded(**options: Any) -> SourceHarness:
    return harness(TestingSource(SKEWED, bounded=True), **options)


def positions(batch: ReadBatch) -> list[tuple[str, int]]:
    return sorted((record.split_id, record.position) for record in batch.all_records)


# ---- steps ---------------------------------------------------------------------------------------------------------


def test_a_micro_batch_is_planned_read_and_committed() -> None:
    reading = bounded(max_rows=3)
    assert reading.plan()
    assert reading.is_planned
    batch = reading.read()
    assert reading.records() == {}
    reading.commit(batch)
    assert not reading.is_planned
    assert reading.batches == [batch]
    assert positions(batch) == [("a", 0), ("a", 1), ("a", 2)]


def test_what_was_planned_must_be_read_before_the_next_plan() -> None:
    reading = bounded(max_rows=3)
    assert reading.plan()
    after = reading.state
    assert not reading.plan()
    assert reading.state is after


def test_a_micro_batch_is_the_same_when_it_is_read_again() -> None:
    reading = bounded()
    reading.plan()
    assert reading.read() == reading.read()


def test_where_there_is_nothing_to_do_nothing_is_planned() -> None:
    reading = harness(TestingSource({"a": [1]}))
    assert len(reading.run()) == 1
    assert not reading.plan()
    assert reading.run_batch() is None
    assert reading.run() == []


def test_a_batch_says_what_was_planned() -> None:
    first, *_, last = bounded(max_rows=4).run()
    assert first.planned_rows == len(first.all_records) == 4
    assert first.bound_us is not None
    assert max(record.time_us for record in first.all_records) <= first.bound_us
    assert last.watermark == MAX_WATERMARK


@pytest.mark.parametrize("bounded", [True, False], ids=["of a split that ends", "of a split that goes on"])
def test_ranges_are_shared_out_among_the_readers(bounded: bool) -> None:
    reading = harness(TestingSource({"a": list(range(20))}, bounded=bounded), readers=4, min_rows=5)
    reading.plan()
    assert [len(records) for records in reading.read().records] == [6, 6, 6, 2]
    alone = harness(TestingSource({"a": list(range(20))}, bounded=bounded), readers=4, min_rows=20)
    alone.plan()
    assert [len(records) for records in alone.read().records] == [20]


def test_a_plan_that_is_given_up_is_made_anew_with_what_has_come_since() -> None:
    source = TestingSource({"a": [1, Pause("5 seconds"), 2]})
    reading = harness(source)
    reading.plan()
    source.clock.advance("5 seconds")
    reading.rewind()
    assert reading.state.sequence == 0
    (batch,) = [batch for batch in reading.run() if batch.all_records]
    assert positions(batch) == [("a", 0), ("a", 1)]


@pytest.mark.parametrize("loses_plan", [True, False])
def test_after_a_restart_a_plan_is_there_if_it_was_written_down(loses_plan: bool) -> None:
    source = TestingSource({"a": [1, Pause("5 seconds"), 2]})
    reading = harness(source)
    reading.plan()
    source.clock.advance("5 seconds")
    reading.restart(loses_plan=loses_plan)
    assert reading.is_planned is not loses_plan
    first = reading.run_batch()
    assert first is not None
    assert len(first.all_records) == (2 if loses_plan else 1)
    reading.run()
    assert reading.records() == source.expected()


def test_a_restart_brings_back_what_was_written_and_nothing_else() -> None:
    reading = bounded(max_rows=3)
    reading.run_batch()
    before = reading.state
    reading.restart(readers=5)
    assert reading.readers == 5
    assert reading.state is not before
    assert (reading.state.splits, reading.state.sequence) == (before.splits, before.sequence)
    assert reading.coordinator.host.enumerator is not None


def test_a_restart_loses_what_the_serializer_does_not_write() -> None:
    class Forgetful(TestingSource):
        @property
        def split_serializer(self) -> Any:
            whole = super().split_serializer

            class Origin(type(whole)):  # type: ignore[misc]
                def deserialize(self, version: int, data: bytes) -> RecordSplit:
                    split: RecordSplit = super().deserialize(version, data)
                    return split.origin()

            return Origin(RecordSplit)

    reading = harness(Forgetful(SKEWED, bounded=True), max_rows=3)
    reading.run_batch()
    with pytest.raises(AssertionError, match="loses positions"):
        reading.restart()


def test_the_enumerator_hears_of_a_commit_one_micro_batch_later() -> None:
    heard: list[int] = []

    class Listening(TestingSource):
        def create_enumerator(self, context: Any) -> Any:
            enumerator = super().create_enumerator(context)
            enumerator.notify_checkpoint_complete = heard.append  # type: ignore[method-assign]
            return enumerator

    reading = harness(Listening(SKEWED, bounded=True), max_rows=3)
    reading.run_batch()
    assert heard == []
    reading.run_batch()
    assert heard == [1]


def test_everything_is_read_at_once_as_by_a_batch_query() -> None:
    source = TestingSource(SKEWED, bounded=True)
    records = harness(source, readers=2).read_at_once()
    assert sorted(records) == sorted((i, p, t) for i, of_split in source.expected().items() for p, t in of_split)


def test_available_now_ends_with_what_was_there() -> None:
    source = TestingSource({"a": [1, 2, Pause("5 seconds"), 3], "b": [100]})
    reading = harness(source, available_now=True)
    reading.run()
    source.clock.advance("1 minute")
    reading.run()
    assert reading.records() == {"a": [(0, 1), (1, 2)], "b": [(0, 100)]}


def test_in_the_plain_mode_no_split_is_read_further_ahead_than_the_bound_on_disorder() -> None:
    source = TestingSource({"a": [0, 5, 50, 55], "b": [0, 2]})
    plain, exact = harness(source, exact=False), harness(source)
    plain.run()
    exact.run()
    # `b` reaches 2 - 10 - 1 and no further: what is later than that and the bound waits in `a`.
    assert plain.records() == {"a": [(0, 0)], "b": [(0, 0), (1, 2)]}
    assert exact.records() == source.expected()


def test_with_the_exact_watermark_times_before_1970_and_after_3999_are_none_as_in_a_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def apply_and_look(engine: Engine, event: Event) -> None:
        apply(engine, event)
        engine.validate()

    # Whoever looks after an event finds what it says.
    apply = Engine.apply
    monkeypatch.setattr(Engine, "apply", apply_and_look)
    source = TestingSource({"a": [100, FAR_US + 5, -1, 110]})
    reading = harness(source, max_rows=2)
    reading.run()
    assert reading.watermark == 110 - 10 - 1
    assert [time for _, time in reading.records()["a"]] == [100, NO_TIMESTAMP, NO_TIMESTAMP, 110]


def test_records_that_came_twice_are_told() -> None:
    reading = bounded()
    reading.plan()
    batch = reading.read()
    reading.commit(batch)
    reading.commit(batch)
    with pytest.raises(AssertionError, match=r"split 'a': the records at \[0, 1, 2, 3\] came more than once"):
        reading.records()


# ---- readers -------------------------------------------------------------------------------------------------------


def test_a_hook_sees_each_poll_and_its_error_is_the_reader_s() -> None:
    reading = bounded(readers=1)
    reading.plan()
    polls: list[int] = []
    reading.read(lambda reader, poll: polls.append(poll))
    assert polls == list(range(len(polls)))

    def fail(reader: SourceReader[Any], poll: int) -> None:
        if poll == 2:
            raise RuntimeError("the task failed")

    with pytest.raises(RuntimeError, match="the task failed"):
        reading.read(fail)
    reading.commit(reading.read())


class _Stubborn(SplitReader[RecordSplit]):
    """Brings nothing of what was planned."""

    def __init__(self, reader: SplitReader[RecordSplit]) -> None:
        self._reader = reader

    def fetch(self) -> Any:
        return self._reader.fetch()

    def handle_splits_changes(self, change: Any) -> None:
        if any(split.stop is None for split in change.splits):
            self._reader.handle_splits_changes(change)

    def pause_or_resume_splits(self, to_pause: Any, to_resume: Any) -> None:
        """Nothing is read anyway."""


class _StubbornSource(TestingSource):
    def create_split_reader(self, context: SourceReaderContext) -> SplitReader[RecordSplit]:
        return _Stubborn(super().create_split_reader(context))


def test_records_that_were_planned_and_do_not_come_are_an_error() -> None:
    reading = harness(_StubbornSource({"a": [1]}), readers=1, patience_s=0.01)
    reading.plan()
    with pytest.raises(AssertionError, match=r"waits for records of \['a'\] that were planned"):
        reading.read()


def test_inline_and_on_threads_the_same_is_read() -> None:
    inline, on_threads = bounded(max_rows=3).run(), bounded(max_rows=3, threads=True).run()
    assert list(map(positions, inline)) == list(map(positions, on_threads))


def test_an_inline_reader_does_the_same_steps_every_time() -> None:
    def steps() -> list[tuple[InputStatus, int]]:
        source = TestingSource(SKEWED, bounded=True)
        reader = create_inline_reader(source, SourceReaderContext(source.schema()))
        reader.add_splits([RecordSplit(i) for i in SKEWED])
        reader.notify_no_more_splits()
        reader.start()
        output, done = CollectingOutput(STRATEGY.timestamp_assigner), []
        while not done or done[-1][0] is not InputStatus.END_OF_INPUT:
            done.append((reader.poll_next(output), len(output.records)))
        reader.close()
        return done

    first = steps()
    assert steps() == first
    assert first[-1][1] == 10


def test_an_output_takes_records_only_into_open_splits_with_as_many_positions_and_the_columns_asked_for() -> None:
    schema = pa.schema([("ts", pa.timestamp("us", "UTC"))])
    output = CollectingOutput(STRATEGY.timestamp_assigner, schema)
    batch = pa.record_batch([pa.array([1, 2], pa.timestamp("us", "UTC"))], schema=schema)
    times = [1, 2]
    split = output.create_output_for_split("a")
    split.collect(batch, np.array(times), positions=7)
    assert output.records == [("a", 7, 1), ("a", 8, 2)]
    with pytest.raises(AssertionError, match="2 records were emitted with 3 positions"):
        split.collect(batch, np.array(times), positions=np.array([1, 2, 3]))
    with pytest.raises(AssertionError, match="was given the columns"):
        split.collect(batch.rename_columns(["x"]), np.array(times), positions=9)
    output.release_output_for_split("a")
    with pytest.raises(AssertionError, match="after its output was released"):
        split.collect(batch, np.array(times), positions=9)
    with pytest.raises(UnsupportedOperationError, match="create_output_for_split"):
        output.collect(batch, np.array(times), positions=9)


# ---- watermarks ----------------------------------------------------------------------------------------------------


def test_the_watermark_is_that_of_the_slowest_split() -> None:
    reading = harness(TestingSource({"a": [1000, 2000], "b": [500]}))
    assert reading.watermark == MIN_WATERMARK
    reading.run()
    assert reading.watermark == 500 - 10 - 1


def test_a_split_that_joins_late_is_excused_for_what_was_announced_and_counted() -> None:
    source = TestingSource({"a": [1000], "b": [100, 900, 2000]}, appears={"b": "5 seconds"})
    reading = harness(source)
    reading.run()
    assert reading.watermark == 989
    source.clock.advance("5 seconds")
    reading.run()
    assert reading.records() == source.expected()
    assert reading.state.late.tolist() == [0, 2]


def test_an_idle_split_is_left_out_and_comes_back() -> None:
    source = TestingSource({"a": [1000, Pause("30 seconds"), 5000], "b": [100, Pause("60 seconds"), 200, 9000]})
    reading = harness(source, STRATEGY.with_idleness("10 seconds"))
    seen: list[tuple[int, list[str]]] = []
    for _ in range(70):
        reading.run()
        statuses = [SplitStatus(status).name for status in reading.state.table.statuses]
        if not seen or seen[-1] != (reading.watermark, statuses):
            seen.append((reading.watermark, statuses))
        source.clock.advance("1 second")
    assert reading.records() == source.expected()
    assert [watermark for watermark, _ in seen] == sorted(watermark for watermark, _ in seen)
    assert seen[0] == (89, ["ACTIVE", "ACTIVE"])
    assert (989, ["IDLE", "IDLE"]) in seen
    assert (4989, ["ACTIVE", "IDLE"]) in seen
    assert reading.state.late.tolist() == [0, 1]


# ---- what is needed to import it -----------------------------------------------------------------------------------


def test_only_the_suite_for_connectors_needs_pytest() -> None:
    code = "import sys; sys.modules['pytest'] = None; import streaming_source.testing"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    refused = subprocess.run(
        [sys.executable, "-c", f"{code}.conformance"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "ModuleNotFoundError" in refused.stderr


def test_a_block_of_the_source_for_tests_has_what_the_script_says() -> None:
    source = TestingSource({"a": [5, Gap(2), 6]}, records_per_fetch=5)
    reader = source.create_split_reader(SourceReaderContext(source.schema()))
    reader.handle_splits_changes(SplitsAddition([RecordSplit("a")]))
    records = reader.fetch()
    assert records.next_split() == "a"
    block = records.next_record_from_split()
    assert isinstance(block, RecordBlock)
    assert not isinstance(block.positions, int)
    assert block.positions.tolist() == block.batch.column("value").to_pylist() == [0, 3]
    assert block.batch.column("ts").cast(pa.int64()).to_pylist() == [5, 6]


# ---- what a reader may not say ------------------------------------------------------------------------------------


class _Muttering(BlockEmitter):
    def __init__(self, says: Callable[[SourceOutput], None]) -> None:
        self._says = says

    def emit_record(self, element: RecordBlock, output: SourceOutput, split_state: SplitState[Any]) -> None:
        super().emit_record(element, output, split_state)
        self._says(output)


@pytest.mark.parametrize("reports", [None, list], ids=["read ahead", "reported"])
@pytest.mark.parametrize(
    "says", [lambda output: output.emit_watermark(50), lambda output: output.mark_idle()], ids=["watermark", "idle"]
)
def test_what_a_reader_says_of_watermarks_is_ignored_unless_the_strategy_uses_it(
    says: Callable[[SourceOutput], None], reports: Any
) -> None:
    class Source(TestingSource):
        def create_record_emitter(self, context: SourceReaderContext) -> BlockEmitter:
            return _Muttering(says)

    plain, muttering = (harness(kind({"a": [1, 2]}), reports=reports) for kind in (TestingSource, Source))
    assert [batch.watermark for batch in muttering.run()] == [batch.watermark for batch in plain.run()]
