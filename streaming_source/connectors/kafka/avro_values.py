"""Avro values: what any version of a schema wrote is read as the reader's schema."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from streaming_source.connectors.kafka.avro_defaults import put_defaults
from streaming_source.connectors.kafka.avro_types import AvroType, Schema, logical_type, types_in
from streaming_source.connectors.kafka.registry import SchemaText, UnknownSchemaError, missing_package
from streaming_source.connectors.kafka.schema_values import Decode, DecodedValues
from streaming_source.exceptions import OptionError

__all__ = ["AvroValues"]

_UNKNOWN_S: Final = 10.0
"""For how long a schema that the registry does not know is not looked up again."""

_MOST_UNKNOWN: Final = 1000


@dataclass(frozen=True)
class AvroValues(DecodedValues):
    """Values of Avro, in the framing of the registry's serializers.

    Fields are resolved as in Avro: a field that the writer lacks gets the reader's default, a field that the reader
    lacks is left out, numbers are promoted. Logical types are the reader's; timestamps and decimals of another unit or
    scale are converted.
    """

    framing = "AVRO"
    what = "Avro of the reader's schema"

    @property
    def type(self) -> pa.DataType:
        return self._avro_type.column

    @cached_property
    def _avro_type(self) -> AvroType:
        found = AvroType.of(_parsed(self.schema), "value")
        if not pa.types.is_struct(found.column):
            raise OptionError(f"option valueFormat = 'avro': the schema of {self.subject!r} is not that of a record")
        put_defaults(_parsed(self.schema))
        return found

    def to_arrow(self, decoded: list[Any]) -> pa.Array:
        return self._avro_type.array(decoded)

    def decoder(self) -> Decode:
        from fastavro import schemaless_reader

        same, reader = _parsed(self.schema), _parsed(self.schema)
        put_defaults(reader)
        units = {unit for one in types_in(reader) if (unit := _unit(one)) is not None}
        writers: dict[object, tuple[Schema, Schema]] = {}
        unknown: dict[object, float] = {}

        def decode(schema_id: Any, payload: io.BytesIO) -> Any:
            key = schema_id.guid or schema_id.id
            schemas = writers.get(key)
            if schemas is None:
                if key in unknown and time.monotonic() < unknown[key]:
                    raise UnknownSchemaError(f"schema {key}")
                try:
                    writer = _parsed(self.registry.by_id(schema_id))
                except UnknownSchemaError:
                    if len(unknown) >= _MOST_UNKNOWN:
                        unknown.clear()
                    unknown[key] = time.monotonic() + _UNKNOWN_S
                    raise
                # Equal schemas need no resolution.
                target = None if writer == same else reader
                _decode_as_stored(writer, units if target else ())
                schemas = writers[key] = writer, target
            record = schemaless_reader(payload, *schemas)
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
            parse_schema(json.loads(text), named_schemas=named)
        return parse_schema(json.loads(schema.text), named_schemas=named)
    except Exception as error:  # of JSON, and whatever fastavro raises of a schema that it does not check
        raise OptionError(f"option valueFormat = 'avro': {schema.text[:200]} is no schema of Avro: {error}") from None


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
