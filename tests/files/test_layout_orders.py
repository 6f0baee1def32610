"""Files as splits, begun in an order and so many at a time: what is read, what waits, what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignment.strategy import WatermarkStrategy
from alignment.timestamps import FieldTimestampAssigner
from alignment.watermarks import MAX_WATERMARK
from streaming_source.connectors.files import FileSource, finite, listing
from streaming_source.connectors.files.split import FileOrder
from streaming_source.data_files import queued
from streaming_source.exceptions import DataLossError, MalformedDataError, OptionError
from streaming_source.testing import FakeClock, SourceHarness
from tests.examples import each_once, examples

ORDERS: tuple[FileOrder, ...] = ("eventTime", "name", "modificationTime")
SECOND = 1_000_000
T0 = 1_600_000_000


@pytest.fixture(autouse=True)
def _few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queued, "FILES_OPEN", 3)


def strategy(bound: str = "0 seconds") -> WatermarkStrategy:
    return WatermarkStrategy.for_bounded_out_of_orderness(bound).with_timestamp_assigner(FieldTimestampAssigner("t"))


def write(path: Path, seconds: list[float | None], modified_s: int = 0, **options: Any) -> Path:
    """A file of these event times, modified `modified_s` after the first one, put in place when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    times = [None if s is None else round(s * SECOND) for s in seconds]
    hidden = path.with_name(f"_{path.name}")
    pq.write_table(pa.table({"t": pa.array(times, pa.timestamp("us"))}), hidden, **options)
    os.utime(hidden, (T0 + modified_s, T0 + modified_s))
    return hidden.rename(path)


def harness(path: Path, order: FileOrder = "eventTime", bound: str = "0 seconds", **arguments: Any) -> SourceHarness:
    known = {"max_rows", "clock", "exact", "available_now"}
    of_harness = {name: value for name, value in arguments.items() if name in known}
    of_source = {"bounded": True, **{name: value for name, value in arguments.items() if name not in known}}
    source = FileSource(str(path), "file", file_order=order, **of_source)
    return SourceHarness(source, strategy(bound), **of_harness)


def rows(run: SourceHarness) -> list[tuple[str, int]]:
    return sorted((split, position) for split, records in run.records().items() for position, _ in records)


def begun(run: SourceHarness) -> list[str]:
    """Splits in the order in which their first records were read."""
    seen: dict[str, None] = {}
    for batch in run.batches:
        for record in sorted(batch.all_records, key=lambda record: record.time_us):
            seen.setdefault(record.split_id)
    return list(seen)


def late_records(run: SourceHarness) -> dict[str, int]:
    """Run to the end; the late records of each split that had some."""
    late: dict[str, int] = {}
    while run.run_batch() is not None:
        counts = zip(run.state.table.split_ids, run.state.late.tolist(), strict=True)
        late.update((split_id, count) for split_id, count in counts if count)
    return late


def all_rows(files: dict[str, list[float | None]]) -> list[tuple[str, int]]:
    return sorted((name, position) for name, seconds in files.items() for position in range(len(seconds)))


@st.composite
def directories(draw: st.DrawFn) -> dict[str, list[float | None]]:
    """Files by name; event times in any order, null here and there."""
    names = draw(st.permutations([f"{n}.parquet" for n in range(draw(st.integers(1, 9)))]))
    times = st.lists(st.integers(0, 60) | st.none(), max_size=6)
    return {name: list(draw(times)) for name in names}


@settings(max_examples=examples(25))
@pytest.mark.parametrize("split", ["restarted", "in one go"])
@given(files=directories(), row_groups=st.integers(1, 4), max_rows=st.none() | st.integers(1, 7), data=st.data())
def test_by_event_time_every_record_is_read_once_and_none_is_late(
    tmp_path_factory: pytest.TempPathFactory,
    split: str,
    files: dict[str, list[float | None]],
    row_groups: int,
    max_rows: int | None,
    data: st.DataObject,
) -> None:
    path = tmp_path_factory.mktemp("in")
    for number, (name, seconds) in enumerate(files.items()):
        write(path / name, seconds, number, row_group_size=row_groups)
    # Within a file any order is on time: its records are as far apart as that.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queued, "FILES_OPEN", data.draw(st.integers(1, 4)))
        run = harness(path, bound="60 seconds", max_rows=max_rows)
        while run.run_batch() is not None:
            assert not run.state.late.any()
            if split == "restarted" and data.draw(st.booleans()):
                run.restart()
        assert rows(run) == all_rows(files)
        assert run.watermark == MAX_WATERMARK
        run.close()


