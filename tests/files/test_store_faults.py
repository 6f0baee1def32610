"""Stores that fail: what may pass is tried again, nothing is taken for corrupt that is not, and no row is lost."""

from __future__ import annotations

import errno
import logging
import os
import posixpath
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather, fs, orc
from pyspark.sql import SparkSession

from streaming_source import read_stream
from streaming_source.api import SplitsAddition, credentials
from streaming_source.connectors.files import (
    ArrowFormat,
    CsvFormat,
    FileSource,
    JsonFormat,
    OrcFormat,
    ParquetFormat,
    listing,
)
from streaming_source.connectors.files.split import FileSplit
from streaming_source.data_files import faults, stores
from streaming_source.data_files.faults import is_transient
from streaming_source.data_files.file import DataFile
from streaming_source.data_files.ranges import FileRange
from streaming_source.data_files.split_reader import FileSplitReader
from streaming_source.data_files.stores import StorageOptions
from streaming_source.exceptions import AlignmentError, OptionError, StoreUnavailableError
from streaming_source.testing import FakeClock, SourceHarness
from tests.files.faulty_s3 import FaultyStore, before
from tests.files.stores import Store, s3_store
from tests.files.test_layout_orders import look_again, rows, strategy
from tests.spark.support import SECOND, Run, available_now, fails_with, last_batch, skewed_logs, write_logs

ROWS = 6
KEY = "do-not-tell-this-key"


class FaultyFiles(fs.FileSystemHandler):  # type: ignore[misc]
    """The local file system, of which so many of the next calls of each kind fail, or wait until they may go on."""

    def __init__(self) -> None:
        self._files = fs.LocalFileSystem()
        self.failing: dict[str, int] = {}
        self.error: OSError = OSError(errno.EIO, os.strerror(errno.EIO))
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.failed = 0
        self.calls: list[str] = []
        self.opens_at_once = 1
        self._opens = threading.Condition()

    def _called(self, kind: str) -> None:
        self.may_go_on.wait()
        self.calls.append(kind)
        if kind == "open":
            with self._opens:
                self._opens.notify_all()
                assert self._opens.wait_for(lambda: self.calls.count("open") >= self.opens_at_once, 5.0)
        if self.failing.get(kind, 0):
            self.failing[kind] -= 1
            self.failed += 1
            raise self.error

    def get_type_name(self) -> str:
        return "faulty"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        self._called("info")
        return self._files.get_file_info(paths)

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        self._called("list")
        return self._files.get_file_info(selector)

    def open_input_file(self, path: str) -> pa.NativeFile:
        self._called("open")
        return pa.PythonFile(_FaultyFile(self._files.open_input_file(path), self), mode="r")

    open_input_stream = open_input_file

    def _not_there(self, *_: Any) -> Any:
        raise NotImplementedError

    open_output_stream = open_append_stream = create_dir = delete_dir = delete_dir_contents = _not_there
    delete_root_dir_contents = delete_file = move = copy_file = _not_there


class _FaultyFile:
    def __init__(self, file: pa.NativeFile, files: FaultyFiles) -> None:
        self._file = file
        self._files = files
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        self._files._called("read")
        return self._file.read(None if size < 0 else size)

    def seek(self, *to: int) -> int:
        return self._file.seek(*to)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self.closed = True
        self._file.close()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming_source.api.clients._FIRST_BACKOFF_S", 0.001)
    monkeypatch.setattr(faults, "RETRY_S", 2.0)


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> FaultyFiles:
    """A file system that `faulty:///path` is opened with."""
    handler = FaultyFiles()
    opened = stores._opened

    def open_(root: stores.Root) -> tuple[fs.FileSystem, str]:
        if root.uri.startswith("faulty://"):
            return fs.PyFileSystem(handler), posixpath.normpath(root.uri.removeprefix("faulty://"))
        return opened(root)

    monkeypatch.setattr(stores, "_opened", open_)
    return handler


def fill(folder: Path) -> None:
    for number in range(2):
        path = folder / str(number) / "f.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"1970-01-01 00:00:{number * ROWS + row:02d}\n" for row in range(ROWS)))


