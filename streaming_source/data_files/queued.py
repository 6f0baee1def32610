"""Files that are splits of their own: a few are open at a time, and the others wait in a queue."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import UserDict
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from pyarrow import fs

from alignment.shown import log_of
from alignment.watermarks import MAX_WATERMARK
from streaming_source.api import SplitEnumeratorContext
from streaming_source.data_files.config import ReadingConfig
from streaming_source.data_files.enumerator import CheckpointT, DataFileEnumerator, SplitT
from streaming_source.data_files.file import NO_BLOCKS, DataFile, FileBlocks
from streaming_source.data_files.ranges import FileLog, LoggedFile
from streaming_source.exceptions import DataLossError

FILES_OPEN: Final = 500
"""Files that are open at once; there are more only if nothing could be read otherwise."""

MOST_FILES: Final = 10_000
"""Files that one micro-batch opens at most, with those that are open: each takes some KiB of the planner's memory."""

BYTES_OPEN: Final = 40 * 1024
"""Bytes that the splits of open files may add to an offset: with long paths fewer of them fit."""

_AT_ONCE: Final = 64
_LARGE_BYTES: Final = 56 * 1024
_HOLDS_NOTHING_US: Final = MAX_WATERMARK - 1

_log = log_of(__name__)

FileT = TypeVar("FileT")
FileT_co = TypeVar("FileT_co", covariant=True)


class FileQueue(Protocol[FileT_co]):
    """Files that wait, in the order in which they are opened."""

    def __len__(self) -> int:
        """Return how many wait."""

    def pop(self) -> tuple[FileT_co, FileBlocks | None]:
        """Remove and return the next file, and its blocks if they are known; an `IndexError` if none waits."""

    @property
    def earliest_us(self) -> int:
        """No waiting file has a valid event time before this; `MAX_WATERMARK` if none has any."""


