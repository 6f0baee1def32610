"""Which column the event times of a query are made of: as the user says, or as the recorded watermarks show."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from alignment.arrow_times import UTC
from alignment.column_paths import column_at
from alignment.timestamps import CallableTimestampAssigner, EventTimes, FieldTimestampAssigner, TimestampAssigner
from alignment.watermarks import Int64Array
from streaming_source.auditing.checkpoint import CommittedBatch
from streaming_source.exceptions import OptionError

__all__ = ["EventTime", "time_column"]

_TRIED: Final = 3
"""Micro-batches whose watermark a column must explain."""


@dataclass(frozen=True, slots=True)
class EventTime:
    """Where event times are in a record.

    Parameters
    ----------
    column
        Name, or dotted path into structs; None where it is yet to be found.
    unit
        Of a column of numbers: `s`, `ms`, `us` or `ns`.
    zone
        Of times that say none.
    pattern
        A regular expression with one group: the part of a column of text that is the time.
    delay_us
        That of `withWatermark`, where the checkpoint has it.
    """

    column: str | None = None
    unit: str | None = None
    zone: str | None = None
    pattern: str | None = None
    delay_us: int | None = None

    def __post_init__(self) -> None:
        if self.pattern is None:
            return
        try:
            groups = re.compile(self.pattern).groups
        except re.error as error:
            raise OptionError(f"timePattern = {self.pattern!r} is no regular expression: {error}; correct it") from None
        if groups != 1:
            raise OptionError(f"timePattern = {self.pattern!r} has {groups} groups: put the time into one, as (...)")

    def assigner(self) -> TimestampAssigner:
        """What gives the event times of records."""
        plain = FieldTimestampAssigner(self.column or "", self.unit, self.zone)
        if self.pattern is None:
            return plain
        pattern = _named(self.pattern)

        def extract(batch: pa.RecordBatch, _: Int64Array | None) -> EventTimes:
            found = pc.extract_regex(column_at(batch, plain.column), pattern)
            text = pc.struct_field(found, [0])
            if plain.unit is not None:
                text = pc.cast(text, pa.int64())
            return plain.extract(pa.record_batch({plain.column: text}), None)

        return CallableTimestampAssigner(extract, (plain.column,))

    @property
    def zone_name(self) -> str:
        """The zone of times that say none."""
        return self.zone or UTC


def time_column(
    schema: pa.Schema,
    batches: Sequence[CommittedBatch],
    time: EventTime,
    latest_of: Callable[[str, CommittedBatch], int],
) -> str:
    """The one column of timestamps; of several, the one whose latest times led to the watermarks of the checkpoint.

    `latest_of` gives the latest time of a column in a micro-batch, in microseconds.

    Raises
    ------
    OptionError
        If there is none, or more than one would do.
    """
    names: list[str] = [field.name for field in schema if pa.types.is_timestamp(field.type)]
    if len(names) == 1:
        return names[0]
    if not names:
        raise OptionError(
            f"no column is of timestamps (there are {', '.join(schema.names)}); name the event time with --time, as in "
            "--time ts, and where it is a number its unit with -o timestampUnit=ms"
        )
    moved = [batch for batch in batches if batch.next_us is not None and batch.next_us > batch.watermark_us][:_TRIED]
    if moved and time.delay_us is not None and len(moved[0].ends) == 1:
        for batch in moved:
            names = [name for name in names if latest_of(name, batch) // 1_000 * 1_000 - time.delay_us == batch.next_us]
        if len(names) == 1:
            return names[0]
        names = names or [field.name for field in schema if pa.types.is_timestamp(field.type)]
    raise OptionError(
        f"several columns are of timestamps ({', '.join(names)}), and the checkpoint has not recorded which one "
        "withWatermark has; name it with --time"
    )


def _named(pattern: str) -> str:
    """The pattern with a name for its group, which Arrow needs."""
    return re.sub(r"(?<!\\)\((?!\?)", "(?P<time>", pattern, count=1)