def source(folder: Path, **arguments: Any) -> FileSource:
    schema = pa.schema([("t", pa.timestamp("us"))])
    return FileSource(f"faulty://{folder}", "file", format=CsvFormat(), data_schema=schema, **arguments)


def restart_and_run(run: SourceHarness) -> None:
    while run.run_batch() is not None:
        run.restart()


ALL = [(f"{number}/f.csv", row) for number in range(2) for row in range(ROWS)]


# ---- what takes its time ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("small_bytes", [1 << 20, 0], ids=["small", "large"])
@pytest.mark.parametrize("split_by", ["directory", "file"])
def test_a_reader_opens_files_side_by_side_and_fetches_small_ones_at_once(
    faulty: FaultyFiles, tmp_path: Path, split_by: Any, small_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming_source.data_files.split_reader._SMALL_BYTES", small_bytes)
    table = pa.table({"t": pa.array([s * SECOND for s in range(ROWS)], pa.timestamp("us"))})
    for number in range(6):
        pq.write_table(table, tmp_path / f"{number}.parquet")
    files = FileSource(f"faulty://{tmp_path}", split_by, data_schema=table.schema, bounded=True, files_ahead=4)
    run = SourceHarness(files, strategy("1 minute"), readers=1)
    assert run.plan()
    faulty.calls.clear()
    faulty.opens_at_once = 4
    run.commit(run.read())
    assert len(rows(run)) == 6 * ROWS
    assert faulty.calls.count("open") == 6
    assert (faulty.calls.count("read") == 6) is (small_bytes > 0)
    run.close()


def test_two_ranges_of_one_file_are_opened_once_each(faulty: FaultyFiles, tmp_path: Path) -> None:
    fill(tmp_path)
    path, files = f"{tmp_path}/0/f.csv", source(tmp_path)
    file = DataFile(path)
    ranges = (FileRange(file, 0, 2, 0), FileRange(file, 2, ROWS, 2))
    reader = FileSplitReader(files.root.open()[0], files, files.schema())
    faulty.calls.clear()
    reader.handle_splits_changes(SplitsAddition((FileSplit("0/f.csv", ranges=ranges),)))
    read = 0
    while (fetched := reader.fetch()).next_split() is not None:
        block = fetched.next_record_from_split()
        assert block is not None
        read += block.batch.num_rows
    reader.close()
    assert read == ROWS
    assert faulty.calls.count("open") == 2


# ---- what may pass ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ignored", [False, True], ids=["", "ignoreCorruptFiles"])
@pytest.mark.parametrize("kind", ["info", "list", "open", "read"])
def test_a_file_system_that_failed_for_a_moment_is_tried_again(
    faulty: FaultyFiles, tmp_path: Path, kind: str, ignored: bool, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tmp_path)
    run = SourceHarness(source(tmp_path, bounded=True, ignore_corrupt_files=ignored), strategy("1 minute"), max_rows=5)
    faulty.failing = {kind: 2}
    assert run.plan()
    planned = faulty.failed
    faulty.failing = {kind: 2}
    run.commit(run.read())
    run.run()
    assert rows(run) == ALL
    assert planned == 2
    assert "is tried again for" in caplog.text
    assert "Input/output error" in caplog.text
    run.close()


def test_a_pattern_is_resolved_again_where_its_file_system_failed_for_a_moment(
    faulty: FaultyFiles, tmp_path: Path
) -> None:
    fill(tmp_path)
    faulty.failing = {"info": 1}
    run = SourceHarness(source(tmp_path / "*", bounded=True), strategy("1 minute"), max_rows=5)
    assert run.plan()
    planned, faulty.failing = faulty.failed, {"info": 1}
    run.commit(run.read())
    run.run()
    assert rows(run) == ALL
    assert (planned, faulty.failed) == (1, 2)
    run.close()


@pytest.mark.parametrize("kind", ["parquet", "orc", "arrow", "json"])
def test_a_decoder_does_not_take_a_store_that_failed_for_a_corrupt_file(
    faulty: FaultyFiles, tmp_path: Path, kind: str
) -> None:
    table = pa.table({"t": pa.array([s * SECOND for s in range(ROWS)], pa.timestamp("us"))})
    path = tmp_path / f"f.{kind}"
    if kind == "json":
        path.write_text("".join(f'{{"t": "1970-01-01 00:00:0{row}"}}\n' for row in range(ROWS)))
    else:
        {"parquet": pq.write_table, "orc": orc.write_table, "arrow": feather.write_feather}[kind](table, path)
    formats = {"parquet": ParquetFormat(), "orc": OrcFormat(), "arrow": ArrowFormat(), "json": JsonFormat()}
    files = FileSource(
        f"faulty://{tmp_path}",
        "file",
        format=formats[kind],
        data_schema=table.schema,
        bounded=True,
        ignore_corrupt_files=True,
        indexing="scan",
    )
    run = SourceHarness(files, strategy("1 minute"))
    faulty.failing = {"read": 3}
    assert run.plan()
    faulty.failing = {"read": 3}
    run.commit(run.read())
    assert faulty.failed == 6
    assert rows(run) == [(path.name, row) for row in range(ROWS)]
    run.close()


@pytest.mark.parametrize("ignored", [False, True], ids=["", "ignoreCorruptFiles"])
@pytest.mark.parametrize("kind", ["list", "open", "read"])
def test_a_file_system_that_goes_on_failing_fails_the_query_with_its_cause_and_leaves_nothing_out(
    faulty: FaultyFiles, tmp_path: Path, kind: str, ignored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "RETRY_S", 0.05)
    fill(tmp_path)
    run = SourceHarness(source(tmp_path, bounded=True, ignore_corrupt_files=ignored), strategy("1 minute"), max_rows=5)
    assert run.run_batch() is not None
    faulty.failing = {kind: 10**9}
    with pytest.raises(OSError, match="Input/output error"):
        restart_and_run(run)
    faulty.failing = {}
    run.restart()
    run.run()
    assert rows(run) == ALL
    run.close()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EINVAL])
