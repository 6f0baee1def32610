"""ORC."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from streaming_source.data_files.file import StoredFile
from streaming_source.data_files.formats.columnar import ColumnarFile, ColumnarFormat

__all__ = ["OrcFormat"]


@dataclass(frozen=True, slots=True)
class OrcFormat(ColumnarFormat):
    """ORC: blocks are stripes. pyarrow does not read the statistics of ORC."""

    name: ClassVar[str] = "orc"
    title: ClassVar[str] = "ORC"

    def _open(self, file: StoredFile, stream: pa.NativeFile) -> ColumnarFile:
        return _OrcFile(file.path, stream)


class _OrcFile(ColumnarFile):
    def __init__(self, path: str, stream: pa.NativeFile) -> None:
        # Imported here: it takes longer than all pyarrow imports of a query over another format.
        from pyarrow import orc

        self._file = orc.ORCFile(stream)
        schema = pa.schema([field.with_type(_in_micros(field.type)) for field in self._file.schema])
        super().__init__(path, "orc", schema)

    def schema_for(self, wanted: pa.Schema) -> pa.Schema:
        # Spark stores a timestamp without a zone in UTC, just as an instant.
        local, moment = pa.timestamp("us"), pa.timestamp("us", "UTC")
        names = {field.name for field in wanted if field.type == local}
        return pa.schema([f.with_type(local) if f.name in names and f.type == moment else f for f in self.schema])

    def batches(self, columns: Sequence[str], first: int, stop_row: int) -> Iterator[pa.RecordBatch]:
        # To ORC a name with a dot is that of a field in a struct, if there is such a one.
        named = None if any("." in name for name in columns) else list(columns)
        for stripe in range(first, self._file.nstripes):
            chunk = self._file.read_stripe(stripe, columns=named)
            arrays = [array.cast(_in_micros(array.type), safe=False) for array in chunk.columns]
            yield pa.RecordBatch.from_arrays(arrays, chunk.schema.names) if arrays else chunk


def _in_micros(data_type: pa.DataType) -> pa.DataType:
    """Return the type in microseconds: ORC has nanoseconds alone; Spark, and most writers, have microseconds.

    Timestamps are instants: ORC keeps the zone of its writer, and the reader is in UTC.
    """
    if pa.types.is_struct(data_type):
        return pa.struct([field.with_type(_in_micros(field.type)) for field in data_type])
    return pa.timestamp("us", "UTC") if pa.types.is_timestamp(data_type) else data_type
