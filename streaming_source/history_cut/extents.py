"""Which offsets the pieces of a history have: by statistics of row groups and files, else by reading three columns."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from streaming_source.exceptions import OptionError, PathNotFoundError, SchemaError, UnsupportedOperationError

if TYPE_CHECKING:
    from pyiceberg.table import Table

__all__ = ["Columns", "Extent", "History", "extents_of", "read_offsets"]

History: TypeAlias = "str | os.PathLike[str] | Table"
"""A directory of Parquet files, a Delta table, or an Iceberg table: a path, a URI, or a table of `pyiceberg`."""

Columns: TypeAlias = tuple[str, str, str]
"""The names of the columns with the topic, the partition and the offset."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The offsets of one piece of a history: `rows` from `low` to `high`, all of one partition.

    `piece` reads the columns of its rows. Without statistics, or where these do not show that there is one partition
    alone and no null, `low` is None.
    """

    piece: Any
    rows: int
    topic: str = ""
    partition: int = -1
    low: int | None = None
    high: int = -1

    @property
    def is_exact(self) -> bool:
        """Whether the statistics show each offset: there are as many rows as offsets between the bounds.

        Of a piece that has one of them twice and lacks another one they show the same.
        """
        return self.low is not None and self.rows == self.high - self.low + 1


def extents_of(history: History, columns: Columns) -> Iterator[Extent]:
    """The pieces of a history; no row is read."""
    if not isinstance(history, str | os.PathLike):
        yield from _of_iceberg(history, columns)
        return
    path = os.fspath(history)
    if path.endswith(".metadata.json"):
        # Here and not above: few histories are Iceberg tables.
        from pyiceberg.table import StaticTable

        yield from _of_iceberg(StaticTable.from_metadata(path), columns)
    elif _is_delta(path):
        yield from _of_delta(path, columns)
    else:
        yield from _of_parquet(path, columns)


def read_offsets(extent: Extent, columns: Columns) -> tuple[pa.Table, int]:
    """The columns `topic`, `partition` and `offset` of a piece, without rows that lack one; how many do. O(rows)."""
    names = ("topic", "partition", "offset")
    read = extent.piece(list(columns))
    table = pa.table({name: read[column] for name, column in zip(names, columns, strict=True)})
    complete = table.drop_null()
    return complete, table.num_rows - complete.num_rows


# ---- Parquet ---------------------------------------------------------------------------------------------------------


def _is_delta(path: str) -> bool:
    from streaming_source.data_files.stores import Root

    files, root = Root(path).open()
    return files.get_file_info(f"{root}/_delta_log").type is fs.FileType.Directory


def _of_parquet(path: str, columns: Columns) -> Iterator[Extent]:
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
    try:
        found = ds.dataset(listed, filesystem=files, format="parquet", partitioning="hive")
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
            bounds = group.statistics or {}
            ranges = {
                name: (given[name], given[name]) if name in given else _ends(bounds.get(name)) for name in columns
            }
            of_group = part.metadata.row_group(group.id)
            nulls = [_nulls(of_group.column(places[name])) for name in columns if name in places and name not in given]
            rows = group.num_rows
            yield _extent(_reader(part, found.schema), rows, [ranges[name] for name in columns], nulls)


def _reader(part: ds.Fragment, schema: pa.Schema) -> Any:
    return lambda names: part.to_table(schema=schema, columns=names)


def _ends(bounds: Mapping[str, Any] | None) -> tuple[Any, Any]:
    return (None, None) if bounds is None else (bounds["min"], bounds["max"])


def _nulls(chunk: Any) -> int | None:
    return chunk.statistics.null_count if chunk.is_stats_set else None


def _extent(piece: Any, rows: int, ranges: Sequence[tuple[Any, Any]], nulls: Iterable[int | None]) -> Extent:
    """Of a piece with the bounds of each column, and the number of nulls in each that is stored; None if not known."""
    topic, partition, (low, high) = ranges
    if any(count != 0 for count in nulls) or low is None or high is None or None in (*topic, *partition):
        return Extent(piece, rows)
    if topic[0] != topic[1] or partition[0] != partition[1]:
        return Extent(piece, rows)
    return Extent(piece, rows, str(topic[0]), int(partition[0]), int(low), int(high))


def _check_columns(history: str, there: Iterable[str], columns: Columns) -> None:
    missing = [name for name in columns if name not in there]
    if missing:
        raise SchemaError(
            f"cut_from({history!r}): it has no column {missing[0]!r}; name the columns that have topic, partition and "
            "offset of Spark's Kafka frame with the arguments topic_column, partition_column and offset_column, or "
            "cut by event time (eventTimeFrom, eventTimeUntil)"
        )


# ---- tables ----------------------------------------------------------------------------------------------------------

_STATISTICS: Final = ("min", "max")


def _of_delta(path: str, columns: Columns) -> Iterator[Extent]:
    try:
        import deltalake
    except ModuleNotFoundError:
        raise UnsupportedOperationError(
            f"cut_from({path!r}): a Delta table is read with deltalake; install spark-watermark-alignment[delta]"
        ) from None
    from streaming_source.data_files.stores import Root

    table = deltalake.DeltaTable(path)
    _check_columns(path, [field.name for field in table.schema().fields], columns)
    files, root = Root(path).open()
    schema = pa.schema(table.schema())
    for row in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        given = {name: row[f"partition.{name}"] for name in columns if f"partition.{name}" in row}
        ranges = [
            (given[name], given[name]) if name in given else tuple(row.get(f"{kind}.{name}") for kind in _STATISTICS)
            for name in columns
        ]
        nulls = [row.get(f"null_count.{name}") for name in columns if name not in given]
        piece = _file_reader(files, f"{root}/{unquote(row['path'])}", given, schema)
        yield _extent(piece, row["num_records"] or -1, ranges, nulls)


def _of_iceberg(table: Table, columns: Columns) -> Iterator[Extent]:
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    name = ".".join(table.name())
    _check_columns(name, [field.name for field in table.schema().fields], columns)
    if table.current_snapshot() is None:
        return
    schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
    for row in table.inspect.files().to_pylist():
        if row["content"] != 0:
            continue
        metrics, given = row["readable_metrics"], _identities(table, row["spec_id"], row.get("partition") or {})
        ranges, nulls = [], []
        for column in columns:
            ends = metrics.get(column) or {}
            if given.get(column) is None:
                nulls.append(ends.get("null_value_count"))
            bounds = ends.get("lower_bound"), ends.get("upper_bound")
            ranges.append((given[column], given[column]) if given.get(column) is not None else bounds)
        yield _extent(_iceberg_reader(table, row["file_path"], given, schema), row["record_count"], ranges, nulls)


def _identities(table: Table, spec: int, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that columns have in a whole file: of the partition fields those that are columns as they are."""
    from pyiceberg.transforms import IdentityTransform

    fields = {field.name: field for field in table.specs()[spec].fields}
    names = {name: table.schema().find_column_name(field.source_id) for name, field in fields.items()}
    return {
        str(names[name]): value
        for name, value in values.items()
        if name in fields and isinstance(fields[name].transform, IdentityTransform)
    }


def _file_reader(files: Any, path: str, given: Mapping[str, Any], schema: pa.Schema) -> Any:
    def read(names: list[str]) -> pa.Table:
        stored = [name for name in names if name not in given]
        table = ds.dataset(path, filesystem=files, format="parquet").to_table(columns=stored)
        for name, value in given.items():
            table = table.append_column(name, pa.repeat(pa.scalar(value, schema.field(name).type), table.num_rows))
        return table

    return read


def _iceberg_reader(table: Table, path: str, given: Mapping[str, Any], schema: pa.Schema) -> Any:
    def read(names: list[str]) -> pa.Table:
        import pyarrow.parquet as pq

        with table.io.new_input(path).open() as file:
            there = pq.ParquetFile(pa.PythonFile(file, mode="r"))
            stored = [name for name in names if name in there.schema_arrow.names]
            read = there.read(columns=stored)
        for name in set(names) - set(stored):
            read = read.append_column(name, pa.repeat(pa.scalar(given[name], schema.field(name).type), read.num_rows))
        return read

    return read
