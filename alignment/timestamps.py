"""Two-step timestamps over Arrow batches (FLIP-27).

Step one: a connector may attach a *source record timestamp* to each record. Step two: the application's
:class:`TimestampAssigner` sees the batch and those timestamps, and gives the final *event time*. Both are
int64 microseconds since the epoch, UTC; a record without a readable event time is *invalid* and never reaches
a watermark.
"""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from alignment import arrow_compute as pc
from alignment.arrow_times import (
    EPOCH_UNITS,
    OUR_YEARS_S,
    STEPS_A_SECOND,
    format_timestamp,
    is_order_preserving,
    likely_unit,
    scalar_to_microseconds,
    time_zone,
    to_microseconds,
)
from alignment.column_paths import column_at
from alignment.exceptions import InvalidArgumentError
from alignment.time_texts import UTC
from alignment.watermarks import BoolArray, Int64Array

NO_TIMESTAMP: Final = -(2**63)
"""The event time of a record that has none, and the earliest or latest of records of which none has one.

Its number is that of `MIN_WATERMARK`, for which it never stands.
"""

_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, eq=False)
class EventTimes:
    """The event times of one batch, epoch microseconds in UTC, and which are valid: only those.

    Invariant: invalid ones, and only they, hold :data:`NO_TIMESTAMP`. Use :meth:`of` unless it is known to hold.

    Examples
    --------
    >>> import numpy as np
    >>> EventTimes.of(np.array([1_000, NO_TIMESTAMP])).valid
    array([ True, False])
    """

    values: Int64Array
    valid: BoolArray

    def __post_init__(self) -> None:
        if self.values.dtype != np.int64 or self.valid.dtype != np.bool_:
            raise InvalidArgumentError(
                f"values and valid are of {self.values.dtype} and {self.valid.dtype}: must be int64 and bool"
            )
        if self.values.ndim != 1 or self.values.shape != self.valid.shape:
            raise InvalidArgumentError(
                f"values and valid have the shapes {self.values.shape} and {self.valid.shape}: "
                "they must be one-dimensional and of one length"
            )

    @classmethod
    def of(cls, values: Int64Array, valid: BoolArray | None = None) -> EventTimes:
        """Make event times that hold the invariant; what is :data:`NO_TIMESTAMP` is invalid. O(n)."""
        if valid is None:
            valid = values != NO_TIMESTAMP
        elif values.min(initial=_INT64_MAX) == NO_TIMESTAMP:
            valid = valid & (values != NO_TIMESTAMP)
        return cls(values if valid.all() else np.where(valid, values, NO_TIMESTAMP), valid)

    @classmethod
    def none(cls, length: int) -> EventTimes:
        """Event times of `length` records that have none."""
        return cls(np.full(length, NO_TIMESTAMP, dtype=np.int64), np.zeros(length, dtype=np.bool_))

    def __len__(self) -> int:
        return len(self.values)

    @property
    def valid_values(self) -> Int64Array:
        """The valid event times alone, in order: what a watermark generator may see. O(n)."""
        return self.values if self.valid.all() else self.values[self.valid]

    def max(self) -> int:
        """Latest valid event time, or :data:`NO_TIMESTAMP` if there is none. O(n)."""
        # Invalid ones hold the smallest int64, so they cannot win.
        return int(self.values.max(initial=NO_TIMESTAMP))

    def min(self) -> int:
        """Earliest valid event time, or :data:`NO_TIMESTAMP` if there is none. O(n)."""
        if not self.valid.any():
            return NO_TIMESTAMP
        return int(self.values.min(initial=_INT64_MAX, where=self.valid))


class TimestampAssigner(ABC):
    """Gives each record its final event time, a whole batch at a time.

    Must be picklable: it travels to executors.
    """

    __slots__ = ()

    @abstractmethod
    def extract(self, batch: pa.RecordBatch, source_timestamps: Int64Array | None) -> EventTimes:
        """Give the event times of a batch of n records.

        `source_timestamps` are what the connector attached, :data:`NO_TIMESTAMP` where a record has none; None if it
        attaches nothing.
        """

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Dotted paths of the columns that :meth:`extract` reads; empty for none, None when unknown (all)."""
        return None

    @property
    def statistics_column(self) -> str | None:
        """Dotted path of the column whose minimum and maximum bound the event times; None without one."""
        return None

    def from_statistics(self, data_type: pa.DataType, value: object) -> int | None:
        """Event time of a minimum or maximum of :attr:`statistics_column`; None if its statistics do not give it.

        `value` is the statistic as Parquet readers give it: an int, ``date`` or ``datetime``; of microseconds in UTC
        always an int.
        """
        return None


@dataclass(frozen=True, slots=True)
class RecordTimestampAssigner(TimestampAssigner):
    """Passes the source record timestamps on: the default, as in Flink.

    Without source timestamps no record has an event time.
    """

    def extract(self, batch: pa.RecordBatch, source_timestamps: Int64Array | None) -> EventTimes:
        """Pass `source_timestamps` on."""
        if source_timestamps is None:
            return EventTimes.none(batch.num_rows)
        if len(source_timestamps) != batch.num_rows:
            raise InvalidArgumentError(
                f"source_timestamps has {len(source_timestamps)} values for {batch.num_rows} records: give one for each"
            )
        return EventTimes.of(np.asarray(source_timestamps, dtype=np.int64))

    @property
    def columns(self) -> tuple[str, ...]:
        """None of the data's columns."""
        return ()


