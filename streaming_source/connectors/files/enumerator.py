"""The splits of a path, found in the background, and the files of a split as one sequence of records."""

from __future__ import annotations

import logging
import os
import posixpath
import threading
import zlib
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from streaming_source.api import SplitEnumerator, SplitEnumeratorContext, SplitRange, SupportsEventTimeIndex
from streaming_source.connectors.files.cleaning import Cleaner
from streaming_source.connectors.files.config import FilesConfig
from streaming_source.connectors.files.formats import FileBlocks, FileRows, Place, StoredFile
from streaming_source.connectors.files.listing import ListedFile, Lister
from streaming_source.connectors.files.retries import StoreRetries
from streaming_source.connectors.files.split import FileRange, FilesCheckpoint, FileSplit
from streaming_source.exceptions import DataLossError, FileGoneError, SchemaError

__all__ = ["FileLog", "FileSplitEnumerator", "LoggedFile", "cut_ranges"]

_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LoggedFile:
    """One file of a split: its name there, how to open it, the position of its first row, its number from 1."""

    name: str
    path: str
    position: int
    blocks: FileBlocks
    number: int = 0

    @property
    def end(self) -> int:
        return self.position + int(self.blocks.rows.sum())

    def place_of(self, row: int) -> Place | None:
        """Where to begin to read a row; None where it can be read from its beginning only. O(blocks)."""
        if self.blocks.places is None:
            return None
        ends = np.cumsum(self.blocks.rows)
        block = int(np.searchsorted(ends, row, side="right"))
        return Place(int(ends[block - 1]) if block else 0, self.blocks.places[block])


@dataclass(slots=True)
class FileLog:
    """Consecutive files of a split, from the one that holds the next record on."""

    files: list[LoggedFile] = field(default_factory=list)

    def locate(self, position: int) -> LoggedFile | None:
        """The file that holds `position`, or after which it will come. O(log n)."""
        place = bisect_right(self.files, position, key=attrgetter("position")) - 1
        return self.files[place] if place >= 0 else None

    def covers(self, start: int, stop: int) -> bool:
        """Whether all records of `[start, stop)` are in these files."""
        return bool(self.files) and self.files[0].position <= start and stop <= self.files[-1].end

    def forget_before(self, position: int) -> None:
        """Drop the files that end at or before `position`, but for the last one."""
        while len(self.files) > 1 and self.files[0].end <= position:
            del self.files[0]


def cut_ranges(
    files: Iterable[LoggedFile], start: int, stop: int, rows_per_range: int
) -> Sequence[tuple[tuple[FileRange, ...], int]]:
    """The records `[start, stop)` as groups of file ranges of about `rows_per_range` rows, with their row counts.

    Cut between blocks, so that none is decoded twice.
    """
    groups: list[tuple[tuple[FileRange, ...], int]] = []
    current: list[FileRange] = []
    rows = 0
    for file in files:
        begun = max(start - file.position, 0)
        last = min(stop, file.end) - file.position
        for end_of_block in np.cumsum(file.blocks.rows).tolist():
            upto = min(end_of_block, last)
            if upto <= begun or not (upto == last or rows + upto - begun >= rows_per_range):
                continue
            if upto < last and file.blocks.places is None:
                continue
            current.append(FileRange(file.path, begun, upto, file.position + begun, file.place_of(begun)))
            rows += upto - begun
            begun = upto
            if rows >= rows_per_range:
                groups.append((tuple(current), rows))
                current, rows = [], 0
    return [*groups, (tuple(current), rows)] if current else groups


