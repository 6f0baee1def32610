"""Protobuf values: read as the first message of the latest schema, whatever version wrote them."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from streaming_source.connectors.kafka.registry import Change, Decode, DecodedValues, missing_package
from streaming_source.exceptions import OptionError

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

_MOST_DEPTH: Final = 100
"""Most messages in each other, as Protobuf itself reads."""
_MOST_FIELDS: Final = 10_000


@dataclass(frozen=True)
class ProtobufValues(DecodedValues):
    """Values of Protobuf, in the framing of the registry's serializers.

    They are read as the first message of the latest schema: fields that it lacks are left out. A field that was not
    written has its default, or is null if the schema distinguishes the two.
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
                raise ValueError(f"it is message {schema_id.message_indexes} of its schema, not the first one")
            return read(make.FromString(payload.read()))

        return decode

    def _descriptor(self) -> Any:
        try:
            # Registers the files that schemas import without a reference.
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
            found = next(_top_level(pool.FindFileByName("value")))
            if _fields_in(found) > _MOST_FIELDS:
                raise ValueError(f"it has more than {_MOST_FIELDS} fields, or messages too deep in each other")
            return found
        except Exception as error:  # of base64, of parsing, of the pool; no message
            raise OptionError(
                f"option valueFormat = 'protobuf': the latest schema of {self.subject!r} cannot be used: "
                f"{type(error).__name__}: {error}; the registry must give it as a descriptor (format=serialized)"
            ) from None


def _top_level(file: Any) -> Iterator[Any]:
    """Return the messages of a file in the order of their definitions."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    definition = FileDescriptorProto()
    file.CopyToProto(definition)
    return (file.message_types_by_name[message.name] for message in definition.message_type)


def _fields_in(message: Any, inside: tuple[str, ...] = (), known: dict[str, int] | None = None) -> int:
    """Return how many fields a message has, those of messages within it counted at each place. O(its types)."""
    known = {} if known is None else known
    if message.full_name not in known and message.full_name not in inside and len(inside) < _MOST_DEPTH:
        inside = (*inside, message.full_name)
        within = [field.message_type for field in message.fields if field.message_type is not None]
        known[message.full_name] = len(message.fields) + sum(_fields_in(one, inside, known) for one in within)
    elif len(inside) == _MOST_DEPTH:
        return _MOST_FIELDS + 1
    return known.get(message.full_name, 0)


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
    # `label` was removed in version 7.
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
