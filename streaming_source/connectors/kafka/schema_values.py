"""Avro and Protobuf values: decoded one by one with schemas that a registry keeps, whatever version wrote them."""

from __future__ import annotations

import base64
import io
import json
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final, TypeAlias
from uuid import UUID

import pyarrow as pa

from streaming_source.connectors.kafka.records import Invalid, ValueFormat
from streaming_source.connectors.kafka.registry import (
    SchemaRegistry,
    SchemaText,
    UnknownSchemaError,
    missing_package,
)
from streaming_source.exceptions import OptionError, SourceError

__all__ = ["AvroValues", "DecodedValues", "ProtobufValues"]

Decode: TypeAlias = Callable[[Any, io.BytesIO], Any]
"""What a value is, by its `SchemaId` and what follows that; raises anything but `SourceError` if it is none."""


@dataclass(frozen=True)
class DecodedValues(ValueFormat):
    """Values that say with which schema they were written; they are read as one, the reader's.

    That is the `given` one, else the latest of the subject. It must be known before reading: it is looked up once, with
    `type`, and goes with this object to the executors. A newer one is heeded by the next run of a query. `type` raises
    an `OptionError` if it has no type of Spark, or cannot be had.
    """

    framing: ClassVar[str]

    registry: SchemaRegistry
    subject: str
    invalid: Invalid = "fail"
    given: str | None = None

    @cached_property
    def schema(self) -> SchemaText:
        return self.registry.latest(self.subject) if self.given is None else SchemaText(self.given)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_decode"}

    @abstractmethod
    def decoder(self) -> Decode:
        """Reads values. Called once a process."""

    @cached_property
    def _decode(self) -> Callable[[bytes], Any]:
        from confluent_kafka.schema_registry import prefix_schema_id_deserializer
        from confluent_kafka.schema_registry.serde import SchemaId

        decode = self.decoder()

        def framed(value: bytes) -> Any:
            schema_id = SchemaId(self.framing)
            return decode(schema_id, prefix_schema_id_deserializer(value, None, schema_id))

        return framed

    def read(self, values: list[bytes | None]) -> pa.Array:
        decode = self._decode
        try:
            return pa.array([None if value is None else decode(value) for value in values], self.type)
        except SourceError:
            raise
        except UnknownSchemaError as error:
            raise pa.ArrowInvalid(f"the registry does not know {error}") from None
        except Exception as error:  # whatever a decoder makes of bytes that are something else
            raise pa.ArrowInvalid(f"{type(error).__name__}: {error}") from None


# ---- Avro ------------------------------------------------------------------------------------------------------------

_UNKNOWN_S: Final = 10.0
"""For how long a schema that the registry does not know is not asked for again."""

_MOST_UNKNOWN: Final = 1000

