"""What a source of an audited query offers: which event times each micro-batch read of each split."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, Int64Array
from streaming_source.auditing.checkpoint import CommittedBatch

__all__ = ["AuditedSource", "SplitRead", "TimeBlock", "loaded"]


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
        """Whether all rows have an event time, between known bounds."""
        return self.min_us != NO_TIMESTAMP


@dataclass(frozen=True, slots=True)
class SplitRead:
    """What one micro-batch read of one split; `batch` is None of one that Spark has removed from its logs.

    `blocks` yields the rows, and raises a `DataLossError` if they cannot be read any more. `lost` rows, of which
    `blocks` yields none, were read and are known to be gone.
    """

    batch: CommittedBatch | None
    split: str
    directory: str
    blocks: Callable[[], Iterator[TimeBlock]] = field(repr=False)
    lost: int = 0


def loaded(times: Int64Array) -> TimeBlock:
    """Rows whose event times have been read."""
    if not len(times):
        return TimeBlock(0, MAX_WATERMARK, MAX_WATERMARK, lambda: times)
    return TimeBlock(len(times), int(times.min()), int(times.max()), lambda: times)


class AuditedSource(ABC):
    """One source of an audited query, at its place among them."""

    kind: str
    """`files`, `delta` or `kafka`."""

    name: str
    """A path or topics, as the report has it."""

    workers: int = 4
    """How many splits are read at once."""

    @property
    def notes(self) -> Sequence[str]:
        """What the reader must know to trust the counts, once they are there."""
        return ()

    @property
    def format_name(self) -> str | None:
        """The format of its files or values; None where there is nothing to name."""
        return None

    @property
    @abstractmethod
    def time(self) -> str:
        """What the event times are made of."""

    @abstractmethod
    def reads(self, batches: Sequence[CommittedBatch], purged_until: str | None) -> Iterator[SplitRead]:
        """What each micro-batch read, and what those before `batches` read, which ended at offset `purged_until`."""
