"""JSON: an object a line, or a document a file."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
from pyarrow import json as arrow_json

from alignment import arrow_compute as pc
from alignment.arrow_compute import from_numpy, to_numpy
from alignment.watermarks import BoolArray
from streaming_source.data_files.evolution import types_in
from streaming_source.data_files.faults import malformed_as
from streaming_source.data_files.file import StoredFile
from streaming_source.data_files.formats.json_values import decoded_base64, elements_in, read_records
from streaming_source.data_files.formats.lines import INFERRED_BLOCKS, LONGEST_RECORD, LineFile, line_ends
from streaming_source.data_files.formats.records import RecordFormat
from streaming_source.data_files.formats.text_times import WrittenTimes, is_time

_BLANKS: Final = b" \t\r\n"
_RETURN: Final = ord("\r")
_OPENING: Final = ord("{")
_CLOSING: Final = ord("}")
_CHUNK_BYTES: Final = 1 << 20
# Read if no column is wanted: without a column pyarrow reads no rows.
_NOTHING: Final = pa.field("\0", pa.null())


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonFormat(RecordFormat):
    r"""JSON lines: each line an object; with `multi_line` each file an object, or an array of objects.

    Notes
    -----
    Fields are found by name. A field that a record lacks is null; one that the schema lacks is left out. Blank lines
    are no records, and each object of an array that is alone on its line is a record. With `multi_line` a file is read
    whole, and is one malformed record if it is no JSON.
    """

    name: ClassVar[str] = "json"

    def schema_of(self, file: StoredFile) -> pa.Schema:
        if not self.infer_schema:
            raise self._needs_schema()
        found, records = pa.schema([]), b""
        with (
            self._opened(file, pa.schema([])) as lines,
            malformed_as(f"{file.path}: its columns cannot be inferred, name them with option dataSchema"),
        ):
            for data in lines.runs(INFERRED_BLOCKS):
                whole = self._split(data)
                if not _is_parsable(data, len(whole)):
                    whole = [record for record in whole if _is_parsable(record, 1)]
                more = b"".join(whole)
                if whole and not found.names:
                    found = _table(more, None).schema
                elif whole:
                    found = _joined(found, more)
                records += more
                # A field of nulls has any type until a value comes.
                if (found.names and not _has_nulls(found)) or len(records) > LONGEST_RECORD:
                    break
        if not found.names:
            raise self._nothing_to_infer_from(file.path)
        return self._inferred(found, lambda columns: _table(records, columns))

    # ---- LineFormat --------------------------------------------------------------------------------------------------

    def _stream(self, stream: pa.NativeFile) -> tuple[pa.NativeFile, bool]:
        if not self.multi_line:
            return stream, True
        return pa.BufferReader(_lines_of(_document(stream))), False

    def begin(self, file: LineFile, schema: pa.Schema) -> tuple[str, ...]:
        fields = self._in_files(schema)
        check_maps(fields)
        return tuple(field.name for field in fields)

    def count(self, data: bytes) -> int:
        objects = _objects(data)
        return len(self._split(data)) if objects is None else objects

    def _split(self, data: bytes) -> list[bytes]:
        records: list[bytes] = []
        for line in data.split(b"\n"):
            if begin := line.lstrip(_BLANKS):
                records += _elements(line) if begin.startswith(b"[") else [line + b"\n"]
        return records

    def _fields(self, record: bytes, names: tuple[str, ...]) -> dict[str, Any]:
        value = json.loads(record)
        return value if isinstance(value, dict) else {}

    def _exact(
        self, records: Sequence[bytes], names: tuple[str, ...], fields: Sequence[pa.Field]
    ) -> tuple[list[pa.Array], list[str | None]]:
        return read_records(records, pa.schema(fields), self._written)

    def _parsed(
        self, data: bytes, count: int, names: tuple[str, ...], fields: Sequence[pa.Field]
    ) -> tuple[list[pa.Array], BoolArray | None]:
        raw = pa.schema([pa.field(field.name, _raw(field.type)) for field in fields])
        table = _parsable(data, count, raw)
        batch = table.combine_chunks().to_batches()[0]
        typed = [_typed(batch.column(i), field.type, self._written) for i, field in enumerate(fields)]
        return [column for column, _, _ in typed], _either(mask for _, *masks in typed for mask in masks)

    def _unlike_spark(self, data: bytes, count: int, fields: Sequence[pa.Field]) -> BoolArray | None:
        # pyarrow reads no maps.
        has_maps = any(pa.types.is_map(found) for field in fields for found in types_in(field.type))
        return np.ones(count, np.bool_) if has_maps else None


def read_values(
    json_format: JsonFormat, values: Sequence[bytes], schema: pa.Schema
) -> tuple[list[pa.Array], BoolArray]:
    """Return the columns of values, an object each, that are in no file; and which of them are malformed."""
    records = [_in_one_line(value) for value in values]
    arrays, malformed = json_format._columns(b"".join(records), len(records), (), [*schema], records)
    return arrays, np.zeros(len(records), np.bool_) if malformed is None else malformed


def fault_of(json_format: JsonFormat, value: bytes, schema: pa.Schema) -> str | None:
    """Return why such a value is malformed; None if it is not."""
    return json_format._exact([_in_one_line(value)], (), [*schema])[1][0]


def check_maps(fields: Iterable[pa.Field]) -> None:
    """Raise a `pa.ArrowNotImplementedError` for a map whose keys are no text."""
    for field in fields:
        if not all(pa.types.is_string(found.key_type) for found in types_in(field.type) if pa.types.is_map(found)):
            raise pa.ArrowNotImplementedError(f"{field.name}: the keys of a map in JSON are text")


def _joined(found: pa.Schema, records: bytes) -> pa.Schema:
    """Return columns with the types of more records, where these are of types that go together."""
    try:
        return pa.unify_schemas([found, _table(records, None).schema], promote_options="permissive")
    except pa.ArrowException:
        return found


def _has_nulls(schema: pa.Schema) -> bool:
    """Return whether a column, or a field in one, has no type yet."""
    return any(re.search(r"(^|: )null\b", str(field.type)) is not None for field in schema)


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
    line = line.strip(_BLANKS)
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


def _parsable(data: bytes, count: int, schema: pa.Schema | None = None) -> pa.Table:
    """Return the table of records by pyarrow's parser; a `ValueError` if one of them cannot be parsed so."""
    if not data.isascii():
        data.decode("utf-8")
    # pyarrow reads one object after another and ignores lines. If each line begins and ends as an object,
    # and there are as many objects as lines, then each line is one object. The check also keeps a null from the
    # beginning, where it would crash pyarrow.
    if _objects(data) is None and not all(
        _is_like_an_object(line) for line in data.split(b"\n") if line.strip(_BLANKS)
    ):
        raise ValueError("a line is no JSON object")
    table = _table(data, schema or pa.schema([_NOTHING]))
    if table.num_rows != count:
        raise ValueError(f"{count} lines hold {table.num_rows} JSON values")
    return table


