"""Which offsets the pieces of a history have: by statistics of row groups and files, else by reading three columns."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from alignment.timestamps import RecordTimestampAssigner
from streaming_source.connectors.tables.files import FILES, TableFile
from streaming_source.connectors.tables.lister import TableLister
from streaming_source.data_files.stores import NO_STORAGE_OPTIONS, Root
from streaming_source.exceptions import OptionError, PathNotFoundError, UnsupportedOperationError
from streaming_source.history_cut.extent import Columns, Extent, check_columns, extent_of, extent_of_file

if TYPE_CHECKING:
    from pyiceberg.table import Table

__all__ = ["History", "extents_of"]

History: TypeAlias = "str | os.PathLike[str] | Table"
"""A directory of Parquet files, a Delta table, or an Iceberg table: a path, a URI, or a table of `pyiceberg`."""


def extents_of(history: History, columns: Columns) -> Iterator[Extent]:
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


def _of_delta(path: str, columns: Columns) -> Iterator[Extent]:
    try:
        from streaming_source.connectors.delta import DeltaSource
    except ModuleNotFoundError:
        raise UnsupportedOperationError(
            f"cut_from({path!r}): a Delta table is read with deltalake; install spark-watermark-alignment[delta]"
        ) from None
    table = DeltaSource(path)
    schema = table.table_schema()
    check_columns(path, schema.names, columns)
    # Event times are not looked at.
    lister = table.open_lister(schema, RecordTimestampAssigner())
    yield from _of_table(lister, table.open_files(), schema, columns)


def _of_iceberg(table: Table, columns: Columns) -> Iterator[Extent]:
    from streaming_source.connectors.iceberg.lister import IcebergLister
    from streaming_source.connectors.iceberg.locations import located_files

    check_columns(".".join(table.name()), [field.name for field in table.schema().fields], columns)
    files = located_files(NO_STORAGE_OPTIONS, {**table.io.properties})
    lister = IcebergLister.of_loaded(table, columns, files)
    yield from _of_table(lister, files, lister.schema, columns)


def _of_table(lister: TableLister, filesystem: fs.FileSystem, schema: pa.Schema, columns: Columns) -> Iterator[Extent]:
    """The files of a table as it is now; none of them is opened, but what says which of their rows are deleted."""
    start = lister.start()
    if not start.has_snapshot:
        return
    schema = pa.schema([schema.field(name) for name in columns])
    bounds = lister.bounds(start.version, columns)
    for row in lister.snapshot(start.version).to_pylist():
        file = lister.data_file(TableFile(**{name: row[name] for name in FILES.names}))
        rows = -1 if row["rows"] is None else row["rows"]
        yield extent_of_file(filesystem, file, rows, schema, bounds[row["path"]])


# ---- Parquet ---------------------------------------------------------------------------------------------------------


def _is_delta(path: str) -> bool:
    files, root = Root(path).open()
    return files.get_file_info(f"{root}/_delta_log").type is fs.FileType.Directory


def _of_parquet(path: str, columns: Columns) -> Iterator[Extent]:
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
    check_columns(path, found.schema.names, columns)
    for fragment in found.get_fragments():
        given = ds.get_partition_keys(fragment.partition_expression)
        stored = fragment.metadata.schema
        places = {stored.column(i).path: i for i in range(len(stored))}
        for part in fragment.split_by_row_group():
            (group,) = part.row_groups
            bounds = group.statistics or {}
            ranges = {
                name: (given[name], given[name]) if name in given else _ends(bounds.get(name)) for name in columns
            }
            of_group = part.metadata.row_group(group.id)
            nulls = [_nulls(of_group.column(places[name])) for name in columns if name in places and name not in given]
            rows = group.num_rows
            yield extent_of(_reader(part, found.schema), rows, [ranges[name] for name in columns], nulls)


def _reader(part: ds.Fragment, schema: pa.Schema) -> Any:
    return lambda names: part.to_table(schema=schema, columns=names)


def _ends(bounds: Mapping[str, Any] | None) -> tuple[Any, Any]:
    return (None, None) if bounds is None else (bounds["min"], bounds["max"])


def _nulls(chunk: Any) -> int | None:
    return chunk.statistics.null_count if chunk.is_stats_set else None
