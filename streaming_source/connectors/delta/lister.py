"""Lists the files of a Delta table: of a version by `deltalake`, of the commits after it by their log."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import deltalake
import pyarrow as pa
from pyarrow import fs

from alignment import arrow_compute as pc
from alignment.durations import parse_duration_us
from alignment.exceptions import InvalidArgumentError
from alignment.shown import without_secrets
from alignment.time_texts import UTC, parse_iso8601
from alignment.timestamps import TimestampAssigner
from streaming_source.connectors.delta.columns import HAS_ZONE, DeltaColumns, is_moment
from streaming_source.connectors.delta.commits import (
    Actions,
    LogFiles,
    check_protocol,
    commit_digest,
    path_in_table,
    reached_version,
    read_commit,
)
from streaming_source.connectors.delta.statistics import DeletionVectors, FileStatistics, as_array
from streaming_source.connectors.tables.commits import Broken, Chain, Commit
from streaming_source.connectors.tables.files import Deletes, TableFile, TimeBounds, listed
from streaming_source.connectors.tables.lister import ColumnBounds, ColumnChanges, Start
from streaming_source.data_files.file import DataFile, DeletedRows
from streaming_source.exceptions import DataLossError, MalformedDataError, UnsupportedOperationError
from streaming_source.from_data import path_below

_LOOKS: Final = 60
"""Of so many looks that find nothing one asks whether the log is still there whole; the first one does."""

_ORDER: Final = [("modification_time", "ascending"), ("path", "ascending")]

_RETENTION: Final = "delta.deletedFileRetentionDuration"
_RETENTION_MS: Final = 7 * 24 * 3_600_000
"""Milliseconds that a removed file stays, where the table does not say."""


_SHOWN: Final = 300
"""How many characters an error shows of one of `deltalake`."""
_FIX: Final = "Start with a new checkpointLocation, which reads the table as it is now"


class DeltaLister:
    """A Delta table, as `TableLister`, by its `title` in messages.

    `table` is the version that a batch reads, else the newest one: the columns are those of it. `open_table` loads a
    version by `deltalake`; `locate` finds the URI of a file elsewhere in the table's file system, None if it is in
    another one; `reads_outside` is whether files are read that are outside of the table's folder. `start` is where a
    fresh query starts, given `table`; `zone` that of times of partitions that are written without one, None if it is
    not known.
    """

    def __init__(
        self,
        title: str,
        filesystem: fs.FileSystem,
        root: str,
        table: deltalake.DeltaTable,
        open_table: Callable[[int], deltalake.DeltaTable],
        locate: Callable[[str], str | None],
        reads_outside: bool,
        start: Callable[[deltalake.DeltaTable], Start],
        schema: pa.Schema,
        assigner: TimestampAssigner,
        schema_evolution: str,
        zone: str | None,
    ) -> None:
        self._title, self._filesystem, self._root = title, filesystem, root
        self._open_table, self._locate, self._start = open_table, locate, start
        self._reads_outside = reads_outside
        self._schema = schema
        self.table_id = str(table.metadata().id)
        # A query reads the columns as the table has them when it starts: files of other versions are read as these.
        self._columns = DeltaColumns.of_table(table, zone)
        self._columns_of = table.version()
        self._opened: deltalake.DeltaTable | None = table
        self._started: Start | None = None
        self._statistics = FileStatistics(self._columns, TimeBounds.of(schema, assigner))
        self._deleted = DeletionVectors(title, open_table)
        self._changes = ColumnChanges(schema_evolution)
        self._empty_looks = 0

    def start(self) -> Start:
        if self._started is None:
            assert self._opened is not None, "a query starts before it lists files"
            self._started = self._start(self._opened)
        return self._started

    # ---- a version ---------------------------------------------------------------------------------------------------

    def snapshot(self, version: int) -> pa.Table:
        # A table holds what is known of all its files: two of them would be a great deal.
        opened, self._opened = self._opened, None
        table = opened if opened is not None and opened.version() == version else self._open_table(version)
        del opened
        # The order of Delta's own source.
        actions = pa.table(table.get_add_actions(flatten=False)).sort_by(_ORDER)
        partitions = None
        if "partition" in actions.schema.names:
            partitions = self._texts_of_partitions(actions["partition"], table)
        bounds = self._statistics.bounds_in_snapshot(actions, partitions or ())
        deleted, deletes = self._deleted.load(version, table), None
        paths, sizes, rows = (as_array(actions[name]) for name in ("path", "size_bytes", "num_records"))
        if deleted:
            names = [path_in_table(name) for name in paths.to_pylist()]
            self._check_deleted(deleted, names, version)
            deletes = [Deletes(version) if name in deleted else None for name in names]
        return listed(paths, version, sizes, bounds, rows, partitions, deletes)

    def bounds(self, version: int, columns: Sequence[str]) -> dict[str, dict[str, ColumnBounds]]:
        actions = pa.table(self._open_table(version).get_add_actions(flatten=True))
        stored = {name: self._columns.physical([name])[0] for name in columns}
        kinds = [f"{kind}.{of}" for of in stored.values() for kind in ("min", "max", "null_count")]
        found = actions.select(["path", *(name for name in kinds if name in actions.schema.names)]).to_pylist()
        return {
            row["path"]: {
                name: ColumnBounds(row.get(f"min.{of}"), row.get(f"max.{of}"), row.get(f"null_count.{of}"))
                for name, of in stored.items()
            }
            for row in found
        }

    def _texts_of_partitions(
        self, column: pa.ChunkedArray, table: deltalake.DeltaTable
    ) -> list[Mapping[str, str | None]]:
        """The values of partitions as the log writes them, by their names in the log."""
        partition = as_array(column)
        names, texts = [], []
        of_version = DeltaColumns.of_table(table)
        for field in partition.type:
            names.append(of_version.physical([field.name])[0])
            values = pc.struct_field(partition, [partition.type.get_field_index(field.name)])
            if is_moment(field.type):
                texts.append(self._texts_of_moments(values, field.name, table))
            else:
                texts.append(values.cast(pa.string()).to_pylist())
        return [dict(zip(names, row, strict=True)) for row in zip(*texts, strict=True)]

    def _texts_of_moments(self, values: pa.Array, name: str, table: deltalake.DeltaTable) -> list[str | None]:
        """Texts with a zone or without one, as the log has them: `deltalake` takes those without for UTC."""
        texts = pa.array({text for of in table.partitions() if (text := of.get(name))}, pa.string())
        has_zone = pc.match_substring_regex(texts, HAS_ZONE).to_pylist()
        by_us = dict[int, tuple[str, bool]]()
        for us, text, is_zoned in zip(parse_iso8601(texts, UTC)[0].tolist(), texts.to_pylist(), has_zone, strict=True):
            other, was_zoned = by_us.setdefault(us, (text, is_zoned))
            if was_zoned != is_zoned and self._columns.zone != UTC:
                raise UnsupportedOperationError(
                    f"{self._title}: the partition column {name!r} has both {other!r} and {text!r}, and which of its "
                    "files have which is not known. Set timeZone = UTC if both are in UTC, or write the rows of one of "
                    "them again"
                )
        return [None if us is None else by_us[us][0] for us in values.cast(pa.int64()).to_pylist()]

    # ---- commits -----------------------------------------------------------------------------------------------------

    def commit(self, version: int) -> Chain[Commit]:
        return self.commits(version - 1, version)

    def digest(self, version: int) -> str | None:
        return commit_digest(self._filesystem, self._root, version)

    def commits(self, after: int, last: int | None = None) -> Chain[Commit]:
        self._opened = None
        found: list[Commit] = []
        missing: list[int] = []
        version = after
        while last is None or version < last:
            version += 1
            actions = read_commit(self._filesystem, self._root, version)
            if actions is None and last is not None:
                # It was in the log: a store may not show it at once.
                actions = read_commit(self._filesystem, self._root, version)
            if actions is not None:
                found.append(self._commit(actions))
            elif last is None:
                return Chain(found, self._cleaned(version, goes_on=bool(found)))
            else:
                missing.append(version)
        return Chain(found, self._gone(missing[0], missing[-1]) if missing else None)

    def _cleaned(self, version: int, *, goes_on: bool) -> Broken | None:
        """Return why a version is not in the log; None where it is still to come.

        If the log `goes_on` others that this look is for were in it.
        """
        self._empty_looks += 1
        if self._empty_looks == 1 and not goes_on and version > self._columns_of + 1:
            return Broken(
                f"{self._title} is at version {self._columns_of}, and version {version - 1} was read: an older state "
                "of its log was restored",
                _FIX,
            )
        if self._empty_looks % _LOOKS != 1:
            return None
        reached = reached_version(self._filesystem, self._root)
        if reached < version - 1 and self.digest(version - 1) is None:
            newest = LogFiles.listed(self._filesystem, self._root).newest
            if newest < version - 1:
                has = "is not there any more" if newest < 0 else f"is at version {newest}"
                return Broken(
                    f"{self._title} {has}, and version {version - 1} was read: its folder was deleted",
                    "Restore it, or start with a new checkpointLocation where there is a table",
                )
        reached = max(self._columns_of, reached)
        # It may have been written meanwhile.
        if reached < version or read_commit(self._filesystem, self._root, version) is not None:
            return None
        return self._gone(version, version)

    def _gone(self, first: int, last: int) -> Broken:
        which = f"version {first} is" if first == last else f"versions {first} to {last} are"
        return Broken(
            f"{self._title}: {which} not in its log any more: the log was cleaned up (delta.logRetentionDuration, 30 "
            "days by default)",
            _FIX,
        )

    def _commit(self, actions: Actions) -> Commit:
        version = actions.version
        if actions.protocol is not None:
            check_protocol(self._title, version, actions.protocol)
        if actions.metadata is not None:
            self._take_metadata(version, actions.metadata)
        return replace(
            actions.commit(self._title),
            files=partial(self._files_of, actions),
            expiring_ms=partial(self._expiring, actions),
        )

    def _files_of(self, actions: Actions) -> pa.Table:
        adds, version = actions.new_files, actions.version
        low, high, complete, rows = self._statistics.bounds_in_log(adds)
        return listed(
            pa.array([add["path"] for add in adds], pa.string()),
            version,
            pa.array([add["size"] for add in adds], pa.int64()),
            (low, high, complete),
            rows,
            [add.get("partitionValues") or {} for add in adds],
            [Deletes(version) if add.get("deletionVector") else None for add in adds],
        )

    def _take_metadata(self, version: int, metadata: Mapping[str, Any]) -> None:
        if (table_id := str(metadata.get("id"))) != self.table_id:
            raise DataLossError(
                f"{self._title}, version {version}, has the id {table_id}, and the one that was read has "
                f"{self.table_id}: it was replaced; use a new checkpointLocation"
            )
        if version <= self._columns_of:
            # A stream that was stopped comes by what the query knows already.
            return
        try:
            there = DeltaColumns.of_action(metadata).by_physical_name()
        except Exception as error:  # whatever the reader of schemas raises
            raise MalformedDataError(
                f"{self._title}, version {version}, has a schema that cannot be read: {str(error)[:_SHOWN]}; restore "
                "its log, or use a new checkpointLocation"
            ) from None
        title = f"{self._title}, version {version},"
        self._changes.check(title, self._columns.by_physical_name(), there, self._schema.names)

    def _expiring(self, actions: Actions) -> dict[str, int]:
        given = dict(self._columns.configuration).get(_RETENTION, "interval 1 week")
        try:
            retention_ms = parse_duration_us(given, name=_RETENTION) // 1000 or _RETENTION_MS
        except InvalidArgumentError:
            retention_ms = _RETENTION_MS
        return {
            remove["path"]: remove["deletionTimestamp"] + retention_ms
            for remove in actions.removes
            if remove.get("deletionTimestamp")
        }

    # ---- a file ------------------------------------------------------------------------------------------------------

    def data_file(self, file: TableFile) -> DataFile:
        path, name = path_in_table(file.path), file.path
        where = self._path(path, file.version)
        given = self._columns.given(dict(file.partition), name, self._schema.names)
        deleted = None if file.deletes is None else self._deleted.of(file.version, path)
        if file.deletes is not None and deleted is None:
            raise DataLossError(
                f"{self._title}: which rows of {path} are deleted in version {file.version} is not known any more. "
                "Use a new checkpointLocation"
            )
        return DataFile(where, given, deleted, self._columns.stored, f"{self._title}, version {file.version},")

    def release(self, file: TableFile) -> None:
        self._deleted.release(file.version, path_in_table(file.path))

    def retain(self, paths: Iterable[str]) -> None:
        self._deleted.retain(map(path_in_table, paths))

    def _path(self, path: str, version: int) -> str:
        """The path of a file in the table's own file system."""
        if not self._reads_outside and ("://" in path or path_below(self._root, path) is None):
            raise UnsupportedOperationError(
                f"{self._title}, version {version}, has a file outside of its folder: {without_secrets(path)}. Set "
                "filesOutside = read if who writes to the table may name files there, or copy the table"
            )
        if "://" not in path:
            return posixpath.join(self._root, path)
        found = self._locate(path)
        if found is None:
            raise UnsupportedOperationError(
                f"{self._title}, version {version}, has a file in another store (as a shallow clone has): "
                f"{without_secrets(path)}. Read it with spark.readStream.format('delta') and withWatermark, or copy "
                "the table"
            )
        return found

    def _check_deleted(self, deleted: Mapping[str, DeletedRows], paths: list[str], version: int) -> None:
        """Refuse to read deleted rows because a path is written in two ways."""
        if others := {*deleted} - {*paths}:
            raise UnsupportedOperationError(
                f"{self._title}, version {version}: rows of {min(others)} are deleted, and the table has no file of "
                "that path. Read it with spark.readStream.format('delta'), or purge it (REORG TABLE ... APPLY (PURGE))"
            )
