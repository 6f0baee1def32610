"""Files that are appended to or rewritten after they were found: an error, and no row is lost in silence."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from streaming_source import read_stream
from streaming_source.connectors.files import CsvFormat, ParquetFormat, listing
from streaming_source.connectors.files.listing import Lister
from streaming_source.connectors.files.selection import Selection
from streaming_source.connectors.files.split import FileSplit, FileSplitSerializer
from streaming_source.exceptions import DataLossError
from streaming_source.testing import FakeClock, SourceHarness
from tests.files.stores import Store, open_store
from tests.files.test_layout_orders import look_again, rows, strategy

SCHEMA = pa.schema([("t", pa.timestamp("us"))])
LONG_AGO = 1_600_000_000
ROWS = 6


def csv(first: int, count: int = ROWS) -> bytes:
    return "".join(f"1970-01-01 00:{first:02d}:{row:02d}\n" for row in range(count)).encode()


def parquet(first: int, count: int = ROWS) -> bytes:
    buffer = io.BytesIO()
    times = [60_000_000 * first + 1_000_000 * row for row in range(count)]
    pq.write_table(pa.table({"t": pa.array(times, pa.timestamp("us"))}), buffer)
    return buffer.getvalue()


class Directory:
    """A directory `0` with the files `0` to `3`, of which the source reads all, or the first rows."""

    def __init__(self, store: Store, content: Callable[..., bytes], **arguments: Any) -> None:
        self.store, self.content = store, content
        for number in range(4):
            self.put(number)
        given = {"format": ParquetFormat() if content is parquet else CsvFormat(), **arguments}
        self.source = store.source("directory", **given)

    def put(self, number: int, first: int | None = None, count: int = ROWS, *, age_s: int = 0) -> None:
        self.store.put(f"in/0/{number}", self.content(number if first is None else first, count))
        if age_s:
            path = f"{self.store.path}/in/0/{number}"
            os.utime(path, (os.stat(path).st_mtime - age_s,) * 2)

    def append(self, number: int) -> None:
        with Path(f"{self.store.path}/in/0/{number}").open("ab") as file:
            file.write(self.content(number, 2))

    def start(self, max_rows: int | None = None) -> SourceHarness:
        return SourceHarness(self.source, strategy("1 hour"), clock=FakeClock(), max_rows=max_rows)


@pytest.fixture
def local(tmp_path: Path, request: pytest.FixtureRequest) -> Store:
    return open_store("local", tmp_path, request)


CHANGES: dict[str, tuple[int, Callable[[Directory, int], None]]] = {
    "the newest is appended to": (3, lambda log, number: log.append(number)),
    "an older one is appended to": (1, lambda log, number: log.append(number)),
    "an older one is renamed over": (1, lambda log, number: log.put(number, 9, ROWS + 1)),
    "the newest is renamed over by an older one of its size": (3, lambda log, number: log.put(number, 9, age_s=3600)),
}


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("content", [csv, parquet])
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_of_a_log_that_changes_after_it_was_read_is_an_error_that_names_it(
    local: Store, content: Callable[..., bytes], change: str, restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    number, changes = CHANGES[change]
    log = Directory(local, content)
    run = log.start()
    look_again(run)
    assert len(rows(run)) == 4 * ROWS
    changes(log, number)
    # Of a file that is neither the last nor in work, in a directory that has settled, once a minute.
    monkeypatch.setattr(listing, "_FULL_EVERY_S", 0.0)
    for _ in range(2):
        if restarted:
            run.restart()
        with pytest.raises(DataLossError, match=rf"/0/{number} was appended to or rewritten after it was read: it has"):
            look_again(run)
        # It fails again until something is done about it.
        run.restart()
    # As the error says: the file is taken out, and what is new comes under a later name.
    local.remove(f"in/0/{number}")
    log.put(7)
    look_again(run)
    assert len(rows(run)) == 5 * ROWS
    run.close()


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("size", [ROWS, ROWS + 3])
@pytest.mark.parametrize("content", [csv, parquet])
def test_a_file_of_a_log_that_is_renamed_over_while_it_is_read_is_an_error(
    local: Store, content: Callable[..., bytes], size: int, restarted: bool
) -> None:
    log = Directory(local, content)
    run = log.start(max_rows=ROWS + 2)
    run.run_batch()
    log.put(1, 9, size, age_s=60)
    if restarted:
        run.restart()
    with pytest.raises(DataLossError, match=r"/0/1 (was appended to or rewritten while it was read|has \d+ bytes)"):
        look_again(run)
    run.close()


def test_a_planned_micro_batch_of_a_file_that_changed_before_a_restart_is_an_error(local: Store) -> None:
    log = Directory(local, csv)
    run = log.start(max_rows=ROWS + 2)
    assert run.plan()
    log.put(1, 9, age_s=60)
    run.restart()
    with pytest.raises(DataLossError, match=r"split '0' has changed.*set ignoreChangedFiles = true"):
        run.read()
    run.close()


def test_a_file_of_a_log_that_changes_before_it_is_begun_is_read_as_it_is_now_after_a_restart(local: Store) -> None:
    log = Directory(local, csv)
    run = log.start(max_rows=2)
    run.run_batch()
    log.append(3)
    with pytest.raises(DataLossError, match=r"/0/3 was appended to or rewritten after it was found.*start again"):
        look_again(run)
    run.restart()
    look_again(run)
    assert len(rows(run)) == 4 * ROWS + 2
    run.close()


@pytest.mark.parametrize("restarted", [False, True])
def test_with_ignore_changed_files_what_is_new_is_not_read_and_the_log_says_so(
    local: Store, restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    log = Directory(local, csv, ignore_changed_files=True)
    run = log.start()
    look_again(run)
    log.append(3)
    if restarted:
        run.restart()
    look_again(run)
    log.put(4)
    for _ in range(3):
        look_again(run)
    assert len(rows(run)) == 5 * ROWS
    assert caplog.text.count("0/3 has changed since it was found") == 1
    run.close()


@pytest.mark.parametrize("restarted", [False, True])
def test_files_that_were_read_may_go_and_new_ones_may_be_older_than_they_are(local: Store, restarted: bool) -> None:
    log = Directory(local, csv)
    run = log.start()
    look_again(run)
    for number in (0, 2):
        local.remove(f"in/0/{number}")
    # By its time it is the oldest of all: a log may be copied with the times of its files.
    log.put(4, age_s=7200)
    look_again(run)
    if restarted:
        run.restart()
    look_again(run)
    log.put(5, age_s=9000)
    if restarted:
        run.restart()
    look_again(run)
    assert len(rows(run)) == 6 * ROWS
    run.close()


@pytest.mark.parametrize("kind", ["s3", "fsspec", "fsspec without times"])
@pytest.mark.parametrize("split_by", ["directory", "file"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_change_is_seen_wherever_the_file_lies(
    kind: str, split_by: str, restarted: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store = open_store(kind, tmp_path, request)
    for number in range(2):
        store.put(f"in/0/{number}", csv(number))
    source = store.source(split_by, format=CsvFormat())
    run = SourceHarness(source, strategy("1 hour"), clock=FakeClock(), max_rows=ROWS + 2)
    run.run_batch()
    # Of the other file there is a row left.
    store.put("in/0/1", csv(1, ROWS + 2))
    if restarted:
        run.restart()
    with pytest.raises(DataLossError, match=r"0/1 (was (appended to or )?rewritten while it was read|has \d+ bytes)"):
        look_again(run)
    run.close()


def test_a_file_that_is_written_on_while_it_is_described_is_taken_as_it_is_then(
    local: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Directory(local, csv)
    scanned = CsvFormat._scanned
    described: list[str] = []

    def slow(self: CsvFormat, rows: Any, *arguments: Any) -> Any:
        path = rows.file.path
        if path.endswith("/3") and path not in described:
            # Its writer has not renamed it into place.
            log.append(3)
        described.append(path)
        return scanned(self, rows, *arguments)

    monkeypatch.setattr(CsvFormat, "_scanned", slow)
    run = log.start()
    for _ in range(2):
        look_again(run)
    assert len(rows(run)) == 4 * ROWS + 2
    run.close()


def test_the_state_of_a_directory_has_the_version_of_the_file_it_has_reached() -> None:
    serializer = FileSplitSerializer()
    older, newer = FileSplit("a", 9, "f", 3, 2), FileSplit("a", 9, "f", 3, 2, 1_700_000_000_000, 77)
    latest = FileSplit("a", 9, "f", 3, 2, 1_700_000_000_000, 77, 1_700_000_009_000)
    for split, text in (
        (older, b'["a",9,"f",3,2]'),
        (newer, b'["a",9,"f",3,2,1700000000000,77]'),
        (latest, b'["a",9,"f",3,2,1700000000000,77,1700000009000]'),
    ):
        assert serializer.serialize(split) == text
        assert serializer.deserialize(1, text) == split
    file = listing.ListedFile("a", "f", 1_700_000_000_000, 77)
    assert [split.is_rewritten(file._replace(size=78)) for split in (older, newer, latest)] == [False, True, True]
    assert not latest.is_rewritten(file)
    before = file._replace(name="e", modified_ms=1_700_000_008_000)
    assert [split.is_rewritten(before) for split in (older, newer, latest)] == [False, True, False]
    assert not latest.is_rewritten(file._replace(name="g", size=1))


# ---- what a look costs -----------------------------------------------------------------------------------------------


def test_a_look_at_directories_that_have_settled_sees_their_last_files_and_those_in_work_without_listing_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("a/1", "a/2", "a/3", "b/1", "b/2", "b/3"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_bytes(b"x")
        os.utime(tmp_path / place, (LONG_AGO, LONG_AGO))
    for directory in (tmp_path, tmp_path / "a", tmp_path / "b"):
        os.utime(directory, (LONG_AGO, LONG_AGO))
    in_work = listing.ListedFile("b", "2", LONG_AGO * 1000, 1)
    lister = Lister(Selection((str(tmp_path),)), in_work=lambda: [in_work])

    def look() -> list[str]:
        return [found.path for found in lister.list_changed()]

    assert sorted(look()) == ["", "a", "b"]
    monkeypatch.setattr(lister, "_entries", None)
    assert look() == []
    monkeypatch.undo()
    (tmp_path / "a" / "3").write_bytes(b"xy")
    assert look() == ["a"]
    (tmp_path / "b" / "2").write_bytes(b"xy")
    assert look() == ["b"]
    (tmp_path / "b" / "1").write_bytes(b"xy")
    in_work = in_work._replace(modified_ms=os.stat(tmp_path / "b" / "2").st_mtime_ns // 1_000_000, size=2)
    look()
    assert look() == []


# ---- a user's query --------------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_a_query_over_logs_that_are_appended_to_fails_with_the_file_and_goes_on_once_it_is_set_right(
    spark: SparkSession, tmp_path: Path
) -> None:
    for log in "ab":
        (tmp_path / "in" / log).mkdir(parents=True)
        (tmp_path / "in" / log / "1.csv").write_bytes(csv(1, 40))
    frame = (
        read_stream(spark)
        .format("aligned_files")
        .option("fileFormat", "csv")
        .option("eventTimeColumn", "t")
        .option("timeZone", "UTC")
        .option("maxOutOfOrderness", "1 minute")
        .schema("t timestamp")
        .load(str(tmp_path / "in"))
    )

    def run(**trigger: Any) -> Any:
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "cp"))
        return writer.trigger(**trigger).start(str(tmp_path / "out"))

    query = run(processingTime="0 seconds")
    query.processAllAvailable()
    with (tmp_path / "in" / "a" / "1.csv").open("ab") as file:
        file.write(csv(2, 40))
    (tmp_path / "in" / "a" / "_2.csv").write_bytes(csv(3, 10))
    (tmp_path / "in" / "a" / "_2.csv").rename(tmp_path / "in" / "a" / "2.csv")
    for trigger in (None, {"processingTime": "0 seconds"}, {"availableNow": True}):
        query = query if trigger is None else run(**trigger)
        with pytest.raises(StreamingQueryException, match=r"a/1\.csv\s+was\s+appended\s+to\s+or\s+rewritten"):
            query.awaitTermination(60)
    (tmp_path / "in" / "a" / "1.csv").unlink()
    (tmp_path / "in" / "a" / "3.csv").write_bytes(csv(2, 40))
    run(availableNow=True).awaitTermination(60)
    assert spark.read.parquet(str(tmp_path / "out")).count() == 40 + 40 + 10 + 40
