"""The splits of a path: directories or files, found in the background."""

from __future__ import annotations

import posixpath
import zlib
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from streaming_source.api import SplitEnumerator, SplitEnumeratorContext, SplitRange, SupportsEventTimeIndex
from streaming_source.connectors.files.discovery import (
    DirectoryDiscovery,
    Discovery,
    FileDiscovery,
    Found,
    FoundFile,
)
from streaming_source.connectors.files.listing import list_files
from streaming_source.connectors.files.log import FileLog, LoggedFile, cut_ranges
from streaming_source.connectors.files.split import FilesCheckpoint, FileSplit
from streaming_source.exceptions import DataLossError

if TYPE_CHECKING:
    from streaming_source.connectors.files.source import FileSource

__all__ = ["FileSplitEnumerator"]


class FileSplitEnumerator(SupportsEventTimeIndex[FileSplit], SplitEnumerator[FileSplit, FilesCheckpoint]):
    """Finds the files of a `FileSource`, and gives each split to a reader as soon as it is found.

    Parameters
    ----------
    source
        What to look for.
    context
        The planner that hosts this.
    checkpoint
        Of the offset at a restart.
    """

    def __init__(
        self, source: FileSource, context: SplitEnumeratorContext[FileSplit], checkpoint: FilesCheckpoint
    ) -> None:
        self._source = source
        self._context = context
        self._filesystem, self._root = source.root.open()
        self._logs: dict[str, FileLog] = {}
        self._modified_ms: dict[str, int] = {}
        self._restored: dict[str, FileSplit] = {}
        self._finished = dict(checkpoint.finished)
        self._forgotten_ms = checkpoint.forgotten_ms
        self._until_ms = checkpoint.until_ms
        self._newest_ms = 0
        self._looked = False

    # ---- discovery -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """See `SplitEnumerator`."""
        period = None if self._source.bounded else self._source.discovery_interval_us / 1e6
        self._context.call_async(self._discovery().look, self._on_found, period_seconds=period)

    def restore_splits(self, splits: Sequence[FileSplit]) -> None:
        """See `SplitEnumerator`."""
        self._restored = {split.split_id: split for split in splits}
        self._modified_ms.update((split.split_id, split.modified_ms) for split in splits)

    def handle_split_request(self, subtask_id: int, requester_hostname: str | None = None) -> None:
        """See `SplitEnumerator`. Every split that was found is assigned already."""

    def _reader_of(self, split_id: str) -> int:
        return zlib.crc32(split_id.encode()) % self._context.current_parallelism()

    def _discovery(self) -> Discovery:
        about = partial(
            self._source.format.describe,
            self._filesystem,
            schema=self._context.schema,
            assigner=self._context.timestamp_assigner,
            indexing=self._source.indexing,
        )
        if self._source.split_by == "directory":
            return DirectoryDiscovery(
                self._source.root,
                about,
                self._context.map_on_workers,
                self._until_ms,
                reached={split_id: split.file for split_id, split in self._restored.items()},
                read={i: split.files - (split.row is not None) for i, split in self._restored.items()},
                fully_read=frozenset(i for i, split in self._restored.items() if split.row is None),
                finished=frozenset(self._finished),
            )
        return FileDiscovery(
            self._source.root,
            about,
            self._context.map_on_workers,
            self._until_ms,
            known=set(self._finished),
            restored=frozenset(self._restored),
            forgotten_ms=self._forgotten_ms,
        )

    def _on_found(self, found: Found | None, error: BaseException | None) -> None:
        if error is not None:
            raise error
        assert found is not None
        for split_id in found.empty_splits:
            self._log_of(split_id, 0)
        for file in found.files:
            self._add_file(file)
        if not self._looked:
            self._looked = True
            self._check_restored()
        if self._source.bounded:
            if self._until_ms is None:
                self._until_ms = self._newest_ms
            for split_id in {*self._logs, *self._restored}:
                self._context.complete_split(split_id)
            for subtask_id in self._context.registered_readers():
                self._context.signal_no_more_splits(subtask_id)

    def _check_restored(self) -> None:
        """What was begun before a restart must be there still, when the first look is over."""
        for split_id, split in self._restored.items():
            log = self._logs.get(split_id)
            begun = self._by_file or (split.file and split.row is not None)
            if begun and (log is None or (split.file and log.files[0].name != split.file)):
                raise DataLossError(
                    f"{posixpath.join(self._root, split_id, split.file).rstrip('/')} is gone, and not all of it was "
                    f"read (the records of split {split_id!r} before {split.position} were); restore it, or start "
                    "with a new checkpointLocation"
                )

    def _add_file(self, found: FoundFile) -> None:
        split_id, file, blocks = found.split_id, found.file, found.blocks
        self._newest_ms = max(self._newest_ms, file.modified_ms)
        log = self._log_of(split_id, file.modified_ms)
        restored = self._restored.get(split_id, FileSplit(split_id))
        rows, low, high = blocks.rows, blocks.min_us, blocks.max_us
        # The file that a restart begins in: what was read of it is not told again.
        read = (restored.row or 0) if file.name == restored.file else restored.position if self._by_file else 0
        position = log.files[-1].end if log.files else restored.position - read
        path = posixpath.join(self._root, file.relative_path)
        number = log.files[-1].number + 1 if log.files else restored.files + (file.name != restored.file)
        log.append(LoggedFile.of(file.name, path, position, blocks, number))
        if read:
            unread = np.cumsum(rows) - read
            rest = unread > 0
            rows, low, high = np.minimum(rows, unread)[rest], low[rest], high[rest]
        self._context.add_blocks(split_id, rows, low, high)
        if self._by_file:
            self._context.complete_split(split_id)

    def _log_of(self, split_id: str, modified_ms: int) -> FileLog:
        log = self._logs.get(split_id)
        if log is None:
            log = self._logs[split_id] = FileLog()
            if split_id not in self._restored:
                self._modified_ms[split_id] = modified_ms
                split = FileSplit(split_id, modified_ms=modified_ms if self._by_file else 0)
                self._context.assign_split(split, self._reader_of(split_id))
        return log

    # ---- what the planner asks -----------------------------------------------------------------------------------

    def event_times(self, split_id: str, start: int, stop: int) -> npt.NDArray[np.int64]:
        """See `SplitEnumerator`."""
        file = self._logs[split_id].locate(start)
        assert file is not None, "the index asks only for records it was told of"
        first = start - file.position
        return self._source.format.event_times(
            self._filesystem,
            file.path,
            first,
            first + stop - start,
            self._context.schema,
            self._context.timestamp_assigner,
            file.place_of(first),
        )

    def split_at(self, split_id: str, position: int) -> FileSplit:
        """See `SplitEnumerator`."""
        if self._by_file:
            return FileSplit(split_id, position, modified_ms=self._modified_ms[split_id])
        log = self._logs.get(split_id)
        file = log.locate(position) if log else None
        if file is None:
            return self._restored.get(split_id, FileSplit(split_id))
        row = position - file.position if position < file.end else None
        return FileSplit(split_id, position, file.name, row, file.number)

    def ranges(self, start: FileSplit, end: FileSplit, rows_per_range: int) -> Sequence[SplitRange[FileSplit]]:
        """See `SplitEnumerator`."""
        log = self._logs.get(end.split_id)
        if log is None or not log.covers(start.position, end.position):
            log = self._rebuild(start, end)
        parts = cut_ranges(log.files, start.position, end.position, rows_per_range)
        # What ends here is committed before the next micro-batch is planned, and not asked for again.
        log.forget_before(start.position)
        return [SplitRange(start.to_read(ranges), rows) for ranges, rows in parts]

    def finish_split(self, split_id: str) -> None:
        """See `SplitEnumerator`."""
        self._logs.pop(split_id, None)
        self._finished[split_id] = self._modified_ms.pop(split_id, 0)
        self._restored.pop(split_id, None)

    def snapshot_state(self, checkpoint_id: int) -> FilesCheckpoint:
        """See `SplitEnumerator`."""
        if self._by_file and not self._source.bounded:
            self._forget_old()
        return FilesCheckpoint(tuple(sorted(self._finished.items())), self._forgotten_ms, self._until_ms)

    # ---- inside --------------------------------------------------------------------------------------------------

    @property
    def _by_file(self) -> bool:
        return self._source.split_by == "file"

    def _forget_old(self) -> None:
        """Forget finished files that are older than the newest by more than `maxFileAge`."""
        horizon = self._newest_ms - self._source.max_file_age_us // 1000
        old = [split_id for split_id, modified_ms in self._finished.items() if modified_ms <= horizon]
        for split_id in old:
            del self._finished[split_id]
        if old:
            self._forgotten_ms = max(horizon, self._forgotten_ms or 0)

    def _names_between(self, start: FileSplit, end: FileSplit) -> list[str]:
        """Names of the files that two states of a directory lie in, and of those between."""
        directory = posixpath.normpath(posixpath.join(self._root, end.split_id))
        names = [file.name for file in list_files(self._filesystem, directory).files if not file.directory]
        from_first = [name for name in names if name > start.file or (name == start.file and start.row is not None)]
        return [name for name in from_first if name <= end.file]

    def _rebuild(self, start: FileSplit, end: FileSplit) -> FileLog:
        """The files between two states of a split, from the file system."""
        log = FileLog()
        position = 0 if self._by_file else start.position - (start.row or 0)
        for name in [""] if self._by_file else self._names_between(start, end):
            path = posixpath.normpath(posixpath.join(self._root, end.split_id, name))
            blocks = self._source.format.describe(
                self._filesystem,
                path,
                self._context.schema,
                self._context.timestamp_assigner,
                self._source.indexing,
            )
            log.append(LoggedFile.of(name, path, position, blocks))
            position = log.files[-1].end
        last = log.locate(end.position) if log.files else None
        as_planned = self._by_file or (
            last is not None
            and last.name == end.file
            and end.position == (last.end if end.row is None else last.position + end.row)
            and (start.row is None or start.file in ("", log.files[0].name))
        )
        if not as_planned or not log.covers(start.position, end.position):
            raise DataLossError(
                f"split {end.split_id!r} has changed: the records {start.position} to {end.position} that were planned "
                f"are not where they were (from {start.file or 'its first file'} to {end.file or 'its end'}); restore "
                "its files, or start with a new checkpointLocation"
            )
        return log
