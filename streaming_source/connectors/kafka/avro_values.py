"""Avro values: what any version of a schema wrote is read as the reader's schema."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from streaming_source.connectors.kafka.avro_bounds import Check, bounds_of, is_bounded
from streaming_source.connectors.kafka.avro_types import AvroType, Schema, logical_type, types_in
from streaming_source.connectors.kafka.registry import (
    Decode,
    DecodedValues,
    SchemaText,
    UnknownSchemaError,
    missing_package,
)
from streaming_source.exceptions import OptionError
from streaming_source.from_data import as_json

_UNKNOWN_S: Final = 10.0
"""For how long a schema that the registry does not know is not looked up again."""

_MOST_UNKNOWN: Final = 1000


@dataclass(frozen=True)
class AvroValues(DecodedValues):
    """Values of Avro, in the framing of the registry's serializers.

    Fields are resolved as in Avro: a field that the writer lacks gets the reader's default, a field that the reader
    lacks is left out, numbers are promoted. Logical types are the reader's; timestamps and decimals of another unit or
    scale are converted. A record that its writer's schema lets grow beyond bounds is an invalid value.
    """

    framing = "AVRO"
    what = "Avro of the reader's schema"

    @property
    def type(self) -> pa.DataType:
        return self._avro_type.column

    @cached_property
    def _avro_type(self) -> AvroType:
        reader = _parsed(self.schema)
        if not is_bounded(reader):
            raise OptionError(
                f"option valueFormat = 'avro': the types of the schema of {self.subject!r} are too deep in each "
                "other, or too many; give option valueSchema with the fields that are read"
            )
        found = AvroType.of(reader, "value")
        if not pa.types.is_struct(found.column):
            raise OptionError(f"option valueFormat = 'avro': the schema of {self.subject!r} is not that of a record")
        _put_defaults(_parsed(self.schema))
        return found

    def to_arrow(self, decoded: list[Any]) -> pa.Array:
        return self._avro_type.array(decoded)

    def decoder(self) -> Decode:
        from fastavro import schemaless_reader

        same, reader = _parsed(self.schema), _parsed(self.schema)
        _put_defaults(reader)
        units = {unit for one in types_in(reader) if (unit := _unit(one)) is not None}
        writers: dict[object, tuple[Schema, Schema, Check | None]] = {}
        unknown: dict[object, float] = {}

        def decode(schema_id: Any, payload: io.BytesIO) -> Any:
            key = schema_id.guid or schema_id.id
            schemas = writers.get(key)
            if schemas is None:
                if key in unknown and time.monotonic() < unknown[key]:
                    raise UnknownSchemaError(f"schema {key}")
                try:
                    text = self.registry.by_id(schema_id)
                except UnknownSchemaError:
                    if len(unknown) >= _MOST_UNKNOWN:
                        unknown.clear()
                    unknown[key] = time.monotonic() + _UNKNOWN_S
                    raise
                try:
                    writer = _parsed(text)
                    check = bounds_of(writer)
                except OptionError as error:
                    raise ValueError(str(error)) from None
                # Equal schemas need no resolution.
                target = None if writer == same else reader
                _decode_as_stored(writer, units if target else ())
                schemas = writers[key] = writer, target, check
            writer, target, check = schemas
            if check is not None:
                check(payload.getvalue()[payload.tell() :])
            record = schemaless_reader(payload, writer, target)
            if payload.read(1):
                raise ValueError("there are bytes after the record")
            return record

        return decode


def _parsed(schema: SchemaText) -> Schema:
    try:
        from fastavro import parse_schema
    except ImportError as error:
        missing_package("valueFormat = 'avro'", error)
    named: dict[str, Any] = {}
    try:
        for _, text in schema.referenced:
            parse_schema(as_json(text), named_schemas=named)
        parsed = parse_schema(as_json(schema.text), named_schemas=named)
        _check(parsed)
        return parsed
    except Exception as error:  # of JSON, and whatever fastavro raises of a schema that it does not check
        raise OptionError(f"option valueFormat = 'avro': {schema.text[:200]} is no schema of Avro: {error}") from None


def _check(schema: Schema) -> None:
    """Check what fastavro takes as it is; raises a `ValueError`."""
    for one in types_in(schema):
        for name in (part.get("name", "") for part in (one, *one.get("fields", ()))):
            if not isinstance(name, str):
                raise ValueError(f"the name {name!r} is no text")
        size = one.get("size", 0)
        if type(size) is not int or size < 0:
            raise ValueError(f"the size {size!r} is no number of bytes")


# ---- units -----------------------------------------------------------------------------------------------------------

_WRITTEN: Final = "written-"
"""Prefix of logical types in a writer's schema whose values are converted to the reader's unit."""

_PER_SECOND: Final = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}

_Unit = tuple[str, int]
"""Kind and unit of values that are converted: units a second of a timestamp, digits after the point of a decimal."""


def _unit(schema: Schema) -> _Unit | None:
    logical = logical_type(schema)
    if logical == "decimal":
        return "decimal", schema.get("scale", 0)
    if logical is not None and "timestamp-" in logical:
        return "timestamp", _PER_SECOND[logical.rpartition("-")[2]]
    return None


def _decode_as_stored(writer: Schema, units: Collection[_Unit]) -> None:
    """Change a writer's schema so that values are decoded as they are stored, and in the reader's `units`."""
    from fastavro.read import LOGICAL_READERS

    for one in types_in(writer):
        own, logical = _unit(one), one.pop("logicalType", None)
        if own is not None and any(kind == own[0] and number != own[1] for kind, number in units):
            one["logicalType"] = f"{_WRITTEN}{logical}"
            # fastavro looks functions up here, by type and logical type.
            LOGICAL_READERS[f"{one['type']}-{_WRITTEN}{logical}"] = _converted


def _converted(value: Any, writer: Schema, reader: Schema) -> Any:
    """Convert a value of a changed writer's schema to the reader's unit; promote it if the reader has no unit."""
    own = _unit({**writer, "logicalType": writer["logicalType"].removeprefix(_WRITTEN)})
    wanted = _unit(reader)
    kind = reader["type"] if isinstance(reader, dict) else reader
    assert own is not None
    if wanted is None or wanted[0] != own[0]:
        return float(value) if kind in ("float", "double") else value.decode() if kind == "string" else value
    if own[0] == "timestamp":
        return value * wanted[1] // own[1]
    number, rest = divmod(int.from_bytes(value, "big", signed=True) * 10 ** wanted[1], 10 ** own[1])
    if rest:
        raise ValueError(f"a decimal has more than {wanted[1]} digits after the point")
    return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)


# ---- defaults of fields ----------------------------------------------------------------------------------------------


def _put_defaults(schema: Schema) -> None:
    """Replace the JSON of each field's default in a parsed schema by the decoded value.

    By the rules of Avro: each character in the JSON of bytes is a byte, that of a record may leave out fields with
    defaults of their own, and that of a union is of the first type that it fits. Raises an `OptionError` if it fits
    none.
    """
    named = schema.get("__named_schemas", {}) if isinstance(schema, dict) else {}
    fields = [field for one in types_in(schema) for field in one.get("fields", ()) if "default" in field]
    # All are decoded before any is replaced: a default may use the JSON of others.
    decoded = [_decoded(field["default"], field["type"], named, field["name"]) for field in fields]
    for field, default in zip(fields, decoded, strict=True):
        field["default"] = default


def _decoded(default: Any, schema: Schema, named: Mapping[str, Schema], where: str) -> Any:
    if isinstance(schema, list):
        for one in schema:
            try:
                return _decoded(default, one, named, where)
            except OptionError:
                continue
        raise _no_default(default, where)
    if isinstance(schema, str) and schema in named:
        return _decoded(default, named[schema], named, where)
    kind = schema["type"] if isinstance(schema, dict) else schema
    match kind, default:
        case ("null", None) | ("boolean", bool()) | ("string", str()):
            return default
        case ("int" | "long", int()) if not isinstance(default, bool):
            return default
        case ("float" | "double", int() | float() | str()) if not isinstance(default, bool):
            return _of_text(float, default, where)
        case ("bytes" | "fixed", str()):
            return _of_text(lambda text: text.encode("latin-1"), default, where)
        case ("enum", str()) if default in schema["symbols"]:
            return default
        case ("array", list()):
            return [_decoded(item, schema["items"], named, where) for item in default]
        case ("map", dict()):
            return {key: _decoded(item, schema["values"], named, where) for key, item in default.items()}
        case ("record", dict()):
            return {
                field["name"]: _decoded(
                    default[field["name"]] if field["name"] in default else _default_of(field, where),
                    field["type"],
                    named,
                    f"{where}.{field['name']}",
                )
                for field in schema["fields"]
            }
    if isinstance(kind, (dict, list)):
        return _decoded(default, kind, named, where)
    raise _no_default(default, where)


def _default_of(field: Mapping[str, Any], where: str) -> Any:
    if "default" not in field:
        raise _no_default({}, f"{where}.{field['name']}")
    return field["default"]


def _of_text(make: Callable[[Any], Any], default: Any, where: str) -> Any:
    try:
        return make(default)
    except ValueError:
        raise _no_default(default, where) from None


def _no_default(default: Any, where: str) -> OptionError:
    return OptionError(
        f"option valueFormat = 'avro': field {where!r} of the reader's schema has the default {default!r}, which is "
        "not of its type; give option valueSchema with a default that is"
    )