def _is_parsable(data: bytes, count: int) -> bool:
    try:
        return _parsable(data, count) is not None
    except (pa.ArrowInvalid, ValueError):
        return False


def _lines_of(document: bytes | bytearray) -> bytearray:
    """Return the objects of an array as lines; any other text as one line, which is malformed if it is no JSON."""
    lines = bytearray()
    if not document.strip(_BLANKS):
        return lines
    text = document.removeprefix(codecs.BOM_UTF8)
    try:
        # One at a time: as values all would take some fifteen times the memory.
        for element in elements_in(text.decode("utf-8")):
            lines += _in_one_line(element.encode())
    except (ValueError, RecursionError):
        return bytearray(_in_one_line(bytes(text).strip(b"\r\n")))
    return lines


def _elements(line: bytes) -> list[bytes]:
    return [bytes(element) for element in _lines_of(line).splitlines(keepends=True)]


def _in_one_line(record: bytes) -> bytes:
    return record.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n"


# ---- types that pyarrow does not read as Spark does ------------------------------------------------------------------


def _raw(data_type: pa.DataType) -> pa.DataType:
    """Return the type as which a column is parsed first: times and binary values as text."""
    if is_time(data_type) or pa.types.is_binary(data_type):
        return pa.string()
    if pa.types.is_struct(data_type):
        return pa.struct([field.with_type(_raw(field.type)) for field in data_type])
    if pa.types.is_list(data_type):
        return pa.list_(data_type.value_field.with_type(_raw(data_type.value_type)))
    return data_type


def _typed(
    column: pa.Array, data_type: pa.DataType, written: WrittenTimes
) -> tuple[pa.Array, BoolArray | None, BoolArray | None]:
    """Return a column of a raw type in its own, which values do not fit, and which have a field in them that does not.

    What does not fit is null; None for no value. An array with an element that does not fit does not fit itself.
    """
    if column.type == data_type:
        return column, None, None
    if pa.types.is_struct(data_type):
        parts = [_typed(pc.struct_field(column, [i]), data_type.field(i).type, written) for i in range(len(data_type))]
        array = pa.StructArray.from_arrays([part for part, _, _ in parts], fields=[*data_type], mask=column.is_null())
        return array, None, _either(mask for _, *masks in parts for mask in masks)
    if pa.types.is_list(data_type):
        lengths = to_numpy(column.value_lengths())
        values, unfit, bad = _typed(column.flatten(), data_type.value_type, written)
        of_list = np.repeat(np.arange(len(column)), lengths)
        of_lists = [
            None if mask is None else np.bincount(of_list[mask], minlength=len(column)) > 0 for mask in (unfit, bad)
        ]
        is_null = column.is_null() if of_lists[0] is None else pc.or_(column.is_null(), from_numpy(of_lists[0]))
        ends = from_numpy(np.append(0, np.cumsum(lengths))).cast(pa.int32())
        array = pa.ListArray.from_arrays(ends, values, data_type, mask=is_null)
        return array, of_lists[0], of_lists[1]
    if pa.types.is_binary(data_type):
        decoded = [None if text is None else decoded_base64(text) for text in column.to_pylist()]
        array = pa.array(decoded, data_type)
    else:
        array = written.read(column, data_type)
    if array.null_count == column.null_count:
        return array, None, None
    return array, to_numpy(pc.and_(column.is_valid(), array.is_null())), None


def _either(masks: Iterable[BoolArray | None]) -> BoolArray | None:
    found = [mask for mask in masks if mask is not None]
    return np.logical_or.reduce(found) if found else None