def test_what_does_not_pass_fails_at_once(faulty: FaultyFiles, tmp_path: Path, number: int) -> None:
    fill(tmp_path)
    faulty.error = OSError(number, os.strerror(number))
    faulty.failing = {"open": 1}
    run = SourceHarness(source(tmp_path, bounded=True), strategy())
    with pytest.raises((OSError, AlignmentError), match=os.strerror(number)):
        run.plan()
    assert faulty.failed == 1
    run.close()


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (OSError("When listing: AWS Error SLOW_DOWN during ListObjectsV2 operation: not now"), True),
        (OSError("AWS Error UNKNOWN (HTTP status 503) during GetObject operation: "), True),
        (OSError("AWS Error ACCESS_DENIED during HeadObject operation: no"), False),
        (OSError("AWS Error NO_SUCH_KEY during GetObject operation: gone"), False),
        (OSError("google::cloud::Status(UNAVAILABLE: try later)"), True),
        (OSError("Couldn't deserialize thrift: don't know what type: 15"), False),
        (pa.ArrowInvalid("Parquet magic bytes not found in footer"), False),
        (FileNotFoundError(errno.ENOENT, "gone"), False),
        (OSError("Could not decompress: [Errno 5] Input/output error"), True),
        (TimeoutError("timed out"), True),
        (ValueError("[Errno 5]"), False),
    ],
    ids=lambda value: str(value)[:40],
)
def test_errors_of_stores_are_told_from_those_of_files(error: Exception, passes: bool) -> None:
    assert is_transient(error) is passes


