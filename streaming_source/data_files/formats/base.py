"""The interface of a format: it describes blocks of event times ahead of reading, and reads rows."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import starmap
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import pyarrow as pa

from alignment.arrow_compute import from_numpy
from alignment.column_paths import top_level_column
from alignment.shown import log_of
from alignment.timestamps import NO_TIMESTAMP, TimestampAssigner
from alignment.watermarks import MAX_WATERMARK, BoolArray, Int64Array
from streaming_source.api import RecordBlock
from streaming_source.data_files.evolution import with_given
from streaming_source.data_files.file import Block, FileBlocks, FileRows, SeekPoint, StoredFile
from streaming_source.exceptions import DataLossError, MalformedDataError

_log = log_of(__name__)

BATCH_ROWS: Final = 65_536
"""Most rows of a batch that is read."""

ALL_ROWS: Final = sys.maxsize
"""The `stop` of rows up to the end of a file."""


class Chunk(NamedTuple):
    """Consecutive rows of a file, not decoded yet: `rows` rows from number `first` on; for `at` see `SeekPoint`."""

    first: int
    rows: int
    at: int
    content: Any


class OpenFile(ABC):
    """An open file. If it `seeks`, a chunk can be read without earlier chunks; for `columns` see `FileBlocks`.

    After the chunk that came last a reader can begin `next_at`; None where only chunks that came show where.
    """

    seeks: bool = True
    next_at: int | None = None
    columns: tuple[str, ...] = ()

    @abstractmethod
    def chunks(self, schema: pa.Schema, rows: FileRows) -> Iterator[Chunk]:
        """Yield the chunks from the seek point of the rows on; from the start of the file if the file does not seek.

        Each chunk has at least the columns of `schema`. Chunks after the rows may be left out.
        """

    def stored_point(self, point: SeekPoint) -> SeekPoint:
        """Return a seek point with its row's number in the file, which counts deleted rows too."""
        raise NotImplementedError(f"{type(self).__name__} has no files of which rows are deleted")

    def cut(self, chunk: Chunk, begin: int, stop: int) -> Chunk:
        """Return a chunk with at least the rows `[begin, stop)` of this one, counted from its first.

        Other rows are left out if that costs less than decoding them; rows keep their numbers.
        """
        return chunk

    @abstractmethod
    def decoded(self, chunk: Chunk, schema: pa.Schema) -> tuple[pa.RecordBatch, BoolArray | None]:
        """Return all rows of a chunk with exactly these columns, and which of them readers drop; None for none."""


