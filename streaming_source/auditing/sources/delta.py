"""Delta's source in Spark: each micro-batch's files from the table's log, their event times from its statistics."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import deltalake
import numpy as np
import pyarrow as pa
from deltalake.exceptions import DeltaError

from alignment.column_paths import exact_path, fields_on_path
from alignment.timestamps import NO_TIMESTAMP
from streaming_source.auditing.sources.base import AuditedSource, SplitRead, TimeBlock, loaded
from streaming_source.auditing.sources.event_time import EventTime, time_column
from streaming_source.auditing.sources.files import file_blocks
from streaming_source.checkpoint.micro_batches import Checkpoint, CommittedBatch
from streaming_source.connectors.delta.columns import DeltaColumns
from streaming_source.connectors.delta.commits import Actions, path_in_table, read_commit
from streaming_source.connectors.delta.spark_offset import SparkDeltaOffset
from streaming_source.connectors.tables.commits import CommitKind
from streaming_source.data_files.file import DataFile, DeletedRows, FileRows, StoredFile
from streaming_source.data_files.formats import ParquetFormat
from streaming_source.data_files.stores import NO_STORAGE_OPTIONS, Root, StorageOptions
from streaming_source.exceptions import CheckpointError, DataLossError, OptionError

__all__ = ["DeltaTableSource"]

_TRUNCATED_US: Final = 999
"""Largest error of a maximum in the log: Delta truncates times to milliseconds."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class _At(NamedTuple):
    """The position of a stream: after the file of that `number` in a version; -1 before the first."""

    version: int
    number: int
    is_snapshot: bool


@dataclass(frozen=True, slots=True)
class _Added:
    """A file that a version added or a snapshot has, its known bounds, and why it cannot be read.

    The query read none of its `deleted` rows, but its statistics include them.
    """

    at: _At
    path: str
    rows: int | None = None
    min_us: int = NO_TIMESTAMP
    max_us: int = NO_TIMESTAMP
    unreadable: str | None = None
    deleted: DeletedRows | None = None


