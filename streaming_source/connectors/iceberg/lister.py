"""Lists the files of an Iceberg table: of a snapshot, and of those that are committed after it."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Final

import pyarrow as pa
from pyarrow import fs
from pyiceberg.manifest import ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from alignment.exceptions import AlignmentError
from alignment.timestamps import RecordTimestampAssigner, TimestampAssigner
from streaming_source.connectors.iceberg.chain import chain_between
from streaming_source.connectors.iceberg.columns import IcebergColumns, aliases_of
from streaming_source.connectors.iceberg.manifest_files import with_checked_manifests
from streaming_source.connectors.iceberg.manifests import (
    ADDED,
    DELETED,
    DeleteFiles,
    Entry,
    FilesOfManifests,
    entries_of,
    given_of,
)
from streaming_source.connectors.tables.commits import Broken, Chain, Commit, CommitKind, MicroBatch
from streaming_source.connectors.tables.files import LISTED, TableFile, TimeBounds
from streaming_source.connectors.tables.lister import BEFORE_ALL, ColumnBounds, ColumnChanges, Start
from streaming_source.data_files.file import DataFile, DeletedRows
from streaming_source.exceptions import DataLossError, UnsupportedOperationError

_MAX_AGE: Final = "history.expire.max-snapshot-age-ms"
_MAX_AGE_MS: Final = 5 * 24 * 3_600_000
"""Milliseconds that a snapshot stays where the table does not say."""

_FIX: Final = (
    "Start with a new checkpointLocation, which reads the table as it is now; keep snapshots longer than a query may "
    f"be down ({_MAX_AGE})"
)

_DELETED_ROWS_KEPT: Final = 1024

_LOOKS: Final = 60
"""Of so many looks that find nothing one asks whether the table's folder is still there."""

_SHOWN: Final = 300
"""How many characters an error shows of one of `pyiceberg`."""
_NUMBER: Final = re.compile(r"[0-9]{1,18}")

_KINDS: Final = {
    Operation.APPEND: CommitKind.APPEND,
    Operation.REPLACE: CommitKind.REWRITE,
    Operation.DELETE: CommitKind.DELETE,
}
"""Any other operation may do anything."""

_QUERY, _BATCH = "spark.sql.streaming.queryId", "spark.sql.streaming.epochId"
"""Keys of the summary of a snapshot under which Iceberg's sink in Spark writes which micro-batch it is."""


