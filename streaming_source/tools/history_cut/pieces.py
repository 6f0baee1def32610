"""The pieces of a history with their offsets: by statistics of row groups and files, else by reading three columns."""

from __future__ import annotations

import os
import posixpath
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from alignment.timestamps import RecordTimestampAssigner
from streaming_source.connectors.tables.files import FILES, TableFile
from streaming_source.connectors.tables.lister import TableLister
from streaming_source.data_files.file import FileRows, StoredFile
from streaming_source.data_files.formats import ParquetFormat
from streaming_source.data_files.stores import NO_STORAGE_OPTIONS, Root
from streaming_source.exceptions import OptionError, PathNotFoundError, SchemaError, UnsupportedOperationError

if TYPE_CHECKING:
    from pyiceberg.table import Table

Columns: TypeAlias = tuple[str, str, str]
"""The names of the columns with the topic, the partition and the offset."""

History: TypeAlias = "str | os.PathLike[str] | Table"
"""A directory of Parquet files, a Delta table, or an Iceberg table: a path, a URI, or a table of `pyiceberg`."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The offsets of one piece of a history: `rows` from `low` to `high`, all of one partition.

    `read` returns columns of its rows by their names. Without statistics, or where these do not show that there is one
    partition alone and no null, `low` is None.
    """

    read: Callable[[list[str]], pa.Table]
    rows: int
    topic: str = ""
    partition: int = -1
    low: int | None = None
    high: int = -1

    @property
    def is_exact(self) -> bool:
        """True if the statistics show each offset: there are as many rows as offsets between the bounds.

        Of a piece that has one of them twice and lacks another one they show the same.
        """
        return self.low is not None and self.rows == self.high - self.low + 1

    def offsets(self, columns: Columns) -> tuple[pa.Table, int]:
        """Read the columns `topic`, `partition` and `offset` of rows that have all three; how many do not. O(rows)."""
        names = ("topic", "partition", "offset")
        read = self.read(list(columns))
        table = pa.table({name: read[column] for name, column in zip(names, columns, strict=True)})
        complete = table.drop_null()
        return complete, table.num_rows - complete.num_rows


def pieces_of(history: History, columns: Columns) -> Iterator[Piece]:
    """The pieces of a history; no row is read."""
    if not isinstance(history, str | os.PathLike):
        yield from _of_iceberg(history, columns)
        return
    path = os.fspath(history)
    if path.endswith(".metadata.json"):
        from pyiceberg.table import StaticTable

        yield from _of_iceberg(StaticTable.from_metadata(path), columns)
    elif _is_delta(path):
        yield from _of_delta(path, columns)
    else:
        yield from _of_parquet(path, columns)


# ---- tables ----------------------------------------------------------------------------------------------------------

# Imported here and not above: each kind of table needs a package of its own.


def _of_delta(path: str, columns: Columns) -> Iterator[Piece]:
    try:
        from streaming_source.connectors.delta import DeltaSource
    except ModuleNotFoundError:
        raise UnsupportedOperationError(
            f"cut_from({path!r}): a Delta table is read with deltalake; install spark-watermark-alignment[delta]"
        ) from None
    table = DeltaSource(path)
    schema = table.table_schema()
    _check_columns(path, schema.names, columns)
    # Event times are not looked at.
    yield from _of_table(table.open_lister(schema, RecordTimestampAssigner()), table.open_files(), schema, columns)


def _of_iceberg(table: Table, columns: Columns) -> Iterator[Piece]:
    from streaming_source.connectors.iceberg.catalog import located_files
    from streaming_source.connectors.iceberg.lister import IcebergLister

    _check_columns(".".join(table.name()), [field.name for field in table.schema().fields], columns)
    files = located_files(NO_STORAGE_OPTIONS, {**table.io.properties})
    lister = IcebergLister.of_loaded(table, columns, files)
    yield from _of_table(lister, files, lister.schema, columns)


def _of_table(lister: TableLister, filesystem: fs.FileSystem, schema: pa.Schema, columns: Columns) -> Iterator[Piece]:
    """The files of a table as it is now; none of them is opened, but what says which of their rows are deleted."""
    start = lister.start()
    if not start.has_snapshot:
        return
    schema = pa.schema([schema.field(name) for name in columns])
    of_files = lister.bounds(start.version, columns)
    for row in lister.snapshot(start.version).to_pylist():
        file = lister.data_file(TableFile(**{name: row[name] for name in FILES.names}))
        read = partial(_read_file, StoredFile(filesystem, file), schema)
        if file.deleted is not None or row["rows"] is None:
            # The statistics of a file include the rows of it that are deleted.
            yield Piece(read, -1)
            continue
        given, known = {name: (value.as_py(),) * 2 for name, value in file.given.items()}, of_files[row["path"]]
        bounds = [given.get(name, known[name][:2]) for name in columns]
        yield _piece(read, row["rows"], bounds, [known[name].nulls for name in columns if name not in given])


