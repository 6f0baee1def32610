"""Parquet files, and what their footers say."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import ClassVar, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from alignment.columns import top_level_column
from alignment.timestamps import NO_TIMESTAMP, TimestampAssigner
from alignment.watermarks import MAX_WATERMARK
from streaming_source.connectors.files.formats.base import (
    BATCH_ROWS,
    BlockList,
    FileBlocks,
    FileRows,
    Place,
    StoredFile,
    opened,
    readable,
)
from streaming_source.connectors.files.formats.chunks import ChunkedFile, ChunkedFormat
from streaming_source.connectors.files.formats.columns import check_columns, check_names
from streaming_source.exceptions import MalformedDataError

__all__ = ["ParquetFooter", "ParquetFormat", "RowGroup"]


class RowGroup(NamedTuple):
    """Its number, the number of its first row, and how many rows it has."""

    number: int
    first: int
    rows: int


class ParquetFooter(ChunkedFile):
    """An open file, in whose footer the row groups make up its rows.

    Raises
    ------
    MalformedDataError
        If they do not: positions are counted by row groups. O(row groups).
    """

    def __init__(self, path: str, stream: pa.NativeFile) -> None:
        self._path = path
        self._file = pq.ParquetFile(stream, pre_buffer=True)
        self._size = stream.size()
        self._footer = self._file.metadata
        self.schema = self._in_utc(self._file.schema_arrow)
        check_names(self.schema)
        counts = [self._footer.row_group(group).num_rows for group in range(self._footer.num_row_groups)]
        if min(counts, default=0) < 0 or sum(counts) != self._footer.num_rows:
            shown = ", ".join(map(str, counts[:10])) + (", ..." if len(counts) > 10 else "")
            raise self._contradiction(f"{self._footer.num_rows} rows in all, and in its row groups {shown}")
        firsts = accumulate(counts, initial=0)
        self.groups = [RowGroup(*group) for group in zip(range(len(counts)), firsts, counts, strict=False) if group[2]]
        """Those that have rows."""

    def chunks(self, columns: Sequence[str], first: int, stop_row: int) -> Iterator[pa.RecordBatch]:
        """See `ChunkedFile`. From that row group on, small ones together."""
        groups: list[int] = []
        unread = 0
        for group in self.groups[bisect_left(self.groups, first, key=attrgetter("number")) :]:
            if group.first >= stop_row:
                break
            groups.append(group.number)
            unread += group.rows
            if unread >= BATCH_ROWS:
                yield from self._read(groups, columns)
                groups, unread = [], 0
        if groups:
            yield from self._read(groups, columns)

    def place_of(self, row: int) -> Place:
        place = bisect_right(self.groups, row, key=attrgetter("first")) - 1
        return Place(self.groups[place].first, self.groups[place].number) if place >= 0 else Place(0, 0)

    def statistics_column(self, assigner: TimestampAssigner) -> int | None:
        """The column of which an assigner takes statistics for those of event times; None if there is none."""
        name = assigner.statistics_column
        columns = self._footer.schema
        return next((i for i in range(len(columns)) if name is not None and columns.column(i).path == name), None)

    def bounds(self, group: int, column: int | None, assigner: TimestampAssigner) -> tuple[int, int, int] | None:
        """Smallest, largest, and smallest valid event time of a row group by its statistics; None if these lack.

        Raises
        ------
        MalformedDataError
            If the footer contradicts itself.
        """
        if column is None:
            return None
        self._check(group, column)
        chunk = self._footer.row_group(group).column(column)
        statistics = chunk.statistics
        if statistics is None or not statistics.has_null_count:
            return None
        if statistics.null_count == chunk.num_values:
            return NO_TIMESTAMP, NO_TIMESTAMP, MAX_WATERMARK
        if not statistics.has_min_max:
            return None
        data_type = _leaf_type(self.schema, assigner.statistics_column or "")
        try:
            low = assigner.from_statistics(data_type, statistics.min)
            high = assigner.from_statistics(data_type, statistics.max)
        except (ValueError, OverflowError):
            # Python's datetime, in which pyarrow gives them, has neither nanoseconds nor years beyond 9999.
            return None
        if low is None or high is None:
            return None
        if low > high:
            raise self._contradiction(f"row group {group} begins at event time {low} and ends at {high}")
        return NO_TIMESTAMP if statistics.null_count else low, high, low

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _in_utc(self, schema: pa.Schema) -> pa.Schema:
        """A schema in which times of INT96, as Spark writes them, are moments; for Arrow they have no zone."""
        columns = self._footer.schema
        instants = {columns.column(i).path for i in range(len(columns)) if columns.column(i).physical_type == "INT96"}
        return pa.schema([_with_instants(field, field.name, instants) for field in schema]) if instants else schema

    def _read(self, groups: list[int], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for batch in self._file.iter_batches(BATCH_ROWS, row_groups=groups, columns=columns):
            if all(self.schema.field(field.name).type == field.type for field in batch.schema):
                yield batch
            else:
                yield batch.cast(pa.schema([self.schema.field(name) for name in batch.schema.names]))

    def _check(self, group: int, column: int) -> None:
        """Check a chunk before its statistics are read: pyarrow crashes over those of a type not its column's."""
        chunk = self._footer.row_group(group).column(column)
        described = self._footer.schema.column(column)
        begin = chunk.data_page_offset
        if chunk.dictionary_page_offset is not None:
            begin = min(begin, chunk.dictionary_page_offset)
        end = begin + chunk.total_compressed_size
        what = f"column {described.path!r} of row group {group}"
        if chunk.physical_type != described.physical_type:
            raise self._contradiction(f"{what} is {chunk.physical_type}, but {described.physical_type} by the schema")
        rows = self._footer.row_group(group).num_rows
        if described.max_repetition_level == 0 and chunk.num_values != rows:
            raise self._contradiction(f"{what} has {chunk.num_values} values for {rows} rows")
        if not 0 <= begin <= end <= self._size:
            raise self._contradiction(f"{what} lies at bytes {begin} to {end}, but the file has {self._size}")

    def _contradiction(self, what: str) -> MalformedDataError:
        return MalformedDataError(
            f"{self._path} is not a readable Parquet file: its footer contradicts itself: {what}; write it again"
        )


