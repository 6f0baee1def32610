"""The files of a table, begun in the order of their lower bounds: a snapshot's, then those of its commits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa
from pyarrow import fs

from alignment import arrow_compute as pc
from alignment.timestamps import NO_TIMESTAMP, TimestampAssigner
from alignment.watermarks import MAX_WATERMARK
from streaming_source.api import SplitEnumeratorContext
from streaming_source.connectors.tables.checkpoint import TableCheckpoint
from streaming_source.connectors.tables.commits import ChangeRules, Commits
from streaming_source.connectors.tables.expiry import ExpiringFiles
from streaming_source.connectors.tables.files import FILES, TableFile
from streaming_source.connectors.tables.lister import TableLister
from streaming_source.connectors.tables.split import TableSplit, split_id_of
from streaming_source.connectors.tables.time_bounds import whole_milliseconds
from streaming_source.connectors.tables.waiting import Key, Progress, WaitingTableFiles, divided
from streaming_source.data_files.config import ReadingConfig
from streaming_source.data_files.enumerator import DataFileEnumerator
from streaming_source.data_files.file import NO_BLOCKS, FileBlocks
from streaming_source.data_files.ranges import FileLog, LoggedFile
from streaming_source.data_files.turns import BYTES_IN_WORK, FILES_IN_WORK, FilesInWork, next_files
from streaming_source.exceptions import DataLossError, MalformedDataError, OffsetError

__all__ = ["Table", "TableEnumerator"]


@dataclass(frozen=True, slots=True)
class Table:
    """A table as its enumerator finds it.

    Attributes
    ----------
    title
        In a message, as `Delta table /data/clicks`.
    bounded
        The source ends after what the table has at the start.
    discovery_interval_us
        How often to look for new commits.
    files
        The file system in which the paths of `TableLister.data_file` are.
    open_lister
        Looks at the table, by the columns that the query reads and what assigns event times.
    rules
        What the user decides of commits that remove rows.
    """

    title: str
    bounded: bool
    discovery_interval_us: int
    files: fs.FileSystem
    open_lister: Callable[[pa.Schema, TimestampAssigner], TableLister]
    rules: ChangeRules


_BYTES_BESIDE_ID: Final = 84
"""What an offset has of a file beside its id: position, size, bounds, watermark, status."""

_HOLDS_NOTHING_US: Final = MAX_WATERMARK - 1


@dataclass(frozen=True, slots=True)
class _Group:
    """Files of versions up to `upto`, of which those up to the key `begun` were begun."""

    files: pa.Table
    upto: int
    begun: Key | None = None
    count: int = 1


@dataclass(frozen=True, slots=True)
class _Listed:
    """The result of one look at the table. The first one has where it `begins`, and the blocks of files in work."""

    begins: Progress | None = None
    in_work: Sequence[FileBlocks] = ()
    groups: Sequence[_Group] = ()
    expiring_ms: Mapping[str, int] = field(default_factory=dict)


class TableEnumerator(DataFileEnumerator[TableSplit, TableCheckpoint]):
    """Each file of a table is a split; those that wait hold the watermark by their lower bounds.

    Where a file's bounds are wrong is found when it is begun, by its own footer: a `MalformedDataError`.
    """

    def __init__(
        self,
        table: Table,
        config: ReadingConfig,
        context: SplitEnumeratorContext[TableSplit],
        checkpoint: TableCheckpoint,
    ) -> None:
        super().__init__(config, table.files, context)
        self._table = table
        self._checkpoint = checkpoint
        self._opening = threading.Lock()
        self._restored: list[TableSplit] = []
        self._snapshots: dict[int, pa.Table] = {}
        self._waiting: WaitingTableFiles | None = None
        self._expiring = ExpiringFiles(table.title, lambda: time.time_ns() // 1_000_000)
        self._files: FilesInWork[TableFile] = FilesInWork(FILES_IN_WORK, BYTES_IN_WORK, _BYTES_BESIDE_ID)
        # The last version that was listed; of the thread that lists.
        self._listed: int | None = None
        # Where the stream began, until the first state has it; None after a restart.
        self._first: Progress | None = None

    # ---- discovery ---------------------------------------------------------------------------------------------------

    def restore_splits(self, splits: Sequence[TableSplit]) -> None:
        self._restored = list(splits)
        for split in splits:
            self._files[split.split_id] = split.file

    def start(self) -> None:
        period_s = None if self._table.bounded else self._table.discovery_interval_us / 1e6
        self._in_background(lambda: self._retries.run(self._list), self._on_listed, period_seconds=period_s)

    @cached_property
    def _opened_lister(self) -> TableLister:
        lister = self._table.open_lister(self._context.schema, self._context.timestamp_assigner)
        known = self._checkpoint.table_id
        if known is not None and lister.table_id != known:
            raise OffsetError(
                f"{self._table.title} has the id {lister.table_id}, and the checkpoint is of the table {known}: it "
                "was dropped and made anew, and its versions are others; use a new checkpointLocation"
            )
        return lister

    @property
    def _lister(self) -> TableLister:
        with self._opening:
            return self._opened_lister

    def _list(self) -> _Listed:
        """Look at the table: at first as a whole. Called on a worker, by one thread at a time."""
        if self._listed is not None:
            commits = self._commits(self._listed)
            if commits is None:
                return _Listed()
            group = self._group(commits)
            self._listed = commits.upto
            return _Listed(groups=[group], expiring_ms=commits.expiring_ms)
        listed = self._list_first()
        self._listed = listed.groups[-1].upto if listed.groups else listed.begins.after if listed.begins else None
        return listed

    def _list_first(self) -> _Listed:
        progress = self._checkpoint.progress
        in_work = self._context.map_on_workers(self._describe_begun, self._restored)
        groups: list[_Group] = []
        if progress is None:
            start = self._lister.start()
            progress = Progress(start.version, start.has_snapshot)
        expiring: dict[str, int] = {}
        after, steps = progress.after, progress.steps
        if progress.in_snapshot:
            begun = steps[0].begun if steps else None
            groups.append(_Group(self._snapshot(after), after, begun))
            self._snapshots.clear()
        for step in steps:
            if step.upto != after and (commits := self._commits(after, step.upto)) is not None:
                groups.append(self._group(commits, step.begun))
                expiring |= commits.expiring_ms
            after = step.upto
        # What was committed before the first micro-batch is in it: a watermark must not pass it.
        is_complete = self._table.bounded and (self._checkpoint.progress is not None or progress.in_snapshot)
        if not is_complete and (commits := self._commits(after)) is not None:
            groups.append(self._group(commits))
            expiring |= commits.expiring_ms
        return _Listed(Progress(progress.after, progress.in_snapshot), in_work, groups, expiring)

    def _commits(self, after: int, upto: int | None = None) -> Commits | None:
        return Commits.of(self._lister.commits(after, upto), self._table.rules)

    def _snapshot(self, version: int) -> pa.Table:
        """The files of a version; known until the first listing, if a micro-batch is read again before it."""
        if version not in self._snapshots:
            self._snapshots[version] = self._wanted(self._lister.snapshot(version))
        return self._snapshots[version]

    def _group(self, commits: Commits, begun: Key | None = None) -> _Group:
        return _Group(self._wanted(commits.files), commits.upto, begun, commits.count)

    def _wanted(self, listed: pa.Table) -> pa.Table:
        """Leave out files that are wholly before the event times that the query wants; look into those without bounds.

        What is behind these times is begun, and not read: it moves the watermark over their end.
        """
        files, wanted = listed.select(FILES.names), self._context.event_time_range
        if wanted.from_us is not None and wanted.overlap == "drop":
            is_before = pc.and_(pc.less(files["high_us"], wanted.from_us), listed["complete"])
            files = files.filter(pc.invert(pc.fill_null(is_before, False)))
        return self._with_bounds(files)

    def _with_bounds(self, files: pa.Table) -> pa.Table:
        """Look into those files of which the table has no bounds."""
        unknown = np.flatnonzero(pc.is_null(files["low_us"]).to_numpy())
        if not unknown.size:
            return files
        rows = files.take(pa.array(unknown)).to_pylist()
        described = self._describe_all(self._lister.data_file(TableFile(**row)) for row in rows)
        low, high = (pc.fill_null(files[name], 0).to_numpy().copy() for name in ("low_us", "high_us"))
        for place, blocks in zip(unknown.tolist(), described, strict=True):
            low[place], high[place] = _extent(blocks or NO_BLOCKS)
        # Not those of the table: whether it has a file's bounds must not decide in which order others begin.
        low[unknown] = whole_milliseconds(low[unknown])
        for name, column in (("low_us", low), ("high_us", high)):
            files = files.set_column(FILES.get_field_index(name), FILES.field(name), pa.array(column, pa.int64()))
        return files

    def _on_listed(self, listed: _Listed) -> None:
        if listed.begins is not None:
            self._waiting = WaitingTableFiles(listed.begins.after, in_snapshot=listed.begins.in_snapshot)
            self._first = listed.begins if self._checkpoint.progress is None else None
            for split, blocks in zip(self._restored, listed.in_work, strict=True):
                self._index(split, blocks)
            self._restored = []
        assert self._waiting is not None
        for group in listed.groups:
            self._waiting.add(group.files, group.upto, group.begun, group.count)
        if listed.begins is not None:
            self._lister.retain(chain((file.path for file in self._files.values()), self._waiting.paths))
        if listed.expiring_ms:
            removed = self._waiting.among({*listed.expiring_ms})
            self._expiring.add({path: listed.expiring_ms[path] for path in removed})
        self._expiring.warn(len(self._waiting))
        self._end_if_all_begun()
        self._publish_horizon()

    # ---- turns -------------------------------------------------------------------------------------------------------

    def assign_waiting(self, readable: int, nearest_us: int) -> bool:
        begun = 0
        waiting = self._waiting
        # Files that are left out are none that can be read.
        while waiting and not begun:
            is_blocked = nearest_us > self._horizon_us()
            next_ones = list(next_files(waiting, self._files, id_of=split_id_of, is_blocked=is_blocked))
            if not next_ones:
                break
            self._expiring.begin(file.path for file in next_ones)
            data_files = [self._lister.data_file(file) for file in next_ones]
            for file, blocks in zip(next_ones, self._describe_all(data_files), strict=True):
                if blocks is not None:
                    self._begin(file, blocks)
                    begun += 1
        self._end_if_all_begun()
        self._publish_horizon()
        return begun > 0

    def _begin(self, file: TableFile, blocks: FileBlocks) -> None:
        self._check_bounds(file, blocks)
        split = TableSplit(file)
        self._files[split.split_id] = file
        self._context.assign_split(split, self._reader_of(split.split_id))
        self._index(split, blocks)

    def _index(self, split: TableSplit, blocks: FileBlocks) -> None:
        self._append_file(split.split_id, LoggedFile(self._lister.data_file(split.file), 0, blocks), split.position)
        self._context.complete_split(split.split_id)

    def _check_bounds(self, file: TableFile, blocks: FileBlocks) -> None:
        """Compare the bounds of the table with those of the rows that the file has and the table has not deleted."""
        low_us, high_us = _extent(blocks)
        if file.low_us is None or file.high_us is None:
            return
        if low_us < file.low_us or high_us > file.high_us:
            raise MalformedDataError(
                f"{split_id_of(file)}: {self._table.title} has event times from {file.low_us} to {file.high_us} for "
                f"it, but the file itself has some from {low_us} to {high_us} microseconds since 1970: the table's "
                "statistics are wrong, and records would be read too late by them. Write the file's rows again, or "
                "have the statistics computed anew and use a new checkpointLocation"
            )

    def _horizon_us(self) -> int:
        assert self._waiting is not None
        return min(self._waiting.earliest_us, _HOLDS_NOTHING_US)

    def _publish_horizon(self) -> None:
        self._context.set_horizon(self._horizon_us() if self._waiting else None)

    def _end_if_all_begun(self) -> None:
        if self._table.bounded and self._waiting is not None and not len(self._waiting):
            self._no_more_splits()

    # ---- SplitEnumerator ---------------------------------------------------------------------------------------------

    def split_at(self, split_id: str, position: int) -> TableSplit:
        return TableSplit(self._files[split_id], position)

    def metrics(self) -> Mapping[str, int]:
        """Files that wait, by the names of Delta's own source."""
        if self._waiting is None:
            return {}
        return {
            "numFilesOutstanding": len(self._waiting),
            "numBytesOutstanding": self._waiting.size,
            "numVersionsOutstanding": self._waiting.versions,
        }

    def finish_split(self, split_id: str) -> None:
        super().finish_split(split_id)
        self._lister.release(self._files.pop(split_id))

    def snapshot_state(self, checkpoint_id: int) -> TableCheckpoint:
        self._finished_logs.clear()
        self._files.expect_finished(())
        if self._waiting is None:
            return self._checkpoint
        first, self._first = self._first, None
        return TableCheckpoint(
            self._lister.table_id, self._waiting.progress, self._config.indexing, self._table.bounded, first
        )

    def expect_finished(self, split_ids: Collection[str]) -> None:
        self._files.expect_finished(split_ids)

    def finished_between(
        self, left: Sequence[TableSplit], start: TableCheckpoint | None, end: TableCheckpoint, in_work: Collection[str]
    ) -> Sequence[TableSplit]:
        since = end.first if start is None or start.progress is None else start.progress
        assert since is not None, "the first state has where the stream began"
        assert end.progress is not None, "else no finished split is left out"
        begun = self._retries.run(partial(self._begun_between, since, end.progress))
        files = [split.file for split in left] + [file for file in begun if split_id_of(file) not in in_work]
        data_files = [self._lister.data_file(file) for file in files]
        finished = []
        for file, data_file, blocks in zip(files, data_files, self._describe_all(data_files), strict=True):
            if blocks is not None:
                split = TableSplit(file, int(blocks.rows.sum()))
                finished.append(split)
                self._finished_logs[split.split_id] = FileLog([LoggedFile(data_file, 0, blocks)])
        return finished

    def _begun_between(self, since: Progress, upto: Progress) -> list[TableFile]:
        """The files that were begun between two points of progress."""
        found: list[TableFile] = []
        if since.in_snapshot:
            _, files = divided(self._snapshot(since.after), since.steps[0].begun if since.steps else None)
            if upto.in_snapshot:
                files, _ = divided(files, upto.steps[0].begun)
            found += _rows(files)
        before = {split_id_of(file) for file in self._begun_of_commits(since, since.after)}
        return found + [file for file in self._begun_of_commits(upto, since.after) if split_id_of(file) not in before]

    def _begun_of_commits(self, progress: Progress, after: int) -> Iterator[TableFile]:
        """The files of versions behind one that were begun at a point of progress."""
        if progress.after != after and (commits := self._commits(after, progress.after)) is not None:
            yield from _rows(self._wanted(commits.files))
        after = progress.after
        for upto, begun in progress.steps:
            if upto != after and (commits := self._commits(after, upto)) is not None:
                yield from _rows(divided(self._wanted(commits.files), begun)[0])
            after = upto

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _check_new_columns(self, path: str, columns: Sequence[str]) -> None:
        """Which columns a table has, its lister knows: a file may have others, which the table has dropped."""

    def _describe_begun(self, split: TableSplit) -> FileBlocks:
        return self._describe(self._lister.data_file(split.file)) or NO_BLOCKS

    def _rebuild(self, start: TableSplit, end: TableSplit) -> FileLog:
        log, file = FileLog(), self._lister.data_file(end.file)
        blocks = self._describe(file)
        if blocks is None:
            return log
        log.files.append(LoggedFile(file, 0, blocks))
        if not log.covers(start.position, end.position):
            raise DataLossError(
                f"{end.split_id} of {self._table.title} has changed: the rows {start.position} to {end.position} that "
                "were planned are not in it; restore it, or start with a new checkpointLocation"
            )
        return log


def _rows(files: pa.Table) -> Iterator[TableFile]:
    return (TableFile(**row) for row in files.select(FILES.names).to_pylist())


def _extent(blocks: FileBlocks) -> tuple[int, int]:
    """Earliest and latest valid event time; where the earliest is not known, the smallest number."""
    return blocks.earliest_us, int(blocks.max_us.max(initial=NO_TIMESTAMP))
