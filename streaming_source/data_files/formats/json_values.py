"""JSON records one by one, as Spark's reader reads them: what the fast parser refuses, and all that it would lose.

Strings may be in single quotes, `NaN` and `Infinity` are numbers, the last one of two fields of a name counts, and
what follows a record's object is ignored.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import pyarrow as pa

from streaming_source.data_files.formats.exact_values import (
    KnownTimes,
    UnfitError,
    decimal_of,
    float_of,
    is_whole,
    spark_type,
)
from streaming_source.data_files.formats.text_times import WrittenTimes, is_time


class Token(NamedTuple):
    """A value other than text and null, and where in the record it stands.

    `value` is True or False, the text of a number, the pairs of an object, or the values of an array.
    """

    kind: str
    value: Any
    record: str
    start: int
    end: int

    @property
    def text(self) -> str:
        """The value as it is written."""
        return self.record[self.start : self.end]


_BLANK: Final = re.compile(r"[ \t\r\n]*")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORD: Final = re.compile(r"[+-]?[A-Za-z]+")
_ESCAPED: Final = r"""\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})"""
_STRINGS: Final = {
    '"': re.compile(rf'"((?:[^"\\\x00-\x1f]|{_ESCAPED})*+)"'),
    "'": re.compile(rf"'((?:[^'\\\x00-\x1f]|{_ESCAPED})*+)'"),
}
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_LETTERS: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_PAIR: Final = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_HALF: Final = re.compile("[\ud800-\udfff]")
_INFINITE: Final = {
    **{"NaN": "nan", "Infinity": "inf", "+Infinity": "inf", "-Infinity": "-inf", "+INF": "inf", "-INF": "-inf"}
}
_LITERALS: Final[Mapping[str, object]] = {"true": True, "false": False}
_BASE64: Final = re.compile(
    r"(?:[\x00-\x20]*[A-Za-z0-9+/]{4})*(?:[\x00-\x20]*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=))?[\x00-\x20]*"
)
_MOST_DIGITS: Final = 20
"""Of a whole number that may have room in a type."""
_DAYS: Final = re.compile(r"[+-]?[0-9]{1,10}")


def parse_value(record: str) -> Any:
    """Return the first value of a record: text, None or a `Token`; a `ValueError` if there is none."""
    try:
        value, _ = _value(record, 0)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    return value


def elements_in(text: str) -> Iterator[str]:
    """Yield the objects of an array that a text is, as they are written, one at a time.

    Raises a `ValueError` if it is no array, or has something else. What follows the array is ignored.
    """
    near, at = _object_near(), _after_blanks(text, 0)
    if text[at : at + 1] != "[":
        raise ValueError("it is no array")
    at = _after_blanks(text, at + 1)
    separator = "," if text[at : at + 1] != "]" else "]"
    while separator == ",":
        if (found := near.match(text, at)) is not None:
            yield found[1]
            at = found.end()
        else:
            value, at = _value(text, at)
            if not isinstance(value, Token) or value.kind != "object":
                raise ValueError("an array has something other than objects")
            yield value.text
        at = _after_blanks(text, at)
        separator, at = text[at : at + 1], at + 1
    if separator != "]":
        raise ValueError("an array has no end")


@cache
def _object_near() -> re.Pattern[str]:
    """Return the pattern of an object as most are: three levels at most. It takes a fifth of the time of `_value`."""
    blank, text = r"[ \t\r\n]*+", _STRINGS['"'].pattern.replace("(", "(?:", 1)
    value = single = f"{text}|{_NUMBER.pattern}|true|false|null"

    def object_of(value: str) -> str:
        return _of_items(f"{text}{blank}:{blank}(?:{value})", "{}", blank)

    for _ in range(3):
        value = f"{single}|{object_of(value)}|{_of_items(f'(?:{value})', '[]', blank)}"
    return re.compile(f"{blank}({object_of(value)})")


def _of_items(item: str, ends: str, blank: str) -> str:
    """Return the pattern of items between two ends, with a comma between each two."""
    begin, end = map(re.escape, ends)
    return f"{begin}{blank}(?:{item}{blank}(?:,{blank}(?!{end})|(?={end})))*+{end}"


def read_records(
    records: Sequence[bytes], schema: pa.Schema, written: WrittenTimes
) -> tuple[list[pa.Array], list[str | None]]:
    """Return the columns of some records, and why a record is malformed, None for one that is not.

    A field that cannot become its column's type is null; a record that is no object is null in all columns.
    """
    rows: list[Token | None] = []
    reasons: list[str | None] = []
    times = KnownTimes(written)
    root = pa.struct(list(schema))
    for record in records:
        row = reason = None
        try:
            value = parse_value(record.decode("utf-8"))
            if isinstance(value, Token) and value.kind == "object":
                row = value
                _expect(row, root, times)
            else:
                reason = "it is no JSON object"
        except ValueError as error:
            reason = str(error)
        rows.append(row)
        reasons.append(reason)
    times.read()
    values: list[dict[str, Any]] = []
    for number, row in enumerate(rows):
        if row is None:
            values.append({})
            continue
        bad: list[str] = []
        values.append(_struct(row, root, times, written, bad))
        reasons[number] = bad[0] if bad else None
    return [pa.array([value.get(field.name) for value in values], field.type) for field in schema], reasons


def decoded_base64(text: str) -> bytes | None:
    """Return the bytes of a text in base64, in which blanks may stand between groups of four; None if it is none."""
    return binascii.a2b_base64(text) if _BASE64.fullmatch(text) else None


# ---- parsing ---------------------------------------------------------------------------------------------------------


def _value(record: str, at: int) -> tuple[Any, int]:
    """Return the value that begins at a place or after blanks, and where it ends."""
    start = _after_blanks(record, at)
    first = record[start : start + 1]
    if first in _STRINGS:
        return _string(record, start)
    if first == "{":
        return _object(record, start)
    if first == "[":
        return _array(record, start)
    if (number := _NUMBER.match(record, start)) is not None:
        token = Token("number", number[0], record, start, number.end())
    elif (word := _WORD.match(record, start)) is None:
        raise ValueError(f"Invalid value at character {start}: {record[start : start + 20]!r}")
    elif word[0] == "null":
        return None, _ended(record, word.end())
    elif word[0] in _LITERALS:
        token = Token("boolean", _LITERALS[word[0]], record, start, word.end())
    elif word[0] in _INFINITE:
        token = Token("number", word[0], record, start, word.end())
    else:
        raise ValueError(f"Invalid value at character {start}: {word[0]!r}")
    return token, _ended(record, token.end)


def _ended(record: str, at: int) -> int:
    if at < len(record) and record[at] not in " \t\r\n,]}":
        raise ValueError(f"Invalid value at character {at}: {record[at : at + 20]!r}")
    return at


def _after_blanks(record: str, at: int) -> int:
    found = _BLANK.match(record, at)
    return at if found is None else found.end()


def _string(record: str, start: int) -> tuple[str, int]:
    found = _STRINGS[record[start]].match(record, start)
    if found is None:
        raise ValueError(f"a text at character {start} does not end, or has a character that it must not have")
    return _unescaped(found[1]), found.end()


def _unescaped(text: str) -> str:
    if "\\" in text:
        text = _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else _LETTERS.get(found[2], found[2]), text)
        # As Java: two halves make one character, and half a one is a question mark.
        text = _PAIR.sub(lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), text)
        text = _HALF.sub("?", text)
    return text


def _object(record: str, start: int) -> tuple[Token, int]:
    pairs: list[tuple[str, Any]] = []
    at = _after_blanks(record, start + 1)
    while record[at : at + 1] != "}":
        if record[at : at + 1] not in _STRINGS:
            raise ValueError(f"a field's name is missing at character {at}")
        name, at = _string(record, at)
        at = _after_blanks(record, at)
        if record[at : at + 1] != ":":
            raise ValueError(f"a colon is missing at character {at}")
        value, at = _value(record, at + 1)
        pairs.append((name, value))
        at = _next(record, at, "}")
    return Token("object", pairs, record, start, at + 1), at + 1


def _array(record: str, start: int) -> tuple[Token, int]:
    values: list[Any] = []
    at = _after_blanks(record, start + 1)
    while record[at : at + 1] != "]":
        value, at = _value(record, at)
        values.append(value)
        at = _next(record, at, "]")
    return Token("array", values, record, start, at + 1), at + 1


def _next(record: str, at: int, end: str) -> int:
    """Return where the next element begins, or where the end is."""
    at = _after_blanks(record, at)
    if record[at : at + 1] == end:
        return at
    if record[at : at + 1] != ",":
        raise ValueError(f"a comma or {end} is missing at character {at}")
    at = _after_blanks(record, at + 1)
    if record[at : at + 1] == end:
        raise ValueError(f"a value is missing at character {at}")
    return at


# ---- values of columns -----------------------------------------------------------------------------------------------


def _expect(value: Any, data_type: pa.DataType, times: KnownTimes) -> None:
    """Add the texts of all times in a value to those that are read."""
    types = pa.types
    if is_time(data_type):
        if isinstance(value, str):
            times.expect(value, data_type)
    elif isinstance(value, Token) and pa.types.is_nested(data_type):
        if value.kind == "object" and types.is_struct(data_type):
            kinds = {field.name: field.type for field in data_type}
            for name, part in value.value:
                if name in kinds:
                    _expect(part, kinds[name], times)
        elif value.kind == "object" and types.is_map(data_type):
            for _, part in value.value:
                _expect(part, data_type.item_type, times)
        elif value.kind == "array" and types.is_list(data_type):
            for part in value.value:
                _expect(part, data_type.value_type, times)


def _converted(value: Any, data_type: pa.DataType, times: KnownTimes, written: WrittenTimes, bad: list[str]) -> Any:
    """Return a value in a type; an `UnfitError` if it is not of it.

    Fields of structs that are not of their types are null, and why is added to `bad`.
    """
    if value is None:
        return None
    if pa.types.is_nested(data_type):
        if isinstance(value, Token) and value.kind == "object" and pa.types.is_struct(data_type):
            return _struct(value, data_type, times, written, bad)
        if isinstance(value, Token) and value.kind == "object" and pa.types.is_map(data_type):
            kind = data_type.item_type
            # A key that is there twice is so in Spark's maps too.
            return [(name, _converted(part, kind, times, written, bad)) for name, part in value.value]
        if isinstance(value, Token) and value.kind == "array" and pa.types.is_list(data_type):
            return [_converted(part, data_type.value_type, times, written, bad) for part in value.value]
        raise _unfit(value, data_type)
    if isinstance(value, str):
        if pa.types.is_string(data_type):
            return value
        return _of_text(value, data_type, times, written)
    if pa.types.is_string(data_type):
        return value.text
    if value.kind == "boolean" and pa.types.is_boolean(data_type):
        return value.value
    if value.kind == "number":
        return _of_number(value, data_type)
    raise _unfit(value, data_type)


def _struct(
    token: Token, data_type: pa.DataType, times: KnownTimes, written: WrittenTimes, bad: list[str]
) -> dict[str, Any]:
    kinds = {field.name: field.type for field in data_type}
    row: dict[str, Any] = {}
    for name, value in token.value:
        if name in kinds:
            try:
                row[name] = _converted(value, kinds[name], times, written, bad)
            except UnfitError as error:
                bad.append(f"{name} = {error}")
    return row


def _of_text(text: str, data_type: pa.DataType, times: KnownTimes, written: WrittenTimes) -> Any:
    if pa.types.is_binary(data_type):
        if (decoded := decoded_base64(text)) is not None:
            return decoded
    elif not text:
        pass
    elif is_time(data_type):
        try:
            return times.value(text, data_type)
        except UnfitError:
            # Days since the epoch, as old versions of Spark have written dates.
            is_days = pa.types.is_date32(data_type) and written.of_dates is None and _DAYS.fullmatch(text)
            if not is_days or not is_whole(pa.int32(), int(text)):
                raise
            return int(text)
    elif pa.types.is_decimal(data_type):
        return decimal_of(text.replace(",", ""), data_type)
    elif pa.types.is_floating(data_type) and text in _INFINITE:
        return float(_INFINITE[text])
    raise _unfit(text, data_type)


def _of_number(token: Token, data_type: pa.DataType) -> Any:
    text = token.value
    is_integer = text.lstrip("-").isdigit() and len(text) <= _MOST_DIGITS
    if pa.types.is_floating(data_type):
        return float_of(_INFINITE.get(text, text), data_type)
    if pa.types.is_decimal(data_type) and text not in _INFINITE:
        return decimal_of(text, data_type)
    if is_integer and pa.types.is_integer(data_type):
        number = int(text)
        if data_type.bit_width == 8 and 128 <= number <= 255:
            # Spark's parser takes a byte without a sign.
            return number - 256
        if is_whole(data_type, number):
            return number
    if is_integer and pa.types.is_timestamp(data_type) and data_type.tz is not None:
        steps = int(text) * _STEPS[data_type.unit]
        if is_whole(pa.int64(), steps):
            return steps
    raise _unfit(token, data_type)


_STEPS: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def _unfit(value: Any, data_type: pa.DataType) -> UnfitError:
    shown = repr(value) if isinstance(value, str) else value.text
    return UnfitError(f"{shown} is no {spark_type(data_type)}")
