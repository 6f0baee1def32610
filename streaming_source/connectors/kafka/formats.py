"""How values are read: the options that say it, and which of them each format needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from streaming_source.api import Option, OptionSet
from streaming_source.api.ddl import schema_of_ddl
from streaming_source.api.options import choice, text
from streaming_source.connectors.kafka.subscription import Subscription
from streaming_source.connectors.kafka.values import BinaryValues, JsonValues, TextValues, ValueFormat
from streaming_source.exceptions import OptionError

__all__ = ["VALUE_OPTIONS", "value_format"]

_OF_REGISTERED: Final = ("schemaRegistryUrl", "valueSubject")

VALUE_OPTIONS: Final = OptionSet(
    [
        Option(
            "valueFormat",
            choice("binary", "string", "json", "avro", "protobuf"),
            "What values are read as; `json`, `avro` and `protobuf` become a struct.",
            "binary",
            "binary",
        ),
        Option(
            "valueSchema",
            text,
            "With `valueFormat=json`: the fields, as in `id BIGINT, ts TIMESTAMP`. With `avro`: the reader's "
            "schema, as JSON.",
            None,
            "none; with avro the latest of the subject",
        ),
        Option(
            "schemaRegistryUrl",
            text,
            "With `avro`, `protobuf`: where the schemas are that values were written with.",
        ),
        Option("schemaRegistry.*", text, "Settings of the registry's client, like `basic.auth.user.info`.", {}, "none"),
        Option(
            "valueSubject",
            text,
            "With `avro`, `protobuf`: the subject of which the latest schema is that of the column.",
            None,
            "`<topic>-value`, if one topic is named",
        ),
        Option(
            "invalidValue",
            choice("fail", "null"),
            "What to do with a value that is not of its format.",
            "fail",
            "fail",
        ),
    ]
)


def value_format(values: Mapping[str, Any], subscription: Subscription) -> ValueFormat:
    """The format that parsed options say. Connects to nothing.

    Raises
    ------
    OptionError
        If an option is missing, or is one of another format.
    """
    kind, schema, invalid = values["valueFormat"], values["valueSchema"], values["invalidValue"]
    if kind in ("avro", "protobuf"):
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
    # Imported when they are used: few queries have a registry.
    from streaming_source.connectors.kafka.schemas.avro import AvroValues
    from streaming_source.connectors.kafka.schemas.protobuf import ProtobufValues
    from streaming_source.connectors.kafka.schemas.registry import SchemaRegistry

    if values["schemaRegistryUrl"] is None:
        raise OptionError(
            f"option valueFormat = {kind!r} needs schemaRegistryUrl: where the schemas of values are kept"
        )
    given, subject = values["valueSchema"], values["valueSubject"]
    if kind == "protobuf" and given is not None:
        raise OptionError("option valueFormat = 'protobuf' takes no valueSchema: it is the latest one of valueSubject")
    # Its only topic gives the name of the subject, if no option does.
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
