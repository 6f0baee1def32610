"""From a source's records to the rows of the frame: event times, late and invalid records, metadata, types."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from alignment.arrow_compute import from_numpy, to_numpy
from alignment.arrow_times import LikelyUnit, cut_nanoseconds, format_timestamp, likely_unit, to_microseconds
from alignment.column_paths import column_at
from alignment.exceptions import InvalidTimestampError
from alignment.shown import log_of
from alignment.timestamps import NO_TIMESTAMP, EventTimes, FieldTimestampAssigner, TimestampAssigner, unit_warning
from alignment.watermarks import FAR_US, MAX_WATERMARK, MIN_WATERMARK, Int64Array, WatermarkOutput
from streaming_source.api import ReaderOutput, SourceOutput
from streaming_source.api.reader import ignore
from streaming_source.coordinator.rules import FrameOptions
from streaming_source.exceptions import LateRecordError, SchemaError

if TYPE_CHECKING:
    from streaming_source.spark.input_partition import AlignedInputPartition
    from streaming_source.spark.observed_times import ObservedTimes

_log = log_of(__name__)

_LIMITS = (
    "with the exact watermark it must lie from 1970 on, where Spark's watermark starts and drops what is earlier, "
    "and before the year 4000"
)
_WARNED: set[str] = set()
"""The warnings that this process has given."""

_KEEP_OR_LEAVE_OUT = "option invalidTimestamp = null keeps such records without one, drop leaves them out"


@dataclass(frozen=True)
class _Records:
    """Records of one split that become rows: from position `start` on, or at the given positions."""

    split_id: str
    batch: pa.RecordBatch
    times: EventTimes
    source_timestamps: Int64Array | None
    start: int | Int64Array
    announced: int

    # Few frames need these.

    @cached_property
    def positions(self) -> Int64Array:
        return self.start + np.arange(self.batch.num_rows) if isinstance(self.start, int) else self.start

    @cached_property
    def late(self) -> npt.NDArray[np.bool_]:
        return self.times.valid & (self.times.values <= self.announced)

    def since(self, first: int) -> _Records:
        """Return the records without the first `first`."""
        return self._part(self.batch.slice(first), slice(first, None))

    def only(self, rows: npt.NDArray[np.intp]) -> _Records:
        """Return the records at these indices alone."""
        return self._part(self.batch.take(from_numpy(rows)), rows)

    def _part(self, batch: pa.RecordBatch, rows: slice | npt.NDArray[np.intp]) -> _Records:
        times, timestamps = self.times, self.source_timestamps
        return replace(
            self,
            batch=batch,
            times=EventTimes(times.values[rows], times.valid[rows]),
            source_timestamps=None if timestamps is None else timestamps[rows],
            start=self.positions[rows],
        )


@dataclass(frozen=True, slots=True)
class RowShaper:
    """Makes rows of a frame, which may lack its column `event_time`; `AlignedInputPartition` defines late records.

    `metadata` names the columns that this source adds; the values of all other columns come from the records.
    """

    schema: pa.Schema
    event_time: str
    assigner: TimestampAssigner
    options: FrameOptions
    metadata: frozenset[str] = frozenset()
    announced: int = MIN_WATERMARK
    late: str = "keep"
    time_limit_us: int | None = None
    observed: ObservedTimes | None = None

    def at(self, partition: AlignedInputPartition) -> RowShaper:
        """Return a shaper for the records of one task."""
        return replace(self, announced=partition.announced, late=partition.late, time_limit_us=partition.time_limit_us)

    def shape(
        self, split_id: str, batch: pa.RecordBatch, source_timestamps: Int64Array | None, positions: int | Int64Array
    ) -> pa.RecordBatch:
        """Return the rows of `n` records of one split; fewer if the options drop some."""
        latest_us: int | Int64Array = MAX_WATERMARK if self.time_limit_us is None else self.time_limit_us - 1
        if self.observed is not None:
            latest_us = self.observed.latest_valid(split_id, positions, batch.num_rows, latest_us)
        extracted = self._extracted(batch, source_timestamps)
        if self._unit is not None and batch.num_rows:
            self._check_unit(int(extracted.values[0]))
        wanted = self.options.times
        outside = wanted.outside(extracted.values) if wanted else None
        times = self._valid(extracted, latest_us)
        records = _Records(split_id, batch, times, source_timestamps, positions, self.announced)
        if self.observed is not None:
            counted = times
            if wanted is not None and wanted.from_us is not None:
                values = wanted.without_earlier(times.values)
                counted = EventTimes.of(values, values != NO_TIMESTAMP)
            if first := self.observed.see(split_id, batch, counted, records.positions):
                # Records that were emitted before are read again for their watermark alone.
                records, outside = records.since(first), None if outside is None else outside[first:]
        if outside is not None and outside.any():
            records = self._without(records, outside, extracted.values[-outside.size :])
        if self.observed is not None:
            self.observed.count_late(split_id, records.late)
        keep = self._kept(records)
        columns = [self._column(field, records) for field in self.schema]
        rows = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        return rows if keep is None else rows.filter(from_numpy(keep))

    def watermark_row(self, time_us: int) -> pa.RecordBatch:
        """Return one row with an event time, and null in all other columns."""
        columns = [
            from_numpy(np.array([time_us])).cast(field.type)
            if field.name == self.event_time
            else pa.nulls(1, field.type)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _extracted(self, batch: pa.RecordBatch, source_timestamps: Int64Array | None) -> EventTimes:
        times = self.assigner.extract(batch, source_timestamps)
        if len(times.values) != batch.num_rows:
            raise SchemaError(
                f"{type(self.assigner).__name__}.extract returned {len(times)} event times for a batch of "
                f"{batch.num_rows} records: it must return one for each, NO_TIMESTAMP where there is none"
            )
        return times

    def _valid(self, times: EventTimes, latest: int | Int64Array) -> EventTimes:
        if not times.values.size:
            return times
        earliest = 0 if self.options.watermark_rows else NO_TIMESTAMP
        # Records without a time hold the smallest integer, so that any of them leads to the slower path below.
        if times.values.max() <= np.min(latest) and times.values.min() >= earliest:
            return times
        valid = times.valid & (times.values >= earliest) & (times.values <= latest)
        return EventTimes.of(np.where(valid, times.values, NO_TIMESTAMP), valid)

    def _without(self, records: _Records, outside: npt.NDArray[np.bool_], times: Int64Array) -> _Records:
        """Return the records that stay of `n` of which some are outside of the range, by option `overlap`.

        `times`, `int64[n]`, are their event times, valid or not.
        """
        wanted = self.options.times
        assert wanted is not None, "without a range nothing lies outside"
        if wanted.overlap == "fail":
            # Here and not above: a task that fails is the only one that needs it.
            from streaming_source.coordinator.planner_warnings import refusal

            first = int(np.argmax(outside))
            time_us = int(times[first])
            raise refusal(f"split {records.split_id!r}, position {records.positions[first]}", time_us, time_us, wanted)
        if self.observed is not None:
            self.observed.count_outside(records.split_id, outside)
        # Those that are left out count neither as late nor as invalid.
        return records if wanted.overlap == "keep" else records.only(np.flatnonzero(~outside))

    def _kept(self, records: _Records) -> npt.NDArray[np.bool_] | None:
        """Return which records become rows; None for all."""
        times = records.times
        if self.late == "only":
            return records.late
        where = f"split {records.split_id!r}, position"
        if self.options.invalid_timestamp == "fail" and not times.valid.all():
            first = int(np.argmin(times.valid))
            value = self._value(records.batch, first, has_valid=bool(times.valid.any()))
            error = InvalidTimestampError(f"{where} {records.positions[first]}: no valid event time in {value}")
            error.position = int(records.positions[first])
            raise error
        if self.late == "fail" and records.late.any():
            first = int(np.argmax(records.late))
            raise LateRecordError(
                f"{where} {records.positions[first]}: event time {format_timestamp(int(times.values[first]))} is at or "
                f"below the watermark {format_timestamp(self.announced)}; option late = keep marks such records, drop "
                "leaves them out, route leaves them to late_records"
            )
        keep = times.valid if self.options.invalid_timestamp == "drop" else None
        if self.late == "drop":
            keep = ~records.late if keep is None else keep & ~records.late
        return None if keep is None or keep.all() else keep

    def _column(self, field: pa.Field, records: _Records) -> pa.Array:
        batch, times = records.batch, records.times
        column = _index_of(batch.schema, field.name)
        if field.name == self.event_time:
            if column >= 0 and times.valid.all() and _are_as_written(batch.column(column), times.values):
                return batch.column(column).cast(field.type)  # without a copy
            return from_numpy(times.values, times.valid).cast(field.type)
        if field.name in self.metadata:
            return _metadata(field, records)
        if column >= 0:
            found = batch.column(column)
            if found.type == field.type:
                return found
            return _as_type(found, field, is_event_time=field.name in (self.assigner.columns or ()))
        raise SchemaError(
            f"the records have no column {field.name!r}; they have {', '.join(batch.schema.names)}; let "
            "Source.schema return the columns that they have"
        )

    def _value(self, batch: pa.RecordBatch, row: int, *, has_valid: bool) -> str:
        """Describe the invalid event time of a record, and the fix, for an error. Others in the batch may be valid."""
        columns = self.assigner.columns
        one = batch.slice(row, 1)
        is_time = not isinstance(self.assigner, FieldTimestampAssigner) or self.assigner.extract(one, None).valid.all()
        rules = [_LIMITS] * self.options.watermark_rows
        if self.time_limit_us is not None and self.time_limit_us < FAR_US:
            latest = format_timestamp(self.time_limit_us - 1)
            rules.append(f"with maxFutureSkew it must not be later than {latest} in this micro-batch")
        limit = f" ({'; '.join(rules)})" if is_time and rules else ""
        if not columns:
            shown = "the source record timestamp" if columns is not None else "what the timestamp assigner returned"
            return f"{shown}{limit}; {_KEEP_OR_LEAVE_OUT}"
        values = {column: column_at(one, column)[0] for column in columns}
        shown = ", ".join(f"{column} = {_printed(value)}" for column, value in values.items())
        texts = {column: value.as_py() for column, value in values.items() if pa.types.is_string(value.type)}
        if any(text is not None and text.lower() == column.lower() for column, text in texts.items()):
            return f"{shown}, which is a line of names; set option header = true"
        likely = self._likely_unit(values)
        if likely and has_valid:
            shown = f"{shown}, which would be {likely.time} in {likely.unit}, as others with it are not"
        elif likely:
            return (
                f"{shown}{limit}, and is no time of these years with timestampUnit = {self._unit}, but {likely.time} "
                f"with {likely.unit}; set timestampUnit = {likely.unit}"
            )
        if any(texts.values()) and not limit:
            if getattr(self.assigner, "pattern", None) is not None:
                return f"{shown}, in which timePattern finds no time; correct it, or {_KEEP_OR_LEAVE_OUT}"
            return f"{shown}, which is not a time; name a column of times with eventTimeColumn, or {_KEEP_OR_LEAVE_OUT}"
        return f"{shown}{limit}; {_KEEP_OR_LEAVE_OUT}"

    @property
    def _unit(self) -> str | None:
        return self.assigner.unit if isinstance(self.assigner, FieldTimestampAssigner) else None

    def _check_unit(self, time_us: int) -> None:
        """Warn once in a process: the planner does not know the times of all sources, and one record tells."""
        if warning := unit_warning(self.assigner, time_us):
            _warn_once(warning.partition(" is ")[0], warning)

    def _likely_unit(self, values: dict[str, pa.Scalar]) -> LikelyUnit | None:
        (value,) = values.values() if self._unit else (None,)
        number = None if value is None else value.as_py()
        if self._unit is None or not isinstance(number, int | float | Decimal):
            return None
        return likely_unit(float(number), self._unit)


def _warn_once(subject: str, warning: str) -> None:
    if subject not in _WARNED:
        _WARNED.add(subject)
        _log.warning("%s", warning)


@dataclass(frozen=True, slots=True)
class FrameOutput(ReaderOutput):
    """Collects the shaped rows of all splits until they are passed to Spark."""

    shaper: RowShaper
    rows: list[pa.RecordBatch] = field(default_factory=list)

    def create_output_for_split(self, split_id: str) -> SourceOutput:
        return _SplitOutput(self.shaper, split_id, self.rows)

    def release_output_for_split(self, split_id: str) -> None:
        """Do nothing: outputs hold no resources."""

    def take(self) -> list[pa.RecordBatch]:
        """Return the rows collected since the last call."""
        taken = self.rows.copy()
        self.rows.clear()
        return taken


@dataclass(frozen=True, slots=True)
class _SplitOutput(SourceOutput):
    """Adds the rows of one split to the collected rows. Watermarks that the source emits go into the reports."""

    shaper: RowShaper
    split_id: str
    rows: list[pa.RecordBatch]

    def collect(
        self,
        batch: pa.RecordBatch,
        source_timestamps: Int64Array | None = None,
        *,
        positions: int | Int64Array,
    ) -> None:
        if batch.num_rows:
            self.rows.append(self.shaper.shape(self.split_id, batch, source_timestamps, positions))

    def emit_watermark(self, watermark: int) -> None:
        self._source_output("a watermark").emit_watermark(watermark)

    def mark_idle(self) -> None:
        self._source_output("idleness").mark_idle()

    def mark_active(self) -> None:
        self._source_output("activity").mark_active()

    def _source_output(self, what: str) -> WatermarkOutput:
        """Return the output for the source's own watermarks: the reports, or one that is ignored."""
        observed = self.shaper.observed
        if observed is not None and observed.uses_source_watermarks:
            return observed.source_output(self.split_id)
        ignore(what)
        # Imported here: few sources emit watermarks.
        from alignment.split_generators import LatestWatermark

        return LatestWatermark()