class FileFormat(ABC):
    """A format of files: a picklable, hashable value that holds its options.

    Rows are numbered from 0 in each file. What is a row, and what its number is, depends on the file and the format
    alone, never on the columns that are read: the planner reads the time column only, the readers all of them.
    """

    name: ClassVar[str]
    """The name of the format, as in option `fileFormat`."""

    has_statistics: ClassVar[bool] = False
    """True if a file has bounds of event times that can be read without the time column."""

    fixed_schema: ClassVar[pa.Schema | None] = None
    """The columns, if all files of the format have the same columns."""

    @property
    def identity(self) -> str:
        """Return the options that decide which rows a file has: offsets are valid for one identity alone."""
        return self.name

    @property
    def added_columns(self) -> tuple[pa.Field, ...]:
        """Columns that the format adds to those of the files."""
        return ()

    def with_columns(self, schema: pa.Schema) -> FileFormat:
        """Return the format of files that have exactly these columns, in this order."""
        return self

    def in_zone(self, zone: str) -> FileFormat:
        """Return the format with this zone for text times without one, unless the format has a zone of its own."""
        return self

    @abstractmethod
    def schema_of(self, file: StoredFile) -> pa.Schema:
        """Return the columns of a file, without metadata.

        Raises a `NoSchemaError` if the file has no types, and the options do not let them be inferred.
        """

    @abstractmethod
    def _opened(self, file: StoredFile, schema: pa.Schema) -> AbstractContextManager[OpenFile]:
        """Open a file of which these columns will be read.

        Raises a `MalformedDataError` if the file is not of this format, and a `SchemaError` if it has none of the
        columns, or one in a type that does not widen.
        """

    def describe(self, file: StoredFile, schema: pa.Schema, assigner: TimestampAssigner, indexing: str) -> FileBlocks:
        """Return the blocks of a file that is read with `schema`: from statistics, or by reading its time column.

        Called on the planner's worker threads. Holds at most one block of the file at a time. `indexing` is `auto`,
        `statistics` (raises a `MalformedDataError` if there are none), or `scan` (statistics are not used).
        """
        with self._scanned(FileRows(file, 0, ALL_ROWS), schema, assigner) as (source, found):
            # A map drops the times of one block before it makes those of the next.
            return FileBlocks.of([*starmap(Block.of, found)], seeks=source.seeks, columns=source.columns)

    @contextmanager
    def _scanned(
        self, rows: FileRows, schema: pa.Schema, assigner: TimestampAssigner
    ) -> Iterator[tuple[OpenFile, Iterator[tuple[Int64Array, int]]]]:
        """Open a file, and give the event times of its blocks one after another, and where each begins."""
        with self._opened(rows.file, rows.file.own(schema)) as source:
            yield source, _times(source, rows, schema, assigner)

    def describe_rows(self, file: StoredFile, schema: pa.Schema) -> FileBlocks:
        """Return the blocks of a file without event times, for a query whose plans do not depend on them.

        For a format without statistics, and a file without deleted rows: records are counted, and not decoded.
        Otherwise as `describe`.
        """
        assert file.file.deleted is None, "deleted rows are found as the rows are decoded"
        columns = file.own(schema)
        with self._opened(file, columns) as source:
            blocks: list[Block] = []
            for chunk in source.chunks(pa.schema([]), FileRows(file, 0, ALL_ROWS)):
                if chunk.rows:
                    if not blocks:
                        self._check_first(source, chunk, columns)
                    blocks.append(Block(chunk.rows, NO_TIMESTAMP, NO_TIMESTAMP, MAX_WATERMARK, chunk.at))
            return FileBlocks.of(blocks, seeks=source.seeks, columns=source.columns)

    def _check_first(self, source: Any, chunk: Chunk, columns: pa.Schema) -> None:
        """Raise the error of a reader at the first record of a file if it is a header that no option declares.

        `chunk` is counted, and not decoded. A query that fails at its plan can be started again with the option.
        """
        return None

    def event_times(self, rows: FileRows, schema: pa.Schema, assigner: TimestampAssigner) -> Int64Array:
        """Return the event times of rows, `int64[stop - start]`; `NO_TIMESTAMP` for a row without one.

        Only the columns that the assigner needs are read, from the block of the first row on.
        """
        with self._opened(rows.file, rows.file.own(schema)) as source:
            return times_in(source, rows, schema, assigner)

    def read_rows(self, rows: FileRows, schema: pa.Schema) -> Iterator[RecordBlock]:
        """Yield rows with the columns of `schema`, in blocks whose positions are numbers of rows.

        Raises a `DataLossError` if the file is gone or has fewer rows, a `MalformedDataError` if it cannot be read.
        """
        with self._opened(rows.file, rows.file.own(schema)) as source:
            for chunk, batch, dropped in _decoded(source, rows, schema):
                if dropped is not None:
                    yield from _without(dropped, batch, chunk, rows.file.path)
                    continue
                for begin in range(0, chunk.rows, BATCH_ROWS):
                    yield RecordBlock(batch.slice(begin, BATCH_ROWS), chunk.first + begin)

    def unread(self, row: FileRows, types: Mapping[str, pa.DataType]) -> tuple[str, str]:
        """Return what one row has in columns that gave no value of these types, and the fix, as parts of an error."""
        return "", ""


class FileScan:
    """Finds the blocks of one file, in their order; `rows` have been found, all of the file if it `is_done`.

    The file is not open between two parts. One that can only be read from its beginning is scanned in one part.
    """

    def __init__(
        self, file_format: FileFormat, file: StoredFile, schema: pa.Schema, assigner: TimestampAssigner
    ) -> None:
        self._format, self._file, self._schema, self._assigner = file_format, file, schema, assigner
        self._at: int | None = None
        self.rows = 0
        self.is_done = False

    def advance(self, enough: int) -> tuple[FileBlocks, list[Int64Array]]:
        """Return the next blocks: of so many rows or a few more, or up to the end of the file; and their event times.

        After an error it goes on where it was. Holds one block of the file. Of a file that is scanned in one part, and
        is large, there are no event times.
        """
        rows, blocks, at = self.rows, [], None
        kept: list[Int64Array] = []
        point = None if self._at is None else SeekPoint(rows, self._at)
        unread = FileRows(self._file, rows, ALL_ROWS, point)
        with self._format._scanned(unread, self._schema, self._assigner) as (source, found):
            for times, offset in found:
                blocks.append(Block.of(times, offset))
                rows += times.size
                if rows - self.rows <= 2 * enough:
                    kept.append(times)
                if source.seeks and source.next_at is not None and rows - self.rows >= enough:
                    at = source.next_at
                    break
            part = FileBlocks.of(blocks, seeks=source.seeks, columns=source.columns)
        self.rows, self._at, self.is_done = rows, at, at is None
        return part, kept if len(kept) == len(blocks) else []


