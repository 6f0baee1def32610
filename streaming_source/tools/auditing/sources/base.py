"""The interface of an audited source: the event times that each micro-batch read, of the user's column or one found."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import pyarrow as pa

from alignment.column_paths import top_level_column
from alignment.time_texts import UTC
from alignment.timestamps import NO_TIMESTAMP, FieldTimestampAssigner, TimestampAssigner
from alignment.watermarks import MAX_WATERMARK, Int64Array
from streaming_source.checkpoint.offset_log import Checkpoint, CommittedBatch
from streaming_source.data_files.stores import StorageOptions
from streaming_source.exceptions import OptionError

_TRIED: Final = 3
"""Micro-batches whose watermark a column must explain."""


@dataclass(frozen=True, slots=True)
class EventTime:
    """The place of event times in a record.

    `column` is a name, or a dotted path into structs; None if it is still to be found. `unit` is that of a column of
    numbers, `zone` that of times without one, `pattern` the part of a column of text that is the time, as
    `FieldTimestampAssigner` has it. `delay_us` is the delay of `withWatermark`, if the checkpoint has it.
    """

    column: str | None = None
    unit: str | None = None
    zone: str | None = None
    pattern: str | None = None
    delay_us: int | None = None

    def assigner(self) -> TimestampAssigner:
        """Return the assigner that extracts the event times of records."""
        return FieldTimestampAssigner(self.column or "", self.unit, self.zone, self.pattern)

    @property
    def zone_name(self) -> str:
        """The zone of times without one."""
        return self.zone or UTC


@dataclass(frozen=True, slots=True)
class Asked:
    """A source of a query by its number there, and what the user gave for it."""

    checkpoint: Checkpoint
    number: int
    event_time: EventTime
    path: str | None
    options: Mapping[str, str]
    storage: StorageOptions


def one_column(schema: pa.Schema, path: str, there: str) -> pa.Schema:
    """Return the column at the top in which event times are; an `OptionError` if it is not `there`, as in the table."""
    column = top_level_column(path, schema.names)
    if column not in schema.names:
        raise OptionError(f"time = {path!r}: {there} {', '.join(schema.names)}; name one of them")
    return pa.schema([schema.field(column)])


def time_column(asked: Asked, schema: pa.Schema, latest_of: Callable[[str, CommittedBatch], int]) -> str:
    """Return the only timestamp column; of several, the one whose latest times explain the checkpoint's watermarks.

    `latest_of` returns the latest time of a column in a micro-batch, in microseconds. An `OptionError` if there is no
    such column, or more than one explains the watermarks.
    """
    names: list[str] = [field.name for field in schema if pa.types.is_timestamp(field.type)]
    if len(names) == 1:
        return names[0]
    if not names:
        raise OptionError(
            f"no column is of timestamps (there are {', '.join(schema.names)}); name the event time with --time, as in "
            "--time ts, and where it is a number its unit with -o timestampUnit=ms"
        )
    batches, delay_us = asked.checkpoint.batches, asked.event_time.delay_us
    moved = [batch for batch in batches if batch.next_us is not None and batch.next_us > batch.watermark_us][:_TRIED]
    if moved and delay_us is not None and len(moved[0].ends) == 1:
        for batch in moved:
            names = [name for name in names if latest_of(name, batch) // 1_000 * 1_000 - delay_us == batch.next_us]
        if len(names) == 1:
            return names[0]
        names = names or [field.name for field in schema if pa.types.is_timestamp(field.type)]
    raise OptionError(
        f"several columns are of timestamps ({', '.join(names)}), and the checkpoint has not recorded which one "
        "withWatermark has; name it with --time"
    )


class TimeBlock(NamedTuple):
    """Some rows that were read: how many, and bounds of their event times.

    The bounds are `NO_TIMESTAMP` where they are not known, or some rows have no event time. `load` reads the times,
    int64 microseconds, `NO_TIMESTAMP` where a row has none.
    """

    rows: int
    min_us: int
    max_us: int
    load: Callable[[], Int64Array]

    @property
    def is_bounded(self) -> bool:
        """True if all rows have an event time, between known bounds."""
        return self.min_us != NO_TIMESTAMP


class LostRows(NamedTuple):
    """Some rows of which it is known that they were read, or may have been, and no more; `why` is the reason."""

    rows: int
    why: str


@dataclass(frozen=True, slots=True)
class SplitRead:
    """The part of one split that a micro-batch read; `batch` is None for those that Spark has removed from its logs.

    `blocks` yields the rows, and raises a `DataLossError` if they cannot be read any more.
    """

    batch: CommittedBatch | None
    split: str
    directory: str
    blocks: Callable[[], Iterator[TimeBlock | LostRows]] = field(repr=False)


def loaded(times: Int64Array) -> TimeBlock:
    """Return a block of rows whose event times have been read."""
    if not len(times):
        return TimeBlock(0, MAX_WATERMARK, MAX_WATERMARK, lambda: times)
    return TimeBlock(len(times), int(times.min()), int(times.max()), lambda: times)


class AuditedSource(ABC):
    """One source of an audited query."""

    kind: str
    """`files`, `delta`, `iceberg` or `kafka`."""

    name: str
    """A path, or topics, as the report shows them."""

    time: str
    """The column or field from which event times come, by its name in the query, or in `aligned_kafka`."""

    format_name: str | None = None
    """The format of its files, as in option `fileFormat`; None if it has none."""

    workers: int = 4
    """Splits that are read concurrently."""

    @property
    def notes(self) -> Sequence[str]:
        """Remarks that a reader of the report needs to judge the counts; complete after `reads`."""
        return ()

    @property
    def has_assumed_order(self) -> bool:
        """Return whether its columns are taken in an order that may not be that of the query's schema."""
        return False

    @property
    def needs_zone(self) -> bool:
        """True if its times say no zone, so that they depend on that in which they are read."""
        return False

    @abstractmethod
    def reads(self, batches: Sequence[CommittedBatch], purged_until: str | None) -> Iterator[SplitRead]:
        """Yield the reads of each micro-batch, and of those before `batches`, which ended at offset `purged_until`."""