class FileSplitEnumerator(SupportsEventTimeIndex[FileSplit], SplitEnumerator[FileSplit, FilesCheckpoint]):
    """Finds the files of a source and indexes their event times."""

    def __init__(
        self, config: FilesConfig, context: SplitEnumeratorContext[FileSplit], checkpoint: FilesCheckpoint
    ) -> None:
        self._config = config
        self._context = context
        self._filesystem, self._root = config.root.open()
        self._reading = config.reading
        self._retries = StoreRetries()
        self._scanning: AbstractContextManager[Any] = nullcontext()
        if not (self._reading.has_statistics or config.files_ahead_in(self._filesystem)):
            # A scan that waits for no store takes a core: more of them take memory and caches from each other.
            self._scanning = threading.BoundedSemaphore(2 * (os.cpu_count() or 1))
        self._place_columns = config.place_columns
        self._cleaner = Cleaner(config, context.map_on_workers)
        self._logs: dict[str, FileLog] = {}
        # Of the splits that the last state finished: its ranges are planned next.
        self._left: dict[str, FileLog] = {}
        self._restored: dict[str, FileSplit] = {}
        # Latest event time of each block, by its position: where the source goes on without what cannot be read.
        self._latest_in: dict[str, dict[int, int]] = {}
        self._until_ms = checkpoint.until_ms
        self._beside: set[str] = set()

    def restore_splits(self, splits: Sequence[FileSplit]) -> None:
        self._restored = {split.split_id: split for split in splits}

    def handle_split_request(self, subtask_id: int, requester_hostname: str | None = None) -> None:
        """Splits are assigned when it is their turn, and not on request."""

    def event_times(self, split_id: str, start: int, stop: int) -> npt.NDArray[np.int64]:
        file = self._logs[split_id].locate(start)
        assert file is not None, "only records of indexed blocks are queried"
        first = start - file.position
        with self._config.tolerated():
            rows = FileRows(self._stored(file.path), first, first + stop - start, file.place_of(first))
            schema, assigner = self._context.schema, self._context.timestamp_assigner
            return self._retries.run(lambda: self._reading.event_times(rows, schema, assigner))
        # Of a file that breaks here, or has gone, nothing will be read; the bounds of its block must stay true.
        return np.full(stop - start, self._latest_in[split_id][start])

    def ranges(self, start: FileSplit, end: FileSplit, rows_per_range: int) -> Sequence[SplitRange[FileSplit]]:
        log = self._logs.get(end.split_id) or self._left.get(end.split_id)
        if log is None or not log.covers(start.position, end.position):
            log = self._retries.run(lambda: self._rebuild(start, end))
        parts = cut_ranges(log.files, start.position, end.position, rows_per_range)
        # What ends here is committed before the next micro-batch is planned, and not planned again.
        log.forget_before(start.position)
        return [SplitRange(replace(start, ranges=ranges), rows) for ranges, rows in parts]

    def finish_split(self, split_id: str) -> None:
        log = self._logs.pop(split_id, None)
        if log is not None:
            self._left[split_id] = log
        self._restored.pop(split_id, None)
        self._latest_in.pop(split_id, None)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        if self._cleaner.is_on:
            self._cleaner.commit(checkpoint_id)

    def close(self) -> None:
        self._retries.end()

    # ---- for directories and finite files ----------------------------------------------------------------------------

    def _discover(self, find_new: Callable[[Lister], T], handler: Callable[[T], None]) -> None:
        """Find new files in the background: once if the source is bounded, else again and again."""
        lister = Lister(self._config.root, self._until_ms)

        def listed() -> T:
            try:
                found = find_new(lister)
                lister.name_empty()
                return found
            except BaseException:
                # What failed is new again the next time, wherever it is.
                lister.forget()
                raise

        period = None if self._config.bounded else self._config.discovery_interval_us / 1e6
        self._in_background(lambda: self._retries.run(listed), handler, period_seconds=period)

    def _in_background(
        self, call: Callable[[], T], handler: Callable[[T], None], period_seconds: float | None = None
    ) -> None:
        def handle(result: T | None, error: BaseException | None) -> None:
            if error is not None:
                raise error
            assert result is not None
            handler(result)

        self._context.call_async(
            call, handle, period_seconds=period_seconds, at_each_trigger=period_seconds is not None
        )

    @abstractmethod
    def _rebuild(self, start: FileSplit, end: FileSplit) -> FileLog:
        """The files between two states of a split, from the file system."""

    def _describe(self, path: str) -> FileBlocks | None:
        """What is in a file; None of one that the source goes on without."""
        with self._config.tolerated(), self._scanning:
            file, schema, assigner = self._stored(path), self._context.schema, self._context.timestamp_assigner
            blocks = self._retries.run(lambda: self._reading.describe(file, schema, assigner, self._config.indexing))
            if self._config.columns is None:
                self._look_at_columns(path, blocks.columns)
            return blocks
        return None

    def _look_at_columns(self, path: str, columns: Sequence[str]) -> None:
        beside = ", ".join(name for name in columns if name not in self._context.schema.names)
        if beside and self._config.schema_evolution == "fail":
            raise SchemaError(
                f"{path} has columns that the query has not: {beside}. schemaEvolution = ignore goes on without them, "
                "addAtRestart has them from the next start on"
            )
        if beside and beside not in self._beside:
            self._beside.add(beside)
            _log.warning("%s has columns that the query has not: %s. They are ignored (schemaEvolution)", path, beside)

    def _describe_all(self, files: Iterable[ListedFile]) -> list[FileBlocks | None]:
        paths = [self._path(file.relative_path) for file in files]
        return list(self._context.map_on_workers(self._describe, paths))

    def _stored(self, path: str) -> StoredFile:
        return StoredFile(self._filesystem, path, self._place_columns)

    def _path(self, *parts: str) -> str:
        return posixpath.normpath(posixpath.join(self._root, *parts))

    def _reader_of(self, split_id: str) -> int:
        readers = sorted(self._context.registered_readers())
        return readers[zlib.crc32(split_id.encode()) % len(readers)]

    def _add_log(self, split_id: str, file: LoggedFile, read: int) -> None:
        """Let a file follow in its split, of which some rows were read before a restart."""
        self._logs.setdefault(split_id, FileLog()).files.append(file)
        rows, low, high = file.blocks.rows, file.blocks.min_us, file.blocks.max_us
        if read:
            unread = np.cumsum(rows) - read
            rest = unread > 0
            rows, low, high = np.minimum(rows, unread)[rest], low[rest], high[rest]
        if self._config.ignore_missing_files or self._config.ignore_corrupt_files:
            first = file.position + read + np.cumsum(rows) - rows
            self._latest_in.setdefault(split_id, {}).update(zip(first.tolist(), high.tolist(), strict=True))
        self._context.add_blocks(split_id, rows, low, high)

    def _no_more_splits(self) -> None:
        for subtask_id in self._context.registered_readers():
            self._context.signal_no_more_splits(subtask_id)

    def _changed(self, start: FileSplit, end: FileSplit) -> DataLossError:
        return DataLossError(
            f"split {end.split_id!r} has changed: the records {start.position} to {end.position} that were planned "
            f"are not where they were (from {start.file or 'its first file'} to {end.file or 'its end'}); restore "
            "its files, or start with a new checkpointLocation"
        )

    def _gone(self, split: FileSplit) -> FileGoneError:
        return FileGoneError(
            f"{posixpath.join(self._root, split.split_id, split.file).rstrip('/')} is gone, and not all of it was "
            f"read (the records of split {split.split_id!r} before {split.position} were); restore it, or start "
            "with a new checkpointLocation"
        )