def _read_file(file: StoredFile, schema: pa.Schema, _: list[str]) -> pa.Table:
    found = ParquetFormat().read_rows(FileRows(file, 0, sys.maxsize), schema)
    return pa.Table.from_batches([block.batch for block in found], schema)


# ---- Parquet ---------------------------------------------------------------------------------------------------------


def _is_delta(path: str) -> bool:
    files, root = Root(path).open()
    return files.get_file_info(f"{root}/_delta_log").type is fs.FileType.Directory


def _of_parquet(path: str, columns: Columns) -> Iterator[Piece]:
    from streaming_source.connectors.files.given_columns import values_in
    from streaming_source.connectors.files.listing import list_files
    from streaming_source.connectors.files.selection import Selection

    # Exactly the files that a stream over this path reads: those that Spark's file sink has not committed are none.
    selection = Selection((path,))
    files, root = selection.open()
    try:
        listed = sorted(posixpath.join(root, file.relative_path) for file in list_files(selection))
    except PathNotFoundError as error:
        raise OptionError(
            f"cut_from({path!r}): {error}; give a directory of Parquet files, a Delta table, or an Iceberg table"
        ) from None
    if not listed:
        return
    # A topic may be called `007`.
    named = {name for path in listed for name in values_in(posixpath.dirname(path))}
    types = dict(zip(columns, (pa.string(), pa.int64(), pa.int64()), strict=True))
    in_names = ds.partitioning(
        pa.schema([(name, types.get(name, pa.string())) for name in sorted(named)]), flavor="hive"
    )
    try:
        found = ds.dataset(listed, filesystem=files, format="parquet", partitioning=in_names)
    except pa.ArrowInvalid as error:
        raise OptionError(
            f"cut_from({path!r}): {error}; give a directory of Parquet files, a Delta table, or an Iceberg table"
        ) from None
    _check_columns(path, found.schema.names, columns)
    for fragment in found.get_fragments():
        given = ds.get_partition_keys(fragment.partition_expression)
        stored = fragment.metadata.schema
        places = {stored.column(i).path: i for i in range(len(stored))}
        for part in fragment.split_by_row_group():
            (group,) = part.row_groups
            known = group.statistics or {}
            given_or = (
                {"min": given[name], "max": given[name]} if name in given else known.get(name) for name in columns
            )
            bounds = [(None, None) if one is None else (one["min"], one["max"]) for one in given_or]
            of_group = part.metadata.row_group(group.id)
            chunks = [of_group.column(places[name]) for name in columns if name in places and name not in given]
            nulls = [chunk.statistics.null_count if chunk.is_stats_set else None for chunk in chunks]
            yield _piece(partial(part.to_table, found.schema), group.num_rows, bounds, nulls)


# ---- all of them -----------------------------------------------------------------------------------------------------


def _piece(
    read: Callable[[list[str]], pa.Table], rows: int, bounds: Sequence[tuple[Any, Any]], nulls: Iterable[int | None]
) -> Piece:
    """Return a piece by the bounds of each column and the number of nulls in each that is stored: None if not known."""
    topic, partition, (low, high) = bounds
    is_of_one = topic[0] == topic[1] and partition[0] == partition[1]
    if not is_of_one or any(count != 0 for count in nulls) or None in (low, high, *topic, *partition):
        return Piece(read, rows)
    return Piece(read, rows, str(topic[0]), int(partition[0]), int(low), int(high))


def _check_columns(history: str, there: Iterable[str], columns: Columns) -> None:
    """Raise a `SchemaError` if a history has no such columns."""
    missing = [name for name in columns if name not in there]
    if missing:
        raise SchemaError(
            f"cut_from({history!r}): it has no column {missing[0]!r}; name the columns that have topic, partition and "
            "offset of Spark's Kafka frame with the arguments topic_column, partition_column and offset_column, or "
            "cut by event time (eventTimeFrom, eventTimeUntil)"
        )
