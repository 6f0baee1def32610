"""Formats whose files are a sequence of chunks that can be read one by one: stripes of ORC, batches of Arrow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import fs

from alignment.timestamps import TimestampAssigner
from streaming_source.api import RecordBlock
from streaming_source.connectors.files.formats.base import (
    BATCH_ROWS,
    BlockList,
    FileBlocks,
    FileFormat,
    Place,
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
    def _opened(self, filesystem: fs.FileSystem, path: str) -> AbstractContextManager[ChunkedFile]: ...

    def schema_of(self, filesystem: fs.FileSystem, path: str) -> pa.Schema:
        """See `FileFormat`."""
        with self._opened(filesystem, path) as file:
            schema = file.schema.remove_metadata()
        check_distinct(path, schema.names)
        return schema

    def describe(
        self, filesystem: fs.FileSystem, path: str, schema: pa.Schema, assigner: TimestampAssigner, indexing: str
    ) -> FileBlocks:
        """See `FileFormat`."""
        found = BlockList()
        with self._opened(filesystem, path) as file:
            check_columns(path, file.schema, schema)
            columns = time_columns(schema.names, assigner)
            for number, (_, batch) in enumerate(self._numbered(path, file, columns, Place(0, 0))):
                found.add(times_of(path, [batch], assigner), number)
            return found.blocks(with_places=file.seeks, one_range=not file.seeks)

    def event_times(
        self,
        filesystem: fs.FileSystem,
        path: str,
        start: int,
        stop: int,
        schema: pa.Schema,
        assigner: TimestampAssigner,
        place: Place | None = None,
    ) -> npt.NDArray[np.int64]:
        """See `FileFormat`. Reads only the columns that the assigner needs, of the chunks in question."""
        with self._opened(filesystem, path) as file:
            columns = time_columns(schema.names, assigner)
            batches = [batch for _, batch in self._rows(path, file, columns, start, stop, place)]
        return times_of(path, batches, assigner)

    def read_rows(
        self,
        filesystem: fs.FileSystem,
        path: str,
        start: int,
        stop: int,
        schema: pa.Schema,
        place: Place | None = None,
    ) -> Iterator[RecordBlock]:
        """See `FileFormat`."""
        with self._opened(filesystem, path) as file:
            check_columns(path, file.schema, schema)
            for row, batch in self._rows(path, file, schema.names, start, stop, place):
                for begin in range(0, batch.num_rows, BATCH_ROWS):
                    yield RecordBlock(batch.slice(begin, BATCH_ROWS), row + begin)

    # ---- inside --------------------------------------------------------------------------------------------------

    def _rows(
        self, path: str, file: ChunkedFile, columns: Sequence[str], start: int, stop: int, place: Place | None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """`(row, batch)` of the rows `[start, stop)`."""
        after = 0
        for row, batch in self._numbered(path, file, columns, place or Place(0, 0)):
            after = row + batch.num_rows
            begin, end = max(start - row, 0), min(stop - row, batch.num_rows)
            if begin < end:
                yield row + begin, batch.slice(begin, end - begin)
            if after >= stop:
                return
        if after < stop:
            raise replaced(path, after, start, stop)

    def _numbered(
        self, path: str, file: ChunkedFile, columns: Sequence[str], place: Place
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """`(row, chunk)` from a place on, with exactly these columns."""
        row, first = place if file.seeks else Place(0, 0)
        chunks = file.chunks(columns, first)
        while True:
            with malformed_as(f"{path}: cannot be read as {self.name} after row {row}"):
                chunk = next(chunks, None)
                if chunk is None:
                    return
                chunk = chunk.select(list(columns))
            yield row, chunk
            row += chunk.num_rows
