"""What is said over a gateway, in bytes.

A message is a header of fixed length and a body: reports as one Arrow record batch, in Arrow's stream format, or an
event as its serializer wrote it. What came over the wire is checked before any of it is used, and never unpickled.
"""

from __future__ import annotations

import itertools
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Final, NoReturn

import pyarrow as pa

from alignment.reports import RangeReport
from alignment.timestamps import NO_TIMESTAMP
from streaming_source.api import SimpleVersionedSerializer, SourceEvent
from streaming_source.gateway.refusals import Refusal, RefusedError

__all__ = [
    "EVENT",
    "HEADER_BYTES",
    "QUERY_ID_CHARACTERS",
    "QUERY_KEY",
    "REPORTS",
    "TAKE_EVENTS",
    "TOKEN_KEY",
    "MessageHeader",
    "decode_event",
    "decode_reports",
    "encode_event",
    "encode_reports",
]

REPORTS: Final = "reports"
EVENT: Final = "event"
TAKE_EVENTS: Final = "take_events"
"""What a message may be: the type of its Flight action."""

TOKEN_KEY: Final = "gateway-token"
QUERY_KEY: Final = "gateway-query"
"""Headers of every call."""

QUERY_ID_CHARACTERS: Final = 16

_MAGIC: Final = b"SSG1"
_HEADER: Final = struct.Struct(f">4s{QUERY_ID_CHARACTERS}sqiqi")
_VERSION: Final = struct.Struct(">i")

HEADER_BYTES: Final = _HEADER.size

_MAX_SPLIT_ID: Final = 8192
"""Characters: a path of 4,096, and what a connector adds to it."""

_NAMES: Final = tuple(field.name for field in fields(RangeReport))
_SCHEMA: Final = pa.schema(
    [pa.field(name, pa.string() if name == "split_id" else pa.int64(), nullable=False) for name in _NAMES]
)


@dataclass(frozen=True, slots=True)
class MessageHeader:
    """Which message this is.

    Attributes
    ----------
    query_id
        Of the run of the query; 16 ASCII characters.
    batch
        Number of the micro-batch, at least 0.
    subtask_id
        Number of the reader, at least 0.
    attempt
        What tells the attempts at one task apart, at least 0: each numbers its own messages.
    number
        Of the message within its task attempt, upwards from 0.
    """

    query_id: str
    batch: int
    subtask_id: int
    attempt: int
    number: int

    def encode(self) -> bytes:
        """`HEADER_BYTES` bytes."""
        return _HEADER.pack(
            _MAGIC, self.query_id.encode("ascii"), self.batch, self.subtask_id, self.attempt, self.number
        )

    @classmethod
    def decode(cls, message: bytes) -> MessageHeader:
        """The header that a message begins with.

        Raises
        ------
        RefusedError
            If there is none.
        """
        try:
            magic, query_id, *numbers = _HEADER.unpack_from(message)
            header = cls(query_id.decode("ascii"), *numbers)
        except (struct.error, UnicodeDecodeError):
            _refuse()
        if magic != _MAGIC or min(numbers) < 0:
            _refuse()
        return header


# ---- reports -----------------------------------------------------------------------------------------------------


def encode_reports(reports: Sequence[RangeReport]) -> bytes:
    """Reports as an Arrow stream of one record batch. O(n)."""
    arrays = [_array(list(map(attrgetter(field.name), reports)), field.type) for field in _SCHEMA]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA) as writer:
        writer.write_batch(pa.record_batch(arrays, schema=_SCHEMA))
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def decode_reports(body: bytes) -> list[RangeReport]:
    """The reports that `encode_reports` wrote. O(n), in memory as well: nothing is decompressed.

    Raises
    ------
    RefusedError
        If the bytes are anything else, or a report says what cannot be.
    """
    try:
        columns = map(_values, _read_batch(pa.py_buffer(body)).columns)
        reports = [RangeReport(*row) for row in zip(*columns, strict=True)]
    except (pa.ArrowException, OSError, TypeError, ValueError, struct.error, StopIteration):
        _refuse()
    if not all(map(_is_possible, reports)):
        _refuse()
    return reports