@pytest.mark.parametrize("order", ORDERS)
def test_files_are_begun_in_the_order_that_was_asked_for(tmp_path: Path, order: FileOrder) -> None:
    rng = np.random.default_rng(5)
    numbers = {order: rng.permutation(12).tolist() for order in ORDERS}
    later = numbers[order]
    for i in range(12):
        begin = later[i] * 10
        name, modified = numbers["name"][i], numbers["modificationTime"][i]
        write(tmp_path / f"{name:02d}.parquet", [begin, begin + 5, begin + 9], modified)
    run = harness(tmp_path, order)
    assert not late_records(run)
    assert rows(run) == sorted((f"{n:02d}.parquet", row) for n in range(12) for row in range(3))
    assert begun(run) == [f"{numbers['name'][later.index(n)]:02d}.parquet" for n in range(12)]
    assert run.watermark == MAX_WATERMARK
    run.close()


@pytest.mark.parametrize("order", ORDERS)
def test_no_more_files_than_needed_are_in_work_and_the_others_hold_the_watermark(
    tmp_path: Path, order: FileOrder
) -> None:
    for i in range(20):
        write(tmp_path / f"{i:02d}.parquet", [i * 10.0, i * 10 + 9.0], i)
    run = harness(tmp_path, order, "5 seconds")
    while (batch := run.run_batch()) is not None:
        assert len(run.state.splits) <= 4
        waiting = [i * 10 * SECOND for i in range(20) if f"{i:02d}.parquet" not in run.records()]
        in_work = {split.split_id for split in run.state.splits}
        unseen = [time for time in waiting if f"{time // SECOND // 10:02d}.parquet" not in in_work]
        assert not unseen or batch.watermark < min(unseen)
    run.close()


@pytest.mark.parametrize("order", ORDERS)
def test_more_files_are_in_work_where_nothing_could_be_read_without_them(tmp_path: Path, order: FileOrder) -> None:
    for i in range(12):
        write(tmp_path / f"{i:02d}.parquet", [0.0, 50.0, 100.0 + i], i)
    run = harness(tmp_path, order, "200 seconds")
    run.run()
    assert rows(run) == sorted((f"{i:02d}.parquet", row) for i in range(12) for row in range(3))
    run.close()


