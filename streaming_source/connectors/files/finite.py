"""Files as splits: each is finite, and they are begun in an order, so many at a time."""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress, islice
from typing import Final

import numpy as np
from pyarrow import fs

from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, saturating_add
from streaming_source.api import SplitEnumeratorContext
from streaming_source.connectors.files.backlog import Backlog, WaitingFile
from streaming_source.connectors.files.checkpoint import FileOrder, FilesCheckpoint, OrderKey
from streaming_source.connectors.files.config import FilesConfig
from streaming_source.connectors.files.enumerator import FileSplitEnumerator
from streaming_source.connectors.files.finished import MARK, FinishedFiles, Known, Marks, MarkSet, RecentFiles
from streaming_source.connectors.files.finished_log import FinishedLog
from streaming_source.connectors.files.listing import ListedDirectory, ListedFile, Lister, name_ten
from streaming_source.connectors.files.split import FileSplit
from streaming_source.data_files.file import NO_BLOCKS, DataFile, FileBlocks
from streaming_source.data_files.ranges import FileLog, LoggedFile
from streaming_source.data_files.turns import BYTES_IN_WORK, FILES_IN_WORK, FilesInWork, next_files
from streaming_source.exceptions import DataLossError, MalformedDataError, OptionError

__all__ = ["FileDiscovery", "FiniteFileEnumerator"]

RECENT_FILES: Final = 1024
"""How many finished files an offset remembers where files are read in the order of names or modification times."""

_HOLDS_NOTHING_US: Final = MAX_WATERMARK - 1

_AT_ONCE: Final = 4096
_TOO_LATE: Final[dict[FileOrder, str]] = {
    "eventTime": "modified longer ago than maxFileAge allows",
    "name": "by name far before files that were begun",
    "modificationTime": "modified long before files that were begun",
}

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Found:
    """The result of one listing.

    `waiting` are new files, packed (see `WaitingFile`). `rewritten` ones were known with another content. The source
    goes on without those `left_out`, until they are gone. In the first listing `finished` has the paths of finished
    files that are still there. `newest_ms` is the latest modification of all files, 0 without any. Files up to the key
    `forgotten` are in none of these.
    """

    waiting: list[bytes] = field(default_factory=list)
    rewritten: list[WaitingFile] = field(default_factory=list)
    left_out: list[ListedFile] = field(default_factory=list)
    left_out_and_gone: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    newest_ms: int = 0
    forgotten: OrderKey | None = None


