"""Arrow columns of every type that can hold a time, as epoch microseconds.

Timestamps of any unit, dates, ISO-8601 text, and numbers (whole, decimal or floating) counted from the epoch in a
stated unit. All conversions go downwards (towards minus infinity) where the column is finer than a
microsecond, so that the order of two times is never turned round. What has no place in int64 microseconds is
invalid, not wrapped.
"""

from __future__ import annotations

import re
from datetime import UTC as PYTHON_UTC
from datetime import date, datetime, timedelta
from functools import cache, lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from alignment import arrow_compute as pc
from alignment.arrow_compute import from_numpy, to_numpy
from alignment.exceptions import InvalidArgumentError
from alignment.time_texts import UTC, in_utc, parse_iso8601
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK, BoolArray, Int64Array

EPOCH_UNITS: Final = ("s", "ms", "us", "ns")

BEGIN: Final = "the beginning"
END: Final = "the end"
"""Of time: a limit before, or after, all event times."""

_INT64_MIN = -(2**63)
_INT64_MAX = 2**63 - 1
_US_PER_UNIT = {"s": 1_000_000, "ms": 1_000, "us": 1}
_US_DIGITS = {"s": 6, "ms": 3, "us": 0, "ns": -3}
_DECIMAL_DIGITS = 76
_US_PER_DAY = 86_400_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=PYTHON_UTC)
_MICROSECOND = timedelta(microseconds=1)

_Micros = tuple[Int64Array, BoolArray]


def _check_time_type(data_type: pa.DataType, unit: str | None, column: str) -> None:
    """Refuse a column that cannot give event times, with an `InvalidArgumentError`.

    That is one of a type that holds no time, whole numbers and decimals without a `unit`, and floats in any unit but
    seconds.
    """
    data_type = _plain(data_type)
    if pa.types.is_integer(data_type) or pa.types.is_decimal(data_type):
        if unit is None:
            numbers = "decimals" if pa.types.is_decimal(data_type) else "whole numbers"
            raise InvalidArgumentError(
                f"column {column!r} is {data_type}: {numbers} need a timestamp unit, or a second looks like a "
                f"microsecond; set one of {', '.join(EPOCH_UNITS)}"
            )
    elif pa.types.is_floating(data_type):
        if unit != "s":
            raise InvalidArgumentError(
                f"column {column!r} is {data_type} with unit {unit!r}: fractions are read as seconds only; "
                "set the unit to 's', or cast the column to int64"
            )
    elif not (
        pa.types.is_timestamp(data_type)
        or pa.types.is_date(data_type)
        or _is_text(data_type)
        or pa.types.is_null(data_type)
    ):
        lacks = "a time of the day without a date, and so" if pa.types.is_time(data_type) else "which holds"
        raise InvalidArgumentError(
            f"column {column!r} is {data_type}, {lacks} no event time; choose a column of timestamps, "
            "dates, ISO-8601 text, or numbers since the epoch"
        )


def is_order_preserving(data_type: pa.DataType, unit: str | None) -> bool:
    """Return whether the smallest and largest value of a column are also its earliest and latest time.

    Not so for text (other zones sort differently), nor, in practice, for floats: their statistics may hide a
    NaN.
    """
    data_type = _plain(data_type)
    return bool(
        pa.types.is_timestamp(data_type)
        or pa.types.is_date(data_type)
        or ((pa.types.is_integer(data_type) or pa.types.is_decimal(data_type)) and unit is not None)
    )


def may_lack_zone(data_type: pa.DataType) -> bool:
    """Return whether values of this type may be times without a zone."""
    is_local = pa.types.is_timestamp(data_type) and data_type.tz is None
    return bool(_is_text(data_type) or pa.types.is_date(data_type) or is_local)


def to_microseconds(array: pa.Array, unit: str | None, zone: str = UTC, column: str | None = None) -> _Micros:
    """Convert an array of length n of a type that holds times; it may be dictionary-encoded.

    `unit` is what one step of a number means, `zone` that of timestamps, dates and texts without one, as
    :func:`time_zone` names it. Of a `column` that is named the type is checked: an `InvalidArgumentError` for others.

    Returns
    -------
    values : int64[n]
        Epoch microseconds; without meaning where not valid.
    valid : bool[n]
        False for null, NaN, unreadable text, and times beyond int64 microseconds.
    """
    data_type = array.type
    if column is not None:
        _check_time_type(data_type, unit, column)
    if pa.types.is_dictionary(data_type):
        return _from_dictionary(array, unit, zone)
    if pa.types.is_null(data_type):
        return np.zeros(len(array), dtype=np.int64), np.zeros(len(array), dtype=np.bool_)
    if _is_text(data_type):
        return parse_iso8601(array, zone)
    valid = to_numpy(array.is_valid()) if array.null_count else np.ones(len(array), np.bool_)
    if pa.types.is_timestamp(data_type):
        micros, valid = integers_to_microseconds(to_numpy(array.view(pa.int64())), valid, data_type.unit)
        return micros if data_type.tz is not None else in_utc(micros, zone), valid
    if pa.types.is_date32(data_type):
        days = to_numpy(array.cast(pa.int32())).astype(np.int64)
        micros, valid = _scale(days, valid, _US_PER_DAY)
        return in_utc(micros, zone), valid
    if pa.types.is_date64(data_type):
        micros, valid = integers_to_microseconds(to_numpy(array.cast(pa.int64())), valid, "ms")
        return in_utc(micros, zone), valid
    if pa.types.is_floating(data_type):
        return _from_seconds(to_numpy(array).astype(np.float64), valid)
    if unit is None:
        raise InvalidArgumentError(f"unit = None: numbers need one of {', '.join(EPOCH_UNITS)}")
    if pa.types.is_decimal(data_type):
        return _from_decimal(array, valid, unit)
    return integers_to_microseconds(to_numpy(array), valid, unit)


