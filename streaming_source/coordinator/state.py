"""What a source remembers between two micro-batches, and what the user decided for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from alignment.combine import SplitStatus
from alignment.plan import PlanningRules, SplitTable
from alignment.strategy import WatermarkStrategy
from alignment.timestamps import NO_TIMESTAMP
from streaming_source.api.split import SplitT

if TYPE_CHECKING:
    from alignment.split_generators import GeneratorState

__all__ = ["ReadRules", "SourceState"]

CheckpointT = TypeVar("CheckpointT")


@dataclass(frozen=True, slots=True)
class SourceState(Generic[SplitT, CheckpointT]):
    """A source between two micro-batches; what an offset says.

    Attributes
    ----------
    sequence
        Counts the states of a query: 0 is the one before its first micro-batch.
    splits, table
        The splits in work and those that the last micro-batch finished, in order of their ids; their positions,
        watermarks and statuses, and the announced watermark.
    late
        `int64[n]`: records of each split that came at or below the announced watermark, so far.
    silent_since_us
        `int64[n]`: processing time since which each split has had nothing left to read; `NO_TIMESTAMP` where it had
        something, or that is not known. It decides alone when a split is idle after a restart.
    checkpoint
        What the enumerator remembers beside; None before it has started.
    routed
        Late records that were routed so far, of all splits that ever were: taken out of the frame, and left to the
        query that reads `late_records`.
    generators
        Of each split what its watermark generator goes on from, where that is not said by the table; empty without one.
    time_limit_us
        Event times from here on are invalid in the micro-batch that leads to this state: by the wall clock when it was
        planned, and `maxFutureSkew`. None without that option.
    """

    sequence: int
    splits: tuple[SplitT, ...]
    table: SplitTable
    late: npt.NDArray[np.int64]
    silent_since_us: npt.NDArray[np.int64]
    checkpoint: CheckpointT | None
    routed: int = 0
    generators: tuple[GeneratorState | None, ...] = ()
    time_limit_us: int | None = None

    @classmethod
    def initial(cls) -> SourceState[SplitT, CheckpointT]:
        return cls(0, (), SplitTable.empty(), np.empty(0, np.int64), np.empty(0, np.int64), None)

    def unfinished(self) -> list[SplitT]:
        statuses = zip(self.splits, self.table.statuses, strict=True)
        return [split for split, status in statuses if status != SplitStatus.FINISHED]

    def finished(self) -> list[str]:
        """Ids of the splits that the last micro-batch finished."""
        statuses = zip(self.splits, self.table.statuses, strict=True)
        return [split.split_id for split, status in statuses if status == SplitStatus.FINISHED]

    def by_id(self) -> dict[str, SplitT]:
        return {split.split_id: split for split in self.splits}


@dataclass(frozen=True, slots=True)
class ReadRules:
    """What the user decided; the strategy, and what the planner makes of it.

    Attributes
    ----------
    time_limit_us, max_future_skew_us
        Event times from here on are invalid, and those later than the wall clock by more than this; None for no limit.
    announces
        The watermark is announced by rows, so that Spark's own watermark follows it.
    group
        Name of the alignment group that other sources of the application may be in; None if this source is alone.
    counts_late, routes_late
        The number of late records of each split must be exact, since they are taken out of the frame; and a query of
        their own reads them.
    reports
        Event times of a source without an index are learnt from what its readers report, not by reading ahead.
    read_ahead_rows
        Of a source without an index: records that the planner may have read ahead of the readers, over all splits; at
        least 1. Each costs 8 bytes, 16 where positions have gaps.
    allow_unaligned
        A source without an index may be read ahead with a `SplitReader` of several splits that cannot pause any.
    """

    strategy: WatermarkStrategy
    planning: PlanningRules
    time_limit_us: int | None = None
    max_future_skew_us: int | None = None
    announces: bool = False
    group: str | None = None
    counts_late: bool = False
    routes_late: bool = False
    reports: bool = False
    read_ahead_rows: int = 4_000_000
    allow_unaligned: bool = False

    @property
    def earliest_us(self) -> int:
        """Event times before this are invalid: those before 1970, where those after 3999 are."""
        return NO_TIMESTAMP if self.time_limit_us is None else 0

    def time_limit_at(self, clock_us: int) -> int | None:
        """Event times from here on are invalid while the wall clock shows `clock_us`; None for no limit."""
        if self.max_future_skew_us is None:
            return self.time_limit_us
        limit_us = clock_us + self.max_future_skew_us + 1
        return limit_us if self.time_limit_us is None else min(limit_us, self.time_limit_us)

    @property
    def supports_opaque_blocks(self) -> bool:
        """Whether watermarks follow from a bound and one event time of each cut; late records are not counted then."""
        return (
            self.planning.out_of_orderness_us is not None
            and not self.planning.perfect
            and not self.reports
            and not self.counts_late
        )
