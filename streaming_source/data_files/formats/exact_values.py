"""Values that are read one by one, as Spark's readers read them: of the records that the fast parsers cannot read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from streaming_source.data_files.formats.text_times import WrittenTimes

_WHOLE: Final = re.compile(r"[+-]?\d+")
_DECIMAL: Final = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE]([+-]?\d+))?")
_FAR: Final = 400
"""No decimal of Spark's has a value of so many digits."""
_EXACT: Final = Context(prec=2 * _FAR)


class UnfitError(Exception):
    """A value cannot become the type of its column; the message is why."""


class KnownTimes:
    """The times of some records, whose texts are read all at once."""

    def __init__(self, written: WrittenTimes) -> None:
        self._written = written
        self._texts: dict[pa.DataType, dict[str, int | None]] = {}

    def expect(self, text: str, data_type: pa.DataType) -> None:
        """Add a text to those that are read."""
        self._texts.setdefault(data_type, {})[text] = None

    def read(self) -> None:
        """Read all texts that were added."""
        self._texts = {kind: self._written.read_each([*texts], kind) for kind, texts in self._texts.items()}

    def value(self, text: str, data_type: pa.DataType) -> int:
        """Return a time in the steps of a type since the epoch; an `UnfitError` if it cannot be read."""
        found = self._texts[data_type][text]
        if found is None:
            is_date = pa.types.is_date(data_type)
            pattern = self._written.of_dates if is_date else self._written.of_times
            option = "dateFormat" if is_date else "timestampFormat"
            form = "ISO-8601" if pattern is None else f"of the form {option} = {pattern.text}"
            raise UnfitError(
                f"{text!r} is not {form}, or out of range; set option {option} to the pattern of such "
                f"{'dates' if is_date else 'times'}"
            )
        return found


def is_whole(data_type: pa.DataType, number: int) -> bool:
    """Return whether a whole number has room in a type of integers."""
    bits = data_type.bit_width - 1
    return bool(-(2**bits) <= number < 2**bits)


def whole_of(text: str, data_type: pa.DataType) -> int:
    """Return a text as Java's `parseInt` reads it."""
    if _WHOLE.fullmatch(text) is None or len(text) > _FAR or not is_whole(data_type, number := int(text)):
        raise UnfitError(f"{text!r} is no {spark_type(data_type)}")
    return number


def float_of(number: float | str, data_type: pa.DataType) -> float:
    """Return a number in the precision of its type."""
    if not pa.types.is_float32(data_type):
        return float(number)
    with np.errstate(over="ignore"):
        return float(np.float32(number))


def decimal_of(text: str, data_type: pa.DataType) -> Decimal:
    """Return a decimal rounded half up to the scale of its type."""
    found = _DECIMAL.fullmatch(text)
    if found is None or not text.isascii():
        raise UnfitError(f"{text!r} is no {spark_type(data_type)}")
    if abs(int(found[1] or 0)) > _FAR or len(text) > _FAR:
        # Of such numbers only zero, and what rounds to it, has room.
        if not Decimal(text).is_zero() and Decimal(text).adjusted() > -_FAR // 2:
            raise UnfitError(f"{text!r} is beyond {spark_type(data_type)}")
        return Decimal(0)
    rounded = Decimal(text).quantize(Decimal(1).scaleb(-data_type.scale), ROUND_HALF_UP, _EXACT)
    if rounded.adjusted() >= data_type.precision - data_type.scale and not rounded.is_zero():
        raise UnfitError(f"{text!r} is beyond {spark_type(data_type)}")
    return rounded


def spark_type(data_type: pa.DataType) -> str:
    """Return the name of a type in Spark's words."""
    names: Mapping[str, str] = {
        **{"int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint", "bool": "boolean"},
        **{"date32[day]": "date"},
    }
    types: Any = pa.types
    if types.is_timestamp(data_type):
        return "timestamp" if data_type.tz else "timestamp_ntz"
    if types.is_decimal(data_type):
        return f"decimal({data_type.precision},{data_type.scale})"
    for is_kind, name in ((types.is_struct, "struct"), (types.is_list, "array"), (types.is_map, "map")):
        if is_kind(data_type):
            return name
    return names.get(str(data_type), str(data_type))