class DeltaTableSource(AuditedSource):
    """A Delta table. A split is a data file.

    The query read first the snapshot of the version at which it began, files ordered by modification time and path;
    then the files that each later version added as data. Files of a compaction are not data.

    Parameters
    ----------
    checkpoint, place
        The query, and which of its sources this is.
    path
        Path of the table: the checkpoint has only its id.
    starting_version
        Option `startingVersion` of the query, if it was set.
    skips_changes
        Whether the query passed over versions that take rows away (`skipChangeCommits`), with all that they add; false
        if it read what they add (`ignoreChanges`). Without it what such versions add is in no count.

    Raises
    ------
    OptionError
        If `path` is None, or is another table.
    """

    kind = "delta"

    def __init__(
        self,
        checkpoint: Checkpoint,
        place: int,
        event_time: EventTime,
        *,
        path: str | None,
        starting_version: str | None = None,
        skips_changes: bool | None = None,
        storage: StorageOptions = NO_STORAGE_OPTIONS,
    ) -> None:
        if path is None:
            raise OptionError(
                f"source {place} reads a Delta table, and the checkpoint keeps its id, not its path; give it with "
                "--source PATH"
            )
        self._place, self.name = place, path
        self._starting_version = None if starting_version is None else int(starting_version)
        self._skips_changes = skips_changes
        root = Root(path)
        self._filesystem, self._root = Root(path, NO_STORAGE_OPTIONS if root.is_local else storage).open()
        self._uri = self._root if root.is_local else path
        try:
            table = deltalake.DeltaTable(self._uri)
            metadata = table.metadata()
            self._columns = DeltaColumns.of_table(table)
        except DeltaError as error:
            raise OptionError(f"source = {path!r} cannot be read as a Delta table ({error}); correct it") from None
        offsets = [json.loads(text) for batch in checkpoint.batches if (text := batch.ends[place]) is not None]
        schema, known = self._columns.schema, metadata.id
        if offsets and offsets[0]["reservoirId"] != str(known):
            raise OptionError(
                f"source = {path!r} is the table {known}, and the query read the table {offsets[0]['reservoirId']}; "
                "give the path of that one"
            )
        self._format = ParquetFormat()
        self._added: dict[int, list[_Added]] = {}
        column = event_time.column
        if column is None:
            column = time_column(schema, checkpoint.batches, event_time, partial(self._latest_of, schema))
        column = exact_path(schema, column)
        if column in self._columns.partition_columns:
            raise OptionError(f"time = {column!r} is a column by which the table is partitioned; give another one")
        self._set_time(schema, replace(event_time, column=column))

    @property
    def time(self) -> str:
        """The event-time column, by its name in the query."""
        return self._column

    @property
    def format_name(self) -> str:
        """The format of the table's files."""
        return self._format.name

    @property
    def notes(self) -> Sequence[str]:
        """A remark if the version at which the query began is assumed."""
        return self._notes

    def reads(self, batches: Sequence[CommittedBatch], purged_until: str | None) -> Iterator[SplitRead]:
        """Yield each file once."""
        for batch in batches:
            begin, end = (_at(offset[self._place]) for offset in (batch.starts, batch.ends))
            for added in self._between(begin, end):
                yield self._read(batch, added)
        if purged_until is not None:
            for added in self._between(None, _at(purged_until)):
                yield self._read(None, added)

    # ---- inside ------------------------------------------------------------------------------------------------------

    _notes: tuple[str, ...] = ()

    def _set_time(self, schema: pa.Schema, time: EventTime) -> None:
        """Set the event-time column; its statistics have it by its name in the files."""
        self._column = str(time.column)
        fields = fields_on_path(schema, self._column)
        if not fields:
            names = ", ".join(schema.names)
            raise OptionError(f"time = {time.column!r}: the table has no such column, it has {names}; name one of them")
        self._stored_path = self._columns.physical([field.name for field in fields])
        self._assigner = time.assigner()
        self._schema = pa.schema(fields[:1])

    def _read(self, batch: CommittedBatch | None, added: _Added) -> SplitRead:
        split = unquote(added.path)
        return SplitRead(batch, split, posixpath.dirname(split), partial(self._blocks, added))

    def _blocks(self, added: _Added) -> Iterator[TimeBlock]:
        if added.unreadable is not None:
            raise DataLossError(added.unreadable)
        path = posixpath.join(self._root, path_in_table(added.path))
        file = StoredFile(self._filesystem, DataFile(path, stored=self._columns.stored, origin=self.name))
        if added.deleted is not None:
            begin = 0
            for block in file_blocks(self._format, file, self._schema, self._assigner):
                yield loaded(block.load()[~added.deleted.among(begin, block.rows)])
                begin += block.rows
            return
        if added.rows is None or added.min_us == NO_TIMESTAMP:
            yield from file_blocks(self._format, file, self._schema, self._assigner)
            return

        rows = FileRows(file, 0, added.rows)
        yield TimeBlock(
            added.rows,
            added.min_us,
            added.max_us,
            partial(self._format.event_times, rows, self._schema, self._assigner),
        )

    def _between(self, begin: _At | None, end: _At | None) -> Iterator[_Added]:
        """Yield the files that a stream read between two positions; from its beginning if `begin` is None."""
        if end is None:
            return
        if begin is None:
            begin = self._beginning(end)
        version = begin.version
        if begin.is_snapshot:
            for added in self._snapshot(version):
                if added.at.number > begin.number and (not end.is_snapshot or added.at.number <= end.number):
                    yield added
            version += 1
            begin = _At(version, -1, is_snapshot=False)
        if end.is_snapshot:
            return
        while version < end.version or (version == end.version and end.number >= 0):
            for added in self._version(version):
                after = version > begin.version or added.at.number > begin.number
                if after and (version < end.version or added.at.number <= end.number):
                    yield added
            version += 1

    def _beginning(self, end: _At) -> _At:
        if self._starting_version is not None:
            return _At(self._starting_version, -1, is_snapshot=False)
        if end.is_snapshot:
            return _At(end.version, -1, is_snapshot=True)
        # The first micro-batch read the whole snapshot, or the query began with a version.
        version = end.version - 1 if end.number < 0 else end.version
        self._notes = (
            "The checkpoint does not keep where the query began: it is taken to have read the whole table, as of "
            f"version {version}. If it had option startingVersion, give it with -o startingVersion=NUMBER.",
        )
        return _At(version, -1, is_snapshot=True)

    def _snapshot(self, version: int) -> list[_Added]:
        """The files of a version, in the order in which Delta's source reads them."""
        if -1 - version not in self._added:
            try:
                table = deltalake.DeltaTable(self._uri, version=version)
                actions = pa.table(table.get_add_actions(flatten=True))
                vectors = pa.table(table.deletion_vectors())
            except DeltaError:
                gone = f"{self.name} has no version {version} any more, with which the query began"
                return [_Added(_At(version, 0, is_snapshot=True), f"version {version}", unreadable=gone)]
            stored = ".".join(self._stored_path)
            rows = sorted(actions.to_pylist(), key=lambda row: (row["modification_time"], row["path"]))
            deleted = {
                posixpath.basename(path): DeletedRows.of_rows(np.flatnonzero(~np.asarray(kept.values)))
                for path, kept in zip(vectors["filepath"].to_pylist(), vectors["selection_vector"], strict=True)
            }
            self._added[-1 - version] = [
                self._with_statistics(
                    _At(version, index, is_snapshot=True),
                    row["path"],
                    row.get("num_records"),
                    (
                        row.get(f"null_count.{stored}"),
                        row.get(f"min.{stored}"),
                        row.get(f"max.{stored}"),
                    ),
                    deleted.get(posixpath.basename(unquote(row["path"]))),
                )
                for index, row in enumerate(rows)
            ]
        return self._added[-1 - version]

    def _version(self, version: int) -> list[_Added]:
        """Return the files that a version added as data, in the order of its commit."""
        if version not in self._added:
            commit = read_commit(self._filesystem, self._root, version)
            if commit is None:
                name = f"_delta_log/{version:020d}.json"
                gone = f"{self.name}/{name} is not there any more: the table's log was cleaned up"
                self._added[version] = [_Added(_At(version, 0, is_snapshot=False), name, unreadable=gone)]
            else:
                self._added[version] = self._added_beside(commit)
        return self._added[version]

    def _added_beside(self, commit: Actions) -> list[_Added]:
        """Return the files that a version added, if the query read what a version that takes rows away adds."""
        version, adds = commit.version, commit.new_files
        removes = commit.kind in (CommitKind.DELETE, CommitKind.OVERWRITE)
        if removes and self._skips_changes:
            return []
        places = [_At(version, number, is_snapshot=False) for number in range(len(adds))]
        if removes and self._skips_changes is None:
            why = (
                f"version {version} of {self.name} changes rows, and the checkpoint does not keep whether the query "
                "read what it adds: give the query's option with -o skipChangeCommits=true or -o ignoreChanges=true"
            )
            return [_Added(at, add["path"], unreadable=why) for at, add in zip(places, adds, strict=True)]
        return [self._added_by(at, add) for at, add in zip(places, adds, strict=True)]

    def _added_by(self, at: _At, add: Mapping[str, Any]) -> _Added:
        stats = json.loads(add.get("stats") or "{}")
        bounds = [_inside(stats.get(kind, {}), self._stored_path) for kind in ("nullCount", "minValues", "maxValues")]
        if add.get("deletionVector"):
            why = f"{unquote(add['path'])} has a deletion vector: which of its rows the query read is not known"
            return _Added(at, add["path"], unreadable=why)
        return self._with_statistics(at, add["path"], stats.get("numRecords"), tuple(bounds))

    def _with_statistics(
        self, at: _At, path: str, rows: int | None, bounds: tuple[Any, ...], deleted: DeletedRows | None = None
    ) -> _Added:
        nulls, low, high = bounds[0], _micros(bounds[1]), _micros(bounds[2])
        if deleted is not None or rows is None or nulls != 0 or low is None or high is None:
            return _Added(at, path, deleted=deleted)
        # A maximum with microseconds was not truncated.
        return _Added(at, path, rows, low, high if high % 1_000 else high + _TRUNCATED_US)

    def _latest_of(self, schema: pa.Schema, column: str, batch: CommittedBatch) -> int:
        self._set_time(schema, EventTime(column))
        self._added.clear()
        begin, end = (_at(offset[self._place]) for offset in (batch.starts, batch.ends))
        blocks = [block for added in self._between(begin, end) for block in self._blocks(added)]
        latest = max((block.max_us for block in blocks), default=NO_TIMESTAMP)
        self._added.clear()
        return latest


def _at(offset: str | None) -> _At | None:
    if offset is None:
        return None
    try:
        place = SparkDeltaOffset.parse(offset)
    except (LookupError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"offset {offset} of a Delta table cannot be read ({error!r}); restore it from a copy of the checkpoint"
        ) from None
    return _At(place.version, place.number, place.in_snapshot)


def _inside(values: Any, path: Sequence[str]) -> Any:
    for name in path:
        values = values.get(name) if isinstance(values, Mapping) else None
    return values


def _micros(value: Any) -> int | None:
    """Return a bound of statistics, from the log or `deltalake`, in microseconds; None if it is no timestamp."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // _MICROSECOND
