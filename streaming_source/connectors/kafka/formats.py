"""`valueFormat` and what belongs to it: which options each format needs, and what it becomes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from streaming_source.api.ddl import schema_of_ddl
from streaming_source.connectors.kafka.avro import AvroValues
from streaming_source.connectors.kafka.protobuf import ProtobufValues
from streaming_source.connectors.kafka.schema_registry import SchemaRegistry
from streaming_source.connectors.kafka.subscription import Subscription
from streaming_source.connectors.kafka.values import BinaryValues, JsonValues, TextValues, ValueFormat
from streaming_source.exceptions import OptionError

__all__ = ["value_format"]

_REGISTERED: Final = ("avro", "protobuf")
_OF_REGISTERED: Final = ("schemaRegistryUrl", "valueSubject")


def value_format(values: Mapping[str, Any], subscription: Subscription) -> ValueFormat:
    """The format that the options say. Connects to nothing.

    Parameters
    ----------
    values
        Parsed options.
    subscription
        Its only topic gives the name of the subject, if no option does.

    Raises
    ------
    OptionError
        If an option is missing, or is one of another format.
    """
    kind, schema, invalid = values["valueFormat"], values["valueSchema"], values["invalidValue"]
    if kind in _REGISTERED:
        return _registered(kind, values, subscription)
    for name in _OF_REGISTERED:
        if values[name] is not None:
            raise OptionError(f"option valueFormat = {kind!r} takes no {name}; it belongs to avro and protobuf")
    if values["schemaRegistry.*"]:
        raise OptionError(f"option valueFormat = {kind!r} takes no schemaRegistry.*; they belong to avro and protobuf")
    if (kind == "json") != (schema is not None):
        needs = "needs valueSchema, the fields of the objects" if kind == "json" else "takes no valueSchema"
        raise OptionError(f"option valueFormat = {kind!r} {needs}")
    if schema is not None:
        return JsonValues(schema_of_ddl("valueSchema", schema), invalid)
    return TextValues(invalid) if kind == "string" else BinaryValues()


def _registered(kind: str, values: Mapping[str, Any], subscription: Subscription) -> ValueFormat:
    if values["schemaRegistryUrl"] is None:
        raise OptionError(
            f"option valueFormat = {kind!r} needs schemaRegistryUrl: where the schemas of values are kept"
        )
    given, subject = values["valueSchema"], values["valueSubject"]
    if kind == "protobuf" and given is not None:
        raise OptionError("option valueFormat = 'protobuf' takes no valueSchema: it is the latest one of valueSubject")
    if subject is None and len(subscription.topics) == 1:
        subject = f"{subscription.topics[0]}-value"
    if subject is None and given is None:
        raise OptionError(
            f"option valueFormat = {kind!r} needs valueSubject where not exactly one topic is named: the subject of "
            "which the latest schema is that of the column"
        )
    registry = SchemaRegistry.of(values["schemaRegistryUrl"], values["schemaRegistry.*"])
    if kind == "protobuf":
        return ProtobufValues(registry, subject, values["invalidValue"])
    return AvroValues(registry, subject or "", values["invalidValue"], given)
