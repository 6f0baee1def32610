"""The files of a path, found in the background, their event times, and what becomes of those that were read."""

from __future__ import annotations

import logging
import os
import posixpath
import threading
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from pyarrow import fs

from streaming_source.api import SplitEnumerator, SplitEnumeratorContext, SplitRange, SupportsEventTimeIndex
from streaming_source.connectors.files.config import FilesConfig
from streaming_source.connectors.files.formats import FileBlocks, FileRows, StoredFile
from streaming_source.connectors.files.listing import ListedFile, Lister, SinkLog
from streaming_source.connectors.files.split import FileLog, FilesCheckpoint, FileSplit, LoggedFile, cut_ranges
from streaming_source.connectors.files.storage import StoreRetries, is_hidden
from streaming_source.exceptions import DataLossError, FileGoneError, OptionError, SchemaError

__all__ = ["FileSplitEnumerator"]

_log = logging.getLogger(__name__)

T = TypeVar("T")


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
        is_local = self._filesystem.type_name == "local" and not config.files_ahead
        if is_local and not self._reading.has_statistics:
            # A scan that waits for no store takes a core: more of them take memory and caches from each other.
            self._scanning = threading.BoundedSemaphore(2 * (os.cpu_count() or 1))
        self._place_columns = config.place_columns(self._root)
        self._cleaner = Cleaner(config, context.map_on_workers)
        self._logs: dict[str, FileLog] = {}
        # Of the splits that the last state finished: its ranges are planned next.
        self._left: dict[str, FileLog] = {}
        self._restored: dict[str, FileSplit] = {}
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
        return np.full(stop - start, file.blocks.max_us[file.block_of(first)[0]])

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

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
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


class Cleaner:
    """Archives or deletes files, each as soon as what was read of it is committed; nothing with `cleanSource` = off.

    Doing it twice is as good as once: a file that is gone is done. One that cannot be moved or deleted is
    logged, and left to the next start. An archive on another file system, or where its files would be read again, is
    an `OptionError`, and so is to clean the output of Spark's file sink.
    """

    def __init__(
        self, config: FilesConfig, map_on_workers: Callable[[Callable[[str], None], Iterable[str]], Any]
    ) -> None:
        self.is_on = config.clean_source != "off"
        self._config = config
        self._map_on_workers = map_on_workers
        self._filesystem, self._root = config.root.open()
        if self.is_on and SinkLog.of(config.root) is not None:
            raise OptionError(
                f"cleanSource = {config.clean_source}: {self._root} is the output of Spark's file sink, whose log says "
                "which files there are; leave cleanSource out, and let the sink's retention remove old files"
            )
        self._archive = self._archive_path(config.source_archive_dir) if config.source_archive_dir else ""
        # Files that are read in the micro-batch that leads to a state.
        self._read: list[tuple[int, str]] = []

    def add(self, state: int, path: str) -> None:
        """A file, by its path below the root, is read when the micro-batch that leads to a state is."""
        if self.is_on:
            self._read.append((state, path))

    def commit(self, state: int) -> None:
        """That micro-batch is committed, and all before it."""
        done = [path for read_in, path in self._read if read_in <= state]
        if done:
            self._read = [entry for entry in self._read if entry[0] > state]
            self.clean(done)

    def clean(self, paths: Iterable[str]) -> None:
        """Archive or delete files, by their paths below the root."""
        if self.is_on:
            self._map_on_workers(self._clean, paths)

    def _clean(self, relative: str) -> None:
        path = posixpath.join(self._root, relative)
        try:
            if self._config.clean_source == "delete":
                self._filesystem.delete_file(path)
                return
            target = posixpath.join(self._archive, relative)
            self._filesystem.create_dir(posixpath.dirname(target), recursive=True)
            self._filesystem.move(path, target)
        except FileNotFoundError:
            pass
        except OSError as error:
            if self._filesystem.get_file_info(path).type is not fs.FileType.NotFound:
                _log.warning("cleanSource = %s: %s is left where it is: %s", self._config.clean_source, path, error)

    def _archive_path(self, uri: str) -> str:
        filesystem, target = self._config.place(uri).open()
        root = self._root
        if not filesystem.equals(self._filesystem):
            raise OptionError(
                f"sourceArchiveDir {target!r} is on another file system than path {root!r}: files are moved, not "
                "copied; give a directory there"
            )
        is_below = f"{target}/".startswith(f"{root.rstrip('/')}/")
        if is_below and not any(map(is_hidden, filter(None, target[len(root) :].split("/")))):
            raise OptionError(
                f"sourceArchiveDir {target!r} is below path {root!r}: its files would be read again. Give a directory "
                "elsewhere, or one whose name begins with _ or ."
            )
        return target
