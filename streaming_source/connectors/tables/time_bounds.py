"""Bounds of event times out of a table's statistics of the event-time column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from alignment.arrow_times import is_order_preserving
from alignment.column_paths import fields_on_path
from alignment.time_texts import UTC
from alignment.timestamps import NO_TIMESTAMP, FieldTimestampAssigner, TimestampAssigner
from alignment.watermarks import MAX_WATERMARK, BoolArray, Int64Array

NO_TIMES: Final = (MAX_WATERMARK, NO_TIMESTAMP)
"""The bounds of a file in which no record has a valid event time."""


def whole_milliseconds(low_us: Int64Array) -> Int64Array:
    """Return lower bounds as the last milliseconds that are not after them; those that are no times as they are.

    Files are opened in the order of these, also after a restart: it must be the same by statistics, which may be cut to
    milliseconds, and by the footers of the files, once a checkpoint of the table's log has left the statistics out.
    """
    is_no_time = (low_us == MAX_WATERMARK) | (low_us < NO_TIMESTAMP + 1000)
    return np.where(is_no_time, low_us, low_us - low_us % 1000)


def end_of_milliseconds(high_us: Int64Array) -> Int64Array:
    """Return upper bounds of event times as the last microseconds of their milliseconds, which writers may cut them to.

    One with microseconds was not cut.
    """
    return high_us + np.where(high_us % 1000, 0, 999)


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """The event-time column, where statistics of it bound event times.

    `path` leads to it by the names of the table's columns, through structs; `data_type` is its type there.
    """

    path: tuple[str, ...]
    data_type: pa.DataType
    assigner: TimestampAssigner

    @staticmethod
    def of(schema: pa.Schema, assigner: TimestampAssigner) -> TimeBounds | None:
        """Return what to look for in statistics; None where they say nothing of event times (text, a function)."""
        dotted = assigner.statistics_column
        if dotted is None:
            return None
        fields = fields_on_path(schema, dotted)
        if not fields:
            return None
        path, data_type = tuple(field.name for field in fields), fields[-1].type
        unit = getattr(assigner, "unit", None)
        return TimeBounds(path, data_type, assigner) if is_order_preserving(data_type, unit) else None

    def convert(self, values: pa.Array) -> tuple[Int64Array, BoolArray]:
        """Convert smallest or largest values, of `data_type`, to event times: `int64[n]`, and which of them hold.

        O(n): of a column of moments by whole arrays, of local times in a zone with a clock change one by one.
        """
        if values.type != self.data_type:
            values = values.cast(self.data_type)
        assigner, is_local = self.assigner, pa.types.is_date(self.data_type)
        is_local = is_local or (pa.types.is_timestamp(self.data_type) and self.data_type.tz is None)
        if isinstance(assigner, FieldTimestampAssigner) and (not is_local or assigner.zone in (None, UTC)):
            column = FieldTimestampAssigner("value", assigner.unit, assigner.zone)
            times = column.extract(pa.RecordBatch.from_arrays([values], ["value"]), None)
            return times.values, times.valid
        found = [assigner.from_statistics(self.data_type, value) for value in values.to_pylist()]
        valid = np.array([value is not None for value in found], np.bool_)
        return np.array([NO_TIMESTAMP if value is None else value for value in found], np.int64), valid
