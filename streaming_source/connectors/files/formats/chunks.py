"""Formats whose files are chunks that can be read one by one: stripes of ORC, batches of Arrow, groups of Parquet."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import ipc

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

__all__ = ["ArrowFormat", "ChunkedFile", "ChunkedFormat", "OrcFormat"]


class ChunkedFile(ABC):
    """An open file with its columns. Where it seeks, a chunk can be read without those before it."""

    schema: pa.Schema
    seeks: bool = True

    @abstractmethod
    def chunks(self, columns: Sequence[str], first: int, stop_row: int) -> Iterator[pa.RecordBatch]:
        """The chunks from number `first` on (from 0 where the file does not seek), with at least these columns.

        What comes after the row `stop_row` of the file may be left out.
        """

    def schema_for(self, wanted: pa.Schema) -> pa.Schema:
        """The columns, where the file leaves a choice with the types that are wanted."""
        return self.schema

    def place_of(self, row: int) -> Place:
        """A place at or before a row, where no other is known."""
        return Place(0, 0)


class ChunkedFormat(FileFormat):
    """Blocks are chunks; without statistics, so that their time column is read to describe them."""

    __slots__ = ()

    @abstractmethod
    def _opened(self, file: StoredFile) -> AbstractContextManager[ChunkedFile]: ...

    def schema_of(self, file: StoredFile) -> pa.Schema:
        with self._opened(file) as chunked:
            schema = chunked.schema.remove_metadata()
        check_distinct(file.path, schema.names)
        return schema

    def describe(self, file: StoredFile, schema: pa.Schema, assigner: TimestampAssigner, indexing: str) -> FileBlocks:
        found = BlockList()
        with self._opened(file) as chunked:
            check_columns(file.path, chunked.schema_for(schema), schema)
            times = times_alone(schema, assigner)
            for number, (_, batch) in enumerate(self._numbered(file.path, chunked, times, Place(0, 0), sys.maxsize)):
                found.add(times_of(file.path, [batch], assigner), number)
            return found.blocks(chunked.schema.names, with_places=chunked.seeks, one_range=not chunked.seeks)

    def event_times(self, rows: FileRows, schema: pa.Schema, assigner: TimestampAssigner) -> npt.NDArray[np.int64]:
        """See `FileFormat`. Reads only the columns that the assigner needs, of the chunks in question."""
        with self._opened(rows.file) as chunked:
            return self._times(rows, chunked, schema, assigner)

    def read_rows(self, rows: FileRows, schema: pa.Schema) -> Iterator[RecordBlock]:
        with self._opened(rows.file) as chunked:
            check_columns(rows.file.path, chunked.schema_for(schema), schema)
            for row, batch in self._rows(rows, chunked, schema):
                for begin in range(0, batch.num_rows, BATCH_ROWS):
                    yield RecordBlock(batch.slice(begin, BATCH_ROWS), row + begin)

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _times(
        self, rows: FileRows, chunked: ChunkedFile, schema: pa.Schema, assigner: TimestampAssigner
    ) -> npt.NDArray[np.int64]:
        batches = [batch for _, batch in self._rows(rows, chunked, times_alone(schema, assigner))]
        return times_of(rows.file.path, batches, assigner)

    def _rows(self, rows: FileRows, chunked: ChunkedFile, schema: pa.Schema) -> Iterator[tuple[int, pa.RecordBatch]]:
        """`(row, batch)` of the rows that are wanted."""
        if rows.start >= rows.stop:
            return
        after = 0
        place = rows.place or chunked.place_of(rows.start)
        for row, batch in self._numbered(rows.file.path, chunked, schema, place, rows.stop):
            after = row + batch.num_rows
            begin, end = max(rows.start - row, 0), min(rows.stop - row, batch.num_rows)
            if begin < end:
                yield row + begin, batch.slice(begin, end - begin)
            if after >= rows.stop:
                return
        if after < rows.stop:
            raise replaced(rows, after)

    def _numbered(
        self, path: str, chunked: ChunkedFile, schema: pa.Schema, place: Place, stop_row: int
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """`(row, chunk)` from a place on, with exactly these columns."""
        # One at least, from which the rows are counted.
        columns = own_columns(chunked.schema.names, schema.names) or chunked.schema.names[:1]
        row, first = place if chunked.seeks else Place(0, 0)
        chunks = chunked.chunks(columns, first, stop_row)
        while True:
            with malformed_as(f"{path}: cannot be read as {self.name} after row {row}"):
                chunk = next(chunks, None)
                if chunk is None:
                    return
                chunk = conformed(path, chunk, schema)
            yield row, chunk
            row += chunk.num_rows


@dataclass(frozen=True, slots=True)
class OrcFormat(ChunkedFormat):
    """ORC: blocks are stripes. pyarrow does not read the statistics of ORC."""

    name: ClassVar[str] = "orc"

    @contextmanager
    def _opened(self, file: StoredFile) -> Iterator[ChunkedFile]:
        with opened(file) as stream:
            with readable(file.path, "ORC"):
                chunked = _OrcFile(stream)
                check_names(chunked.schema)
            yield chunked


class _OrcFile(ChunkedFile):
    def __init__(self, stream: pa.NativeFile) -> None:
        from pyarrow import orc

        self._file = orc.ORCFile(stream)
        self.schema = pa.schema([field.with_type(_in_micros(field.type)) for field in self._file.schema])

    def schema_for(self, wanted: pa.Schema) -> pa.Schema:
        # Spark writes a time of no zone as it writes a moment, in UTC.
        local, moment = pa.timestamp("us"), pa.timestamp("us", "UTC")
        names = {field.name for field in wanted if field.type == local}
        return pa.schema([f.with_type(local) if f.name in names and f.type == moment else f for f in self.schema])

    def chunks(self, columns: Sequence[str], first: int, stop_row: int) -> Iterator[pa.RecordBatch]:
        for stripe in range(first, self._file.nstripes):
            chunk = self._file.read_stripe(stripe, columns=list(columns))
            arrays = [array.cast(_in_micros(array.type), safe=False) for array in chunk.columns]
            yield pa.RecordBatch.from_arrays(arrays, chunk.schema.names) if arrays else chunk


def _in_micros(data_type: pa.DataType) -> pa.DataType:
    """ORC's times are in nanoseconds, whatever was written; Spark's, and most that were written, in microseconds.

    They are moments: ORC keeps the zone of its writer, and the reader is in UTC.
    """
    if pa.types.is_struct(data_type):
        return pa.struct([field.with_type(_in_micros(field.type)) for field in data_type])
    return pa.timestamp("us", "UTC") if pa.types.is_timestamp(data_type) else data_type


_FILE_MAGIC: Final = b"ARROW1"
_FEATHER_1_MAGIC: Final = b"FEA1"


@dataclass(frozen=True, slots=True)
class ArrowFormat(ChunkedFormat):
    """Arrow IPC: files (Feather version 2) and streams, recognized by their first bytes. Blocks are record batches.

    A stream can be read from its beginning only.
    """

    name: ClassVar[str] = "arrow"

    @contextmanager
    def _opened(self, file: StoredFile) -> Iterator[ChunkedFile]:
        with opened(file) as stream:
            with readable(file.path, "Arrow"):
                magic = stream.read(len(_FILE_MAGIC))
                stream.seek(0)
                if magic.startswith(_FEATHER_1_MAGIC):
                    raise MalformedDataError(f"{file.path} is a Feather file of version 1; write it as version 2")
                chunked = _ArrowFile(stream) if magic == _FILE_MAGIC else _ArrowStream(stream)
                check_names(chunked.schema)
            yield chunked


class _ArrowFile(ChunkedFile):
    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream
        self.schema = ipc.open_file(stream).schema

    def chunks(self, columns: Sequence[str], first: int, stop_row: int) -> Iterator[pa.RecordBatch]:
        file = ipc.open_file(self._stream, options=_only(columns, self.schema))
        for number in range(first, file.num_record_batches):
            yield _checked(file.get_batch(number))


class _ArrowStream(ChunkedFile):
    seeks = False

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream
        self.schema = ipc.open_stream(stream).schema

    def chunks(self, columns: Sequence[str], first: int, stop_row: int) -> Iterator[pa.RecordBatch]:
        self._stream.seek(0)
        for batch in ipc.open_stream(self._stream, options=_only(columns, self.schema)):
            yield _checked(batch)


def _checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """What is read is taken from the file as it is: in a damaged one a text may begin outside of it."""
    batch.validate(full=True)
    return batch


def _only(columns: Sequence[str], schema: pa.Schema) -> ipc.IpcReadOptions:
    """Leave the bytes of all other columns where they are."""
    return ipc.IpcReadOptions(
        included_fields=sorted(schema.get_field_index(name) for name in columns), use_threads=False
    )