@pytest.mark.parametrize("order", ["name", "modificationTime"])
def test_files_are_looked_into_when_it_is_their_turn(
    tmp_path: Path, order: FileOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(30):
        write(tmp_path / f"{i:02d}.parquet", [float(i)], i)
    looked_into: list[str] = []
    describe = finite.FiniteFileEnumerator._describe

    def counted(self: finite.FiniteFileEnumerator, path: str) -> Any:
        looked_into.append(path)
        return describe(self, path)

    monkeypatch.setattr(finite.FiniteFileEnumerator, "_describe", counted)
    run = harness(tmp_path, order)
    assert run.plan()
    assert len(looked_into) == 3
    run.run()
    assert len(looked_into) == 30
    run.close()


@pytest.mark.parametrize("order", ["name", "modificationTime"])
def test_a_file_that_breaks_the_declared_order_is_read_and_its_late_records_are_counted(
    tmp_path: Path, order: FileOrder
) -> None:
    for i in range(12):
        write(tmp_path / f"{i:02d}.parquet", [i * 10.0, i * 10 + 9.0] if i != 8 else [1.0, 2.0], i)
    run = harness(tmp_path, order)
    assert late_records(run) == {"08.parquet": 2}
    assert len(rows(run)) == 24
    run.close()


def test_files_without_a_valid_event_time_are_read_and_hold_nothing_back(tmp_path: Path) -> None:
    for i in range(8):
        write(tmp_path / f"null-{i}.parquet", [None, None], i)
    for i in range(8):
        write(tmp_path / f"some-{i}.parquet", [None, i * 10.0, None, i * 10 + 5.0], i)
    for i in range(4):
        write(tmp_path / f"empty-{i}.parquet", [], i)
    for order in ORDERS:
        run = harness(tmp_path, order)
        run.run()
        assert len(rows(run)) == 8 * 2 + 8 * 4
        assert run.watermark == MAX_WATERMARK
        run.close()


def test_by_statistics_a_null_does_not_make_a_file_join_before_its_turn(tmp_path: Path) -> None:
    for i in range(20):
        write(tmp_path / f"{i:02d}.parquet", [None, i * 10.0, i * 10 + 9.0], i)
    run = harness(tmp_path)
    while run.run_batch() is not None:
        assert len(run.state.splits) <= 4
    assert len(rows(run)) == 60
    run.close()


# ---- files that come, change and go --------------------------------------------------------------------------------


def unbounded(path: Path, order: FileOrder = "eventTime", bound: str = "0 seconds", **arguments: Any) -> SourceHarness:
    clock = FakeClock()
    return harness(path, order, bound, bounded=False, discovery_interval="1 second", clock=clock, **arguments)


def look_again(run: SourceHarness) -> None:
    run.clock.advance("2 seconds")
    run.run()


@pytest.mark.parametrize(("order", "restarted"), each_once(ORDERS, [False, True]))
def test_files_that_come_while_others_are_read_are_read_once(tmp_path: Path, order: FileOrder, restarted: bool) -> None:
    for i in range(6):
        write(tmp_path / "a" / f"{i:02d}.parquet", [i * 10.0, i * 10 + 9.0], i)
    run = unbounded(tmp_path, order, "10 seconds")
    for i in range(6, 20):
        run.run_batch()
        write(tmp_path / "ab"[i % 2] / f"{i:02d}.parquet", [i * 10.0, i * 10 + 9.0], i)
        if restarted:
            run.restart()
        run.clock.advance("2 seconds")
    look_again(run)
    assert len(rows(run)) == 40
    run.close()


@pytest.mark.parametrize("order", ORDERS)
def test_a_file_that_comes_late_is_read_whatever_is_remembered_of_those_after_it(
    tmp_path: Path, order: FileOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finite, "RECENT_FILES", 8)
    monkeypatch.setattr(finite, "_SPAN_MS", 1)
    for i in range(0, 60, 2):
        write(tmp_path / f"{i:02d}.parquet", [100.0 + i], i)
    run = unbounded(tmp_path, order)
    look_again(run)
    run.restart()
    for late in (57, 3):
        write(tmp_path / f"{late:02d}.parquet", [100.0 + late], late)
    look_again(run)
    # These come while it is down, and one that was read goes.
    for late in (5, 59):
        write(tmp_path / f"{late:02d}.parquet", [100.0 + late], late)
    (tmp_path / "10.parquet").unlink()
    run.restart()
    look_again(run)
    assert run.state.checkpoint.remembered.forgotten is not None
    assert rows(run) == sorted((f"{i:02d}.parquet", 0) for i in [*range(0, 60, 2), 57, 3, 5, 59])
    run.close()


@pytest.mark.parametrize("order", ORDERS)
def test_a_forgotten_file_that_was_rewritten_while_the_query_was_down_is_told(
    tmp_path: Path, order: FileOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finite, "RECENT_FILES", 8)
    monkeypatch.setattr(finite, "_SPAN_MS", 1)
    for i in range(30):
        write(tmp_path / f"{i:02d}.parquet", [100.0 + i], i)
    run = unbounded(tmp_path, order)
    look_again(run)
    run.restart()
    look_again(run)
    write(tmp_path / "03.parquet", [103.0, 104.0], 50)
    run.restart()
    with pytest.raises(MalformedDataError, match=r"03.parquet was rewritten after it was read.*allowOverwrites"):
        look_again(run)
    run.close()


@pytest.mark.parametrize(("order", "takes_log"), each_once(ORDERS, [False, True]))
def test_forgotten_files_that_one_look_lacks_are_not_read_again(
    tmp_path: Path, order: FileOrder, takes_log: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finite, "RECENT_FILES", 8)
    monkeypatch.setattr(finite, "_SPAN_MS", 1)
    monkeypatch.setattr(listing, "_FULL_EVERY_S", 0.0)
    root = tmp_path / "in"
    for i in range(30):
        write(root / "log" / f"{i:02d}.parquet", [100.0 + i], i)
    run = unbounded(root, order)
    look_again(run)
    run.restart()
    look_again(run)
    assert run.state.checkpoint.remembered.forgotten is not None
    if takes_log:
        run.source = unbounded(root, order, state_location=str(tmp_path / "state")).source
        run.restart()
        look_again(run)
    (root / "log").rename(tmp_path / "away")
    look_again(run)
    (tmp_path / "away").rename(root / "log")
    for _ in range(2):
        look_again(run)
        run.restart()
    look_again(run)
    assert len(rows(run)) == 30
    run.close()


@pytest.mark.parametrize(("order", "to"), each_once(ORDERS, ["in/a", "in/z"]))
def test_with_file_name_only_a_forgotten_name_is_not_read_again_under_another_time_or_place(
    tmp_path: Path, order: FileOrder, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finite, "RECENT_FILES", 4)
    monkeypatch.setattr(finite, "_SPAN_MS", 1)
    for i in range(30):
        write(tmp_path / "in/a" / f"{i:02d}.parquet", [100.0 + i], i)
    run = unbounded(tmp_path / "in", order, file_name_only=True, max_file_age="5 seconds")
    look_again(run)
    run.restart()
    look_again(run)
    (tmp_path / "in/a/03.parquet").unlink()
    write(tmp_path / to / "03.parquet", [103.0], 50)
    for _ in range(4):
        run.restart()
        look_again(run)
    assert len(rows(run)) == 30
    run.close()


@pytest.mark.parametrize(("order", "restarted"), each_once(ORDERS, [False, True]))
def test_a_file_that_was_rewritten_after_it_was_read_is_refused_or_read_again(
    tmp_path: Path, order: FileOrder, restarted: bool
) -> None:
    for allowed in (False, True):
        path = tmp_path / str(allowed)
        write(path / "a.parquet", [1.0, 2.0], 1)
        write(path / "b.parquet", [3.0], 2)
        run = unbounded(path, order, "100 seconds", allow_overwrites=allowed)
        look_again(run)
        write(path / "a.parquet", [4.0, 5.0, 6.0], 100)
        if restarted:
            run.restart()
        if allowed:
            look_again(run)
            if restarted:
                run.restart()
            look_again(run)
            again = f"a.parquet@{(T0 + 100) * 1000}"
            assert rows(run) == [("a.parquet", 0), ("a.parquet", 1), *((again, i) for i in range(3)), ("b.parquet", 0)]
        else:
            with pytest.raises(MalformedDataError, match=r"a.parquet was rewritten after it was read.*allowOverwrites"):
                look_again(run)
        run.close()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("restarted", [False, True])
def test_other_content_of_the_same_size_is_known_by_its_time(tmp_path: Path, order: FileOrder, restarted: bool) -> None:
    path = write(tmp_path / "a.parquet", [1.0, 2.0], 1)
    before = path.stat().st_size
    run = unbounded(tmp_path, order, "100 seconds", allow_overwrites=True)
    look_again(run)
    assert write(path, [5.0, 6.0], 1).stat().st_size == before
    os.utime(path, ns=(0, (T0 + 1) * 1_000_000_000 + 1_000_000))
    os.utime(tmp_path)  # one that has settled is listed again within a minute only
    if restarted:
        run.restart()
    look_again(run)
    assert [row for row in rows(run) if row[0] != "a.parquet"] == [
        (f"a.parquet@{(T0 + 1) * 1000 + 1}", i) for i in (0, 1)
    ]
    run.close()


@pytest.mark.parametrize(("order", "restarted"), each_once(ORDERS, [False, True]))
def test_a_file_that_was_rewritten_before_it_was_begun_is_what_it_is_now(
    tmp_path: Path, order: FileOrder, restarted: bool
) -> None:
    for i in range(9):
        write(tmp_path / f"{i}.parquet", [i * 10.0, i * 10 + 1.0], i)
    run = unbounded(tmp_path, order, max_files_per_trigger=1, max_rows=1)
    run.run_batch()
    write(tmp_path / "8.parquet", [80.0, 81.0, 82.0], 8)
    os.utime(tmp_path)
    if restarted:
        run.restart()
    look_again(run)
    assert len(rows(run)) == 19
    run.close()


@pytest.mark.parametrize("restarted", [False, True])
def test_a_file_that_was_rewritten_while_it_is_read_is_told(tmp_path: Path, restarted: bool) -> None:
    write(tmp_path / "a.parquet", [float(i) for i in range(10)])
    run = unbounded(tmp_path, max_rows=4)
    run.run_batch()
    write(tmp_path / "a.parquet", [float(i) for i in range(10)], 50)
    if restarted:
        run.restart()
    run.clock.advance("2 seconds")
    with pytest.raises(
        DataLossError, match=r"a.parquet was rewritten while it was read: its size or modification time"
    ):
        run.run()
    run.close()


# ---- options -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argument",
    [
        {"file_order": "name"},
        {"max_files_per_trigger": 3},
        {"max_bytes_per_trigger": 3},
        {"state_location": "/tmp/log"},
        {"allow_overwrites": True},
        {"file_name_only": True},
    ],
)
def test_what_is_for_single_files_is_refused_for_directories_with_the_reason(argument: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=r".* needs splitBy = file, and splitBy is directory: "):
        FileSource("/data/in", "directory", **argument)
    FileSource("/data/in", "file", **argument)
    assert FileSource("/data/in", **argument).needs_files


