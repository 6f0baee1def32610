"""ORC files, a stripe at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
from pyarrow import fs, orc

from streaming_source.connectors.files.formats.base import check_names, opened, readable
from streaming_source.connectors.files.formats.chunked import ChunkedFile, ChunkedFormat

__all__ = ["OrcFormat"]


@dataclass(frozen=True, slots=True)
class OrcFormat(ChunkedFormat):
    """ORC: blocks are stripes. What ORC keeps of statistics pyarrow does not tell."""

    name: ClassVar[str] = "orc"

    @contextmanager
    def _opened(self, filesystem: fs.FileSystem, path: str) -> Iterator[ChunkedFile]:
        with opened(filesystem, path) as stream:
            with readable(path, "ORC"):
                file = _OrcFile(stream)
                check_names(file.schema)
            yield file


class _OrcFile(ChunkedFile):
    def __init__(self, stream: pa.NativeFile) -> None:
        self._file = orc.ORCFile(stream)
        self.schema = self._file.schema

    def chunks(self, columns: Sequence[str], first: int = 0) -> Iterator[pa.RecordBatch]:
        for stripe in range(first, self._file.nstripes):
            yield self._file.read_stripe(stripe, columns=list(columns))
