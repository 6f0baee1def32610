"""Many finite files through the real enumerator and planner: a small offset, little memory, every record once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from alignment.plan import PlanningRules
from alignment.strategy import WatermarkStrategy
from alignment.timestamps import FieldTimestampAssigner
from alignment.watermarks import MAX_WATERMARK
from streaming_source.coordinator import ReadRules, SourceCoordinator, SourceState
from streaming_source.coordinator.rules import FrameOptions
from streaming_source.spark.offsets import OffsetCodec
from streaming_source.testing import FakeClock
from streaming_source.tools.testing.fakes import InlineWorkers
from tests.files.simulated import ROWS, SECOND, ManyFiles, number_of, simulated_source

BOUND_S = 20
MIB = 1024 * 1024


@dataclass
class Consumed:
    """What came of reading it all."""

    starts: np.ndarray
    offset_bytes: list[int]
    splits: list[int]
    state: SourceState[Any, Any]


def coordinator(files: ManyFiles, **arguments: Any) -> SourceCoordinator[Any, Any]:
    source = simulated_source(files, **arguments)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(f"{BOUND_S} seconds")
    strategy = strategy.with_timestamp_assigner(FieldTimestampAssigner("t", "us"))
    planning = PlanningRules(out_of_orderness_us=BOUND_S * SECOND, bounded=True)
    clock = FakeClock()
    workers = InlineWorkers(clock)
    return SourceCoordinator(
        source,
        ReadRules(strategy, planning, FrameOptions(watermark_rows=True)),
        source.schema(),
        clock.now_us,
        readers=2,
        workers=workers,
    )


def states(files: ManyFiles, restart_every: int, **arguments: Any) -> Iterator[tuple[Any, Any, str, Any]]:
    """`(state before, after, its offset, ranges between)`; now and then all but the offset is lost."""
    codec = OffsetCodec(simulated_source(files, **arguments))
    planner = coordinator(files, **arguments)
    planner.restore(planner.state)
    while True:
        before = planner.state
        after = planner.advance()
        if after is before:
            return
        offset = json.dumps(codec.encode(after), separators=(",", ":"))
        ranges = planner.ranges(before, after, 2, 1)
        yield before, after, offset, ranges
        planner.notify_committed(before.sequence)
        # Every restart announces the watermark again, also when there is nothing left to read.
        if restart_every and after.sequence % restart_every == 0 and ranges:
            planner.close()
            planner = coordinator(files, **arguments)
            planner.restore(codec.decode(json.loads(offset)))


def consume(files: ManyFiles, restart_every: int = 0, **arguments: Any) -> Consumed:
    """Read all there is; how often each record was, by its number, and what each offset had."""
    read = np.zeros((files.files, ROWS), np.int8)
    sizes, splits = [], []
    for before, after, offset, ranges in states(files, restart_every, **arguments):
        assert after.table.combined >= before.table.combined
        sizes.append(len(offset))
        splits.append(len(after.splits))
        for part in ranges:
            for file_range in part.split.ranges:
                number = number_of(file_range.file.path)
                rows = slice(file_range.start, file_range.stop)
                read[number, rows] += 1
                time_us = (files.begin_s(number) + file_range.start) * SECOND
                assert time_us > before.table.combined, "an on-time record comes behind the watermark"
        final = after
    return Consumed(read, sizes, splits, final)


CASES = {
    "by event time, with a log": {"file_order": "eventTime"},
    "by name": {"file_order": "name"},
    "by modification time": {"file_order": "modificationTime"},
}


def check_small(consumed: Consumed, beside_bytes: int) -> None:
    """At most 100 bytes a split, and a constant, at every micro-batch; below 64 KiB."""
    assert (consumed.starts == 1).all()
    assert consumed.state.table.combined == MAX_WATERMARK
    assert max(consumed.offset_bytes) < 64 * 1024
    assert (np.array(consumed.offset_bytes) <= 100 * np.array(consumed.splits) + beside_bytes).all()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("files", [2_500, pytest.param(100_000, marks=pytest.mark.soak)])
def test_many_files_are_read_once_with_an_offset_that_stays_small(tmp_path: Path, files: int) -> None:
    check_small(consume(ManyFiles(files, shuffled=True), state_location=str(tmp_path)), 1024)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("files", [1_200, pytest.param(12_000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("case", CASES)
def test_the_offset_stays_small_over_restarts_in_every_order(tmp_path: Path, case: str, files: int) -> None:
    arguments: dict[str, Any] = dict(CASES[case])
    by_event_time = arguments["file_order"] == "eventTime"
    if by_event_time:
        arguments["state_location"] = str(tmp_path)
    consumed = consume(ManyFiles(files, shuffled=by_event_time), restart_every=5, **arguments)
    check_small(consumed, 1024 if by_event_time else 28 * 1024)


def test_a_restart_after_every_micro_batch_reads_each_record_once(tmp_path: Path) -> None:
    for number, arguments in enumerate(CASES.values()):
        extra = {"state_location": str(tmp_path / str(number))} if number == 0 else {}
        consumed = consume(ManyFiles(800, shuffled=number == 0), restart_every=1, **arguments, **extra)
        assert (consumed.starts == 1).all()


@pytest.mark.soak
def test_without_a_log_an_offset_has_as_much_of_finished_files_however_many_they_are() -> None:
    # Shuffled, those that were modified after one that waits are remembered one by one.
    assert (consume(ManyFiles(6_000, shuffled=True), restart_every=4).starts == 1).all()
    in_order = consume(ManyFiles(12_000), restart_every=6)
    assert (in_order.starts == 1).all()
    assert max(in_order.offset_bytes[len(in_order.offset_bytes) // 2 :]) < 80 * 1024


def test_max_files_per_trigger_bounds_how_many_a_micro_batch_opens() -> None:
    for arguments in ({}, {"file_order": "name"}):
        known: set[str] = set()
        for _, after, _, _ in states(ManyFiles(400), 0, max_files_per_trigger=30, **arguments):
            new = {split.split_id for split in after.splits} - known
            known |= new
            # One more may be opened where nothing could be read without it.
            assert len(new) <= 31
        assert len(known) == 400


def test_max_bytes_per_trigger_is_passed_by_less_than_a_file() -> None:
    known: set[str] = set()
    for _, after, _, _ in states(ManyFiles(200), 0, max_bytes_per_trigger=1050):
        new = {split.split_id for split in after.splits} - known
        known |= new
        assert len(new) * 100 <= 1050 + 2 * 100
    assert len(known) == 200


@pytest.mark.parametrize("case", ["eventTime", "name", "eventTime, with a log"])
def test_each_micro_batch_has_as_many_rows_of_small_files_as_its_limit(tmp_path: Path, case: str) -> None:
    """1,000 files are some 4 ranges of each limit; each micro-batch is read again by its two offsets alone."""
    files, limit = ManyFiles(1_000), 2_700
    order, _, log = case.partition(", ")
    arguments = {"file_order": order} | ({"state_location": str(tmp_path)} if log else {})
    codec = OffsetCodec(simulated_source(files, **arguments))

    def restored(state: SourceState[Any, Any]) -> SourceCoordinator[Any, Any]:
        planner = coordinator(files, **arguments)
        planner.restore(codec.decode(json.loads(json.dumps(codec.encode(state)))), is_read_again=True)
        return planner

    def parts(planner: SourceCoordinator[Any, Any], start: Any, end: Any) -> list[tuple[str, int, int]]:
        ranges = [part for one in planner.ranges(start, end, 2, 1) for part in one.split.ranges]
        return sorted((part.file.path, part.start, part.stop) for part in ranges)

    planner, read, rows, sizes = coordinator(files, **arguments), np.zeros((1_000, ROWS), np.int8), [], []
    planner.restore(planner.state)
    while (before := planner.state) is not (after := planner.advance(limit)):
        found = parts(planner, before, after)
        for path, start, stop in found:
            read[number_of(path), start:stop] += 1
        rows.append(sum(stop - start for _, start, stop in found))
        sizes.append(len(json.dumps(codec.encode(after), separators=(",", ":"))))
        ends = (codec.decode(json.loads(json.dumps(codec.encode(state)))) for state in (before, after))
        assert parts(restored(after), *ends) == found
        if len(rows) == 2:
            planner = restored(after)
    assert (read == 1).all()
    # Less by what is left of a file that does not fit.
    assert all(limit - ROWS < count <= limit for count in [count for count in rows if count][:3])
    # A line for each file that is open, and marks of those that were finished; none of them with a log.
    assert max(sizes) < (16_000 if log else 30_000)


def test_a_limit_of_rows_that_is_not_reached_for_want_of_room_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    planner = coordinator(ManyFiles(3_000), allow_overwrites=True)
    planner.restore(planner.state)
    for _ in range(2):
        before = planner.state
        planner.advance(20_000)
        planner.ranges(before, planner.state, 2, 1)

    (said,) = [record.getMessage() for record in caplog.records if "is not reached" in record.getMessage()]
    assert said.startswith("maxRowsPerTrigger = 20000 is not reached: a micro-batch of ")
    assert said.endswith("Larger files, or splitBy = directory, make full use of it")
    caplog.clear()
    enough = coordinator(ManyFiles(3_000))
    enough.restore(enough.state)
    enough.advance(200)
    assert "is not reached" not in caplog.text
