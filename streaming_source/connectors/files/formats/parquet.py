"""Parquet files, a row group at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from alignment.timestamps import TimestampAssigner
from streaming_source.api import RecordBlock
from streaming_source.connectors.files.formats.base import (
    BATCH_ROWS,
    BlockList,
    FileBlocks,
    FileFormat,
    FileRows,
    StoredFile,
    check_columns,
    check_distinct,
    check_names,
    malformed_as,
    opened,
    readable,
    replaced,
    times_of,
)
from streaming_source.connectors.files.formats.footer import ParquetFooter
from streaming_source.exceptions import MalformedDataError

__all__ = ["ParquetFormat"]


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
        return found.blocks()

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
            batches = parquet.iter_batches(BATCH_ROWS, row_groups=numbers, columns=schema.names)
            while row < stop:
                with malformed_as(f"{path}: cannot be read as Parquet after row {row}"):
                    batch = next(batches, None)
                if batch is None:
                    raise MalformedDataError(f"{path}: ends after row {row}, but its footer tells of more rows")
                begin, end = max(start - row, 0), min(stop - row, batch.num_rows)
                if begin < end:
                    yield RecordBlock(batch.slice(begin, end - begin).select(schema.names), row + begin)
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
    wanted = assigner.columns
    names = schema.names if wanted is None else list(wanted)
    with malformed_as(f"{path}: row group {group} cannot be read as Parquet"):
        table = file.read_row_group(group, columns=names)
    return times_of(path, table.to_batches(), assigner)