def _read_batch(body: pa.Buffer) -> pa.RecordBatch:
    messages = pa.ipc.MessageReader.open_stream(body)
    schema, content = messages.read_next_message(), messages.read_next_message()
    if schema.type != "schema" or content.type != "record batch" or pa.ipc.read_schema(schema) != _SCHEMA:
        _refuse()
    if _is_compressed(content.metadata.to_pybytes()):
        # It says itself how large it will be.
        _refuse()
    batch = pa.ipc.read_record_batch(content, _SCHEMA)
    batch.validate(full=True)
    if any(column.null_count for column in batch.columns):
        _refuse()
    try:
        messages.read_next_message()
    except StopIteration:
        return batch
    _refuse()


def _is_compressed(metadata: bytes) -> bool:
    """Whether a record batch names a compression: field 3 of the table that is field 2 of an Arrow message.

    Arrow decompresses as it reads, and offers no way to say how much.
    """
    message = _offset(metadata, 0)
    batch = _table_field(metadata, message, 2)
    return batch is not None and _table_field(metadata, _offset(metadata, batch), 3) is not None


def _table_field(data: bytes, table: int, field: int) -> int | None:
    """Where a field of a flatbuffers table stands; None if it is not set."""
    vtable = table - _number(data, "<i", table)
    entry = 4 + 2 * field
    if entry >= _number(data, "<H", vtable):
        return None
    offset = _number(data, "<H", vtable + entry)
    return table + offset if offset else None


def _offset(data: bytes, position: int) -> int:
    return position + _number(data, "<I", position)


def _number(data: bytes, kind: str, position: int) -> int:
    if position < 0:
        raise struct.error("before the beginning")
    number: int = struct.unpack_from(kind, data, position)[0]
    return number


def _is_possible(report: RangeReport) -> bool:
    return (
        1 <= len(report.split_id) <= _MAX_SPLIT_ID
        and 0 <= report.start <= report.stop
        and report.min_us <= report.max_us
        and (report.min_us == NO_TIMESTAMP) == (report.max_us == NO_TIMESTAMP)
        and 0 <= report.late <= report.rows
        and 0 <= report.invalid <= report.rows
        and report.disorder_us >= 0
    )


# Columns go into Arrow and come out of it by their buffers: `pa.array` and `pa.scalar` import pandas, if there is one.
# That takes a second: of a worker before its first message, and of the planner before its first answer.


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if kind == pa.int64():
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(array("q", values))])
    texts = [value.encode() for value in values]
    ends = array("i", itertools.accumulate(map(len, texts), initial=0))
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(texts))])


def _values(column: pa.Array) -> list[Any]:
    """The values of a column without nulls that was validated, and has no offset."""
    buffers = column.buffers()
    if not len(column):
        return []
    if column.type == pa.int64():
        return memoryview(buffers[1]).cast("q")[: len(column)].tolist()
    ends = memoryview(buffers[1]).cast("i")[: len(column) + 1].tolist()
    text = b"" if buffers[2] is None else buffers[2].to_pybytes()
    return [text[begin:end].decode() for begin, end in itertools.pairwise(ends)]


# ---- events ------------------------------------------------------------------------------------------------------


def encode_event(serializer: SimpleVersionedSerializer[SourceEvent], event: SourceEvent) -> bytes:
    """An event as its serializer writes it, after the version."""
    return _VERSION.pack(serializer.version) + serializer.serialize(event)


def decode_event(serializer: SimpleVersionedSerializer[SourceEvent], body: bytes) -> SourceEvent:
    """The event that `encode_event` wrote.

    Raises
    ------
    RefusedError
        If the serializer does not take it.
    """
    try:
        (version,) = _VERSION.unpack_from(body)
        return serializer.deserialize(version, body[_VERSION.size :])
    except Exception:  # a connector's own code, on bytes from anybody: what it says may quote them
        _refuse()


def _refuse() -> NoReturn:
    raise RefusedError(Refusal.MALFORMED) from None
