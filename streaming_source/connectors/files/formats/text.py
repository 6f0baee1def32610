"""Text: each line is a record of one column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc

from streaming_source.connectors.files.formats.base import StoredFile
from streaming_source.connectors.files.formats.lines import LineFile, LineFormat, Run, line_ends
from streaming_source.exceptions import SchemaError

__all__ = ["TextFormat"]

_SCHEMA: Final = pa.schema([("value", pa.string())])


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFormat(LineFormat):
    """Lines as they are, also empty ones, in the column `value` unless it is named otherwise.

    What is no UTF-8 in them is replaced by U+FFFD.
    """

    name: ClassVar[str] = "text"

    def schema_of(self, file: StoredFile) -> pa.Schema:
        """See `FileFormat`. It is the same for all files."""
        return _SCHEMA

    def _begun(self, file: LineFile, schema: pa.Schema) -> tuple[str, ...]:
        if len(schema) > 1 or any(field.type != pa.string() for field in schema):
            columns = ", ".join(f"{field.name} {field.type}" for field in schema)
            raise SchemaError(f"columns {columns}: text has one column of type string; name no other in dataSchema")
        return tuple(schema.names)

    def _count(self, data: bytes) -> int:
        return len(line_ends(data))

    def _all_records(self, path: str, run: Run, names: tuple[str, ...], schema: pa.Schema) -> pa.RecordBatch:
        data = run.data.removesuffix(b"\n")
        if not data.isascii():
            data = data.decode("utf-8", "replace").encode()
        lines = pc.split_pattern(pa.array([data], pa.binary()), b"\n").flatten()
        if b"\r" in data:
            lines = pc.replace_substring_regex(lines.cast(pa.string()), r"\r\z", "")
        columns = [lines.cast(pa.string()) for _ in schema]
        if not columns:
            return pa.RecordBatch.from_arrays([lines], ["value"]).select([])
        return pa.RecordBatch.from_arrays(columns, schema=schema)