class IcebergLister:
    """An Iceberg table, as `TableLister`, by its `title` in messages.

    `reload` loads the table from its catalog as it is now, given what it was before. `start` is where a fresh stream
    starts, given the table, and what looks whether a snapshot has files that others added. `columns` are those of a
    table, as the query knows them; `files` is the file system in which locations of the table are paths.
    """

    def __init__(
        self,
        title: str,
        table: Table,
        reload: Callable[[Table], Table],
        start: Callable[[Table, Callable[[Snapshot], bool]], Start],
        columns: Callable[[Table], IcebergColumns],
        files: fs.FileSystem,
        schema: pa.Schema,
        assigner: TimestampAssigner,
        schema_evolution: str,
    ) -> None:
        self._title, self._table, self._reload, self._start = title, table, reload, start
        self._file_system, self.schema = files, schema
        self.table_id = str(self._table.metadata.table_uuid)
        # A query reads the columns as the table has them when it starts: files of other snapshots are read as these.
        self._columns = columns(self._table)
        self._schema_id = self._table.metadata.current_schema_id
        self._bounds = TimeBounds.of(schema, assigner)
        self._time_id = None if self._bounds is None else self._columns.id_of(self._bounds.path)
        self._changes = ColumnChanges(schema_evolution)
        self._empty_looks = 0
        self._deletes: dict[int, DeleteFiles] = {}
        self._deleted: OrderedDict[tuple[str, int], DeletedRows | None] = OrderedDict()
        # Held for no I/O: who releases a file must not wait for a store.
        self._guard = threading.Lock()
        self._listing_deletes = threading.Lock()

    @classmethod
    def of_loaded(cls, table: Table, names: tuple[str, ...], files: fs.FileSystem) -> IcebergLister:
        """Return the lister of these columns of a table as `pyiceberg` has loaded it, without event times."""
        title, head = f"Iceberg table {'.'.join(table.name())}", table.metadata.current_snapshot_id
        columns = IcebergColumns(title, table.schema(), names, aliases_of(table.name_mapping()))
        return cls(
            title=title,
            table=with_checked_manifests(table),
            reload=lambda known: known,
            start=lambda *_: Start(BEFORE_ALL, has_snapshot=False) if head is None else Start(head),
            columns=lambda _: columns,
            files=files,
            schema=columns.arrow_schema,
            assigner=RecordTimestampAssigner(),
            schema_evolution="ignore",
        )

    def start(self) -> Start:
        return self._start(self._table, self._inherits)

    # ---- a snapshot --------------------------------------------------------------------------------------------------

    def snapshot(self, version: int) -> pa.Table:
        deletes = self._deletes_of(version)
        make = self._make_files()

        def files_in(manifest: ManifestFile) -> pa.Table:
            live = (entry for entry in self._entries(manifest) if entry.status != DELETED)
            return make.of(live, manifest.partition_spec_id, version, deletes)

        with self._understood(version):
            return _joined(map(files_in, self._manifests(self._snapshot(version))))

    def bounds(self, version: int, columns: Sequence[str]) -> dict[str, dict[str, ColumnBounds]]:
        self._snapshot(version)
        with self._understood(version):
            files = self._table.inspect.files(version).to_pylist()
        keys, found = ("lower_bound", "upper_bound", "null_value_count"), dict[str, dict[str, ColumnBounds]]()
        for file in files:
            known = {name: file["readable_metrics"].get(name) or {} for name in columns}
            found[file["file_path"]] = {name: ColumnBounds(*map(of.get, keys)) for name, of in known.items()}
        return found

    def _snapshot(self, version: int) -> Snapshot:
        found = self._table.metadata.snapshot_by_id(version)
        if found is None:
            raise DataLossError(
                f"{self._title}: snapshot {version} has expired before its files were all opened. Start with a new "
                "checkpointLocation, which reads the table as it is now; keep snapshots for longer than a query takes "
                f"to read one ({_MAX_AGE})"
            )
        return found

    def _manifests(self, snapshot: Snapshot, content: ManifestContent = ManifestContent.DATA) -> list[ManifestFile]:
        with self._understood(snapshot.snapshot_id):
            found = snapshot.manifests(self._table.io)
        return [manifest for manifest in found if manifest.content == content]

    def _entries(self, manifest: ManifestFile) -> Iterator[Entry]:
        with self._understood(manifest.added_snapshot_id):
            yield from entries_of(manifest, self._table.io)

    @contextmanager
    def _understood(self, version: int | None) -> Iterator[None]:
        """Let errors of metadata name the table: of those that are gone, damaged, or of other writers."""
        try:
            yield
        except FileNotFoundError:
            raise DataLossError(
                f"{self._title}: the manifests of snapshot {version} were deleted: it has expired, and its files were "
                "not all opened. Start with a new checkpointLocation, which reads the table as it is now"
            ) from None
        except (AlignmentError, OSError):
            raise
        except Exception as error:
            raise UnsupportedOperationError(
                f"{self._title}: the manifests of snapshot {version} are damaged, or cannot be read by this version of "
                f"pyiceberg: {repr(error)[:_SHOWN]}. Restore them. Take a newer pyiceberg, or read the table with "
                "spark.readStream.format('iceberg') and withWatermark"
            ) from None

    def _make_files(self) -> FilesOfManifests:
        return FilesOfManifests(self._title, self._columns, self._table.specs(), self._time_id, self._bounds)

    # ---- commits -----------------------------------------------------------------------------------------------------

    def commit(self, version: int) -> Chain[Commit]:
        found = self._table.metadata.snapshot_by_id(version)
        if found is None:
            return Chain((), Broken(f"{self._title} has no snapshot {version} any more: it has expired", _FIX))
        return Chain((self._commit(found),))

    def digest(self, version: int) -> str | None:
        """No two snapshots have one id."""

    def commits(self, after: int, last: int | None = None) -> Chain[Commit]:
        known = self._table
        # The ancestors of a snapshot that is known stay as they are.
        table = known if last is not None and known.metadata.snapshot_by_id(last) is not None else self._reload(known)
        if str(table.metadata.table_uuid) != self.table_id:
            raise DataLossError(
                f"{self._title} has the id {table.metadata.table_uuid}, and the one that was read has "
                f"{self.table_id}: it was dropped and made anew; use a new checkpointLocation"
            )
        self._table = table
        if last is None and table is known:
            self._check_folder()
        head = table.metadata.current_snapshot_id if last is None else last
        found, broken = chain_between(table.metadata, after, head, self._inherits)
        if found:
            self._look_at_columns(found[-1].snapshot_id)
        why = None if broken is None else Broken(f"{self._title}: {broken}", _FIX)
        return Chain([self._commit(snapshot) for snapshot in found], why)

    def _check_folder(self) -> None:
        """Look now and then whether the table's metadata are still there: a catalog keeps where they were."""
        self._empty_looks += 1
        if self._empty_looks % _LOOKS == 0 and not self._table.io.new_input(self._table.metadata_location).exists():
            raise DataLossError(
                f"{self._title}: its metadata are not there any more, and its catalog still names them: its folder was "
                "deleted. Restore it, or stop the query"
            )

    def _commit(self, snapshot: Snapshot) -> Commit:
        number, operation, kind = snapshot.snapshot_id, _operation_of(snapshot), kind_of(snapshot)
        done = "an unknown operation" if operation is None else operation.value
        with self._understood(number):
            made = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return Commit(
            number,
            f"{self._title}, snapshot {number} ({done}, {made})",
            kind,
            micro_batches_of(snapshot),
            made_ms=snapshot.timestamp_ms,
            files=LISTED.empty_table if kind is CommitKind.REWRITE else partial(self._added_by, snapshot),
            expiring_ms=dict if kind is CommitKind.APPEND else partial(self._expiring, snapshot),
        )

    def _inherits(self, snapshot: Snapshot) -> bool:
        """Return whether a snapshot has files that others added: a request of the store."""
        own = (snapshot.snapshot_id, None)
        return any(one.added_snapshot_id not in own or one.has_existing_files() for one in self._manifests(snapshot))

    def _added_by(self, snapshot: Snapshot) -> pa.Table:
        number = snapshot.snapshot_id
        if deletes := self._own(self._manifests(snapshot, ManifestContent.DELETES), number):
            raise UnsupportedOperationError(
                f"{self._title}, snapshot {number} (append), adds delete files as well: {deletes[0].manifest_path}. "
                "Start with a new checkpointLocation, whose snapshot has them applied"
            )
        make = self._make_files()

        def files_in(manifest: ManifestFile) -> pa.Table:
            entries = self._entries(manifest)
            added = (entry for entry in entries if entry.status == ADDED and entry.snapshot_id == number)
            return make.of(added, manifest.partition_spec_id, number)

        with self._understood(number):
            return _joined(map(files_in, self._own(self._manifests(snapshot), number)))

    @staticmethod
    def _own(manifests: Iterable[ManifestFile], version: int) -> list[ManifestFile]:
        """Those that a snapshot has written: others have nothing that is new in it."""
        return [manifest for manifest in manifests if manifest.added_snapshot_id in (version, None)]

    def _expiring(self, snapshot: Snapshot) -> dict[str, int]:
        """Files that a snapshot removed, until when snapshots that have them stay."""
        with self._understood(snapshot.snapshot_id):
            stay_ms = snapshot.timestamp_ms + int(self._table.properties.get(_MAX_AGE, _MAX_AGE_MS))
        return {
            entry.data_file.file_path: stay_ms
            for manifest in self._own(self._manifests(snapshot), snapshot.snapshot_id)
            for entry in self._entries(manifest)
            if entry.status == DELETED and entry.snapshot_id == snapshot.snapshot_id
        }

    def _look_at_columns(self, version: int) -> None:
        metadata = self._table.metadata
        if metadata.current_schema_id == self._schema_id:
            return
        now, title = IcebergColumns(self._title, metadata.schema()), f"{self._title}, snapshot {version},"
        self._changes.check(title, self._columns.top_level(), now.top_level(), self.schema.names)
        self._schema_id = metadata.current_schema_id

    # ---- a file ------------------------------------------------------------------------------------------------------

    def data_file(self, file: TableFile) -> DataFile:
        given = given_of(file.partition, self._columns, self.schema)
        deleted = None if file.deletes is None else self._deleted_rows(file, *file.deletes)
        origin = f"{self._title}, snapshot {file.version}"
        return DataFile(file.path, given, deleted, self._columns.stored, origin)

    def release(self, file: TableFile) -> None:
        with self._guard:
            self._deleted.pop((file.path, file.version), None)

    def retain(self, paths: Iterable[str]) -> None:
        """Files of which nobody asked are not remembered."""

    def _deleted_rows(self, file: TableFile, sequence: int, key: str) -> DeletedRows | None:
        name = (file.path, file.version)
        with self._guard:
            if name in self._deleted:
                self._deleted.move_to_end(name)
                return self._deleted[name]
        found = self._deletes_of(file.version).read(self._file_system, file.path, key, sequence)
        with self._guard:
            self._deleted[name] = found
            while len(self._deleted) > _DELETED_ROWS_KEPT:
                self._deleted.popitem(last=False)
        return found

    def _deletes_of(self, version: int) -> DeleteFiles:
        with self._listing_deletes:
            if version not in self._deletes:
                self._deletes[version] = DeleteFiles(self._title, version, self._delete_entries(version))
            return self._deletes[version]

    def _delete_entries(self, version: int) -> Iterator[ManifestEntry]:
        for manifest in self._manifests(self._snapshot(version), ManifestContent.DELETES):
            with self._understood(manifest.added_snapshot_id):
                yield from manifest.fetch_manifest_entry(self._table.io)


def _operation_of(snapshot: Snapshot) -> Operation | None:
    return None if snapshot.summary is None else snapshot.summary.operation


def kind_of(snapshot: Snapshot) -> CommitKind:
    """Return what a snapshot does to the rows before it; one that does not say may do anything."""
    operation = _operation_of(snapshot)
    return CommitKind.OVERWRITE if operation is None else _KINDS.get(operation, CommitKind.OVERWRITE)


def micro_batches_of(snapshot: Snapshot) -> tuple[MicroBatch, ...]:
    """Return the micro-batch that Spark's sink committed with a snapshot; none of another writer's."""
    written = {} if snapshot.summary is None else snapshot.summary.additional_properties
    query, batch = written.get(_QUERY), written.get(_BATCH)
    return () if query is None or batch is None or not _NUMBER.fullmatch(batch) else (MicroBatch(query, int(batch)),)


def _joined(tables: Iterable[pa.Table]) -> pa.Table:
    found = list(tables)
    return pa.concat_tables(found).combine_chunks() if found else LISTED.empty_table()