def test_a_file_system_that_does_not_answer_is_named_in_the_log(
    faulty: FaultyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from tests.spark.reading import stream_reader

    monkeypatch.setattr("streaming_source.coordinator.calls._SILENT_S", 0.02)
    fill(tmp_path)
    options = {"fileFormat": "csv", "dataSchema": "t timestamp", "eventTimeColumn": "t", "splitBy": "file"}
    reader = stream_reader(f"faulty://{tmp_path}", bounded="true", **options)
    faulty.may_go_on.clear()

    class Release(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "brought nothing for" in record.getMessage():
                faulty.may_go_on.set()

    handler = Release()
    logging.getLogger("streaming_source").addHandler(handler)
    try:
        at = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    finally:
        logging.getLogger("streaming_source").removeHandler(handler)
        reader.stop()
    assert at["n"] == 1
    assert "the query waits for its source, which has brought nothing for" in caplog.text


# ---- files that change while they are read ---------------------------------------------------------------------------


@pytest.mark.parametrize("tolerant", [False, True])
@pytest.mark.parametrize("what", ["delete", "rename", "truncate", "append", "rewrite"])
def test_a_file_that_changes_between_planning_and_reading_costs_no_row_in_silence(
    tmp_path: Path, what: str, tolerant: bool
) -> None:
    fill(tmp_path)
    schema = pa.schema([("t", pa.timestamp("us"))])
    given = {"ignore_missing_files": tolerant, "ignore_corrupt_files": tolerant}
    files = FileSource(str(tmp_path), "file", format=CsvFormat(), data_schema=schema, **given)  # type: ignore[arg-type]
    run = SourceHarness(files, strategy("1 minute"), max_rows=ROWS, clock=FakeClock())
    assert run.plan()
    path = tmp_path / "0" / "f.csv"
    if what == "delete":
        path.unlink()
    elif what == "rename":
        path.rename(path.with_name("g.csv"))
    elif what == "truncate":
        path.write_bytes(path.read_bytes()[: ROWS * 10])
    elif what == "append":
        with path.open("a") as file:
            file.write("1970-01-01 00:00:59\n")
    else:
        path.write_text(path.read_text().replace("-01 ", "-01T"))
    if what == "rewrite":
        os.utime(path, (1, 1))
        # Numbers of rows and bytes tie an offset to a file, not its content: the next look finds that it is another.
        run.commit(run.read())
        run.restart()
        with pytest.raises(AlignmentError, match=r"f\.csv was rewritten"):
            run.run()
    else:
        # What is allowed to be missing is not what was planned: the harness says so, and Spark goes on.
        kind = AssertionError if tolerant and what in ("delete", "rename") else AlignmentError
        with pytest.raises(kind, match=r"f\.csv is gone|it was appended to or re|6 records were planned, 0 were"):
            run.read()
    run.close()


@pytest.mark.parametrize("split_by", ["file", "directory"])
def test_discovery_that_races_with_rename_and_delete_reads_what_stays_once(
    tmp_path: Path, split_by: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = pa.schema([("t", pa.timestamp("us"))])
    files = FileSource(
        str(tmp_path), split_by, format=CsvFormat(), data_schema=schema, ignore_missing_files=True, columns=("t",)
    )
    fill(tmp_path)
    for name in ("2", "3"):
        shutil.copytree(tmp_path / "1", tmp_path / name)
    list_one = listing.Lister._list_one
    raced: list[str] = []

    def race(self: Any, path: str, directory: str) -> Any:
        found = list_one(self, path, directory)
        # After it was listed, and before it is described.
        if directory == "2" and not raced:
            (tmp_path / "2" / "f.csv").unlink()
            (tmp_path / "3" / "f.csv").rename(tmp_path / "3" / "g.csv")
            raced.append(path)
        return found

    monkeypatch.setattr(listing.Lister, "_list_one", race)
    run = SourceHarness(files, strategy("1 minute"), clock=FakeClock())
    for _ in range(3):
        look_again(run)
    run.run()
    per_split = {split: len(records) for split, records in run.records().items()}
    assert raced
    three = "3/g.csv" if split_by == "file" else "3"
    assert per_split == (
        {"0/f.csv": ROWS, "1/f.csv": ROWS, three: ROWS} if split_by == "file" else {"0": ROWS, "1": ROWS, three: ROWS}
    )
    run.close()


# ---- S3 --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def s3(s3_endpoint: str) -> Iterator[tuple[Store, FaultyStore]]:
    """A bucket with three files, and the proxy through which it is read."""
    store = s3_store(s3_endpoint)
    for number in range(3):
        store.write(f"in/{number}.parquet", [number * 10.0, number * 10 + 1.0])
    with before(s3_endpoint) as faulty:
        store.storage["endpoint_override"] = faulty.endpoint
        yield store, faulty


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param([503, "half"], id="each"),
        # Three in a row are more than the client of pyarrow tries.
        pytest.param(["half"] * 4, id="half", marks=pytest.mark.soak),
        pytest.param([503] * 7, id="slow-down", marks=pytest.mark.soak),
        pytest.param([500] * 7, id="internal-error", marks=pytest.mark.soak),
    ],
)
def test_an_s3_endpoint_that_fails_for_a_moment_costs_no_row(
    s3: tuple[Store, FaultyStore], answers: list[int | str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "RETRY_S", 30.0)
    store, faulty = s3
    given = list(answers)
    run = SourceHarness(store.source(bounded=True, ignore_corrupt_files=True), strategy("10 seconds"), max_rows=3)
    faulty.answers = list(given)
    run.run_batch()
    faulty.answers += given
    run.restart()
    run.run()
    assert rows(run) == [(f"{number}.parquet", row) for number in range(3) for row in range(2)]
    assert faulty.faults >= len(given)
    run.close()


@pytest.mark.soak
@pytest.mark.parametrize("status", [500, 503])
def test_an_s3_endpoint_that_goes_on_failing_fails_the_query_and_a_restart_goes_on(
    s3: tuple[Store, FaultyStore], status: int
) -> None:
    store, faulty = s3
    run = SourceHarness(store.source(bounded=True, ignore_corrupt_files=True), strategy("10 seconds"), max_rows=2)
    run.run_batch()
    assert run.plan()
    faulty.refused = status
    with pytest.raises(StoreUnavailableError, match=r"the store failed: .*AWS Error"):
        run.read()
    faulty.refused = None
    run.restart()
    run.run()
    assert rows(run) == [(f"{number}.parquet", row) for number in range(3) for row in range(2)]
    run.close()


@pytest.mark.soak
def test_a_listing_that_is_behind_is_no_loss(s3: tuple[Store, FaultyStore], s3_endpoint: str) -> None:
    store, faulty = s3
    run = SourceHarness(store.source("file"), strategy("10 seconds"), clock=FakeClock())
    look_again(run)
    faulty.is_stale = True
    store.write("in/9.parquet", [90.0, 91.0])
    look_again(run)
    assert len(rows(run)) == 6
    faulty.is_stale = False
    look_again(run)
    assert len(rows(run)) == 8
    store.remove("in/0.parquet")
    faulty.is_stale = True
    look_again(run)
    assert len(rows(run)) == 8
    run.close()


# ---- on Spark --------------------------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.spark
def test_a_query_on_spark_over_an_s3_endpoint_that_fails_now_and_then_reads_each_row_once(
    spark: SparkSession, s3: tuple[Store, FaultyStore], tmp_path: Path
) -> None:
    store, faulty = s3
    options = {"eventTimeColumn": "t", "splitBy": "file", "includeMetadata": "true", "timeZone": "UTC", **store.options}
    stream = spark.readStream.format("aligned_files").options(
        **options, maxRowsPerTrigger="2", ignoreCorruptFiles="true"
    )
    frame = stream.load(f"{store.uri}/in").select("_split", "_position")
    faulty.answers = [503, "half", 500] * 10
    run = available_now(spark, frame, tmp_path / "cp", files=tmp_path / "out")
    assert faulty.faults > 20
    assert sorted(map(tuple, run.rows)) == [(f"{number}.parquet", row) for number in range(3) for row in range(2)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 300 KiB, where this user may mount one."""
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def fill_disk(disk: Path, left: int) -> Path:
    """A file that takes all but so many bytes."""
    state = os.statvfs(disk)
    filler = disk / "filler"
    filler.write_bytes(bytes(state.f_bavail * state.f_frsize - left))
    return filler


def test_finished_files_that_cannot_be_written_down_on_a_full_disk_fail_the_query_and_no_file_is_read_twice(
    small_disk: Path, tmp_path: Path
) -> None:
    for number in range(6):
        path = tmp_path / "in" / f"{number}.csv"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"1970-01-01 00:00:{number:02d}\n" * ROWS)
    schema = pa.schema([("t", pa.timestamp("us"))])
    state = {"state_location": str(small_disk / "state"), "bounded": True}
    files = FileSource(str(tmp_path / "in"), "file", format=CsvFormat(), data_schema=schema, **state)  # type: ignore[arg-type]
    run = SourceHarness(files, strategy(), max_rows=ROWS)
    assert run.run_batch() is not None
    filler = fill_disk(small_disk, 0)
    with pytest.raises(OSError, match="No space left on device"):
        restart_and_run(run)
    filler.unlink()
    run.restart(loses_plan=True)
    run.run()
    assert rows(run) == [(f"{number}.csv", row) for number in range(6) for row in range(ROWS)]
    run.close()


@pytest.mark.soak
@pytest.mark.spark
def test_a_checkpoint_on_a_full_disk_fails_the_query_and_a_restart_reads_each_row_once(
    spark: SparkSession, small_disk: Path, tmp_path: Path
) -> None:
    logs = skewed_logs(4, rows=(60, 60), starts=(0, 30 * SECOND), steps=(SECOND, SECOND))
    write_logs(tmp_path / "in", logs, files=2)

    def run() -> Run:
        reader = read_stream(spark).format("aligned_files").option("eventTimeColumn", "ts")
        frame = reader.option("maxRowsPerTrigger", 12).option("includeMetadata", "true").load(str(tmp_path / "in"))
        frame = frame.select("_split", "_position")
        return available_now(spark, frame, small_disk / "cp", files=tmp_path / "out")

    filler = fill_disk(small_disk, 60 * 1024)
    with fails_with("No space left on device"):
        run()
    assert last_batch(small_disk / "cp") >= 1
    filler.unlink()
    expected = [(split, row) for split in logs for row in range(60)]
    assert sorted(map(tuple, run().rows)) == expected


# ---- credentials that expire ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("split_by", ["file", "directory"])
def test_a_source_goes_on_with_new_credentials_when_the_old_ones_have_expired(
    s3_endpoint: str, split_by: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, days = [1.7e9], [1]
    monkeypatch.setattr(credentials, "time", SimpleNamespace(time=lambda: now_s[0]))
    with before(s3_endpoint) as proxy:
        store = s3_store(s3_endpoint)
        fixed = {**store.storage, "endpoint_override": proxy.endpoint}
        del fixed["access_key"]

        def login() -> tuple[dict[str, str], float]:
            return {"storage.access_key": f"{KEY}-{days[0]}"}, now_s[0] + 3600

        storage = StorageOptions.of(fixed, login)
        columns = pa.schema([("t", pa.timestamp("us"))])
        source = FileSource(f"{store.uri}/in", split_by, data_schema=columns, storage=storage)
        proxy.valid_key = f"{KEY}-1"
        store.write("in/a/0.parquet", [0.0, 1.0, 2.0])
        run = SourceHarness(source, strategy())
        run.run()
        days[0], now_s[0], proxy.valid_key = 2, now_s[0] + 3500, f"{KEY}-2"
        store.write("in/a/1.parquet", [3.0, 4.0, 5.0])
        store.write("in/b/0.parquet", [0.0, 1.0, 2.0])
        look_again(run)
        assert len(rows(run)) == 9
        run.close()
        # Those that the store refuses are an error, and nothing is lost in silence.
        proxy.valid_key = f"{KEY}-3"
        with pytest.raises(Exception, match=r"AWS Error|ACCESS_DENIED|403|EXPIRED") as raised:
            SourceHarness(replace(source, bounded=True), strategy()).run()
        assert KEY not in str(raised.value)


def test_credentials_are_refused_for_local_files(tmp_path: Path) -> None:
    storage = StorageOptions.of({}, "my_keys:login")
    with pytest.raises(OptionError, match=r"option credentials: the local file system takes none.*leave it out$"):
        FileSource(str(tmp_path), storage=storage).schema()
