"""Parquet files: what their footers say of event times, and their records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from alignment.columns import top_level_column
from alignment.timestamps import NO_TIMESTAMP, TimestampAssigner
from alignment.watermarks import MAX_WATERMARK
from streaming_source.exceptions import DataLossError, MalformedDataError, SchemaError

__all__ = ["FileBlocks", "describe", "event_times", "read_rows", "schema_of"]

_BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class FileBlocks:
    """The row groups of a file that have rows.

    Attributes
    ----------
    rows, min_us, max_us
        `int64[k]`, as `alignment.EventTimeIndex.append` takes them.
    earliest_us
        No valid event time in the file is before this; `MAX_WATERMARK` if there is none. By `min_us` alone that is not
        known of a file with a record without a valid event time.
    """

    rows: npt.NDArray[np.int64]
    min_us: npt.NDArray[np.int64]
    max_us: npt.NDArray[np.int64]
    earliest_us: int = NO_TIMESTAMP


def schema_of(filesystem: fs.FileSystem, path: str) -> pa.Schema:
    """Columns of a file, without metadata.

    Raises
    ------
    SchemaError
        If two have one name.
    """
    with _opened(filesystem, path) as file:
        schema = file.schema_arrow.remove_metadata()
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise SchemaError(f"{path} has more than one column of the name {', '.join(map(repr, twice))}; rename them")
    return schema


def describe(
    filesystem: fs.FileSystem, path: str, schema: pa.Schema, assigner: TimestampAssigner, indexing: str
) -> FileBlocks:
    """The blocks of a file: from the statistics in its footer, or where there are none from its time column.

    Parameters
    ----------
    indexing
        `auto`, `statistics` (there must be some), or `scan` (do not trust them).

    Raises
    ------
    MalformedDataError, SchemaError
        If the file is not Parquet, lacks a column of `schema`, has it in another type, or has no statistics where
        they are asked for.
    """
    with _opened(filesystem, path) as file:
        _check_schema(path, file.schema_arrow, schema)
        column = _statistics_column(file, assigner) if indexing != "scan" else None
        blocks = []
        earliest = MAX_WATERMARK
        for group in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if rows == 0:
                continue
            bounds = _bounds(file, group, column, assigner)
            if bounds is None:
                if indexing == "statistics":
                    raise MalformedDataError(
                        f"{path}: row group {group} has no statistics of the event time; "
                        "option indexing = auto reads the column where they are missing"
                    )
                times = _times_of_group(path, file, group, schema, assigner)
                timed = times[times != NO_TIMESTAMP]
                latest = int(timed.max()) if timed.size else NO_TIMESTAMP
                bounds = (int(times.min()), latest, int(timed.min()) if timed.size else MAX_WATERMARK)
            blocks.append((rows, *bounds[:2]))
            earliest = min(earliest, bounds[2])
    columns = np.array(blocks, np.int64).reshape(-1, 3)
    return FileBlocks(columns[:, 0], columns[:, 1], columns[:, 2], earliest)


def event_times(
    filesystem: fs.FileSystem, path: str, start: int, stop: int, schema: pa.Schema, assigner: TimestampAssigner
) -> npt.NDArray[np.int64]:
    """Event times of the rows `[start, stop)`, `int64[stop - start]`; `NO_TIMESTAMP` where there is none.

    Reads only the columns that the assigner needs, of the row groups in question.
    """
    parts = [np.empty(0, np.int64)]
    with _opened(filesystem, path) as file:
        for group, first, rows in _groups(file):
            if first < stop and first + rows > start:
                times = _times_of_group(path, file, group, schema, assigner)
                parts.append(times[max(start - first, 0) : stop - first])
    return np.concatenate(parts)


def read_rows(
    filesystem: fs.FileSystem, path: str, start: int, stop: int, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows `[start, stop)` with the columns of `schema`, in batches.

    Raises
    ------
    DataLossError
        If the file is gone, or has fewer rows.
    """
    with _opened(filesystem, path) as file:
        _check_schema(path, file.schema_arrow, schema)
        groups = [(group, first, rows) for group, first, rows in _groups(file) if first < stop and first + rows > start]
        position = groups[0][1] if groups else start
        if not groups or groups[-1][1] + groups[-1][2] < stop:
            raise DataLossError(
                f"{path} has {file.metadata.num_rows} rows, but rows {start} to {stop} were planned: it was replaced"
            )
        numbers = [group for group, _, _ in groups]
        try:
            for batch in file.iter_batches(_BATCH_ROWS, row_groups=numbers, columns=schema.names):
                begin, end = max(start - position, 0), min(stop - position, batch.num_rows)
                position += batch.num_rows
                if begin < end:
                    yield batch.slice(begin, end - begin).select(schema.names)
        except (pa.ArrowException, OSError) as error:
            raise MalformedDataError(f"{path}: cannot be read as Parquet after row {position}: {error}") from error


