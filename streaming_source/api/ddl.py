"""Columns as Spark's users write them, `t timestamp, n bigint`, in Arrow's types."""

from __future__ import annotations

import difflib
import re
from typing import Final

import pyarrow as pa

from streaming_source.exceptions import OptionError

_TYPES: Final = {
    "string": pa.string(),
    "binary": pa.binary(),
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
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ltz": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DECIMALS: Final = ("decimal", "dec", "numeric")
_TOKEN: Final = re.compile(
    r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<word>\w+)|(?P<mark>[<>(),:])"
    r"|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(?P<end>\Z))"
)


def schema_of_ddl(option: str, text: str) -> pa.Schema:
    """Return the columns of a DDL string, in Arrow's types; an `OptionError` names the first part that is not one.

    Examples
    --------
    >>> schema_of_ddl("dataSchema", "t timestamp, place struct<lat: double, lon: double>").names
    ['t', 'place']
    """
    reader = _DdlReader(option, text)
    fields = reader.fields(end="")
    names = [field.name for field in fields]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        columns = ", ".join(twice)
        raise OptionError(f"option {option} = {text!r} has more than one column of the name {columns}; name each once")
    return pa.schema(fields)


class _DdlReader:
    """Reads from left to right; `_next` is the token that was not taken yet."""

    def __init__(self, option: str, text: str) -> None:
        self._option = option
        self._text = text
        self._at = self._begin = 0
        self._advance()

    def fields(self, end: str) -> list[pa.Field]:
        """Columns, separated by commas, and what ends them."""
        found = [self._field()]
        while self._next == ",":
            self._advance()
            found.append(self._field())
        self._take(end)
        return found

    def _field(self) -> pa.Field:
        name = self._next
        if not self._is_name:
            raise self._error("the name of a column")
        self._advance()
        if self._next == ":":
            self._advance()
        field = pa.field(name, self._type(name))
        # As `StructType.toDDL` writes them. Columns of files may be null in any case, and need no comment.
        if self._takes_word("not") and not self._takes_word("null"):
            raise self._error("NULL")
        if self._takes_word("comment"):
            if not self._next.startswith(("'", '"')):
                raise self._error("the text of a comment")
            self._advance()
        return field

    def _type(self, column: str) -> pa.DataType:
        name, begin = self._next.lower(), self._begin
        self._advance()
        if name in _DECIMALS:
            return self._decimal()
        if name in ("struct", "array"):
            self._take("<")
            if name == "struct":
                return pa.struct(self.fields(end=">"))
            inner = self._type(column)
            self._take(">")
            return pa.list_(inner)
        if name == "map":
            self._take("<")
            key = self._type(column)
            self._take(",")
            item = self._type(column)
            self._take(">")
            return pa.map_(key, item)
        if name in _TYPES:
            return _TYPES[name]
        near = difflib.get_close_matches(name, [*_TYPES, *_DECIMALS, "struct", "array", "map"], n=1)
        self._begin = begin
        raise self._error(f"a type for column {column!r}{f' (did you mean {near[0]}?)' if near else ''}")

    def _decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self._next == "(":
            self._advance()
            precision = self._number()
            if self._next == ",":
                self._advance()
                scale = self._number()
            self._take(")")
        if not 1 <= precision <= 38 or scale > precision:
            raise self._error("a decimal of at most 38 digits, not more of them after the point,")
        return pa.decimal128(precision, scale)

    def _number(self) -> int:
        if not self._next.isdecimal():
            raise self._error("a whole number")
        number = int(self._next)
        self._advance()
        return number

    def _takes_word(self, word: str) -> bool:
        """Go on after the word if it is the next one; return whether it was."""
        found = self._is_name and self._next.lower() == word
        if found:
            self._advance()
        return found

    def _take(self, token: str) -> None:
        if self._next != token or (not token and self._at < len(self._text)):
            raise self._error(repr(token) if token else "a comma or the end")
        self._advance()

    def _advance(self) -> None:
        self._begin = self._at
        token = _TOKEN.match(self._text, self._at)
        if token is None:
            raise self._error("a name or a type")
        self._at = token.end()
        self._is_name = token["quoted"] is not None or token["word"] is not None
        quoted = token["quoted"]
        self._next: str = (
            quoted.replace("``", "`") if quoted else (token["word"] or token["mark"] or token["text"] or "")
        )

    def _error(self, expected: str) -> OptionError:
        found = self._text[self._begin :].strip() or "its end"
        return OptionError(
            f"option {self._option} = {self._text!r}: {expected} is expected instead of {found!r}; write columns as "
            "in t timestamp, n bigint, place struct<lat: double, lon: double>"
        )