def times_in(source: OpenFile, rows: FileRows, schema: pa.Schema, assigner: TimestampAssigner) -> Int64Array:
    """Return the event times of rows of an open file; see `FileFormat.event_times`."""
    return np.concatenate([np.empty(0, np.int64), *(times for times, _ in _times(source, rows, schema, assigner))])


def _times(
    source: OpenFile, rows: FileRows, schema: pa.Schema, assigner: TimestampAssigner
) -> Iterator[tuple[Int64Array, int]]:
    """Yield `(event times, offset)` of each chunk that has some of the rows."""
    if (columns := assigner.columns) is not None:
        needed = {top_level_column(column, schema.names) for column in columns}
        schema = pa.schema([field for field in schema if field.name in needed])
    for chunk, batch, _ in _decoded(source, rows, schema):
        try:
            yield assigner.extract(batch, None).values, chunk.at
        except pa.ArrowException as error:
            path = rows.file.path
            raise MalformedDataError(f"{path}: its event times cannot be read: {error}; write it again") from None


def _decoded(
    source: OpenFile, rows: FileRows, schema: pa.Schema
) -> Iterator[tuple[Chunk, pa.RecordBatch, BoolArray | None]]:
    """Yield `(chunk, batch, dropped)` of each chunk that has some of the rows, cut to these rows."""
    deleted = rows.file.file.deleted
    if deleted is None:
        yield from _stored(source, rows, schema)
        return
    if rows.start >= rows.stop:
        return
    # The range of these rows by their numbers in the file, which counts deleted rows too.
    last = ALL_ROWS if rows.stop == ALL_ROWS else deleted.row_of(rows.stop - 1) + 1
    point = None if rows.seek_point is None else source.stored_point(rows.seek_point)
    stored = FileRows(rows.file, deleted.row_of(rows.start), last, point)
    number = rows.start
    for chunk, batch, dropped in _stored(source, stored, schema):
        kept = ~deleted.among(chunk.first, chunk.rows)
        count = int(kept.sum())
        if count:
            part = chunk._replace(first=number, rows=count)
            yield part, batch.filter(from_numpy(kept)), None if dropped is None else dropped[kept]
        number += count


def _stored(
    source: OpenFile, rows: FileRows, schema: pa.Schema
) -> Iterator[tuple[Chunk, pa.RecordBatch, BoolArray | None]]:
    """Yield as `_decoded` does, for rows given by their numbers in the file."""
    if rows.start >= rows.stop:
        return
    file, given, end = rows.file, rows.file.file.given, 0
    own = file.own(schema) if given else schema
    for chunk in source.chunks(own, rows):
        end = chunk.first + chunk.rows
        begin, last = max(rows.start - chunk.first, 0), min(rows.stop - chunk.first, chunk.rows)
        if begin < last:
            decoded = source.cut(chunk, begin, last)
            batch, dropped = source.decoded(decoded, own)
            part = chunk._replace(first=chunk.first + begin, rows=last - begin)
            begin = part.first - decoded.first
            batch = batch.slice(begin, part.rows)
            if given:
                batch = with_given(batch, schema, given)
            yield part, batch, None if dropped is None else dropped[begin : begin + part.rows]
        if end >= rows.stop:
            return
    if rows.stop != ALL_ROWS:
        raise DataLossError(
            f"{file.path} has {end} rows, but rows {rows.start} to {rows.stop} were planned: it was replaced; "
            "restore it"
        )


def _without(dropped: BoolArray, batch: pa.RecordBatch, chunk: Chunk, path: str) -> Iterator[RecordBlock]:
    _log.warning(
        "%s: dropped %d malformed of the records %d to %d, the first of them is record %d",
        path,
        *(dropped.sum(), chunk.first, chunk.first + chunk.rows - 1, chunk.first + int(np.argmax(dropped))),
    )
    kept = np.flatnonzero(~dropped)
    if kept.size:
        yield RecordBlock(batch.filter(from_numpy(~dropped)), kept + chunk.first)