@dataclass(slots=True)
class FileDiscovery:
    """Each file is a split.

    Files are begun in an `order`; by event time each is described as soon as it is found, None in place of one that the
    source goes on without, which are then `left_out`. `finished` are those that were before the start, beside those
    `just_finished`; others are `in_work`.

    No file may be read twice: so 12 bytes are kept of each that was found, until `finished` has forgotten it (then its
    key tells that it was read) and a listing of all directories has it no more. With a `stateLocation`, by which a file
    is read once for ever, nothing is forgotten.
    """

    order: FileOrder
    describe: Callable[[list[ListedFile]], list[FileBlocks | None]]
    finished: FinishedFiles
    just_finished: list[ListedFile]
    in_work: list[ListedFile]
    left_out: Callable[[], list[ListedFile]] = list
    _known: MarkSet | None = None
    # Of files that `finished` has forgotten, and that are known as they may be listed again.
    _leaving: Marks = field(default_factory=lambda: np.empty(0, MARK))

    def find_new(self, lister: Lister) -> _Found:
        """The files not found before, described where their order needs that. Called by one thread at a time."""
        is_first = self._known is None
        known, finished = self._known, MarkSet()
        if known is None:
            known, ended = MarkSet(), self.finished.load()
            finished.add(ended)
            finished.add(self.finished.marks_of(self.just_finished))
            known.add(ended)
            known.add(self.finished.marks_of([*self.just_finished, *self.in_work]))
        self._leaving = np.append(self._leaving, self.finished.take_forgotten())
        found, marks, there_now = _Found(forgotten=self.finished.forgotten), [], MarkSet()
        ignored: list[ListedFile] = []
        left_out = self.left_out()
        listed = self._files(lister.list_changed(), found)
        while files := list(islice(listed, _AT_ONCE)):
            of_files = self.finished.marks_of(files)
            if lister.lists_all and (self._leaving.size or left_out):
                there_now.add(of_files)
            known_as = known.match(of_files)
            # A name alone does not prove that this very file was read: it is not cleaned.
            if is_first and len(finished) and not self.finished.by_name:
                there = np.flatnonzero((known_as == Known.SAME) & (finished.match(of_files) == Known.SAME))
                found.finished += [files[i].relative_path for i in there.tolist()]
            interesting = np.flatnonzero(known_as != Known.SAME)
            marks.append(of_files[interesting])
            new = [(files[i], known_as[i] == Known.REWRITTEN) for i in interesting.tolist()]
            ignored += [file for file, _ in new if self.finished.is_forgotten(file)]
            self._take([entry for entry in new if not self.finished.is_forgotten(entry[0])], found)
        # Only now, when all was described: what failed is new again the next time.
        known.add(np.concatenate([np.empty(0, MARK), *marks]))
        self._known = known
        if lister.lists_all:
            self._forget_gone(known, there_now, left_out, found)
        self._leaving = np.append(self._leaving, self.finished.marks_of(ignored))
        if ignored and is_first:
            # Nearly always they were read; a file that came while the source was down looks the same.
            _log.info("%d files are taken for read and forgotten", len(ignored))
        elif ignored:
            _warn_ignored([file.relative_path for file in ignored], self.order)
        return found

    def _forget_gone(self, known: MarkSet, there_now: MarkSet, left_out: list[ListedFile], found: _Found) -> None:
        """Forget what a listing of all directories has no more, of files that need not be known otherwise."""
        is_gone = there_now.match(self._leaving) == Known.NEW
        known.remove(self._leaving[is_gone])
        self._leaving = self._leaving[~is_gone]
        marks = self.finished.marks_of(left_out)
        is_gone = there_now.match(marks) == Known.NEW
        known.remove(marks[is_gone])
        found.left_out_and_gone += [left_out[i].relative_path for i in np.flatnonzero(is_gone).tolist()]

    def remembered(self) -> int:
        """Count the files of which a mark is kept."""
        return 0 if self._known is None else len(self._known)

    def _files(self, directories: Iterable[ListedDirectory], found: _Found) -> Iterator[ListedFile]:
        names: set[str] = set()
        for directory in directories:
            for file in directory.files:
                if self.finished.by_name and file.name in names:
                    continue
                if self.finished.by_name:
                    names.add(file.name)
                found.newest_ms = max(found.newest_ms, file.modified_ms)
                yield file

    def _take(self, new: list[tuple[ListedFile, bool]], found: _Found) -> None:
        described: list[FileBlocks | None] = [None] * len(new)
        if self.order == "eventTime":
            described = self.describe([file for file, _ in new])
        for (file, is_rewritten), blocks in zip(new, described, strict=True):
            if self.order == "eventTime" and blocks is None:
                found.left_out.append(file)
            elif is_rewritten:
                found.rewritten.append(WaitingFile(file, blocks))
            else:
                found.waiting.append(WaitingFile(file, blocks).pack(self.order))


def _warn_ignored(paths: list[str], order: FileOrder) -> None:
    """Log that files came too late."""
    _log.warning(
        "ignored, because they cannot be distinguished from forgotten files that were read: %s, %s",
        name_ten(paths),
        _TOO_LATE[order],
    )


