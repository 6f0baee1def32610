"""VARIANT in Parquet: values as Spark has them, also where a writer has put parts of them into columns of their own.

Such a column is a struct of `metadata` (the names of fields), `value` (the bytes) and `typed_value` (what has a type of
its own, by the specification of shredding); a value is put together again from both.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from alignment import arrow_compute as pc
from alignment.arrow_compute import to_numpy
from streaming_source.data_files.evolution import types_in

VARIANT: Final = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
    ]
)
"""The type by which Spark knows a variant in Arrow."""

_SHREDDED: Final = "typed_value"
_NULL: Final = b"\0"
_NO_NAMES: Final = b"\1\0\0"
_OBJECT: Final = 2
_ARRAY: Final = 3
_SHORT: Final = 64
"""Bytes of a text from which on its length is written beside its type."""
_MANY: Final = 256
"""Elements from which on their number takes four bytes."""

Names = Mapping[str, int]


def may_be_variant(data_type: pa.DataType) -> bool:
    """Return whether a type is that of a variant in a file, if the schema of the file says that there are some."""
    if not pa.types.is_struct(data_type):
        return False
    kinds = {field.name: field.type for field in data_type}
    kinds.pop(_SHREDDED, None)
    return kinds == {"metadata": pa.binary(), "value": pa.binary()}


def has_variant(data_type: pa.DataType) -> bool:
    """Return whether a type is that of a variant, or has one in it."""
    return any(kind.equals(VARIANT, check_metadata=True) for kind in types_in(data_type))


def with_variants(array: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Return an array as it is in a file in a type with variants."""
    if not has_variant(data_type):
        return array.cast(data_type)
    if data_type.equals(VARIANT, check_metadata=True):
        return _variants(array)
    if pa.types.is_struct(data_type):
        parts = [with_variants(pc.struct_field(array, [i]), field.type) for i, field in enumerate(data_type)]
        return pa.StructArray.from_arrays(parts, fields=[*data_type], mask=array.is_null())
    ends = pa.array(np.append(0, np.cumsum(_lengths(array))).astype(np.int32))
    begin, count = array.offsets[0].as_py(), ends[-1].as_py()
    if pa.types.is_map(data_type):
        keys, items = (part.slice(begin, count) for part in (array.keys, array.items))
        items = with_variants(items, data_type.item_type)
        return pa.MapArray.from_arrays(ends, keys, items, data_type, mask=array.is_null())
    values = with_variants(array.flatten(), data_type.value_type)
    return pa.ListArray.from_arrays(ends, values, data_type, mask=array.is_null())


def _lengths(array: pa.Array) -> npt.NDArray[np.integer]:
    return np.diff(to_numpy(array.offsets)) if pa.types.is_map(array.type) else to_numpy(array.value_lengths())


def _variants(array: pa.StructArray) -> pa.Array:
    metadata = pc.struct_field(array, "metadata")
    if _SHREDDED in array.type.names:
        try:
            names = [_names_in(_NO_NAMES if one is None else one) for one in metadata.to_pylist()]
            whole = [_NULL if value is None else value for value in _whole(array, names)]
        except (LookupError, UnicodeDecodeError) as error:
            raise pa.ArrowInvalid(f"a variant contradicts itself: {error!r}") from None
        values = pa.array(whole, pa.binary())
    else:
        values = pc.struct_field(array, "value").fill_null(_NULL)
    parts = [values, metadata.fill_null(_NO_NAMES)]
    return pa.StructArray.from_arrays(parts, fields=[*VARIANT], mask=array.is_null())


def _whole(array: pa.Array, names: Sequence[Names]) -> list[bytes | None]:
    """Return the values of a group of `value` and `typed_value`; None for one that is not there."""
    own = array.type.names
    raw = pc.struct_field(array, "value").to_pylist() if "value" in own else [None] * len(array)
    if _SHREDDED not in own:
        return raw
    typed = pc.struct_field(array, _SHREDDED)
    is_there = typed.is_valid().to_pylist()
    if pa.types.is_struct(typed.type):
        parts = {field.name: _whole(pc.struct_field(typed, [i]), names) for i, field in enumerate(typed.type)}
        made: Iterator[bytes | None] = (
            _object({name: part[row] for name, part in parts.items()}, raw[row], names[row]) if is_there[row] else None
            for row in range(len(array))
        )
    elif pa.types.is_list(typed.type):
        lengths = _lengths(typed)
        elements = _whole(typed.flatten(), [names[row] for row in np.repeat(np.arange(len(typed)), lengths).tolist()])
        ends = np.append(0, np.cumsum(lengths)).tolist()
        made = (_array([one or _NULL for one in elements[begin:end]]) for begin, end in pairwise(ends))
    else:
        encode = _encoder(typed.type)
        made = (None if number is None else encode(number) for number in _numbers(typed))
    return [value if there else other for value, there, other in zip(made, is_there, raw, strict=True)]


# ---- values by themselves --------------------------------------------------------------------------------------------


def _numbers(typed: pa.Array) -> list[Any]:
    """Return values in Python, times as numbers: Python has none of the year 10,000."""
    if pa.types.is_timestamp(typed.type):
        typed = typed.cast(pa.timestamp("us", typed.type.tz)).cast(pa.int64())
    elif pa.types.is_date32(typed.type):
        typed = typed.cast(pa.int32())
    numbers: list[Any] = typed.to_pylist()
    return numbers


