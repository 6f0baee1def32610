"""Bounds of Avro values: how deep types are in each other, and how many values a record of few bytes may have.

Schemas come from a registry. `fastavro` decodes by a writer's schema in C, one call within the other, and trusts each
number of items, which may take no bytes at all: a record of some bytes could end the process, or keep it for hours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from streaming_source.connectors.kafka.avro_types import Schema, types_in

Check: TypeAlias = Callable[[bytes], None]
"""Raises a `ValueError` for a record, as bytes, that goes beyond the bounds."""

_MOST_DEPTH: Final = 100
"""Most types in each other. A stack of 8 MiB has room for some 19,000 calls of `fastavro`."""
_MOST_TYPES: Final = 10_000
"""Most types of one record, or of one item, each counted where it is used."""
_MOST_VALUES: Final = 100_000
"""Most values of one record, beside ten for each of its bytes."""

_BYTES: Final = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1}
"""Fewest bytes of the values of primitive types."""
_LONG_BYTES: Final = 10


class _UnboundedError(ValueError):
    """A schema by itself does not bound its values."""


class _RecursiveError(_UnboundedError):
    """A type contains itself."""


class _Size(NamedTuple):
    """Of the values of a schema: how many types are in each other, how many there are in all, and the fewest bytes."""

    depth: int
    types: int
    least: int


def is_bounded(schema: Schema) -> bool:
    """Return whether the types of a parsed schema are neither too deep in each other nor too many to look at each.

    Where a type contains itself, they are until then.
    """
    try:
        _Sizes(schema, checks_items=False).of(schema, 1)
    except _RecursiveError:
        return True
    except _UnboundedError:
        return False
    return True


def bounds_of(schema: Schema) -> Check | None:
    """Return a check of records that a parsed schema has written; None if the schema alone bounds them, as most do.

    A check walks through a record in Python, as far as the bounds allow.
    """
    sizes = _Sizes(schema, checks_items=True)
    try:
        sizes.of(schema, 1)
    except _UnboundedError:
        return lambda record: _Walk(record, sizes.named).value(schema, 1)
    return None


class _Sizes:
    """The sizes of types, each named one computed once."""

    def __init__(self, schema: Schema, *, checks_items: bool) -> None:
        self.named = {one["name"]: one for one in types_in(schema) if isinstance(one.get("name"), str)}
        self._checks_items = checks_items
        self._known: dict[str, _Size | None] = {}

    def of(self, schema: Schema, depth: int) -> _Size:
        """Return the size of a schema that is so deep in others; raises an `_UnboundedError`."""
        if isinstance(schema, str) and schema in _BYTES:
            return _Size(1, 1, _BYTES[schema])
        name = schema if isinstance(schema, str) else schema.get("name") if isinstance(schema, dict) else None
        if name in self._known:
            known = self._known[name]
            if known is None:
                raise _RecursiveError
            if depth + known.depth > _MOST_DEPTH:
                raise _UnboundedError
            return known
        if depth > _MOST_DEPTH:
            raise _UnboundedError
        if name is not None:
            self._known[name] = None
        found = self._computed(self.named[schema] if isinstance(schema, str) else schema, depth)
        if found.types > _MOST_TYPES:
            raise _UnboundedError
        if name is not None:
            self._known[name] = found
        return found

    def _computed(self, schema: Schema, depth: int) -> _Size:
        if isinstance(schema, list):
            branches = [self.of(one, depth + 1) for one in schema]
            types = max((b.types for b in branches), default=0)
            return self._around(branches, types, 1 + min((b.least for b in branches), default=0))
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.of(kind, depth + 1)
        match kind:
            case "record" | "error":
                fields = [self.of(field["type"], depth + 1) for field in schema["fields"]]
                return self._around(fields, sum(f.types for f in fields), sum(f.least for f in fields))
            case "array" | "map":
                item = self.of(schema["items" if kind == "array" else "values"], depth + 1)
                # The key of an entry takes a byte.
                least = item.least + (kind == "map")
                if self._checks_items and (least == 0 or item.types > _MOST_TYPES // 100):
                    raise _UnboundedError
                return self._around([item], 1, 1)
            case "fixed":
                return _Size(1, 1, schema["size"])
            case _:
                return _Size(1, 1, _BYTES.get(kind, 1))

    @staticmethod
    def _around(parts: list[_Size], types: int, least: int) -> _Size:
        return _Size(1 + max((part.depth for part in parts), default=0), 1 + types, least)


class _Walk:
    """One way through the bytes of a record, which stops at the first bound."""

    def __init__(self, record: bytes, named: Mapping[str, Any]) -> None:
        self._record, self._named = record, named
        self._at = self._values = 0
        self._most = _MOST_VALUES + 10 * len(record)

    def value(self, schema: Schema, depth: int) -> None:
        """Pass over a value; raises a `ValueError` if it goes beyond a bound or the end of the record."""
        self._count(1)
        if depth > _MOST_DEPTH:
            raise ValueError(f"its values are more than {_MOST_DEPTH} deep in each other")
        if isinstance(schema, str):
            if schema in _BYTES:
                self._primitive(schema)
            else:
                self.value(self._named[schema], depth)
            return
        if isinstance(schema, list):
            self.value(schema[self._index(len(schema))], depth + 1)
            return
        kind = schema["type"]
        match kind:
            case "record" | "error":
                for field in schema["fields"]:
                    self.value(field["type"], depth + 1)
            case "array" | "map":
                self._items(schema["items" if kind == "array" else "values"], depth, has_keys=kind == "map")
            case "fixed":
                self._skip(schema["size"])
            case "enum":
                self._long()
            case str():
                self._primitive(kind)
            case _:
                self.value(kind, depth + 1)

    def _items(self, schema: Schema, depth: int, *, has_keys: bool) -> None:
        while (count := self._long()) != 0:
            if count < 0:
                # The number of bytes of the items comes after a negative one.
                self._long()
            self._count(abs(count), is_ahead=True)
            for _ in range(abs(count)):
                if has_keys:
                    self._primitive("string")
                self.value(schema, depth + 1)

    def _count(self, values: int, *, is_ahead: bool = False) -> None:
        if self._values + values > self._most:
            raise ValueError(f"its {len(self._record)} bytes have more than {self._most} values")
        self._values += 0 if is_ahead else values

    def _primitive(self, kind: str) -> None:
        if kind in ("bytes", "string"):
            self._skip(self._long())
        elif kind in ("int", "long"):
            self._long()
        else:
            self._skip(_BYTES[kind])

    def _index(self, branches: int) -> int:
        index = self._long()
        if not 0 <= index < branches:
            raise ValueError(f"a union has no branch {index}")
        return index

    def _skip(self, count: int) -> None:
        if count < 0 or self._at + count > len(self._record):
            raise ValueError("its bytes end within a value")
        self._at += count

    def _long(self) -> int:
        number = 0
        for shift in range(_LONG_BYTES):
            self._skip(1)
            byte = self._record[self._at - 1]
            number |= (byte & 0x7F) << (7 * shift)
            if byte < 0x80:
                return number >> 1 ^ -(number & 1)
        raise ValueError("a number has more than ten bytes")
