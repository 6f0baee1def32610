"""Event times of data files, known ahead of reading, and the ranges that readers are given of them."""

from __future__ import annotations

import os
import threading
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from pyarrow import fs

from alignment.shown import log_of
from streaming_source.api import SplitEnumerator, SplitEnumeratorContext, SplitRange, SupportsEventTimeIndex
from streaming_source.data_files.config import ReadingConfig
from streaming_source.data_files.evolution import names_in
from streaming_source.data_files.faults import StoreRetries
from streaming_source.data_files.file import DataFile, FileBlocks, FileRows, StoredFile
from streaming_source.data_files.formats.base import FileScan
from streaming_source.data_files.ranges import FileLog, LoggedFile, RangedSplit, cut_ranges
from streaming_source.exceptions import FileGoneError, MalformedDataError, SchemaError

_log = log_of(__name__)

T = TypeVar("T")
SplitT = TypeVar("SplitT", bound=RangedSplit)
CheckpointT = TypeVar("CheckpointT")


class DataFileEnumerator(
    SupportsEventTimeIndex[SplitT], SplitEnumerator[SplitT, CheckpointT], Generic[SplitT, CheckpointT]
):
    """Indexes the data files of its splits, and cuts what a plan admits of them into ranges.

    A subclass finds the files. It makes a `DataFile` of each, calls `_describe` where the file's blocks are not known,
    and appends the file to its split with `_append_file`.
    """

    def __init__(
        self, config: ReadingConfig, filesystem: fs.FileSystem, context: SplitEnumeratorContext[SplitT]
    ) -> None:
        self._context = context
        self._range = context.event_time_range or None
        self._filesystem = filesystem
        self._retries = StoreRetries()
        self._logs: dict[str, FileLog] = {}
        # Of the splits that the last state finished: their last ranges are cut after that.
        self._finished_logs: dict[str, FileLog] = {}
        # Splits of before a restart, in their states of then, until they are finished.
        self._restored: dict[str, SplitT] = {}
        self._config = config
        self._format = config.zoned_format
        self._scanning: AbstractContextManager[Any] = nullcontext()
        is_local = filesystem.type_name == "local" and not config.files_ahead
        if is_local and not self._format.has_statistics:
            # A scan of local files takes a core: more scans than cores compete for memory and caches.
            self._scanning = threading.BoundedSemaphore(2 * (os.cpu_count() or 1))
        self._logged_columns: set[str] = set()
        # Whether records are counted, and their event times not read.
        self._counts_alone = False

    def restore_splits(self, splits: Sequence[SplitT]) -> None:
        self._restored = {split.split_id: split for split in splits}

    def handle_split_request(self, subtask_id: int, requester_hostname: str | None = None) -> None:
        """Does nothing: splits are assigned as they are found, or as there is room for them."""

    def event_times(self, split_id: str, start: int, stop: int) -> npt.NDArray[np.int64]:
        file = self._logs[split_id].locate(start)
        assert file is not None, "only event times of indexed blocks are loaded"
        part = file.range_of(start - file.position, stop - file.position)
        rows = FileRows(self._stored(file.file), part.start, part.stop, part.seek_point)
        schema, assigner = self._context.schema, self._context.timestamp_assigner
        try:
            times = self._retries.run(lambda: self._format.event_times(rows, schema, assigner))
            part.check(times)
            return times
        except (FileGoneError, MalformedDataError) as error:
            self._config.skip(error)
        # A file that is corrupt or gone is skipped by readers too: any times within the bounds of its block will do.
        return np.full(stop - start, file.blocks.max_us[file.block_of(part.start)[0]])

    def ranges(self, start: SplitT, end: SplitT, rows_per_range: int) -> Sequence[SplitRange[SplitT]]:
        log = self._logs.get(end.split_id) or self._finished_logs.get(end.split_id)
        if log is None or not log.covers(start.position, end.position):
            log = self._retries.run(lambda: self._rebuild(start, end))
        parts = cut_ranges(log.files, start.position, end.position, rows_per_range, self._range)
        # What comes before `start` is committed, and not planned again.
        log.forget_before(start.position)
        return [SplitRange(start.with_ranges(ranges), rows) for ranges, rows in parts]

    def finish_split(self, split_id: str) -> None:
        self._restored.pop(split_id, None)
        if (log := self._logs.pop(split_id, None)) is not None:
            self._finished_logs[split_id] = log

    def close(self) -> None:
        self._retries.end()

    # ---- for subclasses ----------------------------------------------------------------------------------------------

    @abstractmethod
    def _rebuild(self, start: SplitT, end: SplitT) -> FileLog:
        """Find and return the files between two states of a split, after a restart."""

    def _describe(self, file: DataFile) -> FileBlocks | None:
        """Open a file and return its blocks; None if the source skips the file."""
        return self._described(file, counts_alone=self._counts_alone)

    def _described(self, file: DataFile, *, counts_alone: bool, rows: int | None = None) -> FileBlocks | None:
        """Return the blocks of a file, of so many rows or a few more; None if the source skips it."""
        stored, schema, assigner = self._stored(file), self._context.schema, self._context.timestamp_assigner
        indexing = self._config.indexing
        try:
            with self._scanning:
                if rows is not None:
                    blocks, _ = self._retries.run(lambda: self._scan_of(file).advance(rows))
                elif counts_alone:
                    blocks = self._retries.run(lambda: self._format.describe_rows(stored, schema))
                else:
                    blocks = self._retries.run(lambda: self._format.describe(stored, schema, assigner, indexing))
        except (FileGoneError, MalformedDataError) as error:
            self._config.skip(error)
            return None
        self._check_new_columns(file.path, blocks.columns)
        return blocks

    def _scan_of(self, file: DataFile) -> FileScan:
        """Begin to describe a file in parts."""
        return FileScan(self._format, self._stored(file), self._context.schema, self._context.timestamp_assigner)

    def _describe_all(self, files: Iterable[DataFile]) -> list[FileBlocks | None]:
        return list(self._context.map_on_workers(self._describe, files))

    def _in_background(
        self,
        call: Callable[[], T],
        handler: Callable[[T], None],
        period_seconds: float | None = None,
        delay_seconds: float = 0.0,
    ) -> None:
        def handle(result: T | None, error: BaseException | None) -> None:
            if error is not None:
                raise error
            assert result is not None
            handler(result)

        self._context.call_async(
            call,
            handle,
            initial_delay_seconds=delay_seconds,
            period_seconds=period_seconds,
            at_each_trigger=period_seconds is not None,
        )

    def _append_file(self, split_id: str, file: LoggedFile, read: int) -> None:
        """Append a file to its split, and index its blocks without the first `read` rows: those were read before."""
        self._logs.setdefault(split_id, FileLog()).files.append(file)
        self._index_blocks(split_id, file.blocks, read)

    def _index_blocks(self, split_id: str, blocks: FileBlocks, read: int) -> None:
        rows, low, high, earliest = blocks.rows, blocks.min_us, blocks.max_us, blocks.valid_min_us
        if read:
            unread = np.cumsum(rows) - read
            rest = unread > 0
            rows, low, high, earliest = np.minimum(rows, unread)[rest], low[rest], high[rest], earliest[rest]
        self._context.add_blocks(split_id, rows, low, high, earliest)

    def _reader_of(self, split_id: str) -> int:
        readers = sorted(self._context.registered_readers())
        return readers[zlib.crc32(split_id.encode()) % len(readers)]

    def _no_more_splits(self) -> None:
        for subtask_id in self._context.registered_readers():
            self._context.signal_no_more_splits(subtask_id)

    def _stored(self, file: DataFile) -> StoredFile:
        return StoredFile(self._filesystem, file, case_sensitive=self._config.case_sensitive)

    @cached_property
    def _known_columns(self) -> frozenset[str]:
        return frozenset(map(self._key, names_in(self._context.schema)))

    def _key(self, name: str) -> str:
        return name if self._config.case_sensitive else name.lower()

    def _check_new_columns(self, path: str, columns: Sequence[str]) -> None:
        if self._config.columns is not None:
            return
        added = [name for name in columns if self._key(name) not in self._known_columns]
        # What is inside of a new column is new with it.
        new = ", ".join(name for name in added if not any(name.startswith(f"{other}.") for other in added))
        if new and self._config.schema_evolution == "fail":
            raise SchemaError(
                f"{path} has new columns that the query does not read: {new}. Set schemaEvolution = ignore to go on "
                "without them, or addAtRestart to have them from the next start on"
            )
        if new and new not in self._logged_columns:
            self._logged_columns.add(new)
            _log.warning(
                "%s has new columns that the query does not read: %s. They are ignored (schemaEvolution)", path, new
            )
