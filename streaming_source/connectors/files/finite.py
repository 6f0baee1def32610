"""Files as splits, found by listing directories and opened in an order that the user chooses."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
from pyarrow import fs

from alignment.durations import format_duration
from alignment.shown import log_of
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, saturating_add
from streaming_source.api import SplitEnumeratorContext
from streaming_source.connectors.files.config import FilesConfig
from streaming_source.connectors.files.enumerator import FileSplitEnumerator
from streaming_source.connectors.files.file_discovery import (
    Backlog,
    FileDiscovery,
    FoundFiles,
    LaggingDirectories,
    WaitingFile,
)
from streaming_source.connectors.files.finished import FinishedFiles, RecentFiles
from streaming_source.connectors.files.finished_log import FinishedLog
from streaming_source.connectors.files.listing import ListedFile, Lister, name_ten
from streaming_source.connectors.files.marks import Known, MarkSet
from streaming_source.connectors.files.split import FilesCheckpoint, FileSplit
from streaming_source.data_files.file import NO_BLOCKS, DataFile, FileBlocks
from streaming_source.data_files.queued import QueuedFileEnumerator
from streaming_source.exceptions import DataLossError, FileGoneError, MalformedDataError, OptionError

if TYPE_CHECKING:
    from alignment.claims import Claims
    from streaming_source.checkpoint.writer import TableWriters

RECENT_FILES: Final = 1024
"""Finished files that an offset remembers one by one."""
_SPAN_MS: Final = 10_000
"""Milliseconds to which the oldest waiting file's modification is known: with so many more files to remember."""

_log = log_of(__name__)


