"""Generators that see records: what they are given, and that a restart at any step gives the same watermarks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from alignment import WatermarkStrategy
from alignment.exceptions import InvalidArgumentError
from alignment.recording import Recorder, replay
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK, WatermarkGenerator, WatermarkOutput
from streaming_source.api import BlockEmitter, RecordBlock, Source, SourceOutput, SourceReaderContext, SplitState
from streaming_source.connectors.files import FileSource
from streaming_source.coordinator import SourceCoordinator, SourceState
from streaming_source.exceptions import OptionError
from streaming_source.testing import Gap, Pause, SourceHarness, TestingSource

TIMES = {"a": [3, 9, 1, 20, 17, 30, 41, 40, 55], "b": [5, 2, Gap(3), 8, 24, 33, 38, 60, 52]}


class EverySecond(WatermarkGenerator):
    """Each record of an even value is a marker: all before it are in. Keeps the latest event time and a count."""

    columns = ("value",)
    state_version = 3

    def __init__(self) -> None:
        self.latest, self.count = MIN_WATERMARK, 0

    def on_event(self, record: Mapping[str, Any], timestamp: int, output: WatermarkOutput) -> None:
        self.latest, self.count = max(self.latest, timestamp), self.count + 1
        if record["value"] % 2 == 0:
            # Of what it saw since the beginning: lost state would show.
            output.emit_watermark(self.latest - 60 + self.count)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Nothing."""

    def snapshot_state(self) -> dict[str, int]:
        return {"latest": self.latest, "count": self.count}

    def restore_state(self, version: int, state: dict[str, int]) -> None:
        assert version == 3
        self.latest, self.count = state["latest"], state["count"]


def scripted(_: Path) -> Source[Any, Any]:
    return TestingSource(TIMES, records_per_fetch=3)


def files(folder: Path) -> Source[Any, Any]:
    for split, elements in TIMES.items():
        times = [time for time in elements if isinstance(time, int)]
        (folder / "in" / split).mkdir(parents=True, exist_ok=True)
        table = pa.table({"ts": pa.array(times, pa.timestamp("us", "UTC")), "value": np.arange(len(times))})
        pq.write_table(table, folder / "in" / split / "f.parquet", row_group_size=4)
    return FileSource(str(folder / "in"))


SOURCES = {"read ahead": scripted, "indexed": files}


def strategy_of(kind: type[WatermarkGenerator]) -> WatermarkStrategy:
    return WatermarkStrategy.for_generator(kind).with_timestamp_assigner("ts")


def states(harness: SourceHarness) -> dict[str, Any]:
    """Of the last micro-batch: positions, watermarks and what the generators keep."""
    state = harness.state
    kept = [None if one is None else (one.position, one.version, one.text) for one in state.generators]
    columns = state.table.split_ids, [split.position for split in state.splits], state.table.watermarks.tolist(), kept
    return {"combined": state.table.combined, "splits": list(zip(*columns, strict=True))}


@pytest.mark.parametrize("kind", SOURCES)
def test_a_restart_at_any_step_gives_the_same_watermarks_bit_by_bit(tmp_path: Path, kind: str) -> None:
    def run(restart: Callable[[SourceHarness, int], object]) -> list[dict[str, Any]]:
        harness = SourceHarness(SOURCES[kind](tmp_path), strategy_of(EverySecond), max_rows=2)
        seen = []
        for step in range(30):
            restart(harness, 2 * step)
            if not harness.plan():
                if 2 * step in restarts:
                    continue
                # A trigger that finds nothing takes a while: one is enough.
                break
            restart(harness, 2 * step + 1)
            if harness._before is None and not harness.plan():
                continue
            seen.append(states(harness))
            harness.commit(harness.read())
        harness.close()
        return [state for state, before in zip(seen, [None, *seen], strict=False) if state != before]

    restarts = range(14)
    expected = run(lambda *_: None)
    assert len(expected) > 6
    # Counts of all records, and the latest of all: what is kept is what was seen.
    assert [split[3] for split in expected[-1]["splits"]] == [
        (None, 3, json.dumps({"count": count, "latest": latest}, separators=(",", ":")))
        for count, latest in ((9, 55), (8, 60))
    ]
    for at in restarts:
        lost = at % 4 == 3
        assert run(lambda harness, step, at=at, lost=lost: step == at and harness.restart(loses_plan=lost)) == expected
    assert run(lambda harness, step: harness.restart()) == expected