@dataclass(frozen=True, slots=True)
class FieldTimestampAssigner(TimestampAssigner):
    """Takes the event time from a column: a timestamp, a date, ISO-8601 text, or a number since the epoch.

    Parameters
    ----------
    column : str
        Name, or dotted path into structs. A column whose own name has a dot goes before a path.
    unit : {"s", "ms", "us", "ns"}, optional
        What one step of a number means. Required for whole numbers and decimals; floats are read as seconds only.
    zone : str, optional
        Of timestamps, dates and texts that say none: `Europe/Berlin`, `+02:00`. Absent: the session's in Spark, else
        UTC.
    pattern : str, optional
        A regular expression with one group: the part of a column of text that is the time, in ISO-8601, or a whole
        number where there is a `unit`.

    Notes
    -----
    Null, NaN, unreadable text and times beyond int64 microseconds are invalid; finer times are rounded down.

    Examples
    --------
    >>> import pyarrow as pa
    >>> batch = pa.record_batch({"at": pa.array([1_767_225_600, None])})
    >>> FieldTimestampAssigner("at", unit="s").extract(batch, None).valid
    array([ True, False])
    """

    column: str
    unit: str | None = None
    zone: str | None = None
    pattern: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) or not self.column:
            raise InvalidArgumentError(f"column = {self.column!r} must be the name of a column")
        _check_unit(self.unit)
        if self.pattern is not None:
            _check_pattern(f"timePattern = {self.pattern!r}", self.pattern)
        if self.zone is not None:
            object.__setattr__(self, "zone", time_zone(self.zone))

    def extract(self, batch: pa.RecordBatch, source_timestamps: Int64Array | None) -> EventTimes:
        """Read the column; an `InvalidArgumentError` if it is missing, holds no time, or needs a unit."""
        array = column_at(batch, self.column)
        if self.pattern is not None:
            array = self._part_of(array)
        return EventTimes.of(*to_microseconds(array, self.unit, self.zone or UTC, self.column))

    def _part_of(self, texts: pa.Array) -> pa.Array:
        if not pa.types.is_string(texts.type):
            raise InvalidArgumentError(
                f"timePattern is of text, and column {self.column!r} is {texts.type}; leave it out"
            )
        # Arrow wants the group to have a name.
        named = re.sub(r"(?<!\\)\((?!\?)", "(?P<time>", str(self.pattern), count=1)
        found = pc.struct_field(pc.extract_regex(texts, named), [0])
        if self.unit is None:
            return found
        return pc.if_else(pc.match_substring_regex(found, r"^-?\d{1,18}$"), found, None).cast(pa.int64())

    @property
    def columns(self) -> tuple[str, ...]:
        """The one column."""
        return (self.column,)

    @property
    def statistics_column(self) -> str:
        """The column itself."""
        return self.column

    def from_statistics(self, data_type: pa.DataType, value: object) -> int | None:
        """Convert a statistic as the column's values are; None for text and floats, which sort otherwise."""
        if not is_order_preserving(data_type, self.unit):
            return None
        return scalar_to_microseconds(data_type, value, self.unit, self.zone or UTC)