class OpenFiles(UserDict[str, FileT]):
    """Files by their splits, from when they are opened until they are read to their ends.

    There is room for `max_files`, or for as many as add `max_bytes` to an offset, if these are fewer: each adds its id
    and `bytes_beside`. Those that the next plan is expected to finish take none of it, up to `MOST_FILES`. The limit is
    soft: more files are taken if nothing could be read otherwise; a warning is logged once.
    """

    def __init__(self, max_files: int, max_bytes: int, bytes_beside: int) -> None:
        super().__init__()
        self._max_files = max_files
        self._max_bytes = max_bytes
        self._bytes_beside = bytes_beside
        # Of the ids, with `bytes_beside` each.
        self._bytes = 0
        # Always among the open files, and how many of the bytes are theirs.
        self._finishing: set[str] = set()
        self._finishing_bytes = 0
        self._at_once: float = math.inf
        self._warned = self._warned_of_most = False

    @property
    def left(self) -> int:
        """Return how many are open after the next plan, as far as that is known."""
        return len(self) - len(self._finishing)

    def expect_finished(self, split_ids: Collection[str]) -> None:
        """The next plan reads these to their ends; it replaces what was expected before.

        From now on few files are taken at once, so that none is opened for which a limit of rows has no room.
        """
        self._finishing = {split_id for split_id in split_ids if split_id in self}
        self._finishing_bytes = sum(map(self._bytes_of, self._finishing))
        self._at_once = _AT_ONCE

    def take_from(
        self,
        queue: FileQueue[FileT],
        id_of: Callable[[FileT], str],
        may_open: Callable[[FileT | None], bool],
        *,
        is_blocked: bool,
    ) -> list[tuple[FileT, FileBlocks | None]]:
        """Take the files that are opened next: as many as there is room for and the user's limits allow.

        `may_open` is called with the file that was taken last, and returns whether another one may follow. Where
        nothing can be read before another file is open (`is_blocked`), some are taken without room: an eighth of those
        that are open, so that the next ones do not take a micro-batch each; one where the user's limits allow no more.
        """
        taken: list[tuple[FileT, FileBlocks | None]] = []
        is_allowed, n_bytes = may_open(None), 0
        beyond = (max(1, self.left // 8) if is_allowed else 1) if is_blocked else 0
        while len(queue) and len(taken) < self._at_once:
            if not (is_allowed and self._has_room(len(taken), n_bytes)) and len(taken) >= beyond:
                break
            taken.append(queue.pop())
            n_bytes += len(id_of(taken[-1][0]).encode())
            is_allowed = may_open(taken[-1][0])
        return taken

    def _has_room(self, taken: int, bytes_taken: int) -> bool:
        """Return whether there is room for one more file beside `taken` new ones with ids of so many bytes."""
        if len(self) + taken >= MOST_FILES:
            if not self._warned_of_most:
                self._warned_of_most = True
                _log.warning(
                    "a micro-batch reads %d files at most, and maxRowsPerTrigger would allow more: larger files "
                    "(compaction), or fewer rows, make full use of it",
                    MOST_FILES,
                )
            return False
        n_bytes = self._bytes - self._finishing_bytes + bytes_taken + taken * self._bytes_beside
        return self.left + taken < self._max_files and n_bytes < self._max_bytes

    def __setitem__(self, split_id: str, file: FileT) -> None:
        self._bytes += 0 if split_id in self else self._bytes_of(split_id)
        super().__setitem__(split_id, file)
        if self._bytes - self._finishing_bytes > _LARGE_BYTES and not self._warned:
            self._warned = True
            _log.warning(
                "%d files are open at once, some %d KiB of the offset: their event times overlap, so that none can "
                "be read to its end before the others are opened. Larger files, or fewer that span the same time, make "
                "it small again",
                self.left,
                (self._bytes - self._finishing_bytes) >> 10,
            )

    def __delitem__(self, split_id: str) -> None:
        super().__delitem__(split_id)
        self._bytes -= self._bytes_of(split_id)
        if split_id in self._finishing:
            self._finishing.remove(split_id)
            self._finishing_bytes -= self._bytes_of(split_id)

    def _bytes_of(self, split_id: str) -> int:
        return len(split_id.encode()) + self._bytes_beside


class QueuedFileEnumerator(DataFileEnumerator[SplitT, CheckpointT], Generic[FileT, SplitT, CheckpointT]):
    """Opens the files of a queue in its order; those that wait hold the watermark at the *horizon*.

    A subclass decides three things: how files are found (it adds them to `_queue`), in which order they wait (its
    `FileQueue`), and how an offset remembers those that were read (`_finish`, `_checkpoint_of`, `_find_finished`).
    """

    bytes_beside_id = 72
    """Bytes of an open file in an offset beside its id: position, size, times, watermark, status."""

    _is_bounded: bool

    def __init__(
        self, config: ReadingConfig, filesystem: fs.FileSystem, context: SplitEnumeratorContext[SplitT]
    ) -> None:
        super().__init__(config, filesystem, context)
        # None before the first look.
        self._queue: FileQueue[FileT] | None = None
        # Of all splits that are assigned and not finished.
        self._open_files: OpenFiles[FileT] = OpenFiles(FILES_OPEN, BYTES_OPEN, self.bytes_beside_id)

    # ---- for subclasses ----------------------------------------------------------------------------------------------

    @abstractmethod
    def _split_of(self, file: FileT) -> SplitT:
        """Return the split of a file before its first record."""

    @abstractmethod
    def _file_of(self, split: SplitT) -> FileT:
        """Return the file of a split, as it was when its split was made."""

    @abstractmethod
    def _data_file(self, file: FileT) -> DataFile:
        """Return where a file is, and what is known of it without reading it."""

    @abstractmethod
    def _find_finished(
        self, left: Sequence[SplitT], start: CheckpointT | None, end: CheckpointT, in_work: Collection[str]
    ) -> Sequence[SplitT]:
        """Find the splits that were finished between two checkpoints, at any positions; see `finished_between`."""

    @abstractmethod
    def _changed(self, start: SplitT, end: SplitT) -> DataLossError:
        """Return the error for a file that lacks records that were planned between two states of its split."""

    @abstractmethod
    def _finish(self, file: FileT) -> None:
        """A file was read to its end, and is not open any more."""

    @abstractmethod
    def _checkpoint_of(self, checkpoint_id: int) -> CheckpointT:
        """See `snapshot_state`."""

    def _may_open(self, file: FileT | None) -> bool:
        """Return whether the user's limits allow another file in this micro-batch; `file` was taken just now."""
        return True

    def _leave_out(self, file: FileT) -> None:
        """A file cannot be described, and the user's options leave it out. By default nothing is done."""

    def _open(self, file: FileT, blocks: FileBlocks) -> None:
        split = self._split_of(file)
        self._open_files[split.split_id] = file
        self._context.assign_split(split, self._reader_of(split.split_id))
        self._index(split, file, blocks)

    def _index(self, split: SplitT, file: FileT, blocks: FileBlocks) -> None:
        """Index the blocks of an open file from the split's position on."""
        self._append_file(split.split_id, LoggedFile(self._data_file(file), 0, blocks), split.position)
        self._context.complete_split(split.split_id)

    def _reopen(self, split: SplitT) -> tuple[FileT, FileBlocks]:
        """Return the file of a split that was open before a restart, as it is now, and its blocks. On a worker."""
        file = self._file_now(split)
        return file, self._describe(self._data_file(file)) or NO_BLOCKS

    def _file_now(self, split: SplitT) -> FileT:
        """Return the file of a split as it is now; raise an error if it has changed since the split was made."""
        return self._file_of(split)

    def _horizon_us(self) -> int:
        """Return up to which event time can be read before another file is open; `MAX_WATERMARK` if none waits."""
        assert self._queue is not None, "nothing is opened before the first look"
        return min(self._queue.earliest_us, _HOLDS_NOTHING_US) if len(self._queue) else MAX_WATERMARK

    def _publish_queue(self) -> None:
        """Publish the horizon, and of a bounded source that no file will be opened any more once none waits."""
        horizon_us = self._horizon_us()
        if horizon_us == MAX_WATERMARK and self._is_bounded:
            self._no_more_splits()
        self._context.set_horizon(None if horizon_us == MAX_WATERMARK else horizon_us)

    # ---- SplitEnumerator ---------------------------------------------------------------------------------------------

    def restore_splits(self, splits: Sequence[SplitT]) -> None:
        super().restore_splits(splits)
        self._open_files.update((split.split_id, self._file_of(split)) for split in splits)

    def assign_waiting(self, readable: int, nearest_us: int) -> bool:
        opened = 0
        # Files that are left out bring nothing to read: others are opened in their place.
        while self._queue is not None and not opened:
            is_blocked = nearest_us > self._horizon_us()
            taken = self._open_files.take_from(
                self._queue, lambda file: self._split_of(file).split_id, self._may_open, is_blocked=is_blocked
            )
            if not taken:
                break
            unknown = iter(self._describe_all(self._data_file(file) for file, blocks in taken if blocks is None))
            for file, known in taken:
                blocks = next(unknown) if known is None else known
                if blocks is None:
                    self._leave_out(file)
                else:
                    self._open(file, blocks)
                    opened += 1
        self._publish_queue()
        return opened > 0

    def expect_finished(self, split_ids: Collection[str]) -> None:
        self._open_files.expect_finished(split_ids)

    def finish_split(self, split_id: str) -> None:
        super().finish_split(split_id)
        self._finish(self._open_files.pop(split_id))

    def finished_between(
        self, left: Sequence[SplitT], start: Any, end: Any, in_work: Collection[str]
    ) -> Sequence[SplitT]:
        splits = self._retries.run(lambda: self._find_finished(left, start, end, in_work))
        data_files = [self._data_file(self._file_of(split)) for split in splits]
        finished = []
        for split, file, blocks in zip(splits, data_files, self._describe_all(data_files), strict=True):
            if blocks is not None:
                finished.append(split.at(int(blocks.rows.sum())))
                self._finished_logs[split.split_id] = FileLog([LoggedFile(file, 0, blocks)])
        return finished

    def snapshot_state(self, checkpoint_id: int) -> CheckpointT:
        self._finished_logs.clear()
        self._open_files.expect_finished(())
        return self._checkpoint_of(checkpoint_id)

    def _rebuild(self, start: SplitT, end: SplitT) -> FileLog:
        file = self._data_file(self._file_now(end))
        blocks = self._describe(file)
        if blocks is None:
            return FileLog()
        log = FileLog([LoggedFile(file, 0, blocks)])
        if not log.covers(start.position, end.position):
            raise self._changed(start, end)
        return log
