"""Defaults of Avro fields: from the JSON in a schema to decoded values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from streaming_source.connectors.kafka.avro_types import Schema, types_in
from streaming_source.exceptions import OptionError

__all__ = ["put_defaults"]


def put_defaults(schema: Schema) -> None:
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
