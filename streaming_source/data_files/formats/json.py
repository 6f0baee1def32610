"""JSON: an object a line, or a document a file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
from pyarrow import json as arrow_json

from streaming_source.data_files.faults import malformed_as
from streaming_source.data_files.file import StoredFile
from streaming_source.data_files.formats.lines import LONGEST_RECORD, LineFile, line_ends
from streaming_source.data_files.formats.records import RecordFormat

__all__ = ["JsonFormat"]

_RETURN: Final = ord("\r")
_OPENING: Final = ord("{")
_CLOSING: Final = ord("}")
_CHUNK_BYTES: Final = 1 << 20
_SPACE: Final = re.compile(r"[ \t\n\r]*+")
# Read if no column is wanted: without a column pyarrow reads no rows.
_NOTHING: Final = pa.field("\0", pa.null())


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonFormat(RecordFormat):
    r"""JSON lines: each line an object; with `multi_line` each file an object, or an array of objects.

    Notes
    -----
    Fields are found by name. A field that a record lacks is null; one that the schema lacks is left out. Types are
    strict: a number is no text. Lines end with ``\n`` or ``\r\n``; blank ones are no records. With `multi_line` a file
    is read whole, and is one malformed record if it is no JSON.
    """

    name: ClassVar[str] = "json"

    def schema_of(self, file: StoredFile) -> pa.Schema:
        if not self.infer_schema:
            raise self._needs_schema()
        with self._opened(file, pa.schema([])) as lines:
            _, data = next(lines.runs(), (0, b""))
        whole = self._split(data)
        if self._attempt(data, len(whole), (), ()) is None:
            whole = [record for record in whole if self._attempt(record, 1, (), ()) is not None]
        if not whole:
            raise self._nothing_to_infer_from(file.path)
        with malformed_as(f"{file.path}: its columns cannot be inferred, name them with option dataSchema"):
            records = b"".join(whole)
            return self._inferred(_table(records, None).schema, lambda columns: _table(records, columns))

    # ---- LineFormat --------------------------------------------------------------------------------------------------

    def _stream(self, stream: pa.NativeFile) -> tuple[pa.NativeFile, bool]:
        if not self.multi_line:
            return stream, True
        return pa.BufferReader(_lines_of(_document(stream))), False

    def begin(self, file: LineFile, schema: pa.Schema) -> tuple[str, ...]:
        return tuple(field.name for field in self._in_files(schema))

    def count(self, data: bytes) -> int:
        objects = _objects(data)
        return len(self._split(data)) if objects is None else objects

    def _split(self, data: bytes) -> list[bytes]:
        return [line + b"\n" for line in data.split(b"\n") if line.strip()]

    def _fields(self, record: bytes, names: tuple[str, ...]) -> dict[str, Any]:
        value = json.loads(record)
        return value if isinstance(value, dict) else {}

    def _parsed(self, data: bytes, count: int, names: tuple[str, ...], fields: Sequence[pa.Field]) -> pa.RecordBatch:
        if not data.isascii():
            data.decode("utf-8")
        # pyarrow reads one object after another and ignores lines. If each line begins and ends as an object,
        # and there are as many objects as lines, then each line is one object. The check also keeps a null from the
        # beginning, where it would crash pyarrow.
        if _objects(data) is None and not all(_is_like_an_object(line) for line in self._split(data)):
            raise ValueError("a line is no JSON object")
        table = _table(data, pa.schema(fields or [_NOTHING]))
        if table.num_rows != count:
            raise ValueError(f"{count} lines hold {table.num_rows} JSON values")
        return table.combine_chunks().to_batches()[0]


def _table(data: bytes, schema: pa.Schema | None) -> pa.Table:
    # One block; pyarrow finds no records in a last line without an end.
    read = arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    behavior = "infer" if schema is None else "ignore"
    parse = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=behavior)
    return arrow_json.read_json(pa.BufferReader(data), read, parse)


def _objects(data: bytes) -> int | None:
    """Return the number of lines if each begins and ends as an object; None if a line does not, or is blank."""
    characters = np.frombuffer(data, np.uint8)
    ends = line_ends(data)
    starts = np.append(0, ends[:-1] + 1)
    if not (characters[starts] == _OPENING).all():
        return None
    last = ends - 1
    last = last - (characters[last] == _RETURN)
    return len(ends) if (characters[last] == _CLOSING).all() else None


def _is_like_an_object(line: bytes) -> bool:
    line = line.strip(b" \t\r\n")
    return line.startswith(b"{") and line.endswith(b"}")


def _document(stream: pa.NativeFile) -> bytearray:
    """Read a file whole; a `ValueError` if it has more bytes than a record may have."""
    document = bytearray()
    while chunk := stream.read(_CHUNK_BYTES):
        document += chunk
        if len(document) > LONGEST_RECORD:
            raise ValueError(
                f"with multiLine it is read whole, and has more than {LONGEST_RECORD >> 20} MiB; write a line for each "
                "record, or smaller files"
            )
    return document


def _lines_of(document: bytearray) -> bytearray:
    """Return the records of a document as lines. A document that is no JSON becomes one line, which is malformed."""
    if not document.strip():
        return bytearray()
    lines = bytearray()
    try:
        # One record at a time: as values all would take some fifteen times the memory.
        for record in _records_in(document.decode("utf-8-sig")):
            lines += json.dumps(record).encode() + b"\n"
    except (ValueError, RecursionError):
        return document.replace(b"\n", b" ") + b"\n"
    return lines


def _records_in(text: str) -> Iterator[Any]:
    """Yield the values of an array, or one that is none; a `ValueError` if the text is no JSON as a whole."""
    # Control characters in strings, such as ends of lines, are accepted: `json.dumps` escapes them.
    decode = json.JSONDecoder(strict=False).raw_decode
    at = _after_space(text, 0)
    if text[at : at + 1] != "[":
        record, at = decode(text, at)
        yield record
    elif text[(at := _after_space(text, at + 1)) : at + 1] == "]":
        at += 1
    else:
        ended = ","
        while ended == ",":
            record, at = decode(text, _after_space(text, at))
            yield record
            at = _after_space(text, at)
            ended, at = text[at : at + 1], at + 1
        if ended != "]":
            raise ValueError("an array has no end")
    if _after_space(text, at) != len(text):
        raise ValueError("there is more after the document")


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()
