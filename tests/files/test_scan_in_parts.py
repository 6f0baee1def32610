"""Text is planned while it is still scanned for its event times, and the pace of the scan changes no micro-batch."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from alignment.explain import Cause
from alignment.strategy import WatermarkStrategy
from alignment.watermarks import MIN_WATERMARK
from streaming_source.connectors.files import CsvFormat, FileSource, JsonFormat, log_scan
from streaming_source.coordinator.event_times import scanned
from streaming_source.data_files.file import FileRows
from streaming_source.data_files.formats.base import Chunk
from streaming_source.exceptions import DataLossError, FileGoneError
from streaming_source.monitoring.causes.answer import cause_of, sentence
from streaming_source.testing import FakeClock, SourceHarness
from streaming_source.tools.testing import harness
from streaming_source.tools.testing.fakes import InlineWorkers
from tests.examples import one_in

SCHEMA = pa.schema([("t", pa.int64()), ("n", pa.int64())])
WINDOW_US = 10


class SlowWorkers(InlineWorkers):
    """What is to be done is done some time later, so that the planner is called in between, and in any order."""

    def __init__(self, clock: FakeClock, draw: random.Random) -> None:
        super().__init__(clock)
        self._draw = draw

    def submit(self, work: Callable[[], None], delay_s: float = 0.0) -> None:
        super().submit(work, delay_s + self._draw.choice([0, 0.001, 0.01, 0.01, 1]))


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a scan has few records."""
    monkeypatch.setattr(log_scan, "_ENOUGH_ROWS", 4)


def write_backlog(root: Path, draw: random.Random, kind: str) -> None:
    number = 0
    for split in range(draw.randint(1, 4)):
        (root / f"s{split}").mkdir(parents=True)
        time, pace = draw.randint(0, 30), draw.choice([1, 1, 2, 5])
        for file in range(draw.randint(1, 4)):
            lines = []
            for _ in range(draw.randint(1, 25)):
                time += draw.randint(0, pace)
                behind = draw.choice([0, 0, 1, 3]) if draw.random() < 0.9 else draw.randint(0, 60)
                row = {"t": None if draw.random() < 0.05 else max(time - behind, 0), "n": number}
                lines.append(json.dumps(row) if kind == "json" else f"{'' if row['t'] is None else row['t']},{number}")
                number += 1
            (root / f"s{split}" / f"part-{file}.{kind}").write_text("\n".join(lines) + "\n")


def source_of(root: Path, kind: str, *, bounded: bool) -> FileSource:
    of_lines = CsvFormat(block_bytes=40) if kind == "csv" else JsonFormat(block_bytes=90)
    return FileSource(str(root), format=of_lines, data_schema=SCHEMA, bounded=bounded, split_by="directory")


def strategy_of(draw: random.Random) -> WatermarkStrategy:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(microseconds=draw.choice([0, 3, 20])))
    strategy = strategy.with_timestamp_assigner("t", unit="us")
    drift = draw.choice([None, None, 5, 30])
    return strategy if drift is None else strategy.with_watermark_alignment(None, timedelta(microseconds=drift))


def windows(run: SourceHarness) -> tuple[dict[int, int], int]:
    """Records of each window that came out in append mode, and how many were late."""
    counts: dict[int, int] = {}
    late, announced = 0, MIN_WATERMARK
    for batch in run.batches:
        for record in batch.all_records:
            if record.time_us >= 0:
                late += record.time_us <= announced
                begin = record.time_us // WINDOW_US * WINDOW_US
                counts[begin] = counts.get(begin, 0) + 1
        announced = batch.watermark
    return {begin: n for begin, n in counts.items() if begin + WINDOW_US - 1 <= announced}, late