class FiniteFileEnumerator(FileSplitEnumerator):
    """Begins file after file in the order of the source; the others wait behind the horizon.

    Notes
    -----
    By event time the horizon is the earliest one in the files that wait. In the order of names or modification times it
    is what the user declares: the latest event time in the files that were begun, less the out-of-orderness.
    """

    def __init__(
        self, config: FilesConfig, context: SplitEnumeratorContext[FileSplit], checkpoint: FilesCheckpoint
    ) -> None:
        super().__init__(config, context, checkpoint)
        self._order = config.file_order
        if self._order != "eventTime" and context.out_of_orderness_us is None:
            raise OptionError(
                f"fileOrder = {self._order!r} declares that later files are behind earlier ones by maxOutOfOrderness "
                "at most: it needs a built-in watermark generator, or use fileOrder = eventTime"
            )
        self._backlog = Backlog(self._order, max(config.max_file_age_us // 64_000, 1000))
        self._files: FilesInWork[ListedFile] = FilesInWork(FILES_IN_WORK, BYTES_IN_WORK)
        self._left_out: dict[str, ListedFile] = {}
        self._just_finished: list[ListedFile] = []
        self._rewritten: set[str] = set()
        # Since the last state.
        self._begun_files = self._begun_bytes = 0
        # Number of the last state that was made here.
        self._state: int | None = None
        self._latest_us = NO_TIMESTAMP if checkpoint.latest_us is None else checkpoint.latest_us
        self._newest_ms = 0
        remembered, by_name = checkpoint.remembered, config.file_name_only
        self._finished: FinishedFiles
        if config.state_location is None:
            max_age_ms = config.max_file_age_us // 1000
            self._finished = RecentFiles(self._order, max_age_ms, remembered, RECENT_FILES, by_name=by_name)
        else:
            self._finished = FinishedLog(config.place(config.state_location), remembered, by_name=by_name)

    # ---- discovery ---------------------------------------------------------------------------------------------------

    def restore_splits(self, splits: Sequence[FileSplit]) -> None:
        super().restore_splits(splits)
        for split in splits:
            size = -1 if split.size is None else split.size
            self._files[split.split_id] = ListedFile.of(split.path, split.modified_ms or 0, size)

    def start(self) -> None:
        begun = list(self._restored.values())
        if begun:
            describe = partial(self._context.map_on_workers, self._describe_begun, begun)
            self._in_background(lambda: self._retries.run(describe), self._on_begun)
        discovery = FileDiscovery(
            self._order,
            self._describe_listed,
            self._finished,
            self._just_finished,
            [*self._files.values()],
            # On a worker: a copy in one step.
            lambda: list(self._left_out.values()),
        )
        self._just_finished = []
        self._discover(discovery.find_new, self._on_found)

    def _on_begun(self, found: Sequence[tuple[ListedFile, FileBlocks]]) -> None:
        for split, (file, blocks) in zip(list(self._restored.values()), found, strict=True):
            self._index(split.split_id, file, blocks, read=split.position)

    def _on_found(self, found: _Found) -> None:
        self._newest_ms = max(self._newest_ms, found.newest_ms)
        self._left_out.update((file.relative_path, file) for file in found.left_out)
        for path in found.left_out_and_gone:
            self._left_out.pop(path, None)
        for file in found.rewritten:
            self._take_rewritten(file)
        # Their micro-batches were committed, and the source stopped before it was notified.
        self._cleaner.clean(found.finished)
        waiting = found.waiting
        if found.forgotten != self._finished.forgotten:
            waiting = self._without_forgotten(waiting)
        self._backlog.add(waiting)
        if self._config.bounded:
            if self._until_ms is None:
                self._until_ms = self._newest_ms
            self._end_if_all_begun()
        self._publish_horizon()

    def _without_forgotten(self, packed: list[bytes]) -> list[bytes]:
        """Leave out files that were forgotten after they were found: a restart would take them for read ones."""
        files = [WaitingFile.unpack(entry, self._order).file for entry in packed]
        forgotten = [self._finished.is_forgotten(file) for file in files]
        if any(forgotten):
            _warn_ignored([file.relative_path for file in compress(files, forgotten)], self._order)
        return [entry for entry, is_forgotten in zip(packed, forgotten, strict=True) if not is_forgotten]

    def _take_rewritten(self, waiting: WaitingFile) -> None:
        path = waiting.file.relative_path
        # A file that waits or is left out was not read: only its present content counts.
        if self._backlog.take(path) is None and path not in self._left_out:
            if any(file.relative_path == path for file in self._files.values()):
                raise self._rewritten_while_read(path)
            if not self._config.allow_overwrites:
                raise MalformedDataError(
                    f"{self._path(path)} was rewritten after it was read: its size or modification time is another. "
                    "Give new content a new name, or set allowOverwrites = true to read such files again as a whole"
                )
            self._rewritten.add(path)
        self._left_out.pop(path, None)
        self._backlog.add([waiting.pack(self._order)])

    # ---- turns -------------------------------------------------------------------------------------------------------

    def assign_waiting(self, readable: int, nearest_us: int) -> bool:
        begun = 0
        # Files that are left out are none that can be read.
        while not begun and (next_ones := list(self._next(is_blocked=nearest_us > self._horizon_us()))):
            blocks = [file.blocks for file in next_ones]
            if self._order != "eventTime":
                blocks = self._describe_listed([waiting.file for waiting in next_ones])
            for waiting, of_file in zip(next_ones, blocks, strict=True):
                if of_file is None:
                    self._left_out[waiting.file.relative_path] = waiting.file
                else:
                    self._begin(waiting.file, of_file)
                    begun += 1
        self._end_if_all_begun()
        self._publish_horizon()
        return begun > 0

    def _next(self, *, is_blocked: bool) -> Iterator[WaitingFile]:
        """Take the files that begin now, and count them; see `next_files`."""
        begin = next_files(self._backlog, self._files, id_of=_path_of, is_blocked=is_blocked, may_begin=self._may_begin)
        for waiting in begin:
            self._begun_files += 1
            self._begun_bytes += waiting.file.size
            yield waiting

    def _may_begin(self) -> bool:
        """Return whether the limits of files and bytes allow another file in this micro-batch."""
        files, size = self._config.max_files_per_trigger, self._config.max_bytes_per_trigger
        return (files is None or self._begun_files < files) and (size is None or self._begun_bytes < size)

    def _begin(self, file: ListedFile, blocks: FileBlocks) -> None:
        split = FileSplit.of_file(file, is_rewritten=file.relative_path in self._rewritten)
        self._rewritten.discard(file.relative_path)
        self._files[split.split_id] = file
        self._context.assign_split(split, self._reader_of(split.split_id))
        self._index(split.split_id, file, blocks, read=0)

    def _index(self, split_id: str, file: ListedFile, blocks: FileBlocks, *, read: int) -> None:
        self._add_log(split_id, LoggedFile(self._data_file(file), 0, blocks), read)
        self._context.complete_split(split_id)
        # Times beyond the limit may not be valid.
        limit_us = self._context.event_time_limit_us
        latest = blocks.max_us if limit_us is None else blocks.max_us[blocks.max_us < limit_us]
        self._latest_us = int(latest.max(initial=self._latest_us))

    def _horizon_us(self) -> int:
        if not len(self._backlog):
            return MAX_WATERMARK
        if self._order == "eventTime":
            return min(self._backlog.earliest_us, _HOLDS_NOTHING_US)
        assert self._context.out_of_orderness_us is not None
        return saturating_add(self._latest_us, -self._context.out_of_orderness_us)

    def _publish_horizon(self) -> None:
        self._context.set_horizon(self._horizon_us() if len(self._backlog) else None)

    def _end_if_all_begun(self) -> None:
        if self._config.bounded and self._until_ms is not None and not len(self._backlog):
            self._no_more_splits()

    # ---- SplitEnumerator ---------------------------------------------------------------------------------------------

    def split_at(self, split_id: str, position: int) -> FileSplit:
        file = self._files[split_id]
        return FileSplit(split_id, position, modified_ms=file.modified_ms, size=file.size)

    def finish_split(self, split_id: str) -> None:
        super().finish_split(split_id)
        file = self._files.pop(split_id)
        self._finished.add(file)
        if self._state is None:
            self._just_finished.append(file)
        else:
            self._cleaner.add(self._state, file.relative_path)

    def snapshot_state(self, checkpoint_id: int) -> FilesCheckpoint:
        self._left.clear()
        self._state = checkpoint_id
        self._begun_files = self._begun_bytes = 0
        remembered = self._finished.save(checkpoint_id, self._backlog.lowest, self._newest_ms)
        latest_us = None if self._order == "eventTime" or self._latest_us == NO_TIMESTAMP else self._latest_us
        return FilesCheckpoint(
            remembered=remembered,
            until_ms=self._until_ms,
            latest_us=latest_us,
            split_by="file",
            order=self._order,
            by_name=self._config.file_name_only,
        )

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _describe(self, file: DataFile) -> FileBlocks | None:
        blocks = super()._describe(file)
        limit_us = self._context.event_time_limit_us
        if limit_us is not None and blocks is not None and blocks.earliest_us >= limit_us:
            return replace(blocks, earliest_us=MAX_WATERMARK)
        return blocks

    def _describe_begun(self, split: FileSplit) -> tuple[ListedFile, FileBlocks]:
        """Return a file that was in work before a restart as it is now, and its blocks."""
        info = self._filesystem.get_file_info(self._path(split.path))
        file = ListedFile.of_info(posixpath.dirname(split.path), info)
        if info.type is fs.FileType.NotFound:
            with self._config.tolerated():
                raise self._gone(split)
            return file, NO_BLOCKS
        if split.is_rewritten(info):
            raise self._rewritten_while_read(split.path)
        return file, self._describe(self._data_file(file)) or NO_BLOCKS

    def _rewritten_while_read(self, path: str) -> DataLossError:
        return DataLossError(
            f"{self._path(path)} was rewritten while it was read: its size or modification time is another, and what "
            "was read of it may be there no more. Restore it, or start with a new checkpointLocation"
        )

    def _rebuild(self, start: FileSplit, end: FileSplit) -> FileLog:
        log, info = FileLog(), self._filesystem.get_file_info(self._path(end.path))
        if end.is_rewritten(info):
            raise self._changed(start, end)
        file = self._data_file(ListedFile.of_info(posixpath.dirname(end.path), info))
        blocks = self._describe(file)
        if blocks is None:
            return log
        log.files.append(LoggedFile(file, 0, blocks))
        if not log.covers(start.position, end.position):
            raise self._changed(start, end)
        return log


def _path_of(waiting: WaitingFile) -> str:
    return waiting.file.relative_path
