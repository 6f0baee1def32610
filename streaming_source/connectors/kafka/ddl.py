"""Schemas as Spark writes them: `id BIGINT, ts TIMESTAMP, tags ARRAY<STRING>`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeVar

import pyarrow as pa

from streaming_source.exceptions import OptionError

__all__ = ["parse_schema"]

T = TypeVar("T")

_TYPES: Final = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}

_TOKEN: Final = re.compile(r"\s*(?:(`(?:[^`]|``)+`|\w+)|([<>:,()]))")


def parse_schema(option: str, text: str) -> pa.Schema:
    """The fields that a text names.

    Raises
    ------
    OptionError
        If it is no such text; says where it went wrong.

    Examples
    --------
    >>> parse_schema("valueSchema", "id BIGINT, at STRUCT<x: DOUBLE, y: DOUBLE>").names
    ['id', 'at']
    """
    reader = _Reader(option, text)
    fields = [reader.field()]
    while reader.takes(","):
        fields.append(reader.field())
    reader.expect_end()
    return pa.schema(fields)


class _Reader:
    """Reads a text from left to right."""

    def __init__(self, option: str, text: str) -> None:
        self._option = option
        self._text = text.rstrip()
        self._at = 0

    def field(self, separator: str | None = None) -> pa.Field:
        name = self._word("the name of a field")
        if separator is not None:
            self.takes(separator)
        return pa.field(name.strip("`").replace("``", "`"), self._type())

    def takes(self, sign: str) -> bool:
        """Whether the sign is next; then it is behind."""
        token = _TOKEN.match(self._text, self._at)
        if token is None or token[2] != sign:
            return False
        self._at = token.end()
        return True

    def expect_end(self) -> None:
        if self._at != len(self._text):
            raise self._error("a comma or the end")

    def _type(self) -> pa.DataType:
        begin = self._at
        name = self._word("a type").lower()
        if name == "array":
            return pa.list_(self._in_brackets(self._type))
        if name == "struct":
            return pa.struct(self._in_brackets(self._fields))
        if name in ("decimal", "dec", "numeric"):
            return self._decimal()
        if name not in _TYPES:
            self._at = begin
            raise self._error(f"a type: {', '.join([*_TYPES, 'decimal', 'array', 'struct'])}")
        return _TYPES[name]

    def _fields(self) -> list[pa.Field]:
        fields = [self.field(":")]
        while self.takes(","):
            fields.append(self.field(":"))
        return fields

    def _in_brackets(self, inside: Callable[[], T]) -> T:
        self._expect("<")
        found = inside()
        self._expect(">")
        return found

    def _decimal(self) -> pa.DataType:
        if not self.takes("("):
            return pa.decimal128(10, 0)
        precision, scale = self._number(), 0
        if self.takes(","):
            scale = self._number()
        self._expect(")")
        if not 1 <= precision <= 38 or scale > precision:
            raise self._error("a precision up to 38, and a scale up to the precision, before this")
        return pa.decimal128(precision, scale)

    def _number(self) -> int:
        word = self._word("a number")
        if not word.isdigit():
            raise self._error("a number before this")
        return int(word)

    def _word(self, what: str) -> str:
        token = _TOKEN.match(self._text, self._at)
        if token is None or token[1] is None:
            raise self._error(what)
        self._at = token.end()
        return token[1]

    def _expect(self, sign: str) -> None:
        if not self.takes(sign):
            raise self._error(repr(sign))

    def _error(self, expected: str) -> OptionError:
        rest = self._text[self._at :].strip() or "the end"
        return OptionError(
            f"option {self._option} = {self._text!r}: at {rest!r} there must be {expected}; write it like "
            "'id BIGINT, ts TIMESTAMP'"
        )