def cut_nanoseconds(array: pa.Array) -> pa.Array:
    """Return an array with its timestamps of nanoseconds in microseconds, downwards, also in structs and lists. O(n).

    One without such timestamps is returned as it is.
    """
    kind, types = array.type, pa.types
    if types.is_timestamp(kind) and kind.unit == "ns":
        micros, valid = to_microseconds(array, None)
        return from_numpy(micros, valid).cast(pa.timestamp("us", kind.tz))
    if types.is_struct(kind):
        parts = [cut_nanoseconds(pc.struct_field(array, [index])) for index in range(kind.num_fields)]
        fields = [kind.field(index).with_type(part.type) for index, part in enumerate(parts)]
        is_same = all(part.type == field.type for part, field in zip(parts, kind, strict=True))
        return array if is_same else pa.StructArray.from_arrays(parts, fields=fields, mask=array.is_null())
    if types.is_list(kind) or types.is_large_list(kind):
        values = cut_nanoseconds(array.flatten())
        if values.type == kind.value_type:
            return array
        of_lists, offset = (pa.ListArray, pa.int32) if types.is_list(kind) else (pa.LargeListArray, pa.int64)
        lengths = to_numpy(pc.list_value_length(array))
        ends = from_numpy(np.append(0, np.cumsum(lengths))).cast(offset())
        return of_lists.from_arrays(ends, values, mask=array.is_null())
    return array