class FiniteFileEnumerator(FileSplitEnumerator, QueuedFileEnumerator[ListedFile, FileSplit, FilesCheckpoint]):
    """Opens file after file in the order of the source.

    In the order of event times the horizon is the earliest event time of the files that wait. In the order of names or
    modification times it follows from what the user declares: it is the latest event time in the files that were
    opened, less the out-of-orderness.
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
        self._is_bounded = config.bounded
        self._backlog = Backlog(self._order, _SPAN_MS)
        self._lagging = LaggingDirectories(context.out_of_orderness_us or 0)
        self._left_out: dict[str, ListedFile] = {}
        # Files that wait although files with higher keys were forgotten: they came late.
        self._late: dict[str, ListedFile] = {}
        # Where the next state is, of splits in work.
        self._positions: dict[str, int] = {}
        self._claims = checkpoint.claims
        # Of the thread that lists.
        self._writers: TableWriters | None = None
        self._just_finished: list[ListedFile] = []
        # What a stream has read to its end, in a batch that reads the same.
        self._read_by_stream: MarkSet | None = None
        self._rewritten: set[str] = set()
        # Opened since the last state.
        self._opened_files = self._opened_bytes = 0
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
            self._finished = FinishedLog(self._order, config.place(config.state_location), remembered, by_name=by_name)
        # With these options it takes more than the marks of files to know their splits again, as they were read.
        takes_others = config.ignore_missing_files or config.ignore_changed_files
        self._names_finished = not (config.file_name_only or config.allow_overwrites or takes_others)

    # ---- discovery ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        if restored := list(self._restored.values()):
            describe = partial(self._context.map_on_workers, self._reopen, restored)
            self._in_background(lambda: self._retries.run(describe), self._on_reopened)
        discovery = FileDiscovery(
            self._order,
            self._describe_listed,
            self._finished,
            self._just_finished,
            [*self._open_files.values()],
            # Called on a worker: `list` copies the values in one step.
            lambda: list(self._left_out.values()),
        )
        self._just_finished = []

        def find_new(lister: Lister) -> FoundFiles:
            found = discovery.find_new(lister)
            # Tried again by itself: what was found is not found again.
            found.claimed = self._retries.run(lambda: self._claimed(lister.last_micro_batch))
            return found

        # Copied on a worker, in one step.
        self._discover(find_new, self._on_found, lambda: list(self._open_files.values()))

    def _claimed(self, batch: int) -> Claims | None:
        """Return what the writer claims after its last micro-batch whose files were listed. Called on a worker."""
        if not self._config.emits_watermark:
            return None
        # Imported here: few queries read by claims.
        from alignment.claims import SinkCommit

        if batch < 0:
            raise OptionError(
                f"option watermarkFrom: {self._root} has no log of Spark's file sink (_spark_metadata), which has what "
                "was committed; start its writer first, or leave the option out"
            )
        if self._writers is None:
            from streaming_source.connectors.claims import open_claims
            from streaming_source.connectors.files.sink_log import last_micro_batch

            schema, assigner = self._context.schema, self._context.timestamp_assigner
            writers = open_claims(self._config, self._config.storage, schema, assigner, self._claims)
            if len(writers.claims.current) > 1:
                raise OptionError(
                    f"option watermarkFrom names {len(writers.claims.current)} writers, and the log of Spark's file "
                    "sink is of one query; give the checkpoint of that"
                )
            log = self._config.root.open()
            writers.check_directory(self._root, lambda: last_micro_batch(*log))
            self._writers = writers
        ((query, _),) = self._writers.claims.current
        self._writers.take([SinkCommit(batch, [(query, batch)])])
        return self._writers.claims

    def _on_reopened(self, found: Sequence[tuple[ListedFile, FileBlocks]]) -> None:
        for split, (file, blocks) in zip(list(self._restored.values()), found, strict=True):
            self._index(split, file, blocks)

    def _on_found(self, found: FoundFiles) -> None:
        if (lag := self._lagging.look(found.spans)) is not None:
            _log.warning(
                "directory %r is repeatedly up to %s behind %r. With splitBy = file a later file does not hold the "
                "watermark: its records are late where it is behind by more than maxOutOfOrderness, %s. Set splitBy "
                "= directory, with a new checkpointLocation: then each directory holds the watermark until its next "
                "file is there",
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
        # With limits of times a listing may lack files that are there.
        lists_all = self._config.modified_after is None and self._config.modified_before is None
        if found.forgotten is not None and (lists_all or not self._finished.has_sketch):
            self._finished.settle(found.forgotten)
        if lists_all:
            self._finished.look(found.gone, found.back)
        self._add_waiting(found.waiting)
        self._queue = self._backlog
        if self._config.bounded and self._until_ms is None:
            self._until_ms = self._newest_ms
        self._publish_queue()
        if found.claimed is not None:
            # The files that were found hold the watermark.
            self._claims = found.claimed.known
            assert self._writers is not None, "they were asked"
            self._context.emit_watermark(found.claimed.until_us, self._writers.writer(found.claimed.holder).checkpoint)

    def _add_waiting(self, packed: list[bytes]) -> None:
        if self._finished.forgotten is not None:
            files = (WaitingFile.unpack(entry, self._order).file for entry in packed)
            self._late.update((file.relative_path, file) for file in files if self._finished.is_forgotten(file))
        self._backlog.add(packed)

    def _take_rewritten(self, waiting: WaitingFile) -> None:
        path = waiting.file.relative_path
        # A file that waits or is left out was not read before: its new content replaces the old.
        if self._backlog.take(path) is None and path not in self._left_out:
            if any(file.relative_path == path for file in self._open_files.values()):
                self._take_change(waiting.file, self._rewritten_while_read(path))
                return
            if not self._config.allow_overwrites:
                error = MalformedDataError(
                    f"{self._path(path)} was rewritten after it was read: its size or modification time is another. "
                    "Give new content a new name, set ignoreChangedFiles = true to go on without it, or "
                    "allowOverwrites = true to read such files again as a whole"
                )
                self._take_change(waiting.file, error)
                self._finished.add(waiting.file)
                return
            self._rewritten.add(path)
        self._left_out.pop(path, None)
        self._add_waiting([waiting.pack(self._order)])

    # ---- files that are opened, and finished -------------------------------------------------------------------------

    def _split_of(self, file: ListedFile) -> FileSplit:
        return FileSplit.of_file(file, is_rewritten=file.relative_path in self._rewritten)

    def _file_of(self, split: FileSplit) -> ListedFile:
        return ListedFile.of(split.path, split.modified_ms or 0, -1 if split.size is None else split.size)

    def _may_open(self, file: ListedFile | None) -> bool:
        if file is not None:
            self._opened_files += 1
            self._opened_bytes += file.size
            self._late.pop(file.relative_path, None)
        files, size = self._config.max_files_per_trigger, self._config.max_bytes_per_trigger
        return (files is None or self._opened_files < files) and (size is None or self._opened_bytes < size)

    def _leave_out(self, file: ListedFile) -> None:
        self._left_out[file.relative_path] = file

    def _open(self, file: ListedFile, blocks: FileBlocks) -> None:
        super()._open(file, blocks)
        self._rewritten.discard(file.relative_path)

    def _index(self, split: FileSplit, file: ListedFile, blocks: FileBlocks) -> None:
        super()._index(split, file, blocks)
        # Event times beyond the limit (`maxFutureSkew`) may be wrong.
        limit_us = self._context.event_time_limit_us
        latest = blocks.max_us if limit_us is None else blocks.max_us[blocks.max_us < limit_us]
        self._latest_us = int(latest.max(initial=self._latest_us))

    def _horizon_us(self) -> int:
        if self._order == "eventTime" or not len(self._backlog):
            return super()._horizon_us()
        assert self._context.out_of_orderness_us is not None
        return saturating_add(self._latest_us, -self._context.out_of_orderness_us)

    def split_at(self, split_id: str, position: int) -> FileSplit:
        file, self._positions[split_id] = self._open_files[split_id], position
        return FileSplit(split_id, position, modified_ms=file.modified_ms, size=file.size)

    def finish_split(self, split_id: str) -> None:
        self._positions.pop(split_id, None)
        super().finish_split(split_id)

    def _finish(self, file: ListedFile) -> None:
        if self._state is None:
            # In an offset of version 1 it is a split alone.
            self._finished.add(file)
            self._just_finished.append(file)
        elif self._cleaner is not None:
            self._cleaner.add(self._state, file.relative_path)

    def read_at(
        self, splits: Sequence[FileSplit], known: Mapping[str, FileSplit], checkpoint: FilesCheckpoint
    ) -> Sequence[int]:
        """A finished file counts as a whole, and one that is neither in work nor finished was not begun."""
        if self._read_by_stream is None:
            self._read_by_stream = self._find_read(list(map(self._file_of, known.values())), checkpoint)
        files = list(map(self._file_of, splits))
        marks = self._finished.marks_of(files)
        stops = []
        for split, file, known_as in zip(splits, files, self._read_by_stream.match(marks).tolist(), strict=True):
            open_split = known.get(split.split_id)
            if known_as == Known.REWRITTEN or (open_split is not None and open_split.is_rewritten(file)):
                self._take_change(file, self._rewritten_while_read(split.path))
            read_to = split.position if known_as == Known.SAME else 0
            stops.append(read_to if open_split is None else open_split.position)
        return stops

    def _find_read(self, open_files: list[ListedFile], checkpoint: FilesCheckpoint) -> MarkSet:
        """Return the files that a stream has read to their ends; a `FileGoneError` if some are gone."""
        order, remembered = checkpoint.order, checkpoint.remembered
        finished = RecentFiles(order, 0, remembered, RECENT_FILES, by_name=checkpoint.by_name)
        discovery = FileDiscovery(order, self._describe_listed, finished, [], open_files)
        read, gone = discovery.finished_files(Lister(self._config.root))
        if gone:
            self._config.skip(
                FileGoneError(
                    f"{self._path()}: {gone} of {len(read)} files that the query has read to their ends are gone, and "
                    "windows may lack records of theirs; restore them, or set ignoreMissingFiles = true to repair "
                    "with what is there"
                )
            )
        return read

    def _checkpoint_of(self, checkpoint_id: int) -> FilesCheckpoint:
        self._state = checkpoint_id
        self._opened_files = self._opened_bytes = 0
        finished = [file for split_id, file in self._open_files.items() if self._is_read(split_id)]
        remembered = self._finished.save(checkpoint_id, finished, self._backlog.lowest, self._newest_ms)
        not_read = filter(self._finished.is_forgotten, (*self._late.values(), *self._left_out.values()))
        latest_us = None if self._order == "eventTime" or self._latest_us == NO_TIMESTAMP else self._latest_us
        return FilesCheckpoint(
            remembered=replace(remembered, unread=self._finished.marks_of(not_read).tobytes()),
            until_ms=self._until_ms,
            after_ms=self._config.root.after_ms,
            latest_us=latest_us,
            split_by="file",
            order=self._order,
            by_name=self._config.file_name_only,
            names_finished=self._names_finished,
            claims=self._claims,
        )

    def _is_read(self, split_id: str) -> bool:
        log = self._logs.get(split_id)
        return log is not None and self._positions.get(split_id, -1) >= log.files[-1].end

    def expect_finished(self, split_ids: Collection[str]) -> None:
        super().expect_finished(split_ids if self._names_finished else ())

    def _find_finished(
        self, left: Sequence[FileSplit], start: FilesCheckpoint | None, end: FilesCheckpoint, in_work: Collection[str]
    ) -> Sequence[FileSplit]:
        marks = self._finished.finished_by(None if start is None else start.remembered, end.remembered)
        finished, found = MarkSet(marks.tobytes()), list[FileSplit]()
        for directory in Lister(self._config.root, end.until_ms).list_changed():
            known_as = finished.match(self._finished.marks_of(directory.files))
            for number in np.flatnonzero(known_as != Known.NEW).tolist():
                if known_as[number] == Known.REWRITTEN:
                    raise self._rewritten_while_read(directory.files[number].relative_path)
                found.append(FileSplit.of_file(directory.files[number]))
        if len(found) < marks.size:
            gone = name_ten({split.split_id for split in left} - {split.split_id for split in found})
            raise FileGoneError(
                f"{marks.size - len(found)} of the {marks.size} files that a micro-batch has read to their ends are "
                f"gone{gone and f', such as {gone}'}, and it is read again after a restart; restore them, or use a new "
                "checkpointLocation"
            )
        return [split for split in found if split.split_id not in in_work]

    def _describe(self, file: DataFile) -> FileBlocks | None:
        blocks = super()._describe(file)
        limit_us = self._context.event_time_limit_us
        if limit_us is not None and blocks is not None and blocks.earliest_us >= limit_us:
            return replace(blocks, valid_min_us=np.full_like(blocks.rows, MAX_WATERMARK))
        return blocks

    def _reopen(self, split: FileSplit) -> tuple[ListedFile, FileBlocks]:
        self._check_selected(split)
        if self._filesystem.get_file_info(self._path(split.path)).type is fs.FileType.NotFound:
            self._config.skip(self._gone(split))
            return self._file_of(split), NO_BLOCKS
        return super()._reopen(split)

    def _file_now(self, split: FileSplit) -> ListedFile:
        self._check_selected(split)
        info = self._filesystem.get_file_info(self._path(split.path))
        file = ListedFile.of_info(posixpath.dirname(split.path), info)
        if info.type is fs.FileType.File and split.is_rewritten(file):
            self._take_change(file, self._rewritten_while_read(split.path))
        return file

    def _rewritten_while_read(self, path: str) -> DataLossError:
        return DataLossError(
            f"{self._path(path)} was rewritten while it was read: its size or modification time is another, and the "
            "records that were read may no longer be in it. Restore it with its time, start with a new "
            "checkpointLocation, or set ignoreChangedFiles = true to go on with its other rows"
        )
