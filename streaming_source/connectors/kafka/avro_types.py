"""Types of Avro: how Arrow stores their values, and the columns that these become."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

import numpy as np
import pyarrow as pa

from alignment.arrow_times import integers_to_microseconds
from streaming_source.connectors.kafka.registry import Change
from streaming_source.exceptions import OptionError

Schema: TypeAlias = Any
"""A schema as `fastavro.parse_schema` returns it: a name, a list for a union, or a dict. Names are full names."""

_PRIMITIVES: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}

_TIMESTAMP_UNITS: Final = {
    f"{local}timestamp-{name}": (unit, None if local else "UTC")
    for local in ("", "local-")
    for name, unit in {"millis": "ms", "micros": "us", "nanos": "ns"}.items()
}

_NO_COLUMN: Final = {("int", "time-millis"): "int", ("long", "time-micros"): "long", ("fixed", "duration"): "fixed"}
_MOST_DIGITS: Final = 38


def logical_type(schema: Schema) -> str | None:
    """Return the logical type of a schema if it is valid for its type; Avro ignores others."""
    if not isinstance(schema, dict):
        return None
    base, logical = schema["type"], schema.get("logicalType")
    if not isinstance(logical, str):
        return None
    if logical in _TIMESTAMP_UNITS:
        fits = base == "long"
    elif logical == "decimal":
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        fits = base in ("bytes", "fixed") and type(precision) is type(scale) is int and 0 <= scale <= precision != 0
    elif logical == "uuid":
        fits = base == "string" or (base == "fixed" and schema["size"] == 16)
    elif logical == "date":
        fits = base == "int"
    else:
        fits = (base, logical) in _NO_COLUMN
    return logical if fits else None


def types_in(schema: Schema) -> Iterator[dict[str, Any]]:
    """Yield each type that a parsed schema, or one that it refers to, defines or annotates, once."""
    seen: set[int] = set()
    left = [schema, *(schema.get("__named_schemas", {}).values() if isinstance(schema, dict) else ())]
    while left:
        one = left.pop()
        if isinstance(one, list):
            left += one
        elif isinstance(one, dict) and id(one) not in seen:
            seen.add(id(one))
            yield one
            left += [one["type"], one.get("items"), one.get("values"), *(f["type"] for f in one.get("fields", ()))]


class AvroType(NamedTuple):
    """The way from values of a schema to a column: an array of stored values, which is then converted as a whole.

    `stored` is the type of the numbers and bytes below the logical types, `column` the type of the column. `pack`
    changes a decoded value to one that Arrow accepts as `stored`; None if all are. `convert` takes an array of `stored`
    that is no slice, and raises `pa.ArrowInvalid` if a value does not fit `column`.
    """

    stored: pa.DataType
    column: pa.DataType
    convert: Callable[[pa.Array], pa.Array] = lambda array: array
    pack: Change | None = None

    @classmethod
    def of(cls, schema: Schema, where: str) -> AvroType:
        """Return the type of a parsed schema; raises an `OptionError` with the dotted path `where` if there is none."""
        return _avro_type(schema, where, dict(schema.get("__named_schemas", {})) if isinstance(schema, dict) else {})

    def array(self, decoded: list[Any]) -> pa.Array:
        """Return the column of decoded values; None is null. Raises an `ArrowException` if one does not fit. O(n)."""
        packed = decoded if self.pack is None else [self.pack(value) for value in decoded]
        return self.convert(pa.array(packed, self.stored))


def _avro_type(schema: Schema, where: str, named: Mapping[str, Schema], inside: tuple[str, ...] = ()) -> AvroType:
    if isinstance(schema, list):
        others = [one for one in schema if one != "null"]
        if len(others) != 1:
            raise _refused(where, f"it is a union of {len(others)} types beside null")
        return _avro_type(others[0], where, named, inside)
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return AvroType(_PRIMITIVES[schema], _PRIMITIVES[schema])
        if schema not in named:
            raise _refused(where, f"its type {schema!r} is not known")
        return _avro_type(named[schema], where, named, inside)
    kind = schema["type"]
    if kind == "array":
        return _array(_avro_type(schema["items"], f"{where}.element", named, inside))
    if kind == "map":
        return _map(_avro_type(schema["values"], f"{where}.value", named, inside))
    if kind == "record":
        return _record(schema, where, named, inside)
    logical = logical_type(schema)
    if logical is None:
        return _avro_type(kind, where, named, inside)
    if logical in _TIMESTAMP_UNITS:
        return _timestamp(*_TIMESTAMP_UNITS[logical])
    if logical == "decimal":
        return _decimal(schema["precision"], schema.get("scale", 0), where)
    if logical == "date":
        return AvroType(pa.int32(), pa.date32(), lambda array: array.view(pa.date32()))
    if logical == "uuid":
        return AvroType(pa.string(), pa.string()) if kind == "string" else AvroType(pa.binary(), pa.string(), _uuids)
    raise _refused(where, f"it is of the logical type {logical}", f" or has it as a plain {_NO_COLUMN[kind, logical]}")


def _refused(where: str, why: str, or_else: str = "") -> OptionError:
    return OptionError(
        f"option valueFormat = 'avro': {where} has no type of Spark: {why}; give option valueSchema, an "
        f"Avro schema that leaves it out{or_else}"
    )


# ---- logical types ---------------------------------------------------------------------------------------------------


def _timestamp(unit: str, zone: str | None) -> AvroType:
    kind = pa.timestamp("us", zone)

    def convert(array: pa.Array) -> pa.Array:
        validity, numbers = array.buffers()
        valid = np.ones(len(array), bool) if validity is None else array.is_valid().to_numpy(zero_copy_only=False)
        times, fits = integers_to_microseconds(np.frombuffer(numbers, np.int64, len(array)), valid, unit)
        if not np.array_equal(fits, valid):
            wrong = array[int(np.flatnonzero(fits != valid)[0])]
            raise pa.ArrowInvalid(f"the time {wrong} {unit} is beyond what a timestamp holds")
        return pa.Array.from_buffers(kind, len(array), [validity, pa.py_buffer(times)])

    return AvroType(pa.int64(), kind, convert)


def _decimal(precision: int, scale: int, where: str) -> AvroType:
    if precision > _MOST_DIGITS:
        raise _refused(where, f"it has {precision} digits, and Spark's decimals {_MOST_DIGITS}")
    kind = pa.decimal128(precision, scale)

    def convert(array: pa.Array) -> pa.Array:
        numbers = [0 if value is None else int.from_bytes(value, "big", signed=True) for value in array.to_pylist()]
        if any(abs(number) >= 10**precision for number in numbers):
            raise pa.ArrowInvalid(f"a decimal has more than {precision} digits")
        content = b"".join([number.to_bytes(16, "little", signed=True) for number in numbers])
        return pa.Array.from_buffers(kind, len(array), [array.buffers()[0], pa.py_buffer(content)])

    return AvroType(pa.binary(), kind, convert)


def _uuids(array: pa.Array) -> pa.Array:
    return pa.array([None if value is None else str(UUID(bytes=value)) for value in array.to_pylist()], pa.string())


# ---- types of several values -----------------------------------------------------------------------------------------


def _array(one: AvroType) -> AvroType:
    column = pa.list_(one.column)

    def pack(value: Any) -> Any:
        assert one.pack is not None
        return None if value is None else [one.pack(item) for item in value]

    def convert(array: pa.Array) -> pa.Array:
        return pa.Array.from_buffers(column, len(array), array.buffers()[:2], children=[one.convert(array.values)])

    return AvroType(pa.list_(one.stored), column, convert, pack if one.pack else None)


def _map(one: AvroType) -> AvroType:
    column = pa.map_(pa.string(), one.column)
    entry = pa.struct([column.key_field, column.item_field])

    def pack(value: Any) -> Any:
        if value is None or one.pack is None:
            return value and list(value.items())
        return [(key, one.pack(item)) for key, item in value.items()]

    def convert(array: pa.Array) -> pa.Array:
        entries = pa.Array.from_buffers(entry, len(array.keys), [None], children=[array.keys, one.convert(array.items)])
        return pa.Array.from_buffers(column, len(array), array.buffers()[:2], children=[entries])

    return AvroType(pa.map_(pa.string(), one.stored), column, convert, pack)


def _record(schema: Schema, where: str, named: Mapping[str, Schema], inside: tuple[str, ...]) -> AvroType:
    name = schema["name"]
    if name in inside:
        raise _refused(where, f"{name} contains itself")
    fields = {
        field["name"]: _avro_type(field["type"], f"{where}.{field['name']}", named, (*inside, name))
        for field in schema["fields"]
    }
    packs = {name: one.pack for name, one in fields.items() if one.pack is not None}
    column = pa.struct([(name, one.column) for name, one in fields.items()])

    def pack(value: Any) -> Any:
        return None if value is None else {**value, **{name: change(value[name]) for name, change in packs.items()}}

    def convert(array: pa.Array) -> pa.Array:
        # Flattened, since children of a null record have values in Arrow and none in Avro.
        children = [one.convert(child) for one, child in zip(fields.values(), array.flatten(), strict=True)]
        return pa.Array.from_buffers(column, len(array), array.buffers()[:1], children=children)

    stored = pa.struct([(name, one.stored) for name, one in fields.items()])
    return AvroType(stored, column, convert, pack if packs else None)
