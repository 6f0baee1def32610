"""One piece of a history: which offsets it has, and what reads them where its statistics do not show each."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
from pyarrow import fs

from streaming_source.connectors.tables.lister import ColumnBounds
from streaming_source.data_files.file import DataFile, FileRows, StoredFile
from streaming_source.data_files.formats import ParquetFormat
from streaming_source.exceptions import SchemaError

__all__ = ["Columns", "Extent", "check_columns", "extent_of", "extent_of_file", "read_offsets"]

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


def extent_of(piece: Any, rows: int, ranges: Sequence[tuple[Any, Any]], nulls: Iterable[int | None]) -> Extent:
    """Return a piece with the bounds of each column, and the number of nulls in each that is stored.

    None where one is not known.
    """
    topic, partition, (low, high) = ranges
    if any(count != 0 for count in nulls) or low is None or high is None or None in (*topic, *partition):
        return Extent(piece, rows)
    if topic[0] != topic[1] or partition[0] != partition[1]:
        return Extent(piece, rows)
    return Extent(piece, rows, str(topic[0]), int(partition[0]), int(low), int(high))


def extent_of_file(
    filesystem: fs.FileSystem, file: DataFile, rows: int, schema: pa.Schema, bounds: Mapping[str, ColumnBounds]
) -> Extent:
    """Return a file of a table as a stream over the table reads it, by its `bounds` of the columns of `schema`."""

    def read(names: list[str]) -> pa.Table:
        of_file = FileRows(StoredFile(filesystem, file), 0, sys.maxsize)
        batches = [block.batch for block in ParquetFormat().read_rows(of_file, schema)]
        return pa.Table.from_batches(batches, schema)

    if file.deleted is not None:
        # The statistics of a file include the rows of it that are deleted.
        return Extent(read, rows)
    given = {name: value.as_py() for name, value in file.given.items()}
    ranges = [(given[name],) * 2 if name in given else bounds[name][:2] for name in schema.names]
    return extent_of(read, rows, ranges, [bounds[name].nulls for name in schema.names if name not in given])


def read_offsets(extent: Extent, columns: Columns) -> tuple[pa.Table, int]:
    """The columns `topic`, `partition` and `offset` of a piece, without rows that lack one; how many do. O(rows)."""
    names = ("topic", "partition", "offset")
    read = extent.piece(list(columns))
    table = pa.table({name: read[column] for name, column in zip(names, columns, strict=True)})
    complete = table.drop_null()
    return complete, table.num_rows - complete.num_rows


def check_columns(history: str, there: Iterable[str], columns: Columns) -> None:
    """Raise a `SchemaError` if a history has no such columns."""
    missing = [name for name in columns if name not in there]
    if missing:
        raise SchemaError(
            f"cut_from({history!r}): it has no column {missing[0]!r}; name the columns that have topic, partition and "
            "offset of Spark's Kafka frame with the arguments topic_column, partition_column and offset_column, or "
            "cut by event time (eventTimeFrom, eventTimeUntil)"
        )
