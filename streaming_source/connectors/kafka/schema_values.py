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

Change: TypeAlias = Callable[[Any], Any]
"""What makes of a decoded value one that Arrow takes."""


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
        kind, _ = _avro(_parsed(self.schema), "value", {})
        if not pa.types.is_struct(kind):
            raise OptionError(f"option valueFormat = 'avro': the schema of {self.subject!r} is not that of a record")
        return kind

    def decoder(self) -> Decode:
        from fastavro import schemaless_reader

        reader = _parsed(self.schema)
        writers: dict[object, Any] = {}
        unknown: dict[object, float] = {}
        _, change = _avro(reader, "value", {})

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
            return record if change is None else change(record)

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


def _avro(
    schema: Any, where: str, named: dict[str, Any], inside: tuple[str, ...] = ()
) -> tuple[pa.DataType, Change | None]:
    """Arrow's type of a parsed schema at a dotted path, and what values of it need; None if they are taken as they are.

    A named type is written out where it is first used.
    """
    if isinstance(schema, list):
        others = [one for one in schema if one != "null"]
        if len(others) != 1:
            raise _refused(where, "it is a union of several types")
        return _avro(others[0], where, named, inside)
    if isinstance(schema, str):
        if schema in _AVRO_TYPES:
            return _unchanged_unless_text(_AVRO_TYPES[schema])
        if schema not in named:
            raise _refused(where, f"its type {schema!r} is not known")
        return _avro(named[schema], where, named, inside)
    named.update(schema.get("__named_schemas", {}))
    kind, logical = schema["type"], schema.get("logicalType")
    if logical == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0)), None
    if logical in _AVRO_LOGICAL_TYPES:
        return _unchanged_unless_text(_AVRO_LOGICAL_TYPES[logical])
    if logical in ("time-millis", "time-micros", "duration"):
        raise _refused(where, f"it is of the logical type {logical}")
    if kind == "array":
        element, one = _avro(schema["items"], f"{where}.element", named, inside)
        return pa.list_(element), one and (lambda value: None if value is None else [one(item) for item in value])
    if kind == "map":
        item_type, inner = _avro(schema["values"], f"{where}.value", named, inside)
        of_item = inner or (lambda item: item)
        return (
            pa.map_(pa.string(), item_type),
            lambda value: None if value is None else [(key, of_item(item)) for key, item in value.items()],
        )
    if kind != "record":
        return _avro(kind, where, named, inside)
    name = schema["name"]
    if name in inside:
        raise _refused(where, f"{name} contains itself")
    named[name] = schema
    fields = {
        field["name"]: _avro(field["type"], f"{where}.{field['name']}", named, (*inside, name))
        for field in schema["fields"]
    }
    changes = {name: change for name, (_, change) in fields.items() if change is not None}

    def of_record(value: Any) -> Any:
        return None if value is None else {**value, **{name: change(value[name]) for name, change in changes.items()}}

    return pa.struct([(name, kind) for name, (kind, _) in fields.items()]), of_record if changes else None


def _unchanged_unless_text(kind: pa.DataType) -> tuple[pa.DataType, Change | None]:
    # What a writer has declared as such a text comes as a UUID.
    return kind, (lambda value: str(value) if isinstance(value, UUID) else value) if pa.types.is_string(kind) else None


def _refused(where: str, why: str) -> OptionError:
    return OptionError(
        f"option valueFormat = 'avro': {where} has no type of Spark: {why}; give option valueSchema, an "
        "Avro schema that leaves it out"
    )


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
        return _message(self._descriptor(), "value", ())[0]

    def decoder(self) -> Decode:
        from google.protobuf.message_factory import GetMessageClass

        message = self._descriptor()
        make, (_, read) = GetMessageClass(message), _message(message, "value", ())

        def decode(schema_id: Any, payload: io.BytesIO) -> Any:
            if schema_id.message_indexes != [0]:
                raise ValueError(f"it is message {schema_id.message_indexes} of its schema, and not the first")
            return read(make.FromString(payload.read()))

        return decode

    def _descriptor(self) -> Any:
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


def _message(message: Any, where: str, inside: tuple[str, ...]) -> tuple[pa.DataType, Change]:
    if message.full_name in inside:
        raise OptionError(
            f"option valueFormat = 'protobuf': {where} has no type of Spark: {message.full_name} contains itself; read "
            "binary values, and decode them in the query with from_protobuf"
        )
    inside = (*inside, message.full_name)
    fields = [(f.name, f.has_presence, *_field(f, f"{where}.{f.name}", inside)) for f in message.fields]

    def read(value: Any) -> dict[str, Any]:
        return {
            name: None if may_lack and not value.HasField(name) else take(getattr(value, name))
            for name, may_lack, _, take in fields
        }

    return pa.struct([(name, kind) for name, _, kind, _ in fields]), read


def _field(field: Any, where: str, inside: tuple[str, ...]) -> tuple[pa.DataType, Change]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (_single(field.message_type.fields_by_name[name], where, inside) for name in ("key", "value"))
        take = value[1]
        return pa.map_(key[0], value[0]), lambda entries: [(key, take(entries[key])) for key in entries]
    kind, one = _single(field, where, inside)
    # The label is gone since version 7.
    is_repeated = field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED
    return (pa.list_(kind), lambda many: [one(value) for value in many]) if is_repeated else (kind, one)


def _single(field: Any, where: str, inside: tuple[str, ...]) -> tuple[pa.DataType, Change]:
    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            return pa.timestamp("us", "UTC"), lambda value: value.seconds * 1_000_000 + value.nanos // 1000
        return _message(field.message_type, where, inside)
    if field.type == _ENUM:
        names = {value.number: value.name for value in field.enum_type.values}
        return pa.string(), lambda number: names.get(number, str(number))
    return _PROTOBUF_TYPES[field.type], lambda value: value