_AVRO_TYPES: Final = {
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
_AVRO_LOGICAL_TYPES: Final = {
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

    @cached_property
    def type(self) -> pa.DataType:
        kind = _avro_type(_parsed(self.schema), "value", {})
        if not pa.types.is_struct(kind):
            raise OptionError(f"option valueFormat = 'avro': the schema of {self.subject!r} is not that of a record")
        return kind

    def decoder(self) -> Decode:
        from fastavro import schemaless_reader

        reader = _parsed(self.schema)
        writers: dict[object, Any] = {}
        unknown: dict[object, float] = {}
        plain = _of_avro(self.type)

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


def _avro_type(schema: Any, where: str, named: dict[str, Any], inside: tuple[str, ...] = ()) -> pa.DataType:
    """Arrow's type of a parsed schema at a dotted path; a named type is written out where it is first used."""
    if isinstance(schema, list):
        others = [one for one in schema if one != "null"]
        if len(others) != 1:
            raise _refused(where, "it is a union of several types")
        return _avro_type(others[0], where, named, inside)
    if isinstance(schema, str):
        if schema in _AVRO_TYPES:
            return _AVRO_TYPES[schema]
        if schema not in named:
            raise _refused(where, f"its type {schema!r} is not known")
        return _avro_type(named[schema], where, named, inside)
    named.update(schema.get("__named_schemas", {}))
    kind, logical = schema["type"], schema.get("logicalType")
    if logical == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if logical in _AVRO_LOGICAL_TYPES:
        return _AVRO_LOGICAL_TYPES[logical]
    if logical in ("time-millis", "time-micros", "duration"):
        raise _refused(where, f"it is of the logical type {logical}")
    if kind == "array":
        return pa.list_(_avro_type(schema["items"], f"{where}.element", named, inside))
    if kind == "map":
        return pa.map_(pa.string(), _avro_type(schema["values"], f"{where}.value", named, inside))
    if kind != "record":
        return _avro_type(kind, where, named, inside)
    name = schema["name"]
    if name in inside:
        raise _refused(where, f"{name} contains itself")
    named[name] = schema
    fields = ((field["name"], field["type"]) for field in schema["fields"])
    return pa.struct([(one, _avro_type(of, f"{where}.{one}", named, (*inside, name))) for one, of in fields])


def _refused(where: str, why: str) -> OptionError:
    return OptionError(
        f"option valueFormat = 'avro': {where} has no type of Spark: {why}; give option valueSchema, an "
        "Avro schema that leaves it out"
    )


def _of_avro(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """What makes of a decoded value one that Arrow takes; None where it takes all of that type."""
    if pa.types.is_string(kind):
        return lambda value: str(value) if isinstance(value, UUID) else value
    if pa.types.is_map(kind):
        inner = _of_avro(kind.item_type) or (lambda value: value)
        return lambda value: None if value is None else [(key, inner(item)) for key, item in value.items()]
    if pa.types.is_list(kind):
        element = _of_avro(kind.value_type)
        return element and (lambda value: None if value is None else [element(item) for item in value])
    if pa.types.is_struct(kind):
        changed = {field.name: change for field in kind if (change := _of_avro(field.type)) is not None}
        if not changed:
            return None

        def of_struct(value: Any) -> Any:
            if value is None:
                return None
            return {**value, **{name: change(value[name]) for name, change in changed.items()}}

        return of_struct
    return None


# ---- Protobuf --------------------------------------------------------------------------------------------------------

_TIMESTAMP: Final = "google.protobuf.Timestamp"

_PROTOBUF_TYPES: Final = {
    1: pa.float64(),
    2: pa.float32(),
    3: pa.int64(),
    4: pa.decimal128(20),  # as Spark's from_protobuf has it
    5: pa.int32(),
    6: pa.decimal128(20),
    7: pa.int64(),
    8: pa.bool_(),
    9: pa.string(),
    12: pa.binary(),
    13: pa.int64(),
    14: pa.string(),
    15: pa.int32(),
    16: pa.int64(),
    17: pa.int32(),
    18: pa.int64(),
}
"""Arrow's types by the numbers that `FieldDescriptorProto.Type` has."""

_ENUM: Final = 14


@dataclass(frozen=True)
class ProtobufValues(DecodedValues):
    """Values of Protobuf, in the framing of the registry's serializers.

    They are read as the first message of the latest schema: fields that it does not have are left out, those that
    were not written have their defaults, or are null where the schema tells both apart.
    """

    framing = "PROTOBUF"
    what = "Protobuf of the first message of the latest schema"

    @cached_property
    def type(self) -> pa.DataType:
        return _message_type(self._message(), "value", ())

    def decoder(self) -> Decode:
        from google.protobuf.message_factory import GetMessageClass

        message = self._message()
        make, read = GetMessageClass(message), _reader(message)

        def decode(schema_id: Any, payload: io.BytesIO) -> Any:
            if schema_id.message_indexes != [0]:
                raise ValueError(f"it is message {schema_id.message_indexes} of its schema, and not the first")
            return read(make.FromString(payload.read()))

        return decode

    def _message(self) -> Any:
        try:
            # Knows the files that schemas import without a reference.
            import confluent_kafka.schema_registry.protobuf  # noqa: F401
            from google.protobuf import descriptor_pool
            from google.protobuf.descriptor_pb2 import FileDescriptorProto
        except ImportError as error:
            missing_package("valueFormat = 'protobuf'", error)
        pool, common = descriptor_pool.DescriptorPool(), descriptor_pool.Default()
        there: set[str] = set()

        def add(file: Any) -> None:
            for name in file.dependency:
                if name not in there:
                    imported = FileDescriptorProto()
                    common.FindFileByName(name).CopyToProto(imported)
                    add(imported)
            there.add(file.name)
            pool.Add(file)

        try:
            for name, text in (*self.schema.referenced, ("value", self.schema.text)):
                file = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
                file.name = name
                add(file)
            return next(_top_level(pool.FindFileByName("value")))
        except Exception as error:  # of base64, of parsing, of the pool; no message
            raise OptionError(
                f"option valueFormat = 'protobuf': the latest schema of {self.subject!r} cannot be used: "
                f"{type(error).__name__}: {error}; the registry must give it as a descriptor (format=serialized)"
            ) from None


def _top_level(file: Any) -> Iterator[Any]:
    """Messages of a file, in the order in which it defines them."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    definition = FileDescriptorProto()
    file.CopyToProto(definition)
    return (file.message_types_by_name[message.name] for message in definition.message_type)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _message_type(message: Any, where: str, inside: tuple[str, ...]) -> pa.DataType:
    if message.full_name in inside:
        raise OptionError(
            f"option valueFormat = 'protobuf': {where} has no type of Spark: {message.full_name} contains itself; read "
            "binary values, and decode them in the query with from_protobuf"
        )
    inside = (*inside, message.full_name)
    return pa.struct([(field.name, _field_type(field, f"{where}.{field.name}", inside)) for field in message.fields])


def _field_type(field: Any, where: str, inside: tuple[str, ...]) -> pa.DataType:
    if _is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return pa.map_(_field_type(key, where, inside), _field_type(value, where, inside))
    if field.message_type is None:
        one = _PROTOBUF_TYPES[field.type]
    elif field.message_type.full_name == _TIMESTAMP:
        one = pa.timestamp("us", "UTC")
    else:
        one = _message_type(field.message_type, where, inside)
    return pa.list_(one) if _is_repeated(field) else one


def _is_repeated(field: Any) -> bool:
    # The label is gone since version 7.
    return bool(field.is_repeated) if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED


def _reader(message: Any) -> Callable[[Any], dict[str, Any]]:
    fields = [(field.name, field.has_presence, _of_field(field)) for field in message.fields]

    def read(read_from: Any) -> dict[str, Any]:
        return {
            name: None if may_lack and not read_from.HasField(name) else take(getattr(read_from, name))
            for name, may_lack, take in fields
        }

    return read


def _of_field(field: Any) -> Callable[[Any], Any]:
    if _is_map(field):
        take = _of_one(field.message_type.fields_by_name["value"])
        return lambda entries: [(key, take(entries[key])) for key in entries]
    one = _of_one(field)
    return (lambda many: [one(value) for value in many]) if _is_repeated(field) else one


def _of_one(field: Any) -> Callable[[Any], Any]:
    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            return lambda value: value.seconds * 1_000_000 + value.nanos // 1000
        return _reader(field.message_type)
    if field.type == _ENUM:
        names = {value.number: value.name for value in field.enum_type.values}
        return lambda number: names.get(number, str(number))
    return lambda value: value