def test_an_order_that_promises_needs_a_bound(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [1.0])
    source = FileSource(str(tmp_path), "file", file_order="name")
    unbound = WatermarkStrategy.no_watermarks().with_timestamp_assigner(FieldTimestampAssigner("t"))
    with pytest.raises(
        OptionError, match=r"fileOrder = 'name' declares that later files are behind .* maxOutOfOrderness"
    ):
        SourceHarness(source, unbound)


# ---- all that is there was read --------------------------------------------------------------------------------------


def test_when_all_files_were_read_the_watermark_is_that_of_the_furthest(tmp_path: Path) -> None:
    write(tmp_path / "a" / "1.parquet", [0, 10, 600])
    write(tmp_path / "b" / "1.parquet", [0, 10, 200])
    reading = harness(tmp_path, bound="3 minutes", bounded=False, max_rows=2)
    reading.run()
    reading.restart()
    assert reading.watermark == (600 - 180) * SECOND - 1
    write(tmp_path / "b" / "2.parquet", [500, 700])
    reading.clock.advance("1 minute")
    reading.run()
    assert reading.watermark == (700 - 180) * SECOND - 1
    assert not any(reading.state.late)


def test_files_that_lag_by_directory_are_named_with_the_fix(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Six directories, each five minutes behind the one before; each listing catches a round half written."""
    for split_by in ("file", "directory"):
        caplog.clear()
        root = tmp_path / split_by
        source = FileSource(str(root), split_by, bounded=False, data_schema=pa.schema([("t", pa.timestamp("us"))]))
        root.mkdir()
        reading = SourceHarness(source, strategy("3 minutes"))
        late = 0
        for number in range(16):
            for half in (range(3), range(3, 6)):
                for directory in half:
                    first = 3600 + 60 * number - 300 * directory
                    write(root / f"d{directory}" / f"{number:02}.parquet", [first, first + 30])
                reading.clock.advance("1 minute")
                announced = reading.watermark
                late += sum(r.time_us <= announced for batch in reading.run() for r in batch.all_records)
        messages = [record.getMessage() for record in caplog.records if "is repeatedly up to" in record.getMessage()]
        if split_by == "file":
            (message,) = messages
            # Of all rounds those in the second half of a listing, and those of the first that are behind them.
            assert late > 120
            assert "directory 'd5' is repeatedly up to 25 minutes 30 seconds behind 'd0'" in message
            assert "Set splitBy = directory" in message
        else:
            assert messages == []
            # Only until the directories that were found later have come to where the watermark was.
            assert late < 100
