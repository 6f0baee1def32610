"""Files as splits: they begin in an order, as many at a time as there is room for."""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import compress
from typing import Final

import numpy as np
from pyarrow import fs

from alignment.durations import format_duration
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, saturating_add
from streaming_source.api import SplitEnumeratorContext
from streaming_source.connectors.files.backlog import Backlog, WaitingFile
from streaming_source.connectors.files.checkpoint import FilesCheckpoint
from streaming_source.connectors.files.config import FilesConfig
from streaming_source.connectors.files.enumerator import FileSplitEnumerator
from streaming_source.connectors.files.file_discovery import FileDiscovery, FoundFiles, warn_ignored
from streaming_source.connectors.files.finished import FinishedFiles, RecentFiles
from streaming_source.connectors.files.finished_log import FinishedLog
from streaming_source.connectors.files.lagging import LaggingDirectories
from streaming_source.connectors.files.listing import ListedFile
from streaming_source.connectors.files.split import FileSplit
from streaming_source.data_files.file import NO_BLOCKS, DataFile, FileBlocks
from streaming_source.data_files.ranges import FileLog, LoggedFile
from streaming_source.data_files.turns import BYTES_IN_WORK, FILES_IN_WORK, FilesInWork, next_files
from streaming_source.exceptions import DataLossError, MalformedDataError, OptionError

__all__ = ["FiniteFileEnumerator"]

RECENT_FILES: Final = 1024
"""How many finished files an offset remembers where files are read in the order of names or modification times."""

_HOLDS_NOTHING_US: Final = MAX_WATERMARK - 1

_log = logging.getLogger(__name__)


