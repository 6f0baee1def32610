"""Fetching the records of data files."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

import pyarrow as pa
from pyarrow import fs

from alignment import arrow_compute as pc
from alignment.arrow_times import is_order_preserving
from alignment.column_paths import fields_on_path
from alignment.exceptions import InvalidTimestampError
from alignment.timestamps import FieldTimestampAssigner, TimestampAssigner
from alignment.watermarks import Int64Array
from streaming_source.api import (
    BlockEmitter,
    RecordBlock,
    RecordsBySplits,
    SourceOutput,
    SplitReader,
    SplitsAddition,
    SplitsChange,
    SplitState,
)
from streaming_source.data_files.config import ReadingConfig
from streaming_source.data_files.faults import StoreRetries
from streaming_source.data_files.file import FileRows, StoredFile
from streaming_source.data_files.ranges import FileRange, RangedSplit
from streaming_source.exceptions import FileGoneError, MalformedDataError

SplitT = TypeVar("SplitT", bound=RangedSplit)

_FILES_AHEAD: Final = 16
"""In a store that is not on this machine."""

_SMALL_BYTES: Final = 4 << 20
"""Fetching a file of this size takes no longer than fetching its footer and then its columns."""


class FileSplitReader(SplitReader[SplitT], Generic[SplitT]):
    """Reads the columns `schema` of the ranges of its splits one after another, a batch a fetch.

    Meanwhile threads open the next files, and fetch small ones whole, so that it does not wait for a store. With an
    `assigner` event times are compared with the statistics by which the rows were planned.
    """

    def __init__(
        self,
        filesystem: fs.FileSystem,
        config: ReadingConfig,
        schema: pa.Schema,
        assigner: TimestampAssigner | None = None,
    ) -> None:
        self._filesystem = filesystem
        self._config = config
        self._format = config.zoned_format
        self._schema = schema
        # All other bounds were computed of all event times.
        has_statistics = self._format.has_statistics and config.indexing != "scan"
        self._assigner = assigner if has_statistics and assigner and assigner.statistics_column else None
        self._in_order: str | None = None
        if isinstance(self._assigner, FieldTimestampAssigner) and self._assigner.column in schema.names:
            kind = schema.field(self._assigner.column).type
            if is_order_preserving(kind, self._assigner.unit) and not pa.types.is_dictionary(kind):
                self._in_order = self._assigner.column
        self._retries = StoreRetries()
        # By split, in the order of addition. Without threads a file is opened when its first block is fetched.
        self._unread: dict[str, Generator[RecordBlock]] = {}
        self._ahead = config.files_ahead or (0 if self._filesystem.type_name == "local" else _FILES_AHEAD)
        self._threads = ThreadPoolExecutor(self._ahead, "files-ahead") if self._ahead else None
        # Ranges whose files are not open yet, each with its split; then those whose files are opened ahead.
        self._waiting: deque[tuple[str, FileRange]] = deque()
        self._opening: dict[tuple[str, FileRange], Future[pa.NativeFile]] = {}

    def handle_splits_changes(self, change: SplitsChange[SplitT]) -> None:
        for split in change.splits:
            if isinstance(change, SplitsAddition):
                unread = list(_unread(split))
                self._unread[split.split_id] = self._blocks(split.split_id, unread)
                self._waiting.extend((split.split_id, part) for part in unread)
            else:
                self._end(split.split_id)
        self._open_ahead()

    def fetch(self) -> RecordsBySplits[RecordBlock]:
        split_id = next(iter(self._unread), None)
        if split_id is None:
            return RecordsBySplits()
        block = next(self._unread[split_id], None)
        if block is None:
            self._end(split_id)
            return RecordsBySplits(finished_splits={split_id})
        return RecordsBySplits({split_id: [block]})

    def close(self) -> None:
        for split_id in list(self._unread):
            self._end(split_id)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _end(self, split_id: str) -> None:
        blocks = self._unread.pop(split_id, None)
        if blocks is not None:
            blocks.close()
        for key in [key for key in self._opening if key[0] == split_id]:
            opening = self._opening.pop(key)
            opening.add_done_callback(_close)
            opening.cancel()

    def _open_ahead(self) -> None:
        while self._threads is not None and self._waiting and len(self._opening) < self._ahead:
            split_id, part = self._waiting.popleft()
            if split_id in self._unread:
                self._opening[split_id, part] = self._threads.submit(self._open, part.file.path)

    def _open(self, path: str) -> pa.NativeFile:
        """Open a file, on a thread; a small one is fetched in one request."""
        stream = self._filesystem.open_input_file(path)
        if (size := stream.size()) > _SMALL_BYTES:
            return stream
        with stream:
            return pa.BufferReader(stream.read_buffer(size))

    def _blocks(self, split_id: str, unread: list[FileRange]) -> Generator[RecordBlock]:
        for part in unread:
            opening = self._opening.pop((split_id, part), None)
            self._open_ahead()
            file = StoredFile(
                self._filesystem, part.file, opening, checks_size=True, case_sensitive=self._config.case_sensitive
            )
            try:
                for block in self._rows(FileRows(file, part.start, part.stop, part.seek_point)):
                    if self._assigner is not None:
                        part.check(self._times(self._assigner, block.batch))
                    yield _FileBlock(block.batch, block.positions + part.position - part.start, file=file, part=part)
            except (FileGoneError, MalformedDataError) as error:
                self._config.skip(error)

    def _times(self, assigner: TimestampAssigner, batch: pa.RecordBatch) -> Int64Array:
        """Return event times, the earliest and the latest of a batch among them: two, where the column is in order."""
        if self._in_order is not None:
            ends = pc.min_max(batch.column(self._in_order))
            # Not made from values of Python: pyarrow would load pandas in each task.
            two = pa.concat_arrays([pa.repeat(ends[name], 1) for name in ("min", "max")])
            batch = pa.RecordBatch.from_arrays([two], [self._in_order])
        return assigner.extract(batch, None).values

    def _rows(self, unread: FileRows) -> Generator[RecordBlock]:
        """Yield the rows. After an error of the store that is retried, reading goes on after the last row."""
        rows, start = self._format.read_rows(unread, self._schema), unread.start

        def next_block() -> RecordBlock | None:
            nonlocal rows
            try:
                return next(rows, None)
            except BaseException:
                again = replace(unread, start=start, file=replace(unread.file, opening=None))
                rows = self._format.read_rows(again, self._schema)
                raise

        while (block := self._retries.run(next_block)) is not None:
            start = block.next_position or start
            yield block


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileBlock(RecordBlock):
    """Records of a range of a file."""

    file: StoredFile
    part: FileRange


class FileEmitter(BlockEmitter[SplitT], Generic[SplitT]):
    """Emits blocks of files, and names the file, the record, and what is written there, where a time cannot be read."""

    def __init__(self, config: ReadingConfig, assigner: TimestampAssigner | None) -> None:
        self._config = config
        self._columns = (assigner and assigner.columns) or ()

    def emit_record(self, element: RecordBlock, output: SourceOutput, split_state: SplitState[SplitT]) -> None:
        try:
            BlockEmitter.emit_record(self, element, output, split_state)
        except InvalidTimestampError as error:
            if error.position is None or not isinstance(element, _FileBlock):
                raise
            part = element.part
            row = error.position - part.position + part.start
            paths = [fields_on_path(element.file.own(element.batch.schema), name) for name in self._columns]
            rows = FileRows(replace(element.file, opening=None), row, row + 1, part.seek_point)
            of_format = self._config.zoned_format
            what, fix = of_format.unread(rows, {path[0].name: path[-1].type for path in paths if path})
            raise InvalidTimestampError(f"{part.file.path}, record {row}{what}: {error}{fix}") from None


def _close(opening: Future[pa.NativeFile]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def _unread(split: RangedSplit) -> Generator[FileRange]:
    """Yield the ranges of a split from its position on."""
    for part in split.ranges:
        read = min(max(split.position - part.position, 0), part.stop - part.start)
        if read < part.stop - part.start:
            yield replace(part, start=part.start + read, position=part.position + read)
