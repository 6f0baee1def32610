"""Arrow's own files and streams, also known as Feather."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Final

import pyarrow as pa
from pyarrow import ipc

from streaming_source.connectors.files.formats.base import StoredFile, check_names, opened, readable
from streaming_source.connectors.files.formats.chunked import ChunkedFile, ChunkedFormat
from streaming_source.exceptions import MalformedDataError

__all__ = ["ArrowFormat"]

_FILE_MAGIC: Final = b"ARROW1"
_FEATHER_1_MAGIC: Final = b"FEA1"


@dataclass(frozen=True, slots=True)
class ArrowFormat(ChunkedFormat):
    """Arrow IPC: files (Feather version 2) and streams, told apart by their first bytes. Blocks are record batches.

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

    def chunks(self, columns: Sequence[str], first: int = 0) -> Iterator[pa.RecordBatch]:
        file = ipc.open_file(self._stream, options=_only(columns, self.schema))
        for number in range(first, file.num_record_batches):
            yield _checked(file.get_batch(number))


class _ArrowStream(ChunkedFile):
    seeks = False

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream
        self.schema = ipc.open_stream(stream).schema

    def chunks(self, columns: Sequence[str], first: int = 0) -> Iterator[pa.RecordBatch]:
        self._stream.seek(0)
        for batch in ipc.open_stream(self._stream, options=_only(columns, self.schema)):
            yield _checked(batch)


def _checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """What is read is taken from the file as it is: a damaged one may say that a text begins outside of it."""
    batch.validate(full=True)
    return batch


def _only(columns: Sequence[str], schema: pa.Schema) -> ipc.IpcReadOptions:
    """Leave the bytes of all other columns where they are."""
    return ipc.IpcReadOptions(
        included_fields=sorted(schema.get_field_index(name) for name in columns), use_threads=False
    )
