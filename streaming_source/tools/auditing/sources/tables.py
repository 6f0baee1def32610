"""Spark's own sources over tables: the files between two offsets, in Spark's order, with event times by metadata."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa

from alignment.column_paths import exact_path
from alignment.timestamps import NO_TIMESTAMP
from streaming_source.checkpoint.offset_log import CommittedBatch
from streaming_source.checkpoint.source_offsets import TableOffset, table_offset
from streaming_source.connectors.tables.commits import Broken, Chain, Commit, CommitKind
from streaming_source.connectors.tables.files import FILES, LISTED, TableFile
from streaming_source.connectors.tables.lister import TableLister
from streaming_source.connectors.tables.source import TableSource
from streaming_source.data_files.file import FileRows, StoredFile
from streaming_source.data_files.formats import ParquetFormat
from streaming_source.exceptions import DataLossError, OptionError, UnsupportedOperationError
from streaming_source.tools.auditing.sources.base import (
    Asked,
    AuditedSource,
    EventTime,
    SplitRead,
    TimeBlock,
    one_column,
    time_column,
)
from streaming_source.tools.auditing.sources.files import file_blocks


class ListedFile(NamedTuple):
    """A file of a table, how many rows of it were read, and whether each has an event time; see `LISTED`."""

    file: TableFile
    rows: int | None
    is_complete: bool


class TableReads:
    """The files of a table in the order of Spark's own source.

    `reads_changes` is whether the query reads the files of a commit that removes rows; None if it is not known.
    """

    def __init__(self, lister: TableLister, *, reads_changes: bool | None) -> None:
        self._lister, self._reads_changes = lister, reads_changes

    def rest(self, offset: TableOffset) -> pa.Table:
        """Return the files of an offset's version that are not read yet, as `LISTED`.

        A `DataLossError` if they are not known any more.
        """
        if offset.files is None:
            return LISTED.empty_table()
        if offset.in_snapshot:
            return self._lister.snapshot(offset.version).slice(offset.files)
        (commit,) = self._lister.commit(offset.version).whole()
        found = self._files(commit)
        if isinstance(found, Broken):
            raise found.error()
        return found.slice(offset.files)

    def between(self, start: TableOffset, end: TableOffset) -> Iterator[ListedFile | Broken]:
        """Yield the files that are read from one offset to another one; in place of those that are not known, why."""
        if start == end:
            return
        if start.files is not None:
            last = end.files if start.version == end.version and start.in_snapshot == end.in_snapshot else None
            yield from self._cut(start, last)
        if start.version != end.version:
            yield from self._after(self._lister.commits(start.version, end.version), end)

    def _cut(self, start: TableOffset, last: int | None) -> Iterator[ListedFile | Broken]:
        """Yield the files of the version of `start` up to number `last`."""
        assert start.files is not None
        try:
            left = self.rest(start)
        except DataLossError as error:
            why, _, fix = str(error).partition(". ")
            yield Broken(why, fix)
            return
        yield from _rows(left if last is None else left.slice(0, last - start.files))

    def _after(self, chain: Chain[Commit], end: TableOffset) -> Iterator[ListedFile | Broken]:
        commits, broken = chain.known()
        for commit in commits:
            found = self._files(commit)
            if isinstance(found, Broken):
                yield found
            else:
                yield from _rows(found if commit.version != end.version else found.slice(0, end.files))
        if broken is not None:
            yield broken

    def _files(self, commit: Commit) -> pa.Table | Broken:
        """Return the files of a commit that the query reads, or why these are not known."""
        if commit.kind in (CommitKind.APPEND, CommitKind.REWRITE) or self._reads_changes:
            return commit.files()
        if self._reads_changes is not None or commit.kind is CommitKind.DELETE:
            return LISTED.empty_table()
        return Broken(
            f"{commit.title} changes rows, and the checkpoint does not keep whether the query read what it adds",
            "Give the query's option with -o skipChangeCommits=true or -o ignoreChanges=true",
        )


def _rows(listed: pa.Table) -> Iterator[ListedFile]:
    rows: list[dict[str, Any]] = listed.to_pylist()
    for row in rows:
        file = TableFile(**{name: row[name] for name in FILES.names})
        yield ListedFile(file, row["rows"], row["complete"])


class AuditedTable(AuditedSource):
    """A table. A split is a data file.

    The query read the files of a snapshot or none, and then those that later commits added as data.

    `table` is as a source of ours loads it. `start` is where the query started; None if the checkpoint does not keep
    it: then it read the whole table as it was in its first micro-batch. `reads_changes` is as of `TableReads`. An
    `OptionError` if it is another table, or has no such column.
    """

    def __init__(
        self, asked: Asked, table: TableSource, start: TableOffset | None, *, reads_changes: bool | None
    ) -> None:
        self.kind, self.name = table.name.removeprefix("aligned_"), str(asked.path)
        self._number, self._table, self._start, self._reads_changes = asked.number, table, start, reads_changes
        self._format, self._files, self._notes = ParquetFormat(), table.open_files(), list[str]()
        self.format_name = self._format.name
        self._all_columns = table.schema()
        event_time = asked.event_time
        column = event_time.column or time_column(asked, self._all_columns, partial(self._latest_of, event_time))
        self._set_time(replace(event_time, column=exact_path(self._all_columns, column)))
        known = [found for batch in asked.checkpoint.batches if (found := self._at(batch.ends)) is not None]
        if known and known[0].table_id not in (None, self._lister.table_id):
            raise OptionError(
                f"source = {self.name!r} is the table {self._lister.table_id}, and the query read the table "
                f"{known[0].table_id}; give the path of that one"
            )

    @property
    def notes(self) -> Sequence[str]:
        """A remark if the version at which the query started is assumed."""
        return self._notes

    def reads(self, batches: Sequence[CommittedBatch], purged_until: str | None) -> Iterator[SplitRead]:
        """Yield each file once."""
        for batch in batches:
            for found in self._between(self._at(batch.starts), self._at(batch.ends)):
                yield self._read(batch, found)
        if purged_until is not None:
            for found in self._between(None, table_offset(self.kind, purged_until)):
                yield self._read(None, found)

    def _set_time(self, time: EventTime) -> None:
        self.time = str(time.column)
        self._schema = one_column(self._all_columns, self.time, "the table has no such column, it has")
        self._assigner = time.assigner()
        self._lister = self._table.open_lister(self._schema, self._assigner)
        self._order = TableReads(self._lister, reads_changes=self._reads_changes)

    def _at(self, offsets: Sequence[str | None]) -> TableOffset | None:
        text = offsets[self._number]
        return None if text is None else table_offset(self.kind, text)

    def _between(self, start: TableOffset | None, end: TableOffset | None) -> Iterator[ListedFile | Broken]:
        if end is not None:
            yield from self._order.between(start or self._started(end), end)

    def _started(self, end: TableOffset) -> TableOffset:
        """Return where the query started, whose first micro-batches ended at `end`."""
        if self._start is not None:
            return self._start
        if not end.in_snapshot:
            # They read the whole snapshot, or the query started with a version.
            self._notes = [
                "The checkpoint does not keep where the query started: it is taken to have read the whole table, as of "
                f"version {end.version}. If it had option startingVersion, give it with -o startingVersion=NUMBER."
            ]
        return TableOffset(end.version, 0, in_snapshot=True)

    def _read(self, batch: CommittedBatch | None, found: ListedFile | Broken) -> SplitRead:
        if isinstance(found, Broken):
            return SplitRead(batch, found.why, "", partial(_unreadable, found))
        split = unquote(found.file.path)
        return SplitRead(batch, split, posixpath.dirname(split), partial(self._blocks, found))

    def _blocks(self, found: ListedFile) -> Iterator[TimeBlock]:
        try:
            stored = StoredFile(self._files, self._lister.data_file(found.file))
        except UnsupportedOperationError as error:
            raise DataLossError(str(error)) from None
        rows, low_us, high_us = found.rows, found.file.low_us, found.file.high_us
        if rows is None or not found.is_complete or low_us is None or high_us is None:
            yield from file_blocks(self._format, stored, self._schema, self._assigner)
            return
        load = partial(self._format.event_times, FileRows(stored, 0, rows), self._schema, self._assigner)
        yield TimeBlock(rows, low_us, high_us, load)

    def _latest_of(self, time: EventTime, column: str, batch: CommittedBatch) -> int:
        self._set_time(replace(time, column=column))
        found = self._between(self._at(batch.starts), self._at(batch.ends))
        read = (block for one in found for block in self._read(batch, one).blocks())
        blocks = (block for block in read if isinstance(block, TimeBlock))
        latest = (block.max_us if block.is_bounded else int(block.load().max(initial=NO_TIMESTAMP)) for block in blocks)
        return max(latest, default=NO_TIMESTAMP)


def _unreadable(broken: Broken) -> Iterator[TimeBlock]:
    raise broken.error()
