"""Protobuf values: messages as columns, whatever version of the schema they were written with."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from streaming_source.connectors.kafka.registry import Decode, DecodedValues, missing_package
from streaming_source.exceptions import OptionError

__all__ = ["ProtobufValues"]

_TIMESTAMP: Final = "google.protobuf.Timestamp"

_KINDS: Final = {
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

    def arrow_type(self) -> pa.DataType:
        return _struct(self._message(), "value", ())

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


def _struct(message: Any, where: str, inside: tuple[str, ...]) -> pa.DataType:
    if message.full_name in inside:
        raise OptionError(
            f"option valueFormat = 'protobuf': {where} has no type of Spark: {message.full_name} contains itself; read "
            "binary values, and decode them in the query with from_protobuf"
        )
    inside = (*inside, message.full_name)
    return pa.struct([(field.name, _type(field, f"{where}.{field.name}", inside)) for field in message.fields])


def _type(field: Any, where: str, inside: tuple[str, ...]) -> pa.DataType:
    if _is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return pa.map_(_type(key, where, inside), _type(value, where, inside))
    if field.message_type is None:
        one = _KINDS[field.type]
    elif field.message_type.full_name == _TIMESTAMP:
        one = pa.timestamp("us", "UTC")
    else:
        one = _struct(field.message_type, where, inside)
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
