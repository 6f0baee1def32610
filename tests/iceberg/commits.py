"""Commits that `pyiceberg` reads and does not write itself: position deletes, compaction, what other engines leave."""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.typedef import Record

__all__ = [
    "add_data_file",
    "commit_deletes",
    "compact",
    "delete_rows",
    "edit_metadata",
    "expire_as_java",
    "files_of_table",
]

_PATH_ID, _POS_ID = 2147483546, 2147483545


def files_of_table(table: Table) -> list[DataFile]:
    """The data files of the current snapshot, in the order of their locations."""
    return sorted((task.file for task in table.refresh().scan().plan_files()), key=lambda file: file.file_path)


def compact(table: Table) -> int:
    """Write all rows into new files, in a snapshot of the operation `replace`; return its id."""
    before = files_of_table(table)
    transaction = table.transaction()
    producer = transaction.update_snapshot().overwrite()
    for file in before:
        producer.delete_data_file(file)
    for file in _dataframe_to_data_files(table.metadata, table.scan().to_arrow(), table.io):
        producer.append_data_file(file)
    return _commit(table, transaction, producer, Operation.REPLACE)


def delete_rows(table: Table, rows: Mapping[str, Sequence[int]], *, bounds: bool = True) -> int:
    """Commit one file of position deletes: numbers of rows by the location of their file; return the snapshot's id.

    The files are all of the partition of the first one. With `bounds` the deletes have bounds of the locations.
    """
    found = {file.file_path: file for file in files_of_table(table)}
    partition, spec_id = found[min(rows)].partition, found[min(rows)].spec_id
    entries = sorted((path, row) for path, numbers in rows.items() for row in numbers)
    schema = pa.schema([_field("file_path", pa.string(), _PATH_ID), _field("pos", pa.int64(), _POS_ID)])
    table_of_rows = pa.table([[path for path, _ in entries], [row for _, row in entries]], schema=schema)
    location = f"{table.location()}/data/{uuid.uuid4()}-deletes.parquet"
    with table.io.new_output(location).create() as stream:
        pq.write_table(table_of_rows, stream)
    limits = (min(rows).encode(), max(rows).encode()) if bounds else (None, None)
    return commit_deletes(table, location, partition, spec_id, len(entries), limits)


def commit_deletes(
    table: Table,
    location: str,
    partition: Record,
    spec_id: int,
    count: int,
    limits: tuple[bytes | None, bytes | None] = (None, None),
    content: DataFileContent = DataFileContent.POSITION_DELETES,
    file_format: FileFormat = FileFormat.PARQUET,
    operation: Operation = Operation.DELETE,
) -> int:
    """Commit a delete file that is there; return the snapshot's id."""
    table.refresh()
    transaction = table.transaction()
    producer = transaction.update_snapshot().fast_append()
    low, high = ({_PATH_ID: limit} if limit is not None else {} for limit in limits)
    file = _data_file(
        location, partition, spec_id, count, len(table.io.new_input(location)), file_format, content, low, high
    )
    head = table.current_snapshot()
    assert head is not None
    existing = head.manifests(table.io)

    def manifests() -> list[ManifestFile]:
        spec = table.specs()[spec_id]
        with _DeletesWriter(spec, table.schema(), producer.new_manifest_output(), producer.snapshot_id, "null") as made:
            entry = ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, data_file=file)
            entry.snapshot_id = producer.snapshot_id
            made.add_entry(entry)
        return [*existing, made.to_manifest_file()]

    producer._manifests = manifests
    return _commit(table, transaction, producer, operation)


def add_data_file(
    table: Table,
    location: str,
    count: int,
    *,
    low: Mapping[int, bytes] | None = None,
    high: Mapping[int, bytes] | None = None,
    file_format: FileFormat = FileFormat.PARQUET,
    partition: Record | None = None,
    snapshot_id: int | None = None,
    key_metadata: bytes | None = None,
    nulls: Mapping[int, int] | None = None,
) -> int:
    """Commit a data file that is there, with these bounds and no others; return the snapshot's id."""
    table.refresh()
    transaction = table.transaction()
    producer = transaction.update_snapshot().fast_append()
    if snapshot_id is not None:
        producer._snapshot_id = snapshot_id
    size, spec_id = len(table.io.new_input(location)), table.spec().spec_id
    content = DataFileContent.DATA
    found = partition or Record()
    low, high = dict(low or {}), dict(high or {})
    producer.append_data_file(
        _data_file(
            location, found, spec_id, count, size, file_format, content, low, high, key_metadata, dict(nulls or {})
        )
    )
    producer.commit()
    transaction.commit_transaction()
    head = table.refresh().current_snapshot()
    assert head is not None
    return head.snapshot_id


def edit_metadata(table: Table, edit: Callable[[dict[str, Any]], None]) -> None:
    """Write the table's metadata as another engine would, and have the catalog know them."""
    before = table.refresh().metadata_location
    with table.io.new_input(before).open() as stream:
        metadata = json.loads(stream.read())
    edit(metadata)
    after = f"{before.rpartition('/')[0]}/99999-{uuid.uuid4()}.metadata.json"
    with table.io.new_output(after).create() as stream:
        stream.write(json.dumps(metadata).encode())
    with sqlite3.connect(table.catalog.properties["uri"].removeprefix("sqlite:///")) as catalog:
        catalog.execute("UPDATE iceberg_tables SET metadata_location = ? WHERE metadata_location = ?", [after, before])
    table.refresh()


def expire_as_java(table: Table, snapshot_ids: Sequence[int]) -> None:
    """Let snapshots expire, and the others keep them as their parents; pyiceberg would clear that."""

    def without(metadata: dict[str, Any]) -> None:
        for name in ("snapshots", "snapshot-log"):
            metadata[name] = [one for one in metadata[name] if one["snapshot-id"] not in snapshot_ids]

    edit_metadata(table, without)


class _DeletesWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def _commit(table: Table, transaction: Any, producer: Any, operation: Operation) -> int:
    producer._summary = lambda *_, **__: Summary(operation)
    producer.commit()
    transaction.commit_transaction()
    head = table.refresh().current_snapshot()
    assert head is not None
    return head.snapshot_id


def _data_file(
    location: str,
    partition: Record,
    spec_id: int,
    count: int,
    size: int,
    file_format: FileFormat,
    content: DataFileContent,
    low: dict[int, bytes],
    high: dict[int, bytes],
    key_metadata: bytes | None = None,
    nulls: Mapping[int, int] = MappingProxyType({}),
) -> DataFile:
    file = DataFile.from_args(
        content=content,
        file_path=location,
        file_format=file_format,
        partition=partition,
        record_count=count,
        file_size_in_bytes=size,
        column_sizes={},
        value_counts={},
        null_value_counts=dict(nulls),
        nan_value_counts={},
        lower_bounds=low,
        upper_bounds=high,
        key_metadata=key_metadata,
        split_offsets=None,
        equality_ids=[1] if content == DataFileContent.EQUALITY_DELETES else None,
        sort_order_id=None,
    )
    file.spec_id = spec_id
    return file


def _field(name: str, kind: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, kind, nullable=False, metadata={"PARQUET:field_id": str(number)})
