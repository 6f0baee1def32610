"""The interface of an audited source: the event times that each micro-batch read of each split."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, Int64Array
from streaming_source.checkpoint.micro_batches import CommittedBatch


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

    workers: int = 4
    """Splits that are read concurrently."""

    @property
    def notes(self) -> Sequence[str]:
        """Remarks that a reader of the report needs to judge the counts; complete after `reads`."""
        return ()

    @property
    def format_name(self) -> str | None:
        """The format of its files or values; None if they have none."""
        return None

    @property
    def has_assumed_order(self) -> bool:
        """Return whether its columns are taken in an order that may not be that of the query's schema."""
        return False

    @property
    def needs_zone(self) -> bool:
        """True if its times say no zone, so that they depend on that in which they are read."""
        return False

    @property
    @abstractmethod
    def time(self) -> str:
        """The column or field from which event times come."""

    @abstractmethod
    def reads(self, batches: Sequence[CommittedBatch], purged_until: str | None) -> Iterator[SplitRead]:
        """Yield the reads of each micro-batch, and of those before `batches`, which ended at offset `purged_until`."""
