"""Arrow columns of every type that can hold a time, as epoch microseconds.

Timestamps of any unit, dates, ISO-8601 text, and numbers counted from the epoch in a
stated unit. All conversions go downwards (towards minus infinity) where the column is finer than a
microsecond, so that the order of two times is never turned round. What has no place in int64 microseconds is
invalid, not wrapped.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from alignment.exceptions import InvalidArgumentError
from alignment.iso8601 import parse_iso8601
from alignment.zones import UTC as _UTC
from alignment.zones import in_utc, is_in_order

__all__ = [
    "EPOCH_UNITS",
    "check_time_type",
    "integers_to_microseconds",
    "is_order_preserving",
    "scalar_to_microseconds",
    "to_microseconds",
]

EPOCH_UNITS: Final = ("s", "ms", "us", "ns")

_INT64_MIN = -(2**63)
_INT64_MAX = 2**63 - 1
_US_PER_UNIT = {"s": 1_000_000, "ms": 1_000, "us": 1}
_US_PER_DAY = 86_400_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_Micros = tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]


def check_time_type(data_type: pa.DataType, unit: str | None, column: str) -> None:
    """Refuse a column that cannot give event times.

    Raises
    ------
    InvalidArgumentError
        For a type that holds no time, for whole numbers without a `unit`, and for fractions in any unit but
        seconds.
    """
    data_type = _plain(data_type)
    if pa.types.is_integer(data_type):
        if unit is None:
            raise InvalidArgumentError(
                f"column {column!r} is {data_type}: whole numbers need a timestamp unit, or a second looks like a "
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
        raise InvalidArgumentError(
            f"column {column!r} is {data_type}, which holds no event time; choose a column of timestamps, "
            "dates, ISO-8601 text, or numbers since the epoch"
        )


def is_order_preserving(data_type: pa.DataType, unit: str | None) -> bool:
    """Whether the smallest and largest value of a column are also its earliest and latest time.

    Not so for text (other zones sort differently), nor, in practice, for floats: their statistics may hide a
    NaN.
    """
    data_type = _plain(data_type)
    return bool(
        pa.types.is_timestamp(data_type)
        or pa.types.is_date(data_type)
        or (pa.types.is_integer(data_type) and unit is not None)
    )


def to_microseconds(array: pa.Array, unit: str | None, zone: str = _UTC) -> _Micros:
    """Convert a column that :func:`check_time_type` let pass.

    Parameters
    ----------
    array : pa.Array
        Length n; may be dictionary-encoded.
    unit : {"s", "ms", "us", "ns"} or None
        What one step of a number means; without effect on types that say it themselves.
    zone : str
        Of timestamps, dates and texts without one, as :func:`alignment.zones.time_zone` names it.

    Returns
    -------
    values : int64[n]
        Epoch microseconds; without meaning where not valid.
    valid : bool[n]
        False for null, NaN, unreadable text, and times beyond int64 microseconds.
    """
    data_type = array.type
    if pa.types.is_dictionary(data_type):
        return _from_dictionary(array, unit, zone)
    if pa.types.is_null(data_type):
        return np.zeros(len(array), dtype=np.int64), np.zeros(len(array), dtype=np.bool_)
    if _is_text(data_type):
        return parse_iso8601(array, zone)
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_timestamp(data_type):
        micros, valid = integers_to_microseconds(_to_numpy(array.cast(pa.int64())), valid, data_type.unit)
        return micros if data_type.tz is not None else in_utc(micros, zone), valid
    if pa.types.is_date32(data_type):
        days = _to_numpy(array.cast(pa.int32())).astype(np.int64)
        micros, valid = _scale(days, valid, _US_PER_DAY)
        return in_utc(micros, zone), valid
    if pa.types.is_date64(data_type):
        micros, valid = integers_to_microseconds(_to_numpy(array.cast(pa.int64())), valid, "ms")
        return in_utc(micros, zone), valid
    if pa.types.is_floating(data_type):
        return _from_seconds(_to_numpy(array).astype(np.float64), valid)
    if unit is None:
        raise InvalidArgumentError(f"unit = None: whole numbers need one of {', '.join(EPOCH_UNITS)}")
    return integers_to_microseconds(_to_numpy(array), valid, unit)


def integers_to_microseconds(
    values: npt.NDArray[np.integer], valid: npt.NDArray[np.bool_], unit: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Scale numbers since the epoch: the one place in which event times are. O(n).

    Parameters
    ----------
    values : integer[n]
        Of any width.
    valid : bool[n]
        Which of them mean anything.
    unit : {"s", "ms", "us", "ns"}
        What one step means.

    Returns
    -------
    values : int64[n]
        Epoch microseconds; without meaning where not valid.
    valid : bool[n]
        False as well for times beyond int64 microseconds.
    """
    # uint64 stays as it is: in nanoseconds all of it fits, once divided.
    wide = values if values.dtype in (np.int64, np.uint64) else values.astype(np.int64)
    if unit == "ns":
        return (wide // 1_000).astype(np.int64), valid
    return _scale(wide, valid, _US_PER_UNIT[unit])


def scalar_to_microseconds(data_type: pa.DataType, value: object, unit: str | None, zone: str = _UTC) -> int | None:
    """Convert one bound of a column, as its statistics spell it; None where that cannot be done, or says nothing."""
    data_type = _plain(data_type)
    if zone != _UTC and (pa.types.is_date(data_type) or (pa.types.is_timestamp(data_type) and data_type.tz is None)):
        local_us = scalar_to_microseconds(data_type, value, unit)
        if local_us is None or not is_in_order(local_us, zone):
            return None
        return int(in_utc(np.array([local_us]), zone)[0])
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return int((aware - _EPOCH) // _MICROSECOND)
    if isinstance(value, date):
        return (value.toordinal() - _EPOCH.toordinal()) * _US_PER_DAY
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
    indices = _to_numpy(array.indices)
    return values[indices], valid[indices] & array.indices.is_valid().to_numpy(zero_copy_only=False)


def _scale(values: npt.NDArray[np.integer], valid: npt.NDArray[np.bool_], us_per_step: int) -> _Micros:
    fits = values <= _INT64_MAX // us_per_step
    if values.dtype == np.int64:
        fits &= values >= -(_INT64_MAX // us_per_step)
    return np.where(fits, values, 0).astype(np.int64) * us_per_step, valid & fits


def _from_seconds(seconds: npt.NDArray[np.float64], valid: npt.NDArray[np.bool_]) -> _Micros:
    # Product and floor in double precision, as Spark casts a double to a timestamp.
    with np.errstate(over="ignore", invalid="ignore"):
        micros = np.floor(seconds * 1e6)
        fits = (micros > float(_INT64_MIN)) & (micros < float(_INT64_MAX))
    return np.where(fits, micros, 0.0).astype(np.int64), valid & fits


def _to_numpy(array: pa.Array) -> npt.NDArray[Any]:
    filled = pc.fill_null(array, 0) if array.null_count else array
    return np.asarray(filled.to_numpy(zero_copy_only=False))
