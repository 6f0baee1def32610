"""Times that stand in text: read as text first. A zone may be there or not, and one bad text must spoil no other."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from alignment.iso8601 import parse_iso8601
from streaming_source.connectors.files.formats.patterns import TimePattern

__all__ = ["are_times", "inferred", "may_be_time", "raw_field", "typed"]

_US_PER_DAY = 86_400_000_000
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def raw_field(field: pa.Field) -> pa.Field:
    """The column as a reader of text is asked for it: what holds a time as text."""
    return pa.field(field.name, pa.string()) if _is_time(field.type) else field


def typed(
    column: pa.Array, data_type: pa.DataType, pattern: TimePattern | None = None
) -> tuple[pa.Array, npt.NDArray[np.bool_] | None]:
    """A column of `raw_field` in its own type, null where it cannot be read; and where that is, None for nowhere.

    Timestamps are written as the pattern says, without one in ISO-8601, as dates always are. Without a zone they are
    UTC.
    """
    if not _is_time(data_type):
        return column, None
    if pattern is not None and pa.types.is_timestamp(data_type):
        micros, valid = pattern.parse(column)
    else:
        micros, valid = parse_iso8601(column)
    if pa.types.is_date(data_type):
        days = pa.array((micros // _US_PER_DAY).astype(np.int32), pa.int32(), mask=~valid)
        converted = days.cast(pa.date32()).cast(data_type)
    else:
        converted = _timestamps(micros, valid, data_type)
    unreadable = column.is_valid().to_numpy(zero_copy_only=False) & ~converted.is_valid().to_numpy(zero_copy_only=False)
    return converted, unreadable if unreadable.any() else None


def may_be_time(data_type: pa.DataType) -> bool:
    """Whether a column that pyarrow inferred to be of this type may hold times that are written in another way."""
    return bool(pa.types.is_string(data_type) or pa.types.is_timestamp(data_type) or pa.types.is_time(data_type))


def are_times(texts: pa.Array, pattern: TimePattern) -> bool:
    """Whether there are texts, and all of them are times."""
    _, valid = pattern.parse(texts)
    count = int(valid.sum())
    return count > 0 and count == len(texts) - int(texts.null_count)


def inferred(data_type: pa.DataType) -> pa.DataType:
    """The type to read in place of one that pyarrow inferred: Spark's timestamp for times, text for what is unclear."""
    if pa.types.is_timestamp(data_type):
        return pa.timestamp("us", "UTC")
    if pa.types.is_null(data_type) or pa.types.is_time(data_type) or pa.types.is_binary(data_type):
        return pa.string()
    if pa.types.is_list(data_type):
        return pa.list_(inferred(data_type.value_type))
    if pa.types.is_struct(data_type):
        return pa.struct([pa.field(part.name, inferred(part.type)) for part in data_type])
    return data_type


def _is_time(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(data_type) or pa.types.is_date(data_type))


def _timestamps(micros: npt.NDArray[np.int64], valid: npt.NDArray[np.bool_], data_type: pa.DataType) -> pa.Array:
    per_second = _PER_SECOND[data_type.unit]
    if per_second > 1_000_000:
        factor = per_second // 1_000_000
        valid = valid & (np.abs(micros) <= np.iinfo(np.int64).max // factor)
        steps = np.where(valid, micros, 0) * factor
    else:
        steps = micros // (1_000_000 // per_second)
    return pa.array(steps, pa.int64(), mask=~valid).cast(data_type)