def _index_of(schema: pa.Schema, name: str) -> int:
    """Return the number of a column whose name may differ in case where no other one is meant; -1 for none."""
    index: int = schema.get_field_index(name)
    same = [number for number, other in enumerate(schema.names) if other.lower() == name.lower()] if index < 0 else []
    return same[0] if len(same) == 1 else index


def _metadata(field: pa.Field, records: _Records) -> pa.Array:
    rows = records.batch.num_rows
    if field.name == "_split":
        return pa.repeat(pa.scalar(records.split_id, field.type), rows)
    if field.name == "_position":
        return from_numpy(records.positions)
    if field.name == "_late":
        return from_numpy(records.late)
    if (timestamps := records.source_timestamps) is None:
        return pa.nulls(rows, field.type)
    return from_numpy(timestamps, timestamps != NO_TIMESTAMP).cast(field.type)


def _are_as_written(column: pa.Array, times_us: Int64Array) -> bool:
    """Return whether a column is in microseconds, and, where it has no zone, in UTC."""
    if not pa.types.is_timestamp(column.type) or column.type.unit != "us":
        return False
    return column.type.tz is not None or np.array_equal(to_numpy(column.cast(pa.int64())), times_us)


def _printed(value: pa.Scalar) -> str:
    try:
        return repr(value.as_py())
    except (ValueError, OverflowError):
        # Python's datetime has no years after 9999.
        return f"{value.value} as {value.type}"


def _as_type(column: pa.Array, field: pa.Field, *, is_event_time: bool) -> pa.Array:
    if pa.types.is_timestamp(column.type) and pa.types.is_timestamp(field.type):
        # Not a cast: an unsafe cast wraps times that overflow microseconds, a safe cast refuses nanoseconds.
        micros, fits = to_microseconds(column, None)
        if is_event_time or fits.sum() == len(column) - column.null_count:
            return from_numpy(micros, fits).cast(field.type)
        first = int(np.argmin(fits | column.is_null().to_numpy(zero_copy_only=False)))
        raise SchemaError(
            f"column {field.name!r} of type {column.type} does not fit {field.type}: {column[first].value} lies beyond "
            "the times that Spark has; leave the column out of the schema, or read it as a bigint"
        )
    try:
        return cut_nanoseconds(column).cast(field.type)
    except pa.ArrowInvalid as error:
        raise SchemaError(
            f"column {field.name!r} of type {column.type} does not fit {field.type}: {error}; give another schema"
        ) from None
