"""ORC as Spark reads it, where pyarrow does not: by the types and the streams in a file.

pyarrow gives timestamps of ORC in nanoseconds alone, and refuses a stripe with one before 1677 or after 2262. A stripe
has the seconds of a column and its fractions in two streams, and is read twice as a small file of its own: declared to
be whole numbers, its timestamps are their seconds; with seconds that are all the same they have room, and give the
fractions.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from alignment.time_texts import in_utc
from alignment.watermarks import Int64Array

_LONG: Final = 4
_DECIMAL: Final = 14
_TIMESTAMPS: Final = (9, 18)
"""Without and with a zone."""
_STREAM: Final = 1
_DATA: Final = 1
_INDEXES: Final = (6, 7, 8)
_MAGIC: Final = b"ORC"
_EPOCH_S: Final = 1_420_070_400
"""ORC counts seconds from 2015-01-01 on, on the clock of the writer."""
_US_PER_DAY: Final = 86_400_000_000
_REFORM_DAY: Final = -141_427
"""1582-10-15."""
_NANOS: Final = 1_000_000_000
_MOST_S: Final = 9_000_000_000_000
_ZLIB, _SNAPPY, _LZ4, _ZSTD = 1, 2, 4, 5
_SAME: Final = {0: (130, b"\x7f\x00\x00"), 2: (512, b"\xc1\xff\x00\x00")}
"""By the encoding of a column: a run of so many zeros."""

_ROWS: Final = -1
"""The number of rows of a stripe, beside the fields of its footer."""

_Message = list[tuple[int, int | bytes]]
"""The fields of a message of Protocol Buffers, by number; bytes are texts, packed numbers, or other messages."""


def mapped(leaf: Callable[..., pa.Array], kind: pa.DataType, *arrays: pa.Array) -> pa.Array:
    """Return `leaf(type, values, ...)` of all timestamps and dates in a type, in the place of those in `arrays`.

    The arrays have the same nulls and lengths; what is neither is that of the first of them.
    """
    first, types = arrays[0], pa.types
    if types.is_timestamp(kind) or types.is_date32(kind):
        return leaf(kind, *arrays)
    if types.is_struct(kind):
        inner = [mapped(leaf, field.type, *(a.field(n) for a in arrays)) for n, field in enumerate(kind)]
        fields = [field.with_type(array.type) for field, array in zip(kind, inner, strict=True)]
        return pa.StructArray.from_arrays(inner, fields=fields, mask=first.is_null())
    if types.is_list(kind):
        values = mapped(leaf, kind.value_type, *(a.values for a in arrays))
        made = pa.list_(kind.value_field.with_type(values.type))
        return pa.ListArray.from_arrays(first.offsets, values, type=made, mask=first.is_null())
    if types.is_map(kind):
        keys, items = (
            mapped(leaf, part, *(getattr(a, name) for a in arrays))
            for part, name in ((kind.key_type, "keys"), (kind.item_type, "items"))
        )
        made = pa.map_(kind.key_field.with_type(keys.type), kind.item_field.with_type(items.type))
        return pa.MapArray.from_arrays(first.offsets, keys, items, type=made, mask=first.is_null())
    return first


def has_decimals_of_hive(stream: pa.NativeFile) -> bool:
    """Return whether a file has decimals as Hive 0.11 wrote them: without a scale in their type."""
    tail = _Tail.of(stream)
    return tail is not None and any(_numbers_in(one, 1, 5) == [_DECIMAL, 0] for one in _parts(tail.footer, 4))


def gregorian_days(days: Int64Array) -> Int64Array:
    """Return days since the epoch in the Gregorian calendar, of those that are in the Julian one up to 1582.

    So Java has written dates and times in ORC, and Spark reads all of them.
    """
    if days.min(initial=0) >= _REFORM_DAY:
        return days
    # Richards' way from a day to its year, month and day in the Julian calendar.
    quarters = 4 * (days + 2_440_588 + 1_401) + 3
    of_year = 5 * (quarters % 1_461 // 4) + 2
    month = (of_year // 153 + 2) % 12 + 1
    year = quarters // 1_461 - 4_716 + (14 - month) // 12
    first = ((year - 1970) * 12 + month - 1).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    return np.where(days < _REFORM_DAY, first + of_year % 153 // 5, days)


def read_far_times(
    stream: pa.NativeFile, stripe: int, names: list[str] | None, stored: pa.Schema
) -> pa.RecordBatch | None:
    """Return columns of a stripe, all without `names`, with times in microseconds in place of the types in `stored`.

    None where times have no room there either, or the file is compressed in a way that is not known.
    """
    tail = _Tail.of(stream)
    if tail is None:
        return None
    data, footer = tail.stripe(stream, stripe)
    seconds = _read(tail.file(data, footer, has_seconds=True), names)
    # As many values as any column has at most.
    same = tail.with_same_seconds(data, footer, seconds.nbytes // 8 + seconds.num_rows)
    fractions = _read(tail.file(*same, has_seconds=False), names)
    zone = b"".join(_parts(footer, 3)).decode()

    def combined(kind: pa.DataType, whole: pa.Array, part: pa.Array) -> pa.Array:
        if pa.types.is_date(kind):
            return whole
        is_null = np.asarray(whole.is_null())
        values = np.asarray(whole.fill_null(0)) + _EPOCH_S
        if np.abs(values).max(initial=0) > _MOST_S:
            raise OverflowError("seconds that have no room in microseconds")
        if kind.tz is None and zone not in ("UTC", "GMT", ""):
            # What the writer's clock showed, as pyarrow gives it.
            values += int(in_utc(np.array([_EPOCH_S * 1_000_000]), zone)[0]) // 1_000_000 - _EPOCH_S
            values = np.asarray(pc.local_timestamp(pa.array(values).cast(pa.timestamp("s", zone))).cast(pa.int64()))
        nanos = np.asarray(part.cast(pa.int64()).fill_null(_EPOCH_S * _NANOS)) - _EPOCH_S * _NANOS
        values = values - ((values < 0) & (nanos > 999_999))
        micros = values * 1_000_000 + nanos // 1_000
        days = micros // _US_PER_DAY
        micros += (gregorian_days(days) - days) * _US_PER_DAY
        return pa.array(micros, mask=is_null).cast(pa.timestamp("us", kind.tz))

    columns = zip(seconds.schema.names, seconds.columns, fractions.columns, strict=True)
    try:
        arrays = [mapped(combined, stored.field(name).type, *pair) for name, *pair in columns]
    except OverflowError:
        return None
    return pa.RecordBatch.from_arrays(arrays, seconds.schema.names)


def _read(file: bytes, names: list[str] | None) -> pa.RecordBatch:
    from pyarrow import orc

    return orc.ORCFile(pa.BufferReader(file)).read_stripe(0, columns=names)


@dataclass(frozen=True, slots=True)
class _Tail:
    """The end of a file: `compression` is the number of the codec."""

    postscript: _Message
    footer: _Message
    compression: int

    @staticmethod
    def of(stream: pa.NativeFile) -> _Tail | None:
        size = stream.size()
        length = _bytes(stream, size - 1, 1)[0]
        postscript = _parsed(_bytes(stream, size - 1 - length, length))
        numbers = {field: value for field, value in postscript if isinstance(value, int)}
        compression = numbers.get(2, 0)
        if compression not in (0, _ZLIB, _SNAPPY, _LZ4, _ZSTD):
            return None
        footer = _bytes(stream, size - 1 - length - numbers[1], numbers[1])
        return _Tail(postscript, _parsed(_decompressed(footer, compression)), compression)

    def stripe(self, stream: pa.NativeFile, number: int) -> tuple[bytes, _Message]:
        """Return the streams of a stripe, and its footer."""
        offset, index, data, footer, rows = _numbers_in(_parts(self.footer, 3)[number], 1, 2, 3, 4, 5)
        content = _bytes(stream, offset, index + data + footer)
        described = _parsed(_decompressed(content[index + data :], self.compression))
        return content[: index + data], [*described, (_ROWS, rows)]

    def with_same_seconds(self, data: bytes, footer: _Message, count: int) -> tuple[bytes, _Message]:
        """Return a stripe without indexes, in which the seconds of timestamps are all the same."""
        kinds = [_numbers_in(one, 1)[0] for one in _parts(self.footer, 4)]
        encodings = [_numbers_in(one, 1)[0] for one in _parts(footer, 2)]
        kept, at, described = list[bytes](), 0, [one for one in footer if one[0] != _STREAM]
        for kind, column, length in (_numbers_in(one, 1, 2, 3) for one in _parts(footer, _STREAM)):
            content, at = data[at : at + length], at + length
            if kind in _INDEXES:
                continue
            if kind == _DATA and kinds[column] in _TIMESTAMPS:
                run, code = _SAME[encodings[column]]
                content = self._framed(code * (count // run + 1))
            kept.append(content)
            described.append((_STREAM, _written([(1, kind), (2, column), (3, len(content))])))
        return b"".join(kept), described

    def file(self, data: bytes, footer: _Message, *, has_seconds: bool) -> bytes:
        """Return a file of one stripe; with `has_seconds` its timestamps are whole numbers."""
        rows = dict(footer)[_ROWS]
        of_stripe = self._framed(_written([one for one in footer if one[0] != _ROWS]))
        # Indexes count as data: nothing looks for them.
        stripe = [(1, len(_MAGIC)), (2, 0), (3, len(data)), (4, len(of_stripe)), (5, rows)]
        of_file: _Message = [(1, len(_MAGIC)), (2, len(data) + len(of_stripe)), (3, _written(stripe)), (6, rows)]
        for field, value in self.footer:
            if field == 4 and isinstance(value, bytes):
                if has_seconds and _numbers_in(value, 1)[0] in _TIMESTAMPS:
                    value = _written([(1, _LONG)])
                of_file.append((field, value))
        end = self._framed(_written(of_file))
        postscript = _written([(field, {1: len(end), 5: 0}.get(field, value)) for field, value in self.postscript])
        return b"".join([_MAGIC, data, of_stripe, end, postscript, bytes([len(postscript)])])

    def _framed(self, content: bytes) -> bytes:
        """Return bytes as a part that is not compressed of a file that is."""
        return (len(content) << 1 | 1).to_bytes(3, "little") + content if self.compression else content


def _bytes(stream: pa.NativeFile, offset: int, length: int) -> bytes:
    return bytes(stream.read_at(length, offset))


def _decompressed(data: bytes, compression: int) -> bytes:
    if not compression:
        return data
    found, at = b"", 0
    while at < len(data):
        header = int.from_bytes(data[at : at + 3], "little")
        part, at = data[at + 3 : at + 3 + (header >> 1)], at + 3 + (header >> 1)
        if header & 1:
            found += part
        elif compression == _ZLIB:
            found += zlib.decompress(part, -zlib.MAX_WBITS)
        elif compression == _SNAPPY:
            found += pa.decompress(part, _number(part, 0)[0], "snappy", asbytes=True)
        elif compression == _LZ4:
            # Nothing in it says how long it is.
            size = bisect_left(range(255 * len(part)), True, key=lambda size: _has_room(part, size))
            found += pa.decompress(part, size, "lz4_raw", asbytes=True)
        else:
            found += pa.CompressedInputStream(pa.BufferReader(part), "zstd").read()
    return found


def _has_room(part: bytes, size: int) -> bool:
    try:
        return pa.decompress(part, size, "lz4_raw") is not None
    except OSError:
        return False


def _parts(message: _Message, field: int) -> list[bytes]:
    return [value for number, value in message if number == field and isinstance(value, bytes)]


def _numbers_in(data: bytes, *fields: int) -> list[int]:
    """Return the numbers of fields of a message, 0 where it lacks one."""
    found = {field: value for field, value in _parsed(data) if isinstance(value, int)}
    return [found.get(field, 0) for field in fields]


def _parsed(data: bytes) -> _Message:
    fields, at = list[tuple[int, int | bytes]](), 0
    while at < len(data):
        tag, at = _number(data, at)
        value, at = _number(data, at)
        if tag & 7 == 2:
            fields.append((tag >> 3, data[at : at + value]))
            at += value
        else:
            fields.append((tag >> 3, value))
    return fields


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return the number of seven bits a byte at a place, and where it ends."""
    number = shift = 0
    while True:
        byte = data[at]
        number, shift, at = number | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return number, at


def _written(message: Sequence[tuple[int, int | bytes]]) -> bytes:
    parts = []
    for field, value in message:
        if isinstance(value, bytes):
            parts += [_digits(field << 3 | 2), _digits(len(value)), value]
        else:
            parts += [_digits(field << 3), _digits(value)]
    return b"".join(parts)


def _digits(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])