class _opened:  # noqa: N801 (reads as a word of the with statement)
    """A Parquet file while it is read; what fails in opening it is said with its path."""

    def __init__(self, filesystem: fs.FileSystem, path: str) -> None:
        self._filesystem = filesystem
        self._path = path

    def __enter__(self) -> pq.ParquetFile:
        try:
            self._stream = self._filesystem.open_input_file(self._path)
        except FileNotFoundError:
            raise DataLossError(
                f"{self._path} is gone: it was deleted after it had been listed and before it was read"
            ) from None
        try:
            return pq.ParquetFile(self._stream, pre_buffer=True)
        except (pa.ArrowException, OSError) as error:
            self._stream.close()
            raise MalformedDataError(
                f"{self._path} is not a readable Parquet file: {error}. If it is still being written, write it under "
                "a name that begins with _ or . and rename it when it is complete"
            ) from error

    def __exit__(self, *_: object) -> None:
        self._stream.close()


def _groups(file: pq.ParquetFile) -> Iterator[tuple[int, int, int]]:
    """`(row group, first row, rows)` of those that have rows."""
    first = 0
    for group in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if rows:
            yield group, first, rows
        first += rows


def _check_schema(path: str, found: pa.Schema, wanted: pa.Schema) -> None:
    for field in wanted:
        place = found.get_field_index(field.name)
        if place < 0:
            raise SchemaError(f"{path} has no column {field.name!r}; it has {', '.join(found.names)}")
        if found.field(place).type != field.type:
            raise SchemaError(
                f"{path} has column {field.name!r} as {found.field(place).type}; the query reads it as {field.type}"
            )


def _statistics_column(file: pq.ParquetFile, assigner: TimestampAssigner) -> int | None:
    name = assigner.statistics_column
    columns = file.metadata.schema
    return next((i for i in range(len(columns)) if name is not None and columns.column(i).path == name), None)


def _bounds(
    file: pq.ParquetFile, group: int, column: int | None, assigner: TimestampAssigner
) -> tuple[int, int, int] | None:
    """Smallest, largest, and smallest valid event time of a row group by its statistics; None if they do not tell."""
    if column is None:
        return None
    chunk = file.metadata.row_group(group).column(column)
    statistics = chunk.statistics
    if statistics is None or not statistics.has_null_count:
        return None
    if statistics.null_count == chunk.num_values:
        return NO_TIMESTAMP, NO_TIMESTAMP, MAX_WATERMARK
    if not statistics.has_min_max:
        return None
    data_type = _leaf_type(file.schema_arrow, assigner.statistics_column or "")
    try:
        low = assigner.from_statistics(data_type, statistics.min)
        high = assigner.from_statistics(data_type, statistics.max)
    except (ValueError, OverflowError):
        # Python's datetime, in which pyarrow gives them, has neither nanoseconds nor years beyond 9999.
        return None
    if low is None or high is None:
        return None
    return NO_TIMESTAMP if statistics.null_count else low, high, low


def _leaf_type(schema: pa.Schema, dotted: str) -> pa.DataType:
    column = top_level_column(dotted, schema.names)
    data_type = schema.field(column).type
    for part in dotted.removeprefix(column).split(".")[1:]:
        data_type = data_type.field(part).type
    return data_type


def _times_of_group(
    path: str, file: pq.ParquetFile, group: int, schema: pa.Schema, assigner: TimestampAssigner
) -> npt.NDArray[np.int64]:
    wanted = assigner.columns
    names = schema.names if wanted is None else list(wanted)
    try:
        table = file.read_row_group(group, columns=names)
    except (pa.ArrowException, OSError) as error:
        raise MalformedDataError(f"{path}: row group {group} cannot be read as Parquet: {error}") from error
    parts = [assigner.extract(batch, None).values for batch in table.to_batches()]
    return np.concatenate([np.empty(0, np.int64), *parts])