def _encoder(data_type: pa.DataType) -> Callable[[Any], bytes]:
    types = pa.types
    if types.is_boolean(data_type):
        return lambda value: _primitive(1 if value else 2)
    if types.is_integer(data_type):
        return _integer
    if types.is_decimal(data_type):
        return _decimal
    if types.is_timestamp(data_type) and data_type.unit != "ns":
        return lambda value: _primitive(13 if data_type.tz is None else 12, struct.pack("<q", value))
    if types.is_date32(data_type):
        return lambda value: _primitive(11, struct.pack("<i", value))
    if types.is_floating(data_type):
        number, form = (14, "<f") if types.is_float32(data_type) else (7, "<d")
        return lambda value: _primitive(number, struct.pack(form, value))
    if types.is_string(data_type):
        return _text
    if types.is_binary(data_type):
        return lambda value: _primitive(15, struct.pack("<I", len(value)) + value)
    raise pa.ArrowNotImplementedError(f"Spark has no variants of {data_type}; read the file without that column")


def _primitive(number: int, content: bytes = b"") -> bytes:
    return bytes([number << 2]) + content


def _integer(value: int) -> bytes:
    size = next(size for size in range(4) if -(1 << (8 << size) - 1) <= value < 1 << (8 << size) - 1)
    return _primitive(3 + size, value.to_bytes(1 << size, "little", signed=True))


def _decimal(value: Any) -> bytes:
    is_negative, digits, exponent = value.as_tuple()
    scale, unscaled = -exponent, int("".join(map(str, digits))) * (-1 if is_negative else 1)
    size = next((size for size, digits in enumerate((9, 18)) if scale <= digits and abs(unscaled) < 10**digits), 2)
    return _primitive(8 + size, bytes([scale]) + unscaled.to_bytes(4 << size, "little", signed=True))


def _text(value: str) -> bytes:
    content = value.encode()
    if len(content) < _SHORT:
        return bytes([len(content) << 2 | 1]) + content
    return _primitive(16, struct.pack("<I", len(content)) + content)


# ---- values of several -----------------------------------------------------------------------------------------------


def _object(parts: Mapping[str, bytes | None], others: bytes | None, names: Names) -> bytes:
    """Return an object of parts with names, and those of another object."""
    found = {name: value for name, value in parts.items() if value is not None}
    if others is not None:
        by_id = {number: name for name, number in names.items()}
        found |= {by_id[number]: value for number, value in _fields_of(others)}
    order = sorted(found)
    ids = [names[name] for name in order]
    return _sequence(_OBJECT, [found[name] for name in order], ids)


def _array(elements: Sequence[bytes]) -> bytes:
    return _sequence(_ARRAY, elements, None)


def _sequence(kind: int, elements: Sequence[bytes], ids: Sequence[int] | None) -> bytes:
    ends = np.append(0, np.cumsum([len(element) for element in elements], dtype=np.int64)).tolist()
    of_end, is_large = _size(ends[-1]), len(elements) >= _MANY
    of_id = 1 if ids is None else _size(max(ids, default=0))
    form = of_end - 1 | (is_large << 2 if ids is None else (of_id - 1) << 2 | is_large << 4)
    head = bytes([form << 2 | kind]) + len(elements).to_bytes(4 if is_large else 1, "little")
    numbers = [*(one.to_bytes(of_id, "little") for one in ids or ()), *(end.to_bytes(of_end, "little") for end in ends)]
    return b"".join([head, *numbers, *elements])


def _size(number: int) -> int:
    return max((number.bit_length() + 7) // 8, 1)


def _fields_of(value: bytes) -> Iterator[tuple[int, bytes]]:
    form = value[0] >> 2
    if value[0] & 3 != _OBJECT:
        raise pa.ArrowInvalid("a variant has fields beside a value that is no object")
    of_end, of_id, of_count = (form & 3) + 1, (form >> 2 & 3) + 1, 4 if form >> 4 & 1 else 1
    count, at = int.from_bytes(value[1 : 1 + of_count], "little"), 1 + of_count
    ids = _integers(value, at, count, of_id)
    begins = _integers(value, at + count * of_id, count + 1, of_end)
    at += count * of_id + (count + 1) * of_end
    # Values may stand in any order.
    ends = dict(pairwise(sorted({*begins})))
    for number, begin in zip(ids, begins, strict=False):
        yield number, value[at + begin : at + ends[begin]]


def _integers(value: bytes, at: int, count: int, size: int) -> list[int]:
    if at + count * size > len(value):
        raise IndexError(f"{count} numbers in {len(value)} bytes")
    return [int.from_bytes(value[at + i * size : at + (i + 1) * size], "little") for i in range(count)]


@lru_cache(maxsize=1000)
def _names_in(metadata: bytes) -> Names:
    """Return the number of each name."""
    size = (metadata[0] >> 6) + 1
    count = int.from_bytes(metadata[1 : 1 + size], "little")
    ends, at = _integers(metadata, 1 + size, count + 1, size), 1 + size * (count + 2)
    return {metadata[at + begin : at + end].decode(): number for number, (begin, end) in enumerate(pairwise(ends))}