class Seeing(WatermarkGenerator):
    """Keeps all that it is given."""

    columns = ("value", "ts")
    seen: ClassVar[list[tuple[Any, ...]]] = []

    def on_batch(self, records: pa.RecordBatch, timestamps: Any, output: WatermarkOutput) -> None:
        assert records.schema.names == ["value", "ts"]
        values = records.column("value").to_pylist()
        Seeing.seen += zip(values, records.column("ts").cast(pa.int64()).to_pylist(), timestamps.tolist(), strict=True)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Nothing."""

    def snapshot_state(self) -> None:
        """Nothing."""


class SeeingTimes(Seeing):
    """Names no column."""

    columns = ()

    def on_batch(self, records: pa.RecordBatch, timestamps: Any, output: WatermarkOutput) -> None:
        assert (records.num_columns, records.num_rows) == (0, len(timestamps))
        Seeing.seen += [(time,) for time in timestamps.tolist()]


def test_with_columns_it_sees_every_record_and_without_the_valid_event_times() -> None:
    for kind, expected in (
        (Seeing, [(0, 4, 4), (1, None, NO_TIMESTAMP), (4, 6, 6)]),
        (SeeingTimes, [(4,), (6,)]),
    ):
        Seeing.seen = []
        harness = SourceHarness(TestingSource({"a": [4, None, Gap(2), 6]}), strategy_of(kind))
        harness.run()
        harness.close()
        assert Seeing.seen == expected


def test_a_strategy_calls_its_generators_as_often_as_it_says() -> None:
    class Counting(EverySecond):
        calls = 0

        def on_periodic_emit(self, output: WatermarkOutput) -> None:
            Counting.calls += 1

    source = TestingSource({"a": [1]})
    strategy = strategy_of(Counting).with_auto_watermark_interval("1 second")
    harness = SourceHarness(source, strategy, clock=source.clock)
    harness.run()
    before = Counting.calls
    for _ in range(500):
        source.clock.advance("10 ms")
        harness.run()
    assert Counting.calls - before == 5
    harness.close()


def test_what_is_no_generator_or_no_state_is_refused_with_a_way_out() -> None:
    class Blind(WatermarkGenerator):
        def on_periodic_emit(self, output: WatermarkOutput) -> None:
            """Nothing."""

        def snapshot_state(self) -> Any:
            return None

    class Forgetful(EverySecond):
        restore_state = WatermarkGenerator.restore_state

    class Shapeless(EverySecond):
        def snapshot_state(self) -> Any:
            return object()

    with pytest.raises(InvalidArgumentError, match="Blind sees no record: it must override on_event or on_batch"):
        SourceHarness(scripted(Path()), strategy_of(Blind))
    with pytest.raises(InvalidArgumentError, match=r"Shapeless.snapshot_state returned .* must be a value of JSON"):
        SourceHarness(scripted(Path()), strategy_of(Shapeless)).run()
    harness = SourceHarness(scripted(Path()), strategy_of(Forgetful))
    harness.run()
    harness.restart()
    with pytest.raises(InvalidArgumentError, match="Forgetful does not take it: override restore_state"):
        harness.run()


# ---- watermarks of the source itself ---------------------------------------------------------------------------------


class LowWaterLog(TestingSource):
    """A log that carries its own low watermark: behind each fetch, what the first record of the fetch had, less 1."""

    def create_record_emitter(self, context: SourceReaderContext) -> BlockEmitter:
        return _LowWater()


class _LowWater(BlockEmitter):
    def emit_record(self, element: RecordBlock, output: SourceOutput, split_state: SplitState[Any]) -> None:
        super().emit_record(element, output, split_state)
        first = element.batch.column("ts").cast(pa.int64())[0].as_py()
        if first >= 0:
            output.emit_watermark(first - 1)
        else:
            output.mark_idle()


OWN = WatermarkStrategy.from_source_watermarks().with_timestamp_assigner("ts")


@pytest.mark.parametrize("restarts", [False, True])
def test_a_watermark_of_the_source_counts_when_all_records_before_it_are_read(restarts: bool) -> None:
    splits = {"a": [10, 12, 20, 21, 30, 31], "b": [11, 13, 22, 23]}
    source = LowWaterLog(splits, records_per_fetch=1 if restarts else 2)
    harness = SourceHarness(source, OWN, max_rows=1, clock=source.clock)
    seen = {}
    for _ in range(16):
        batch = harness.run_batch()
        watermarks = harness.state.table.watermarks
        by_split = {s.split_id: (s.position, w) for s, w in zip(harness.state.splits, watermarks, strict=True)}
        seen.update({(i, int(p)): int(w) for i, (p, w) in by_split.items()})
        assert batch is None or batch.watermark == min(int(w) for _, w in by_split.values())
        if restarts:
            harness.restart()
    said = {("a", 2): 9, ("a", 4): 19, ("a", 6): 29, ("b", 2): 10, ("b", 4): 21}
    if restarts:
        said = {("a", 1): 9, ("a", 2): 11, ("a", 3): 19, ("a", 6): 30, ("b", 2): 12, ("b", 4): 22}
    assert {key: seen[key] for key in said} == said
    if not restarts:
        assert (seen["a", 1], seen["a", 3]) == (MIN_WATERMARK, 9), "it covers all of a fetch"
    assert harness.watermark == said["b", 4]
    harness.close()


def test_a_split_that_the_source_marks_idle_holds_nothing_until_its_next_record() -> None:
    source = LowWaterLog({"a": [10, -1, Pause("2 seconds"), 40], "b": [20, 30]}, records_per_fetch=1)
    harness = SourceHarness(source, OWN, clock=source.clock)
    harness.run()
    for _ in range(100):
        source.clock.advance("10 ms")
        harness.run()
    assert harness.watermark == 29
    assert harness.state.table.statuses.tolist() == [2, 0]
    source.clock.advance("1 second")
    harness.run()
    assert harness.state.table.watermarks.tolist() == [39, 29]
    assert harness.state.table.statuses.tolist() == [0, 0]
    harness.close()


def test_a_watermark_without_records_makes_a_micro_batch_without_any() -> None:
    source = LowWaterLog({"a": [10]}, records_per_fetch=1)
    harness = SourceHarness(source, OWN, clock=source.clock)
    harness.run()
    scan = harness.coordinator.runtime.event_times._scans["a"]  # type: ignore[attr-defined]
    scan.seen.add_emitted(0, 77, False)
    source.clock.advance("200 ms")
    batches = harness.run()
    assert [batch.all_records for batch in batches] == [[]]
    assert harness.watermark == 77
    harness.close()


def test_under_another_strategy_it_is_ignored_with_a_line_for_who_looks(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "streaming_source.api.reader")
    bounded = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("ts")
    harness = SourceHarness(LowWaterLog({"a": [10, 12]}, records_per_fetch=1), bounded)
    harness.run()
    assert harness.watermark == 11
    assert "counts under WatermarkStrategy.from_source_watermarks() alone" in caplog.text
    harness.close()


def test_a_source_with_an_index_of_its_own_has_no_watermarks_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"aligned_files has an index of event times, and emits no watermarks"):
        SourceHarness(files(tmp_path), OWN)


# ---- the log of an engine ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["read ahead", "indexed", "of the source"])
def test_a_log_replays_what_generators_said_without_any(tmp_path: Path, kind: str) -> None:
    log = tmp_path / "log"
    source = LowWaterLog(TIMES) if kind == "of the source" else SOURCES[kind](tmp_path)
    strategy = OWN if kind == "of the source" else strategy_of(EverySecond)
    harness = SourceHarness(source, strategy, max_rows=3, recorder=Recorder(log))
    for _ in range(20):
        harness.run_batch()
        harness.clock.advance("100 ms")
        if len(harness.batches) == 3:
            harness.restart()
    harness.close()
    plans = list(replay(log.read_text().splitlines()))
    assert len(plans) > 5
    assert any(plan.recorded["after"]["combined"] > MIN_WATERMARK for plan in plans)
    assert [plan.replayed for plan in plans] == [plan.recorded for plan in plans]


@pytest.mark.parametrize("limit_us", [None, 50], ids=["no limit", "a limit"])
def test_a_restart_remembers_nothing_of_splits_that_ended_before_their_last_report(limit_us: int | None) -> None:
    source = TestingSource(TIMES, bounded=True)

    def coordinator() -> SourceCoordinator[Any, Any]:
        return SourceHarness(source, strategy_of(EverySecond), clock=source.clock, reports=list).coordinator

    first = coordinator()
    first.restore(SourceState.initial())
    while first.state.table.combined < MAX_WATERMARK:
        # Nothing is read, so nothing is reported.
        first.advance()
        source.clock.advance("1 second")
    ended = replace(first.state, time_limit_us=limit_us)
    assert [one.position for one in ended.generators if one is not None] == [0, 0]
    first.close()
    second = coordinator()
    second.restore(ended)
    second.start()
    second.validate()
    second.close()
