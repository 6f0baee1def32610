"""A source over an Iceberg table: what a user decides of it, as attributes and options."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import fs

from alignment.timestamps import TimestampAssigner
from streaming_source.api import Option, OptionSet
from streaming_source.api.options import any_text, arguments, flag_field, integer, option, option_field, text
from streaming_source.connectors.iceberg.catalog import (
    DEFAULT_CATALOG,
    CatalogProperties,
    load_table,
    located_files,
    properties_of,
)
from streaming_source.connectors.iceberg.chain import ancestry, is_first, rolled_back
from streaming_source.connectors.tables.commits import ChangeRules, Commit, NewestMicroBatches, gone_with
from streaming_source.connectors.tables.lister import BEFORE_ALL, Start
from streaming_source.connectors.tables.source import LIMIT, TableSource, table_options
from streaming_source.data_files.stores import StorageOptions
from streaming_source.exceptions import DataLossError, OptionError, PathNotFoundError

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

    from streaming_source.connectors.iceberg.columns import IcebergColumns
    from streaming_source.connectors.iceberg.lister import IcebergLister

_MAIN: Final = "the main branch is read; leave it out, or give a batch the snapshot-id of the branch or tag"
_BATCH: Final = "a batch reads one snapshot: give snapshot-id or as-of-timestamp"
_SPLITS: Final = "splits follow from event times and row groups; leave it out"

_FOREIGN: Final = {
    "streaming-max-files-per-micro-batch": LIMIT,
    "streaming-max-rows-per-micro-batch": LIMIT,
    "streaming-snapshot-polling-interval-ms": "discoveryInterval is how often new snapshots are looked for",
    "branch": _MAIN,
    "tag": _MAIN,
    "start-snapshot-id": _BATCH,
    "end-snapshot-id": _BATCH,
    "start-timestamp": _BATCH,
    "end-timestamp": _BATCH,
    "versionAsOf": "snapshot-id is the snapshot that a batch reads",
    "timestampAsOf": "as-of-timestamp is when a batch reads the table",
    "startingVersion": "stream-from-timestamp is where a stream starts",
    "startingTimestamp": "stream-from-timestamp is where a stream starts",
    "watermark-column": "eventTimeColumn is the column of event times",
    "split-size": _SPLITS,
    "file-open-cost": _SPLITS,
    "lookback": _SPLITS,
    "locality": _SPLITS,
    "vectorization-enabled": "rows are read as Arrow batches in any case; leave it out",
    "batch-size": "rows are read as Arrow batches in any case; leave it out",
}

_CATALOG_OPTION: Final = Option(
    "catalog.*",
    any_text,
    "The catalog as `pyiceberg` opens it: `catalog.name`, and properties such as `catalog.type`, `catalog.uri`, "
    "`catalog.warehouse`, `catalog.s3.endpoint`, which go before those in the file `.pyiceberg.yaml`. They are in no "
    "offset, log or error.",
    {},
    secret=re.compile(""),
)
_PATH_OPTION: Final = Option("path", text, "The same as `table`.", same_as="table")


def _millis_or_time(name: str, value: str) -> str:
    return value.strip() if not value.strip().isdigit() else str(integer(0)(name, value))


@dataclass(frozen=True, repr=False)
class IcebergSource(TableSource):
    """An Iceberg table: its files by event time, first those of a snapshot, then those that commits add.

    The options describe the attributes, those of how files are read are in `ReadingConfig`. `catalog` is where the
    table is; `storage` has arguments of the file system, where the catalog's properties do not do. Both show nowhere.
    An `OptionError` if a value is wrong, or has no meaning with others.

    Examples
    --------
    >>> IcebergSource("db.clicks", skip_delete_snapshots=True).name
    'aligned_iceberg'
    """

    name = "aligned_iceberg"

    table: str = field(
        metadata=option("table", text, "Name of the table, `db.clicks`; also the argument of `load`.", "required")
    )
    stream_from_timestamp: int | datetime | str | None = option_field(
        None,
        "stream-from-timestamp",
        _millis_or_time,
        "A stream starts with what the first snapshot at this time or later added, and reads no older data; "
        "milliseconds since 1970 or ISO-8601.",
    )
    skip_delete_snapshots: bool = flag_field(
        "streaming-skip-delete-snapshots", "Go on after snapshots that only delete rows which were read already."
    )
    skip_overwrite_snapshots: bool = flag_field(
        "streaming-skip-overwrite-snapshots",
        "Skip snapshots that replace rows which were there before, with all that they add.",
    )
    snapshot_id: int | None = option_field(
        None, "snapshot-id", integer(0), "A batch, or a stream with bounded = true, reads this snapshot."
    )
    as_of_timestamp: int | datetime | str | None = option_field(
        None,
        "as-of-timestamp",
        _millis_or_time,
        "A batch, or a stream with bounded = true, reads the table as it was at this time; milliseconds since 1970 or "
        "ISO-8601.",
    )
    catalog: CatalogProperties = DEFAULT_CATALOG

    def __post_init__(self) -> None:
        if not isinstance(self.table, str) or not re.fullmatch(r"[^./:\s][^/:]*\.[^./:]+", self.table):
            raise OptionError(
                f"table = {self.table!r}: must be the name of a table in its namespace; give one, as in "
                ".load('db.clicks'), or in SQL OPTIONS (table 'db.clicks')"
            )
        super().__post_init__()
        if self.snapshot_id is not None and self.as_of_timestamp is not None:
            raise OptionError("snapshot-id and as-of-timestamp are both given; give one of them")
        for option_name, value in self._times().items():
            if value is not None:
                self._millis(option_name, value)

    def _times(self) -> dict[str, int | datetime | str | None]:
        return {"stream-from-timestamp": self.stream_from_timestamp, "as-of-timestamp": self.as_of_timestamp}

    @staticmethod
    def options() -> OptionSet:
        """The options of `readStream.format("aligned_iceberg")`, without those of every format."""
        return table_options(IcebergSource, _FOREIGN) | OptionSet([_CATALOG_OPTION, _PATH_OPTION])

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> IcebergSource:
        if not values["table"]:
            raise OptionError("option table is missing: give the name of the table, as in .load('db.clicks')")
        opened = {"storage": StorageOptions.of_options(values), "catalog": properties_of(values["catalog.*"])}
        return cls(**{**arguments(cls, values), **opened})

    @property
    def identity(self) -> str:
        return self.table

    @property
    def title(self) -> str:
        return f"Iceberg table {self.table}"

    def in_zone(self, zone: str) -> IcebergSource:
        has_use = any(isinstance(value, datetime | str) for value in self._times().values())
        return replace(self, time_zone=zone) if has_use and self.time_zone is None else self

    def for_batch(self) -> IcebergSource:
        """All rows of one snapshot."""
        if self.stream_from_timestamp is not None:
            raise OptionError(
                f"stream-from-timestamp = {self.stream_from_timestamp!r} is where a stream starts; {_BATCH}"
            )
        return replace(self, bounded=True, watermark_from=None)

    def _at_version(self, version: int) -> IcebergSource:
        if self._load().metadata.snapshot_by_id(version) is None:
            raise self._version_gone(f"snapshot {version}", "it has expired")
        return replace(self.for_batch(), snapshot_id=version, as_of_timestamp=None)

    def open_files(self) -> fs.FileSystem:
        return located_files(self.storage, dict(self.catalog.values))

    def table_schema(self) -> pa.Schema:
        return self._columns(self._load()).arrow_schema

    def files_came(self) -> dict[str, int]:
        table = self._load()
        entries = table.inspect.entries(self._batch_snapshot(table))
        numbers = entries["sequence_number"].to_pylist()
        return {
            file["file_path"]: number for file, number in zip(entries["data_file"].to_pylist(), numbers, strict=True)
        }

    def newest_micro_batches(
        self, queries: Collection[str], last: int | None = None, known: NewestMicroBatches | None = None
    ) -> NewestMicroBatches:
        from streaming_source.connectors.iceberg.lister import kind_of, micro_batches_of

        metadata = self._load().metadata
        newest = metadata.current_snapshot_id
        there = ancestry(metadata, newest)
        kept = {batch for snapshot in there for batch in micro_batches_of(snapshot)}
        for snapshot in rolled_back(metadata, there):
            for batch in micro_batches_of(snapshot):
                if batch.query in queries and batch not in kept:
                    title = f"{self.title}: snapshot {snapshot.snapshot_id}"
                    raise gone_with(title, "is no part of it any more", batch.query)
        commits = (
            Commit(one.snapshot_id, f"{self.title}, snapshot {one.snapshot_id}", kind_of(one), micro_batches_of(one))
            for one in (there if last is None else ancestry(metadata, last))
        )
        return NewestMicroBatches.among(commits, queries, newest or BEFORE_ALL)

    @property
    def _change_rules(self) -> ChangeRules:
        return ChangeRules(
            deletes=("streaming-skip-delete-snapshots", self.skip_delete_snapshots),
            overwrites=("streaming-skip-overwrite-snapshots", self.skip_overwrite_snapshots),
        )

    def open_lister(self, schema: pa.Schema, assigner: TimestampAssigner) -> IcebergLister:
        from streaming_source.connectors.iceberg.lister import IcebergLister

        return IcebergLister(
            title=self.title,
            table=self._load(),
            reload=self._reload,
            start=self._start,
            columns=self._columns,
            files=self.open_files(),
            schema=schema,
            assigner=assigner,
            schema_evolution=self.schema_evolution,
        )

    @property
    def _as_of(self) -> dict[str, object]:
        return {"snapshot-id": self.snapshot_id, "as-of-timestamp": self.as_of_timestamp}

    def _load(self) -> Table:
        return load_table(self.catalog, self.table)

    def _reload(self, known: Table) -> Table:
        try:
            return load_table(self.catalog, self.table, known)
        except PathNotFoundError:
            raise DataLossError(
                f"{self.title} is not in its catalog any more: it was dropped or renamed. Stop the query, or register "
                "the table under its name again"
            ) from None

    def _columns(self, table: Table) -> IcebergColumns:
        from streaming_source.connectors.iceberg.columns import IcebergColumns, aliases_of

        schema, version = table.schema(), self._batch_snapshot(table)
        if version is not None:
            of_snapshot = table.metadata.snapshot_by_id(version)
            if of_snapshot is not None and of_snapshot.schema_id is not None:
                schema = table.schemas()[of_snapshot.schema_id]
        # A column that is not there is refused by the names of all.
        is_whole = self.columns is not None and {*self.columns} <= {field.name for field in schema.fields}
        names = self.columns if is_whole else None
        return IcebergColumns(self.title, schema, names, aliases_of(table.name_mapping()))

    def _batch_snapshot(self, table: Table) -> int | None:
        if self.snapshot_id is not None:
            if table.metadata.snapshot_by_id(self.snapshot_id) is None:
                raise OptionError(
                    f"snapshot-id = {self.snapshot_id}: {self.title} has no such snapshot; it may have expired: give "
                    f"one of {', '.join(str(one.snapshot_id) for one in table.metadata.snapshots[-3:]) or 'none'}"
                )
            return self.snapshot_id
        if self.as_of_timestamp is not None:
            found = table.snapshot_as_of_timestamp(self._millis("as-of-timestamp", self.as_of_timestamp))
            if found is None:
                raise OptionError(
                    f"as-of-timestamp = {self.as_of_timestamp}: {self.title} has no snapshot as old as that; give a "
                    "later time"
                )
            return int(found.snapshot_id)
        return None

    def _start(self, table: Table, inherits: Callable[[Snapshot], bool]) -> Start:
        if self.stream_from_timestamp is not None:
            return self._start_from(table, inherits)
        version = self._batch_snapshot(table)
        if version is None:
            version = table.metadata.current_snapshot_id
        return Start(BEFORE_ALL, has_snapshot=False) if version is None else Start(version)

    def _start_from(self, table: Table, inherits: Callable[[Snapshot], bool]) -> Start:
        """After the last snapshot before a time; what is committed before it from now on is not wanted either."""
        from_ms = self._millis("stream-from-timestamp", self.stream_from_timestamp)
        newest_first = ancestry(table.metadata, table.metadata.current_snapshot_id)
        before = next((one.snapshot_id for one in newest_first if one.timestamp_ms < from_ms), None)
        if not newest_first or before == newest_first[0].snapshot_id:
            return Start(BEFORE_ALL if before is None else before, has_snapshot=False, from_ms=from_ms)
        if before is not None:
            return Start(before, has_snapshot=False)
        oldest = newest_first[-1]
        if not is_first(table.metadata, oldest, inherits):
            raise OptionError(
                f"stream-from-timestamp = {self.stream_from_timestamp}: the snapshots of {self.title} before "
                f"{oldest.snapshot_id} (at {oldest.timestamp_ms} ms) have expired; give a later time, or leave it out "
                "to start with the whole table"
            )
        return Start(BEFORE_ALL, has_snapshot=False)

    def _millis(self, name: str, value: int | datetime | str | None) -> int:
        """A time that an option names in milliseconds; of text and a `datetime` the first one that is not before it."""
        if isinstance(value, int) or (isinstance(value, str) and value.isdigit()):
            return int(value)
        time_us = None if value is None else self.time_us(value)
        if time_us is None:
            raise OptionError(
                f"{name} = {value!r}: must be milliseconds since 1970 or an ISO-8601 time; give one, like "
                "2026-01-31T00:00:00Z"
            )
        return -(-time_us // 1000)