class FiniteFileEnumerator(FileSplitEnumerator):
    """Begins file after file in the order of the source; those that wait hold the watermark at the horizon.

    Notes
    -----
    In the order of event times the horizon is the earliest event time of the files that wait. In the order of names or
    modification times it follows from what the user declares: it is the latest event time in the files that were begun,
    less the out-of-orderness.
    """

    def __init__(
        self, config: FilesConfig, context: SplitEnumeratorContext[FileSplit], checkpoint: FilesCheckpoint
    ) -> None:
        super().__init__(config, context, checkpoint)
        # In a stream the watermark between the plans of many files depends on event times.
        has_watermarks = context.out_of_orderness_us is not None
        self._counts_alone = self._may_count_alone and not context.needs_event_times and not has_watermarks
        self._order = config.file_order
        if self._order != "eventTime" and context.out_of_orderness_us is None:
            raise OptionError(
                f"fileOrder = {self._order!r} declares that later files are behind earlier ones by maxOutOfOrderness "
                "at most: it needs a built-in watermark generator, or use fileOrder = eventTime"
            )
        self._backlog = Backlog(self._order, max(config.max_file_age_us // 64_000, 1000))
        self._files: FilesInWork[ListedFile] = FilesInWork(FILES_IN_WORK, BYTES_IN_WORK)
        self._lagging = LaggingDirectories(context.out_of_orderness_us or 0)
        self._left_out: dict[str, ListedFile] = {}
        self._just_finished: list[ListedFile] = []
        self._rewritten: set[str] = set()
        # Since the last state.
        self._begun_files = self._begun_bytes = 0
        # The number of the last state since the start; None before the first.
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
            # Called on a worker: `list` copies the values in one step.
            lambda: list(self._left_out.values()),
        )
        self._just_finished = []
        # Copied on a worker, in one step.
        self._discover(discovery.find_new, self._on_found, lambda: list(self._files.values()))

    def _on_begun(self, found: Sequence[tuple[ListedFile, FileBlocks]]) -> None:
        for split, (file, blocks) in zip(list(self._restored.values()), found, strict=True):
            self._index(split.split_id, file, blocks, read=split.position)

    def _on_found(self, found: FoundFiles) -> None:
        if (lag := self._lagging.look(found.spans)) is not None:
            _log.warning(
                "these files lag by directory, again and again: those of %r come up to %s behind those of %r, and "
                "splitBy is file, so that a file that comes later holds nothing: its records are late where that is "
                "more than maxOutOfOrderness, %s. Set splitBy = directory, with a new checkpointLocation: then each "
                "directory holds the watermark until its next file is there",
                lag.directory,
                format_duration(lag.lag_us),
                lag.ahead,
                format_duration(self._context.out_of_orderness_us or 0),
            )
        self._newest_ms = max(self._newest_ms, found.newest_ms)
        self._left_out.update((file.relative_path, file) for file in found.left_out)
        for path in found.left_out_and_gone:
            self._left_out.pop(path, None)
        for file in found.rewritten:
            self._take_rewritten(file)
        if self._cleaner is not None:
            # They were committed, but the source stopped before it could clean them.
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
        """Leave out files up to a key that was forgotten after they were found: a restart would ignore them."""
        files = [WaitingFile.unpack(entry, self._order).file for entry in packed]
        forgotten = [self._finished.is_forgotten(file) for file in files]
        if any(forgotten):
            warn_ignored([file.relative_path for file in compress(files, forgotten)], self._order)
        return [entry for entry, is_forgotten in zip(packed, forgotten, strict=True) if not is_forgotten]

    def _take_rewritten(self, waiting: WaitingFile) -> None:
        path = waiting.file.relative_path
        # A file that waits or is left out was not read before: its new content replaces the old.
        if self._backlog.take(path) is None and path not in self._left_out:
            if any(file.relative_path == path for file in self._files.values()):
                self._take_change(waiting.file, self._rewritten_while_read(path))
                return
            if not self._config.allow_overwrites:
                error = MalformedDataError(
                    f"{self._path(path)} was rewritten after it was read: its size or modification time is another. "
                    "Give new content a new name, set ignoreChangedFiles = true to go on without it, or "
                    "allowOverwrites = true to read such files again as a whole"
                )
                self._take_change(waiting.file, error)
                return
            self._rewritten.add(path)
        self._left_out.pop(path, None)
        self._backlog.add([waiting.pack(self._order)])

    # ---- turns -------------------------------------------------------------------------------------------------------

    def assign_waiting(self, readable: int, nearest_us: int) -> bool:
        begun = 0
        # Files that are left out bring nothing to read: others begin in their place.
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
        self._append_file(split_id, LoggedFile(self._data_file(file), 0, blocks), read)
        self._context.complete_split(split_id)
        # Event times beyond the limit (`maxFutureSkew`) may be wrong.
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
        elif self._cleaner is not None:
            self._cleaner.add(self._state, file.relative_path)

    def snapshot_state(self, checkpoint_id: int) -> FilesCheckpoint:
        self._finished_logs.clear()
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
            return replace(blocks, valid_min_us=np.full_like(blocks.rows, MAX_WATERMARK))
        return blocks

    def _describe_begun(self, split: FileSplit) -> tuple[ListedFile, FileBlocks]:
        """Return a file that was in work before a restart as it is now, and its blocks."""
        info = self._filesystem.get_file_info(self._path(split.path))
        file = ListedFile.of_info(posixpath.dirname(split.path), info)
        if info.type is fs.FileType.NotFound:
            self._config.skip(self._gone(split))
            return file, NO_BLOCKS
        if split.is_rewritten(file):
            self._take_change(file, self._rewritten_while_read(split.path))
        return file, self._describe(self._data_file(file)) or NO_BLOCKS

    def _rewritten_while_read(self, path: str) -> DataLossError:
        return DataLossError(
            f"{self._path(path)} was rewritten while it was read: its size or modification time is another, and the "
            "records that were read may no longer be in it. Restore it with its time, start with a new "
            "checkpointLocation, or set ignoreChangedFiles = true to go on with its other rows"
        )

    def _rebuild(self, start: FileSplit, end: FileSplit) -> FileLog:
        log, info = FileLog(), self._filesystem.get_file_info(self._path(end.path))
        listed = ListedFile.of_info(posixpath.dirname(end.path), info)
        if info.type is fs.FileType.File and end.is_rewritten(listed):
            self._take_change(listed, self._changed(start, end))
        file = self._data_file(listed)
        blocks = self._describe(file)
        if blocks is None:
            return log
        log.files.append(LoggedFile(file, 0, blocks))
        if not log.covers(start.position, end.position):
            raise self._changed(start, end)
        return log


def _path_of(waiting: WaitingFile) -> str:
    return waiting.file.relative_path
