"""The split readers of the shipped connectors, and the loop that reads on an executor."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from alignment.timestamps import FieldTimestampAssigner
from alignment.watermarks import MIN_WATERMARK
from streaming_source.api import (
    BlockEmitter,
    Fetching,
    InputStatus,
    ReaderOutput,
    RecordBlock,
    RecordsWithSplitIds,
    SourceReader,
    SourceReaderContext,
    SplitsAddition,
    SplitsRemoval,
)
from streaming_source.connectors.datagen import DataGeneratorSource
from streaming_source.connectors.files import FileSource
from streaming_source.connectors.files.split import FileSplit
from streaming_source.coordinator.rules import FrameOptions
from streaming_source.data_files.file import DataFile
from streaming_source.data_files.ranges import FileRange
from streaming_source.data_files.split_reader import FileSplitReader
from streaming_source.exceptions import UnsupportedOperationError
from streaming_source.reader import SourceReaderBase, create_fetcher_manager, create_reader
from streaming_source.spark.input_partition import AlignedInputPartition
from streaming_source.spark.readers import read_splits
from streaming_source.spark.rows import RowShaper
from tests.reader.numbers import (
    SCHEMA,
    BlockingSplitReader,
    FailingSplitReader,
    NumberSplitReader,
    Output,
    Readers,
    Split,
    fetcher_threads,
    read_to_end,
)


def context() -> SourceReaderContext:
    return SourceReaderContext(SCHEMA)


# ---- files ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def splits(tmp_path: Path) -> list[FileSplit]:
    """Four splits of two files of 300 rows each; the rows are numbered as their positions."""
    found = []
    for number in range(4):
        ranges = []
        for part in range(2):
            path = tmp_path / f"{number}-{part}.parquet"
            rows = pa.record_batch([pa.array(range(300 * part, 300 * (part + 1)))], schema=SCHEMA)
            pq.write_table(pa.Table.from_batches([rows]), path, row_group_size=100)
            ranges.append(FileRange(DataFile(str(path)), 0, 300, 300 * part))
        found.append(FileSplit(f"split-{number}", ranges=tuple(ranges)))
    return found


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming_source.data_files.formats.columnar.BATCH_ROWS", 50)


def file_reader(files_ahead: int | None = None) -> FileSplitReader:
    return FileSplitReader(fs.LocalFileSystem(), FileSource("/", files_ahead=files_ahead), SCHEMA)


def fetched(records: RecordsWithSplitIds[RecordBlock]) -> list[tuple[str, int]]:
    """Split and first position of each block."""
    blocks = []
    while (split_id := records.next_split()) is not None:
        while (element := records.next_record_from_split()) is not None:
            assert element.batch.column(0)[0].as_py() == element.positions
            blocks.append((split_id, element.positions))
    return blocks


@pytest.mark.parametrize("position", [0, 1, 50, 299, 300, 301, 599, 600])
def test_a_split_of_files_is_read_from_its_position_on(splits: list[FileSplit], position: int) -> None:
    reader, output = (
        SourceReaderBase(
            create_fetcher_manager(Fetching.single_thread(), file_reader), BlockEmitter[FileSplit](), context()
        ),
        Output(),
    )
    begun = FileSplit("split-0", position, ranges=splits[0].ranges)
    reader.add_splits([begun])
    reader.notify_no_more_splits()
    read_to_end(reader, output)
    reader.close()
    assert output.of("split-0") == list(range(position, 600))


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("files_ahead", [None, 3])
def test_removed_splits_of_files_are_left_out(splits: list[FileSplit], files_ahead: int | None) -> None:
    reader = file_reader(files_ahead)
    reader.handle_splits_changes(SplitsAddition(splits))
    assert fetched(reader.fetch()) == [("split-0", 0)]
    reader.handle_splits_changes(SplitsRemoval([splits[0], splits[2]]))
    assert fetched(reader.fetch()) == [("split-1", 0)]
    assert fetched(reader.fetch()) == [("split-1", 50)]
    reader.close()


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("files_ahead", [None, 3])
@pytest.mark.parametrize("ending", ["close", "remove"])
def test_a_file_is_closed_when_its_split_is_left(splits: list[FileSplit], ending: str, files_ahead: int | None) -> None:
    opened: list[Any] = []

    class Local:
        type_name = "local"

        def open_input_file(self, path: str) -> Any:
            opened.append(fs.LocalFileSystem().open_input_file(path))
            return opened[-1]

    reader = file_reader(files_ahead)
    reader._filesystem = Local()
    reader.handle_splits_changes(SplitsAddition(splits[:1]))
    reader.fetch()
    threads = reader._threads
    if threads is None:
        assert [file.closed for file in opened] == [False]
    if ending == "close":
        reader.close()
    else:
        reader.handle_splits_changes(SplitsRemoval(splits[:1]))
    if threads is not None:
        threads.shutdown()
    assert opened
    assert all(file.closed for file in opened)


def test_the_shipped_connectors_run_on_the_base_reader_and_have_no_thread_of_their_own(tmp_path: Path) -> None:
    for source in (FileSource(str(tmp_path)), DataGeneratorSource()):
        before = threading.enumerate()
        reader: SourceReader[Any] = create_reader(source, context())
        assert type(reader) is SourceReaderBase
        reader.close()
        source.create_split_reader(context()).close()
        assert threading.enumerate() == before


def test_a_reader_of_the_sources_own_goes_before_the_base_reader() -> None:
    own = object()

    class OwnReader(DataGeneratorSource):
        def create_reader(self, context: SourceReaderContext) -> Any:
            return own

    assert create_reader(OwnReader(), context()) is own


def test_a_source_without_a_reader_of_its_own_says_what_makes_one() -> None:
    with pytest.raises(
        UnsupportedOperationError, match=r"DataGeneratorSource .* streaming_source\.reader\.create_reader"
    ):
        DataGeneratorSource().create_reader(context())


# ---- on an executor ------------------------------------------------------------------------------------------------


class Source:
    """As much of a source as reading needs."""

    def __init__(self, make: Callable[[], NumberSplitReader]) -> None:
        self.readers = Readers(make)
        self.made: list[SourceReader[Split]] = []

    def create_reader(self, context: SourceReaderContext) -> SourceReader[Split]:
        manager = create_fetcher_manager(Fetching.single_thread(), self.readers)
        self.made.append(SourceReaderBase(manager, BlockEmitter[Split](), context))
        return self.made[-1]


def shaper() -> RowShaper:
    frame = pa.schema([("n", pa.int64()), ("event_time", pa.timestamp("us", "UTC"))])
    return RowShaper(frame, "event_time", FieldTimestampAssigner("n", "us"), FrameOptions())


def rows_of(source: Source, splits: list[Split]) -> list[int]:
    batches = read_splits(source, SCHEMA, shaper(), AlignedInputPartition(tuple(splits), MIN_WATERMARK))  # type: ignore[arg-type]
    return [n for batch in batches for n in batch.column("n").to_pylist()]


def test_ranges_of_one_split_are_read_one_after_another() -> None:
    source = Source(NumberSplitReader)
    ranges = [Split("a", 0, 5), Split("b", 100, 103), Split("a", 5, 9), Split("a", 9, 10)]
    rows = rows_of(source, ranges)
    assert [n for n in rows if n < 100] == list(range(10))
    assert sorted(n for n in rows if n >= 100) == [100, 101, 102]
    assert source.readers.all_closed()


def test_an_error_of_a_fetch_reaches_spark_and_the_reader_is_closed() -> None:
    source = Source(lambda: FailingSplitReader(2, ValueError("bad record")))
    with pytest.raises(ValueError, match="bad record"):
        rows_of(source, [Split("a", 0, 100)])
    assert source.readers.all_closed()
    assert not fetcher_threads()


def test_a_task_that_is_given_up_half_way_closes_its_reader() -> None:
    source = Source(NumberSplitReader)
    rows = read_splits(source, SCHEMA, shaper(), AlignedInputPartition((Split("a"),), MIN_WATERMARK))  # type: ignore[arg-type]
    next(rows)
    del rows
    gc.collect()
    assert source.readers.all_closed()
    assert not fetcher_threads()


def test_where_there_is_nothing_yet_it_waits_for_the_reader() -> None:
    polls, waits = [], []

    class Waiting(SourceReaderBase[Split, RecordBlock]):
        def poll_next(self, output: ReaderOutput) -> InputStatus:
            polls.append(super().poll_next(output))
            return polls[-1]

        def is_available(self) -> Future[None]:
            # Nothing comes before it is waited for.
            waits.append(super().is_available())
            source.readers.made[0].release()
            return waits[-1]

    class Waited(Source):
        def create_reader(self, context: SourceReaderContext) -> SourceReader[Split]:
            manager = create_fetcher_manager(Fetching.single_thread(), self.readers)
            return Waiting(manager, BlockEmitter[Split](), context)

    source = Waited(BlockingSplitReader)
    assert rows_of(source, [Split("a", 0, 6)]) == [0, 1, 2, 3, 4, 5]
    assert polls.count(InputStatus.NOTHING_AVAILABLE) == len(waits)
    assert all(future.done() for future in waits)


def test_a_request_for_a_split_has_no_effect_since_all_were_given() -> None:
    class Asking(Source):
        def create_reader(self, context: SourceReaderContext) -> SourceReader[Split]:
            context.send_split_request()
            return super().create_reader(context)

    assert rows_of(Asking(NumberSplitReader), [Split("a", 0, 2)]) == [0, 1]
