"""The splits of a path, found in the background: what directories and single files have in common."""

from __future__ import annotations

import logging
import posixpath
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from streaming_source.api import SplitEnumerator, SplitEnumeratorContext, SplitRange, SupportsEventTimeIndex
from streaming_source.connectors.files.config import FilesConfig
from streaming_source.connectors.files.formats import NO_BLOCKS, FileBlocks, FileRows, StoredFile, Tolerance
from streaming_source.connectors.files.log import FileLog, LoggedFile, cut_ranges
from streaming_source.connectors.files.places.listing import ListedDirectory, ListedFile, Lister
from streaming_source.connectors.files.places.patience import StorePatience
from streaming_source.connectors.files.places.sink_log import SinkLog
from streaming_source.connectors.files.split import FilesCheckpoint, FileSplit
from streaming_source.exceptions import DataLossError, FileGoneError, OptionError, SchemaError

if TYPE_CHECKING:
    from streaming_source.connectors.files.places.cleaning import Cleaner

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
        self._patience = StorePatience()
        self._cleaner: Cleaner | None = None
        if config.clean_source != "off":
            from streaming_source.connectors.files.places.cleaning import Cleaner

            if SinkLog.of(config.root) is not None:
                raise OptionError(
                    f"cleanSource = {config.clean_source}: {self._root} is the output of Spark's file sink, whose log "
                    "says which files there are; leave cleanSource out, and let the sink's retention remove old files"
                )
            self._cleaner = Cleaner(
                config.clean_source, config.archive_root, self._filesystem, self._root, context.map_on_workers
            )
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
        """See `SplitEnumerator`. Splits are assigned when it is their turn, and not on request."""

    def event_times(self, split_id: str, start: int, stop: int) -> npt.NDArray[np.int64]:
        file = self._logs[split_id].locate(start)
        assert file is not None, "only records of indexed blocks are queried"
        first = start - file.position
        with self._config.tolerance.tolerated():
            stored = StoredFile(self._filesystem, file.path)
            rows = FileRows(stored, first, first + stop - start, file.place_of(first))
            schema, assigner = self._context.schema, self._context.timestamp_assigner
            return self._patience.run(lambda: self._reading.event_times(rows, schema, assigner))
        # Of a file that breaks here, or has gone, nothing will be read; the bounds of its block must stay true.
        return np.full(stop - start, self._latest_in[split_id][start])

    def ranges(self, start: FileSplit, end: FileSplit, rows_per_range: int) -> Sequence[SplitRange[FileSplit]]:
        log = self._logs.get(end.split_id) or self._left.get(end.split_id)
        if log is None or not log.covers(start.position, end.position):
            log = self._patience.run(lambda: self._rebuild(start, end))
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
        if self._cleaner is not None:
            self._cleaner.commit(checkpoint_id)

    def close(self) -> None:
        self._patience.end()

    # ---- for directories and finite files ----------------------------------------------------------------------------

    def _discover(self, find_new: Callable[[Iterator[ListedDirectory]], T], handler: Callable[[T], None]) -> None:
        """Find new files in the background: once if the source is bounded, else again and again."""
        lister = Lister(self._config.root, self._until_ms)

        def listed() -> T:
            try:
                found = find_new(lister.list_changed())
                lister.name_empty()
                return found
            except BaseException:
                # What failed is new again the next time, wherever it is.
                lister.forget()
                raise

        period = None if self._config.bounded else self._config.discovery_interval_us / 1e6
        self._in_background(lambda: self._patience.run(listed), handler, period_seconds=period)

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
        with self._config.tolerance.tolerated():
            file = StoredFile(self._filesystem, path)
            schema, assigner = self._context.schema, self._context.timestamp_assigner
            blocks = self._patience.run(lambda: self._reading.describe(file, schema, assigner, self._config.indexing))
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
        """What is in files, several at once."""
        paths = [self._path(file.relative_path) for file in files]
        return list(self._context.map_on_workers(self._describe, paths))

    def _describe_or_nothing(self, path: str) -> FileBlocks:
        """What is in a file; nothing in one that the source goes on without."""
        blocks = self._describe(path)
        return NO_BLOCKS if blocks is None else blocks

    def _path(self, *parts: str) -> str:
        """Of something below the root."""
        return posixpath.normpath(posixpath.join(self._root, *parts))

    def _reader_of(self, split_id: str) -> int:
        readers = sorted(self._context.registered_readers())
        return readers[zlib.crc32(split_id.encode()) % len(readers)]

    def _add_log(self, split_id: str, file: LoggedFile, read: int) -> None:
        """Let a file follow in its split, of which some rows were read before a restart."""
        self._logs.setdefault(split_id, FileLog()).append(file)
        rows, low, high = file.blocks.rows, file.blocks.min_us, file.blocks.max_us
        if read:
            unread = np.cumsum(rows) - read
            rest = unread > 0
            rows, low, high = np.minimum(rows, unread)[rest], low[rest], high[rest]
        if self._config.tolerance != Tolerance():
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