def integers_to_microseconds(values: npt.NDArray[np.integer], valid: BoolArray, unit: str) -> _Micros:
    """Scale numbers of any width since the epoch: the one place in which event times are. O(n).

    Gives `int64[n]` microseconds, without meaning where not valid; and `valid`, false as well for times beyond int64.
    """
    # uint64 stays as it is: in nanoseconds all of it fits, once divided.
    wide = values if values.dtype in (np.int64, np.uint64) else values.astype(np.int64)
    if unit == "ns":
        return (wide // 1_000).astype(np.int64), valid
    return _scale(wide, valid, _US_PER_UNIT[unit])


def scalar_to_microseconds(data_type: pa.DataType, value: object, unit: str | None, zone: str = UTC) -> int | None:
    """Convert one bound of a column, as its statistics spell it; None where that cannot be done, or bounds nothing."""
    data_type = _plain(data_type)
    if zone != UTC and (pa.types.is_date(data_type) or (pa.types.is_timestamp(data_type) and data_type.tz is None)):
        local_us = scalar_to_microseconds(data_type, value, unit)
        if local_us is None or not is_in_order(local_us, zone):
            return None
        return int(in_utc(np.array([local_us]), zone)[0])
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=PYTHON_UTC)
        return int((aware - _EPOCH) // _MICROSECOND)
    if isinstance(value, date):
        return (value.toordinal() - _EPOCH.toordinal()) * _US_PER_DAY
    if isinstance(value, int) and pa.types.is_timestamp(data_type) and data_type.unit == "us":
        return value
    try:
        array = pa.array([value], type=data_type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    values, valid = to_microseconds(array, unit)
    return int(values[0]) if valid[0] else None


def _plain(data_type: pa.DataType) -> pa.DataType:
    return data_type.value_type if pa.types.is_dictionary(data_type) else data_type


def _is_text(data_type: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(data_type) or pa.types.is_large_string(data_type) or pa.types.is_string_view(data_type)
    )


def _from_dictionary(array: pa.DictionaryArray, unit: str | None, zone: str) -> _Micros:
    # Each distinct value is converted once, whatever its number of rows: text is dear to read.
    values, valid = to_microseconds(array.dictionary, unit, zone)
    if len(values) == 0:
        return np.zeros(len(array), dtype=np.int64), np.zeros(len(array), dtype=np.bool_)
    indices = to_numpy(array.indices)
    return values[indices], valid[indices] & to_numpy(array.indices.is_valid())


def _scale(values: npt.NDArray[np.integer], valid: BoolArray, us_per_step: int) -> _Micros:
    if us_per_step == 1 and values.dtype == np.int64:
        return values.view(np.int64), valid  # without a copy
    fits = values <= _INT64_MAX // us_per_step
    if values.dtype == np.int64:
        fits &= values >= -(_INT64_MAX // us_per_step)
    return np.where(fits, values, 0).astype(np.int64) * us_per_step, valid & fits


def _from_seconds(seconds: npt.NDArray[np.float64], valid: BoolArray) -> _Micros:
    # Product and floor in double precision, as Spark casts a double to a timestamp.
    with np.errstate(over="ignore", invalid="ignore"):
        micros = np.floor(seconds * 1e6)
        fits = (micros > float(_INT64_MIN)) & (micros < float(_INT64_MAX))
    return np.where(fits, micros, 0.0).astype(np.int64), valid & fits


def _from_decimal(array: pa.Array, valid: BoolArray, unit: str) -> _Micros:
    # Of the widest kind, which has room for the digits before the point wherever it is moved to.
    wide = array.cast(pa.decimal256(_DECIMAL_DIGITS, array.type.scale))
    # The same digits, with the point elsewhere: exact, whatever the precision.
    moved = pa.decimal256(_DECIMAL_DIGITS, array.type.scale - _US_DIGITS[unit])
    micros = pa.Array.from_buffers(moved, len(wide), wide.buffers(), offset=wide.offset)
    rough = to_numpy(micros.cast(pa.float64()))
    fits = (rough > float(_INT64_MIN)) & (rough < float(_INT64_MAX))
    cast = pc.CastOptions(pa.int64(), allow_int_overflow=True, allow_decimal_truncate=True)
    return to_numpy(pc.floor(micros).cast(options=cast)), valid & fits


def format_timestamp(us: int) -> str:
    """ISO-8601 text of microseconds since the epoch, in UTC, with no more digits than it takes.

    Examples
    --------
    >>> format_timestamp(1_767_225_693_999_999), format_timestamp(0)
    ('2026-01-01T00:01:33.999999Z', '1970-01-01T00:00:00Z')
    """
    text = str(np.datetime64(us, "us"))
    return f"{text.rstrip('0').rstrip('.')}Z"


@lru_cache(maxsize=16_384)
def time_text(us: int) -> str:
    """Return a time, or a limit, as text. From one trigger to the next those of most splits stay as they are."""
    return format_timestamp(us) if MIN_WATERMARK < us < MAX_WATERMARK else END if us > 0 else BEGIN


@lru_cache(maxsize=16_384)
def micros_of(text: str) -> int:
    """Return microseconds since the epoch of an ISO-8601 time in UTC, or of a limit, as `time_text` writes it."""
    if text in (BEGIN, END):
        return MIN_WATERMARK if text == BEGIN else MAX_WATERMARK
    # Event times may be in years that Python's own type does not have.
    return int(np.datetime64(text.removesuffix("Z"), "us").astype(np.int64))


_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?", re.IGNORECASE)
_US_IN_HOURS = 3 * 3600 * 1_000_000
"""Longer than any zone's clocks were ever set back or forward at once, but for days that were left out."""


@cache
def time_zone(name: str) -> str:
    """A zone as Arrow calls it, of one as Java does: `Europe/Berlin`, `+02:00`, `GMT+2`, `Z`; an error for others."""
    if name.upper() in ("UTC", "GMT", "UT", "Z", "ETC/UTC"):
        return UTC
    offset = _OFFSET.fullmatch(name)
    known = f"{offset[1]}{int(offset[2]):02d}:{offset[3] or '00'}" if offset else name
    try:
        in_utc(np.zeros(1, np.int64), known)
    except pa.ArrowException:
        raise InvalidArgumentError(
            f"timeZone = {name!r}: there is no such zone; give one such as Europe/Berlin, +02:00 or UTC"
        ) from None
    return known


def is_in_order(local_us: int, zone: str) -> bool:
    """Return whether what a zone's clocks order before or after this is so in UTC: not where they are set forward."""
    if zone == UTC:
        return True
    around = in_utc(np.array([local_us - _US_IN_HOURS, local_us, local_us + _US_IN_HOURS]), zone)
    return bool((np.diff(around) == _US_IN_HOURS).all())


# ---- units of numbers ----------------------------------------------------------------------------------------------


STEPS_A_SECOND: Final = {unit: 1000**power for power, unit in enumerate(EPOCH_UNITS)}
OUR_YEARS_S: Final = range(315_532_800, 4_102_444_800)
"""From 1980 to 2100. Of the units at most one makes a number a time between the two."""


class LikelyUnit(NamedTuple):
    """A unit with which a number is a time of these years, and that time in microseconds since the epoch."""

    unit: str
    us: int

    @property
    def time(self) -> str:
        """ISO-8601 text of the time."""
        return format_timestamp(self.us)


def likely_unit(number: float, unit: str) -> LikelyUnit | None:
    """Return the unit with which a number is a time between 1980 and 2100, where it is none with the given `unit`.

    Examples
    --------
    >>> likely_unit(1_767_225_600_000, "s"), likely_unit(1_767_225_600_000, "ms")
    (LikelyUnit(unit='ms', us=1767225600000000), None)
    >>> likely_unit(3_000, "us") is None
    True
    """
    for known, steps in STEPS_A_SECOND.items():
        if OUR_YEARS_S.start * steps <= number < OUR_YEARS_S.stop * steps:
            return None if known == unit else LikelyUnit(known, int(number * 1_000_000 // steps))
    return None
