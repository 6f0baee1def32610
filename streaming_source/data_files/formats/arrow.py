"""Arrow IPC: files and streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import pyarrow as pa
from pyarrow import ipc

from streaming_source.data_files.file import StoredFile
from streaming_source.data_files.formats.columnar import ColumnarFile, ColumnarFormat
from streaming_source.exceptions import MalformedDataError

_FILE_MAGIC: Final = b"ARROW1"
_FEATHER_1_MAGIC: Final = b"FEA1"


@dataclass(frozen=True, slots=True)
class ArrowFormat(ColumnarFormat):
    """Arrow IPC: files (Feather version 2) and streams, recognized by their first bytes. Blocks are record batches.

    A stream can be read from its beginning only.
    """

    name: ClassVar[str] = "arrow"
    title: ClassVar[str] = "Arrow"

    def _open(self, file: StoredFile, stream: pa.NativeFile) -> ColumnarFile:
        magic = stream.read(len(_FILE_MAGIC))
        stream.seek(0)
        if magic.startswith(_FEATHER_1_MAGIC):
            raise MalformedDataError(f"{file.path} is a Feather file of version 1; write it as version 2")
        return _ArrowFile(file.path, stream, seeks=magic == _FILE_MAGIC)


class _ArrowFile(ColumnarFile):
    def __init__(self, path: str, stream: pa.NativeFile, *, seeks: bool) -> None:
        self.seeks = seeks
        self._stream = stream
        super().__init__(path, "arrow", (ipc.open_file if seeks else ipc.open_stream)(stream).schema)

    def batches(self, columns: Sequence[str], first: int, stop_row: int) -> Iterator[pa.RecordBatch]:
        # The bytes of all other columns are not read.
        fields = sorted(self.stored.get_field_index(name) for name in columns)
        options = ipc.IpcReadOptions(included_fields=fields, use_threads=False)
        if self.seeks:
            file = ipc.open_file(self._stream, options=options)
            batches = (file.get_batch(number) for number in range(first, file.num_record_batches))
        else:
            self._stream.seek(0)
            batches = iter(ipc.open_stream(self._stream, options=options))
        for batch in batches:
            # Arrow uses the file's bytes without a check: in a damaged file an offset may point outside of it.
            batch.validate(full=True)
            yield batch
