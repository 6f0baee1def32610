"""Parquet files, a row group at a time, and their footers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from alignment.columns import top_level_column
from alignment.timestamps import NO_TIMESTAMP, TimestampAssigner
from alignment.watermarks import MAX_WATERMARK
from streaming_source.api import RecordBlock
from streaming_source.connectors.files.formats.base import (
    BATCH_ROWS,
    BlockList,
    FileBlocks,
    FileFormat,
    FileRows,
    StoredFile,
    malformed_as,
    opened,
    readable,
    replaced,
    times_alone,
    times_of,
)
from streaming_source.connectors.files.formats.columns import (
    check_columns,
    check_distinct,
    check_names,
    conformed,
    own_columns,
)
from streaming_source.exceptions import MalformedDataError

__all__ = ["ParquetFooter", "ParquetFormat", "RowGroup"]


class RowGroup(NamedTuple):
    """Its number, the number of its first row, and how many rows it has."""

    number: int
    first: int
    rows: int


class ParquetFooter:
    """A footer whose row groups make up its rows.

    Parameters
    ----------
    path
        For errors.
    file
        The open file.
    size
        Bytes of the file.

    Raises
    ------
    MalformedDataError
        If they do not: positions are counted by row groups. O(row groups).
    """

    def __init__(self, path: str, file: pq.ParquetFile, size: int) -> None:
        self._path = path
        self._file = file
        self._size = size
        self._footer = file.metadata
        counts = [self._footer.row_group(group).num_rows for group in range(self._footer.num_row_groups)]
        if min(counts, default=0) < 0 or sum(counts) != self._footer.num_rows:
            shown = ", ".join(map(str, counts[:10])) + (", ..." if len(counts) > 10 else "")
            raise self._contradiction(f"{self._footer.num_rows} rows in all, and in its row groups {shown}")
        self._counts: list[int] = counts

    @property
    def rows(self) -> int:
        """Of the file."""
        return sum(self._counts)

    def groups(self) -> Iterator[RowGroup]:
        """Those that have rows."""
        first = 0
        for number, rows in enumerate(self._counts):
            if rows:
                yield RowGroup(number, first, rows)
            first += rows

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
        data_type = _leaf_type(self._file.schema_arrow, assigner.statistics_column or "")
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
        if described.max_repetition_level == 0 and chunk.num_values != self._counts[group]:
            raise self._contradiction(f"{what} has {chunk.num_values} values for {self._counts[group]} rows")
        if not 0 <= begin <= end <= self._size:
            raise self._contradiction(f"{what} lies at bytes {begin} to {end}, but the file has {self._size}")

    def _contradiction(self, what: str) -> MalformedDataError:
        return MalformedDataError(
            f"{self._path} is not a readable Parquet file: its footer contradicts itself: {what}; write it again"
        )


def _leaf_type(schema: pa.Schema, dotted: str) -> pa.DataType:
    column = top_level_column(dotted, schema.names)
    data_type = schema.field(column).type
    for part in dotted.removeprefix(column).split(".")[1:]:
        data_type = data_type.field(part).type
    return data_type


@dataclass(frozen=True, slots=True)
class ParquetFormat(FileFormat):
    """Parquet: blocks are row groups, and their statistics bound the event times."""

    name: ClassVar[str] = "parquet"
    has_statistics: ClassVar[bool] = True

    def schema_of(self, file: StoredFile) -> pa.Schema:
        """See `FileFormat`."""
        with _opened(file) as (parquet, _):
            schema = parquet.schema_arrow.remove_metadata()
        check_distinct(file.path, schema.names)
        return schema

    def describe(self, file: StoredFile, schema: pa.Schema, assigner: TimestampAssigner, indexing: str) -> FileBlocks:
        """See `FileFormat`."""
        found = BlockList()
        with _opened(file) as (parquet, footer):
            check_columns(file.path, parquet.schema_arrow, schema)
            column = footer.statistics_column(assigner) if indexing != "scan" else None
            for group, _, count in footer.groups():
                bounds = footer.bounds(group, column, assigner)
                if bounds is not None:
                    found.add_bounds(count, *bounds)
                elif indexing == "statistics":
                    raise MalformedDataError(
                        f"{file.path}: row group {group} has no statistics of the event time; "
                        "option indexing = auto reads the column where they are missing"
                    )
                else:
                    found.add(_times_of_group(file.path, parquet, group, schema, assigner))
            return found.blocks(parquet.schema_arrow.names)

    def event_times(self, rows: FileRows, schema: pa.Schema, assigner: TimestampAssigner) -> npt.NDArray[np.int64]:
        """See `FileFormat`. Reads only the columns that the assigner needs, of the row groups in question."""
        parts = [np.empty(0, np.int64)]
        with _opened(rows.file) as (parquet, footer):
            for group, first, count in footer.groups():
                if first < rows.stop and first + count > rows.start:
                    times = _times_of_group(rows.file.path, parquet, group, schema, assigner)
                    parts.append(times[max(rows.start - first, 0) : rows.stop - first])
        return np.concatenate(parts)

    def read_rows(self, rows: FileRows, schema: pa.Schema) -> Iterator[RecordBlock]:
        """See `FileFormat`."""
        path, start, stop = rows.file.path, rows.start, rows.stop
        with _opened(rows.file) as (parquet, footer):
            check_columns(path, parquet.schema_arrow, schema)
            if footer.rows < stop:
                raise replaced(rows, footer.rows)
            groups = [(n, first) for n, first, count in footer.groups() if first < stop and first + count > start]
            row = groups[0][1] if groups else start
            numbers = [group for group, _ in groups]
            own = own_columns(parquet.schema_arrow.names, schema.names) or parquet.schema_arrow.names[:1]
            batches = parquet.iter_batches(BATCH_ROWS, row_groups=numbers, columns=own)
            while row < stop:
                with malformed_as(f"{path}: cannot be read as Parquet after row {row}"):
                    batch = next(batches, None)
                if batch is None:
                    raise MalformedDataError(f"{path}: ends after row {row}, but its footer tells of more rows")
                begin, end = max(start - row, 0), min(stop - row, batch.num_rows)
                if begin < end:
                    yield RecordBlock(conformed(path, batch.slice(begin, end - begin), schema), row + begin)
                row += batch.num_rows


@contextmanager
def _opened(file: StoredFile) -> Iterator[tuple[pq.ParquetFile, ParquetFooter]]:
    with opened(file) as stream:
        with readable(file.path, "Parquet"):
            parquet = pq.ParquetFile(stream, pre_buffer=True)
            check_names(parquet.schema_arrow)
            footer = ParquetFooter(file.path, parquet, stream.size())
        yield parquet, footer


def _times_of_group(
    path: str, file: pq.ParquetFile, group: int, schema: pa.Schema, assigner: TimestampAssigner
) -> npt.NDArray[np.int64]:
    times, found = times_alone(schema, assigner), file.schema_arrow
    own = own_columns(found.names, times.names)
    if own == times.names and all(found.field(name).type == times.field(name).type for name in own):
        # Of a struct the field alone.
        names, times = (own if assigner.columns is None else list(assigner.columns)), None
    else:
        # Where it lacks the column, any from which the rows are counted.
        names = own or found.names[:1]
    with malformed_as(f"{path}: row group {group} cannot be read as Parquet"):
        batches = file.read_row_group(group, columns=names).to_batches()
    return times_of(path, batches if times is None else [conformed(path, b, times) for b in batches], assigner)
