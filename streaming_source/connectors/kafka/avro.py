"""Avro values: schemas as columns, and records of any version read as the reader's."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from streaming_source.connectors.kafka.registry import (
    Decode,
    DecodedValues,
    SchemaText,
    UnknownSchemaError,
    missing_package,
)
from streaming_source.exceptions import OptionError

__all__ = ["AvroValues"]

_UNKNOWN_S: Final = 10.0
"""For how long a schema that the registry does not know is not asked for again."""

_MOST_UNKNOWN: Final = 1000

_PLAIN: Final = {
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
_LOGICAL: Final = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "uuid": pa.string(),
}


@dataclass(frozen=True)
class AvroValues(DecodedValues):
    """Values of Avro, in the framing of the registry's serializers.

    Fields are resolved as Avro does: one that the writer did not have gets the reader's default, one that the reader
    does not have is left out, numbers are promoted.
    """

    framing = "AVRO"
    what = "Avro of the reader's schema"

    def arrow_type(self) -> pa.DataType:
        kind = _type(_parsed(self.schema), "value", {})
        if not pa.types.is_struct(kind):
            raise OptionError(f"option valueFormat = 'avro': the schema of {self.subject!r} is not that of a record")
        return kind

    def decoder(self) -> Decode:
        from fastavro import schemaless_reader

        reader = _parsed(self.schema)
        writers: dict[object, Any] = {}
        unknown: dict[object, float] = {}
        plain = _plain(self.type)

        def decode(schema_id: Any, payload: io.BytesIO) -> Any:
            key = schema_id.guid or schema_id.id
            writer = writers.get(key)
            if writer is None:
                if key in unknown and time.monotonic() < unknown[key]:
                    raise UnknownSchemaError(f"schema {key}")
                try:
                    writer = writers[key] = _parsed(self.registry.by_id(schema_id))
                except UnknownSchemaError:
                    if len(unknown) >= _MOST_UNKNOWN:
                        unknown.clear()
                    unknown[key] = time.monotonic() + _UNKNOWN_S
                    raise
            record = schemaless_reader(payload, writer, reader)
            if payload.read(1):
                raise ValueError("there is something behind the record")
            return record if plain is None else plain(record)

        return decode


def _parsed(schema: SchemaText) -> Any:
    try:
        from fastavro import parse_schema
    except ImportError as error:
        missing_package("valueFormat = 'avro'", error)
    named: dict[str, Any] = {}
    try:
        for _, text in schema.referenced:
            parse_schema(json.loads(text), named_schemas=named)
        return parse_schema(json.loads(schema.text), named_schemas=named)
    except Exception as error:  # of JSON, of fastavro: what it looks up without a check
        raise OptionError(f"option valueFormat = 'avro': {schema.text[:200]} is no schema of Avro: {error}") from None


def _type(schema: Any, where: str, named: dict[str, Any], inside: tuple[str, ...] = ()) -> pa.DataType:
    """Arrow's type of a parsed schema at a dotted path; a named type is written out where it is first used."""
    if isinstance(schema, list):
        others = [one for one in schema if one != "null"]
        if len(others) != 1:
            raise _refused(where, "it is a union of several types")
        return _type(others[0], where, named, inside)
    if isinstance(schema, str):
        if schema in _PLAIN:
            return _PLAIN[schema]
        if schema not in named:
            raise _refused(where, f"its type {schema!r} is not known")
        return _type(named[schema], where, named, inside)
    named.update(schema.get("__named_schemas", {}))
    kind, logical = schema["type"], schema.get("logicalType")
    if logical == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    if logical in ("time-millis", "time-micros", "duration"):
        raise _refused(where, f"it is of the logical type {logical}")
    if kind == "array":
        return pa.list_(_type(schema["items"], f"{where}.element", named, inside))
    if kind == "map":
        return pa.map_(pa.string(), _type(schema["values"], f"{where}.value", named, inside))
    if kind != "record":
        return _type(kind, where, named, inside)
    name = schema["name"]
    if name in inside:
        raise _refused(where, f"{name} contains itself")
    named[name] = schema
    fields = ((field["name"], field["type"]) for field in schema["fields"])
    return pa.struct([(one, _type(of, f"{where}.{one}", named, (*inside, name))) for one, of in fields])


def _refused(where: str, why: str) -> OptionError:
    return OptionError(
        f"option valueFormat = 'avro': {where} has no type of Spark: {why}; give option valueSchema, an "
        "Avro schema that leaves it out"
    )


def _plain(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """What makes of a decoded value one that Arrow takes; None where it takes all of that type."""
    if pa.types.is_string(kind):
        return lambda value: str(value) if isinstance(value, UUID) else value
    if pa.types.is_map(kind):
        inner = _plain(kind.item_type) or (lambda value: value)
        return lambda value: None if value is None else [(key, inner(item)) for key, item in value.items()]
    if pa.types.is_list(kind):
        element = _plain(kind.value_type)
        return element and (lambda value: None if value is None else [element(item) for item in value])
    if pa.types.is_struct(kind):
        changed = {field.name: change for field in kind if (change := _plain(field.type)) is not None}
        if not changed:
            return None

        def of_struct(value: Any) -> Any:
            if value is None:
                return None
            return {**value, **{name: change(value[name]) for name, change in changed.items()}}

        return of_struct
    return None