@dataclass(frozen=True, slots=True)
class CallableTimestampAssigner(TimestampAssigner):
    """Takes the event times from a function over the batch.

    Parameters
    ----------
    function : callable
        ``function(batch, source_timestamps)`` returns one event time for each of the n records of the batch: an array
        of timestamps or dates (Arrow, numpy's ``datetime64``, a list of ``datetime``), in UTC where they have no zone;
        whole numbers since the epoch, with a `unit`; or :class:`EventTimes`. Null, None and NaT are invalid.
        `source_timestamps` is ``int64[n]`` microseconds, or None. The function must be picklable where the assigner
        travels (``cloudpickle`` also takes a lambda).
    reads : tuple of str, optional
        Dotted paths of the columns that the function reads; absent: every column.
    unit : {"s", "ms", "us", "ns"}, optional
        What one step of a number means. Required where the function returns numbers: PyFlink's assigners return
        milliseconds, time.time() seconds, and `source_timestamps` are microseconds.

    Raises
    ------
    InvalidArgumentError
        If the function does not take two arguments, or there is no such unit.

    Examples
    --------
    >>> import pyarrow as pa, pyarrow.compute as pc
    >>> ends = CallableTimestampAssigner(lambda batch, _: pc.add(batch["begin"], batch["length"]), unit="ms")
    >>> ends.extract(pa.record_batch({"begin": [1_000], "length": [500]}), None).values
    array([1500000])
    """

    function: Callable[[pa.RecordBatch, Int64Array | None], Any]
    # Named apart from the property of the base class, which a slot of the same name cannot override.
    reads: tuple[str, ...] | None = field(default=None)
    unit: str | None = None

    def __post_init__(self) -> None:
        _check_unit(self.unit)
        if not _takes_two_arguments(self.function):
            raise InvalidArgumentError(
                f"timestamp assigner {self.function!r} must take two arguments, the batch and its source timestamps; "
                "give it a second one, as in lambda batch, source_timestamps: batch['ts']"
            )

    def extract(self, batch: pa.RecordBatch, source_timestamps: Int64Array | None) -> EventTimes:
        """Call the function; an `InvalidArgumentError` if it does not return one event time for each record."""
        result = self.function(batch, source_timestamps)
        times = result if isinstance(result, EventTimes) else self._convert(result)
        if len(times) != batch.num_rows:
            raise InvalidArgumentError(
                f"timestamp assigner {self.function!r} returned {len(times)} event times for a batch of "
                f"{batch.num_rows} records: return one for each record, None where there is none"
            )
        return times

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns given as `reads`; None, for all columns, without."""
        return self.reads

    def _convert(self, result: Any) -> EventTimes:
        rule = "return timestamps, or whole numbers and state their unit, one for each record"
        try:
            array = result.combine_chunks() if isinstance(result, pa.ChunkedArray) else pa.array(result)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise InvalidArgumentError(
                f"timestamp assigner {self.function!r} returned a {type(result).__name__} "
                f"that is no array of event times ({error}): {rule}"
            ) from error
        if not (is_order_preserving(array.type, "us") or pa.types.is_null(array.type)):
            raise InvalidArgumentError(
                f"timestamp assigner {self.function!r} returned values of type {array.type}: {rule}"
            )
        if self.unit is None and not is_order_preserving(array.type, None) and not pa.types.is_null(array.type):
            raise InvalidArgumentError(
                f"timestamp assigner {self.function!r} returned whole numbers ({array.type}) and has no unit: a second "
                f"would look like a microsecond; give unit = one of {', '.join(EPOCH_UNITS)} "
                "(with_timestamp_assigner(function, unit='ms')), or return timestamps"
            )
        return EventTimes.of(*to_microseconds(array, self.unit))


def as_timestamp_assigner(
    assigner: TimestampAssigner | str | Callable[[pa.RecordBatch, Int64Array | None], Any],
    unit: str | None = None,
) -> TimestampAssigner:
    """Accept an assigner, the name of a column, or a function over a batch.

    `unit` is what one step of the numbers of the column or the function means.
    """
    if isinstance(assigner, str):
        return FieldTimestampAssigner(assigner, unit)
    if isinstance(assigner, TimestampAssigner):
        if unit is not None:
            raise InvalidArgumentError(
                f"unit = {unit!r} is that of the numbers of a column or function, and a {type(assigner).__name__} has "
                "its own; leave unit out"
            )
        return assigner
    if callable(assigner) and not isinstance(assigner, type):
        return CallableTimestampAssigner(assigner, unit=unit)
    raise InvalidArgumentError(
        f"timestamp_assigner = {assigner!r}: must be a TimestampAssigner object, the name of a column, "
        "or a function of a batch and its source timestamps"
    )


def _check_unit(unit: str | None) -> None:
    if unit is not None and unit not in EPOCH_UNITS:
        raise InvalidArgumentError(f"unit = {unit!r} must be one of {', '.join(EPOCH_UNITS)}")


def _check_pattern(what: str, pattern: str) -> None:
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise InvalidArgumentError(f"{what} is no regular expression: {error}; correct it") from None
    if groups != 1:
        raise InvalidArgumentError(f"{what} has {groups} groups: put the time into one, as (...)")


def _takes_two_arguments(function: Callable[..., Any]) -> bool:
    """Return whether a function can be called with two arguments, as far as its signature is known."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # Some functions written in C have none.
        return True
    try:
        signature.bind(None, None)
    except TypeError:
        return False
    return True


def unit_warning(assigner: TimestampAssigner, latest_us: int, others_us: Iterable[int] = ()) -> str | None:
    """Return a warning if the latest event time of some records, as it was read, speaks for another unit.

    `others_us` are event times beside it: where one of them is of our years, the unit is right for that one.
    """
    if not isinstance(assigner, FieldTimestampAssigner) or assigner.unit is None or latest_us == NO_TIMESTAMP:
        return None
    likely = likely_unit(latest_us * STEPS_A_SECOND[assigner.unit] // 1_000_000, assigner.unit)
    if likely is None:
        return None
    fix = f"if that is right, set timestampUnit = {likely.unit}, and use a new checkpointLocation"
    if any(us // 1_000_000 in OUR_YEARS_S for us in others_us):
        fix = f"others are right with {assigner.unit}, so correct these at their source"
    return (
        f"the latest event time in {assigner.column} is {format_timestamp(latest_us)} with timestampUnit = "
        f"{assigner.unit}, and {likely.time} with {likely.unit}: {fix}"
    )