def write_rising(root: Path, splits: int, rows: int) -> None:
    """One file a split: records 10 us apart, the splits side by side."""
    for split in range(splits):
        (root / f"s{split}").mkdir()
        lines = "".join(f"{10 * row + split},{row}\n" for row in range(rows))
        (root / f"s{split}" / "part-0.csv").write_text(lines)


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part of a scan takes a while: the planner is called before the next one is there."""
    draw = random.Random(0)
    monkeypatch.setattr(draw, "choice", lambda _: 1)
    monkeypatch.setattr(harness, "InlineWorkers", lambda clock: SlowWorkers(clock, draw))


def rising(root: Path, max_rows: int | None) -> SourceHarness:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(0)).with_timestamp_assigner("t", unit="us")
    return SourceHarness(source_of(root, "csv", bounded=False), strategy, max_rows=max_rows, available_now=True)


@pytest.mark.usefixtures("small_parts", "unhurried")
def test_the_first_plan_waits_for_what_the_first_micro_batch_needs_and_windows_for_the_whole_scan(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    write_rising(tmp_path, 3, 100)
    run = rising(tmp_path, 10)
    assert run.run_batch() is not None
    engine = run.coordinator.runtime.engine
    assert engine.unscanned == {"s0", "s1", "s2"}
    assert engine.index.ends().sum() < 60, "of 300 records"
    assert run.watermark == MIN_WATERMARK, "what is not scanned may be earlier"
    assert "a micro-batch is read while files of 3 splits" in caplog.text
    explanation = run.coordinator.explain()
    assert explanation is not None
    assert cause_of(explanation) is Cause.SCAN
    assert "split 's0' (and 2 more) has records that are not scanned" in sentence(explanation)
    while engine.unscanned:
        assert run.watermark == MIN_WATERMARK
        assert run.run_batch() is not None
    run.run()
    assert len(run.records()["s0"]) == 100
    assert run.watermark == 989, "of the slowest split, without a record that is not read"


@pytest.mark.usefixtures("small_parts", "unhurried")
def test_a_micro_batch_is_read_again_after_a_restart_without_a_scan_of_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rising(tmp_path, 2, 100)
    run = rising(tmp_path, 10)
    assert run.plan()
    planned = run.read()
    run.restart()
    decoded: list[int] = []
    of_lines = CsvFormat.decoded

    def noted(own: CsvFormat, file: Any, chunk: Chunk, schema: pa.Schema) -> Any:
        if schema.names == ["t"]:
            decoded.append(chunk.rows)
        return of_lines(own, file, chunk, schema)

    monkeypatch.setattr(CsvFormat, "decoded", noted)
    assert sorted(run.read().all_records) == sorted(planned.all_records)
    assert 10 <= sum(decoded) < 30, "of 200 records"


@pytest.mark.usefixtures("small_parts", "unhurried")
def test_a_plan_without_a_limit_reads_what_a_finished_scan_has(tmp_path: Path) -> None:
    write_rising(tmp_path, 2, 30)
    assert [len(batch.all_records) for batch in rising(tmp_path, None).run() if batch.all_records] == [60]


@pytest.mark.usefixtures("small_parts", "unhurried")
def test_the_log_says_once_what_a_file_out_of_order_costs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_rising(tmp_path, 2, 30)
    (tmp_path / "s1" / "part-1.csv").write_text("5000,0\n" * 9 + "400,1\n" + "5000,2\n" * 9 + "300,3\n")
    rising(tmp_path, 10).run()
    (line,) = [record.getMessage() for record in caplog.records if "in their file" in record.getMessage()]
    assert "records of 's1' are up to 4 milliseconds 600 microseconds earlier than records before them" in line


@pytest.mark.usefixtures("small_parts", "unhurried")
def test_an_error_of_the_scan_fails_the_query(tmp_path: Path) -> None:
    write_rising(tmp_path, 2, 30)
    run = rising(tmp_path, 10)
    assert run.run_batch() is not None
    (tmp_path / "s1" / "part-0.csv").unlink()
    with pytest.raises(FileGoneError, match=r"part-0\.csv is gone"):
        run.run()


@pytest.mark.usefixtures("small_parts", "unhurried")
def test_a_file_that_is_written_on_while_it_is_scanned_in_parts_is_an_error(tmp_path: Path) -> None:
    write_rising(tmp_path, 2, 30)
    run = rising(tmp_path, 10)
    assert run.run_batch() is not None
    with (tmp_path / "s1" / "part-0.csv").open("a") as file:
        file.write("400,31\n")
    with pytest.raises(DataLossError, match="was appended to or rewritten"):
        run.run()


@pytest.mark.usefixtures("unhurried")
def test_the_first_parts_of_a_scan_are_small(tmp_path: Path) -> None:
    for split in range(2):
        (tmp_path / f"s{split}").mkdir()
        lines = "".join(f"{10 * row + split},{row:060}\n" for row in range(90_000))
        (tmp_path / f"s{split}" / "part-0.csv").write_text(lines)
    run = SourceHarness(
        FileSource(str(tmp_path), format=CsvFormat(), data_schema=SCHEMA, split_by="directory"),
        WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("t", unit="us"),
        max_rows=1000,
        available_now=True,
    )
    assert run.run_batch() is not None
    assert 1000 < run.coordinator.runtime.engine.index.ends().sum() < 70_000, "of 180,000 records"


@pytest.mark.usefixtures("small_parts", "unhurried")
def test_no_part_of_a_scan_begins_while_a_plan_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rising(tmp_path, 2, 30)
    run = rising(tmp_path, 10)
    runtime = run.coordinator.runtime
    plan, lock, may_begin = runtime.engine.plan, runtime.event_times._lock, list[bool]()

    def begins() -> bool:
        if found := lock.acquire(blocking=False):
            lock.release()
        return found

    def noted(*arguments: Any, **named: Any) -> Any:
        with ThreadPoolExecutor(1) as other:
            may_begin.append(other.submit(begins).result())
        return plan(*arguments, **named)

    monkeypatch.setattr(runtime.engine, "plan", noted)
    assert run.run_batch() is not None
    assert may_begin
    assert not any(may_begin)


@pytest.mark.usefixtures("small_parts")
def test_event_times_of_the_next_cut_are_loaded_while_a_micro_batch_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rising(tmp_path, 3, 100)
    monkeypatch.setattr(scanned, "_MOST_KEPT", 40)
    run = rising(tmp_path, 10)
    for _ in range(5):
        assert run.run_batch() is not None
    workers, loaded = run.coordinator.host.calls.workers, []
    event_times = CsvFormat.event_times

    def noted(own: CsvFormat, rows: FileRows, *others: Any) -> Any:
        loaded.append(rows.start)
        return event_times(own, rows, *others)

    monkeypatch.setattr(CsvFormat, "event_times", noted)
    while workers.do_one(due=True):
        pass
    assert loaded
    before = len(loaded)
    assert run.plan()
    assert len(loaded) == before, "the plan takes what is there"


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("seed", one_in(100, range(300)))
def test_a_scan_that_is_slow_killed_and_restarted_gives_the_micro_batches_of_one_that_had_finished(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    kind = draw.choice(["csv", "json"])
    write_backlog(tmp_path, draw, kind)
    bounded, available_now = draw.random() < 0.3, draw.random() < 0.5
    # Of all that ends records are counted, where there is no limit.
    max_rows = draw.choice([1, 5, 12, 40] if bounded else [None, 1, 5, 12, 40])
    strategy = strategy_of(draw)

    def new() -> SourceHarness:
        source = source_of(tmp_path, kind, bounded=bounded)
        return SourceHarness(source, strategy, max_rows=max_rows, available_now=available_now)

    finished = new()
    finished.run()
    monkeypatch.setattr(harness, "InlineWorkers", lambda clock: SlowWorkers(clock, draw))
    slow = new()
    while slow.plan():
        if draw.random() < 0.2:
            loses_plan = draw.random() < 0.5
            slow.restart(loses_plan=loses_plan)
            if loses_plan:
                continue
        batch = slow.read()
        slow.commit(batch)
        # Of AvailableNow that would be another run, in which a split may be idle.
        if draw.random() < 0.1 and not available_now:
            slow.restart()
    with_records = [[sorted(b.all_records) for b in run.batches if b.all_records] for run in (slow, finished)]
    assert with_records[0] == with_records[1]
    assert slow.watermark == finished.watermark
    assert windows(slow) == windows(finished)
    assert windows(slow)[1] == 0, "what is there is never late"
    slow.close()
    finished.close()
