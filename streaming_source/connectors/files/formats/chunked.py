"""Formats whose files are a sequence of chunks that can be read one by one: stripes of ORC, batches of Arrow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from alignment.timestamps import TimestampAssigner
from streaming_source.api import RecordBlock
from streaming_source.connectors.files.formats.base import (
    BATCH_ROWS,
    BlockList,
    FileBlocks,
    FileFormat,
    FileRows,
    Place,
    StoredFile,
    check_columns,
    check_distinct,
    malformed_as,
    replaced,
    time_columns,
    times_of,
)

__all__ = ["ChunkedFile", "ChunkedFormat"]


class ChunkedFile(ABC):
    """An open file.

    Attributes
    ----------
    schema
        Its columns.
    seeks
        Whether a chunk can be read without those before it.
    """

    schema: pa.Schema
    seeks: bool = True

    @abstractmethod
    def chunks(self, columns: Sequence[str], first: int = 0) -> Iterator[pa.RecordBatch]:
        """The chunks from number `first` on (from 0 where the file does not seek), with at least these columns."""


class ChunkedFormat(FileFormat):
    """Blocks are chunks; without statistics, so that their time column is read to describe them."""

    __slots__ = ()

    @abstractmethod
    def _opened(self, file: StoredFile) -> AbstractContextManager[ChunkedFile]: ...

    def schema_of(self, file: StoredFile) -> pa.Schema:
        """See `FileFormat`."""
        with self._opened(file) as chunked:
            schema = chunked.schema.remove_metadata()
        check_distinct(file.path, schema.names)
        return schema

    def describe(self, file: StoredFile, schema: pa.Schema, assigner: TimestampAssigner, indexing: str) -> FileBlocks:
        """See `FileFormat`."""
        found = BlockList()
        with self._opened(file) as chunked:
            check_columns(file.path, chunked.schema, schema)
            columns = time_columns(schema.names, assigner)
            for number, (_, batch) in enumerate(self._numbered(file.path, chunked, columns, Place(0, 0))):
                found.add(times_of(file.path, [batch], assigner), number)
            return found.blocks(with_places=chunked.seeks, one_range=not chunked.seeks)

    def event_times(self, rows: FileRows, schema: pa.Schema, assigner: TimestampAssigner) -> npt.NDArray[np.int64]:
        """See `FileFormat`. Reads only the columns that the assigner needs, of the chunks in question."""
        with self._opened(rows.file) as chunked:
            columns = time_columns(schema.names, assigner)
            batches = [batch for _, batch in self._rows(rows, chunked, columns)]
        return times_of(rows.file.path, batches, assigner)

    def read_rows(self, rows: FileRows, schema: pa.Schema) -> Iterator[RecordBlock]:
        """See `FileFormat`."""
        with self._opened(rows.file) as chunked:
            check_columns(rows.file.path, chunked.schema, schema)
            for row, batch in self._rows(rows, chunked, schema.names):
                for begin in range(0, batch.num_rows, BATCH_ROWS):
                    yield RecordBlock(batch.slice(begin, BATCH_ROWS), row + begin)

    # ---- inside --------------------------------------------------------------------------------------------------

    def _rows(
        self, rows: FileRows, chunked: ChunkedFile, columns: Sequence[str]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """`(row, batch)` of the rows that are wanted."""
        after = 0
        for row, batch in self._numbered(rows.file.path, chunked, columns, rows.place or Place(0, 0)):
            after = row + batch.num_rows
            begin, end = max(rows.start - row, 0), min(rows.stop - row, batch.num_rows)
            if begin < end:
                yield row + begin, batch.slice(begin, end - begin)
            if after >= rows.stop:
                return
        if after < rows.stop:
            raise replaced(rows, after)

    def _numbered(
        self, path: str, chunked: ChunkedFile, columns: Sequence[str], place: Place
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """`(row, chunk)` from a place on, with exactly these columns."""
        row, first = place if chunked.seeks else Place(0, 0)
        chunks = chunked.chunks(columns, first)
        while True:
            with malformed_as(f"{path}: cannot be read as {self.name} after row {row}"):
                chunk = next(chunks, None)
                if chunk is None:
                    return
                chunk = chunk.select(list(columns))
            yield row, chunk
            row += chunk.num_rows