def _with_instants(field: pa.Field, path: str, instants: Collection[str]) -> pa.Field:
    if path in instants:
        return field.with_type(pa.timestamp(field.type.unit, "UTC"))
    if not pa.types.is_struct(field.type):
        return field
    inner = [_with_instants(inner, f"{path}.{inner.name}", instants) for inner in field.type]
    return field.with_type(pa.struct(inner))


def _leaf_type(schema: pa.Schema, dotted: str) -> pa.DataType:
    column = top_level_column(dotted, schema.names)
    data_type = schema.field(column).type
    for part in dotted.removeprefix(column).split(".")[1:]:
        data_type = data_type.field(part).type
    return data_type


@dataclass(frozen=True, slots=True)
class ParquetFormat(ChunkedFormat):
    """Parquet: blocks are row groups, and their statistics bound the event times."""

    name: ClassVar[str] = "parquet"
    has_statistics: ClassVar[bool] = True

    def describe(self, file: StoredFile, schema: pa.Schema, assigner: TimestampAssigner, indexing: str) -> FileBlocks:
        found = BlockList()
        with self._opened(file) as parquet:
            assert isinstance(parquet, ParquetFooter)
            check_columns(file.path, parquet.schema, schema)
            column = parquet.statistics_column(assigner) if indexing != "scan" else None
            for group, first, count in parquet.groups:
                bounds = parquet.bounds(group, column, assigner)
                if bounds is not None:
                    found.add_bounds(count, *bounds)
                elif indexing == "statistics":
                    raise MalformedDataError(
                        f"{file.path}: row group {group} has no statistics of the event time; "
                        "option indexing = auto reads the column where they are missing"
                    )
                else:
                    found.add(self._times(FileRows(file, first, first + count), parquet, schema, assigner))
            return found.blocks(parquet.schema.names)

    @contextmanager
    def _opened(self, file: StoredFile) -> Iterator[ChunkedFile]:
        with opened(file) as stream:
            with readable(file.path, "Parquet"):
                parquet = ParquetFooter(file.path, stream)
            yield parquet
