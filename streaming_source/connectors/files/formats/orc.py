"""ORC files, a stripe at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
from pyarrow import orc

from streaming_source.connectors.files.formats.base import StoredFile, check_names, opened, readable
from streaming_source.connectors.files.formats.chunked import ChunkedFile, ChunkedFormat

__all__ = ["OrcFormat"]


@dataclass(frozen=True, slots=True)
class OrcFormat(ChunkedFormat):
    """ORC: blocks are stripes. What ORC keeps of statistics pyarrow does not tell."""

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
        self._file = orc.ORCFile(stream)
        self.schema = pa.schema([field.with_type(_in_micros(field.type)) for field in self._file.schema])

    def chunks(self, columns: Sequence[str], first: int = 0) -> Iterator[pa.RecordBatch]:
        for stripe in range(first, self._file.nstripes):
            chunk = self._file.read_stripe(stripe, columns=list(columns))
            arrays = [array.cast(_in_micros(array.type), safe=False) for array in chunk.columns]
            yield pa.RecordBatch.from_arrays(arrays, chunk.schema.names) if arrays else chunk


def _in_micros(data_type: pa.DataType) -> pa.DataType:
    """ORC's times are in nanoseconds, whatever was written; Spark's, and most that were written, in microseconds."""
    return pa.timestamp("us", data_type.tz) if pa.types.is_timestamp(data_type) else data_type
