"""What a source remembers between two micro-batches, and what the user decided for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from alignment.combine import SplitStatus
from alignment.plan import PlanningRules, SplitTable
from alignment.strategy import WatermarkStrategy
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import Int64Array
from streaming_source.api.split import SplitT

if TYPE_CHECKING:
    from alignment.split_generators import GeneratorState

__all__ = ["ReadRules", "SourceState"]

CheckpointT = TypeVar("CheckpointT")


@dataclass(frozen=True, slots=True)
class SourceState(Generic[SplitT, CheckpointT]):
    """A source between two micro-batches; what an offset says.

    `sequence` counts the states of a query, 0 being the one before its first micro-batch. `splits` and `table` are
    those in work and those that the last micro-batch finished, in order of their ids. `int64[n]` each: `late`, their
    records that came at or below the announced watermark so far; `silent_since_us`, the processing time since which
    each has had nothing left to read, `NO_TIMESTAMP` where it had something, or that is not known: it decides alone
    when a split is idle after a restart. `checkpoint` is what the enumerator remembers, None before it has started.

    `routed` late records were taken out of the frame so far, of all splits that ever were, and left to the query that
    reads `late_records`. `generators` is what the watermark generator of each split goes on from, where the table does
    not say that; empty without one. Event times from `time_limit_us` on are invalid in the micro-batch that leads to
    this state: by the wall clock when it was planned, and `maxFutureSkew`; None without that option.
    """

    sequence: int
    splits: tuple[SplitT, ...]
    table: SplitTable
    late: Int64Array
    silent_since_us: Int64Array
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
        return dict(zip(self.table.split_ids, self.splits, strict=True))


@dataclass(frozen=True, slots=True)
class ReadRules:
    """What the user decided; the strategy, and what the planner makes of it.

    Event times from `time_limit_us` on are invalid, and those later than the wall clock by more than
    `max_future_skew_us`. The source `announces` its watermark by rows, so that Spark's own follows it. `group` names an
    alignment group that other sources of the application may be in. It `counts_late` where late records are taken out
    of the frame, and so their number must be exact; `routes_late` where a query of their own reads them. It `reports`
    where event times of a source without an index are learnt from what its readers report, and not by reading ahead:
    of up to `read_ahead_rows` records over all splits, 8 bytes each, 16 where positions have gaps. `allow_unaligned`
    lets it be read ahead with a `SplitReader` of several splits that cannot pause any.
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
