"""How a source is read, whatever it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from alignment.plan.model import PlanningRules
from alignment.strategy import WatermarkStrategy
from alignment.timestamps import NO_TIMESTAMP

__all__ = ["READ_AHEAD_ROWS", "ReadRules"]

READ_AHEAD_ROWS: Final = 4_000_000
"""Records seen and not handed out, over all splits: 8 bytes each, 16 where positions have gaps."""


@dataclass(frozen=True, slots=True)
class ReadRules:
    """What the user decided.

    Attributes
    ----------
    strategy
        Event times, watermarks, idleness, alignment.
    planning
        What the planner makes of it.
    time_limit_us
        Event times from here on are invalid, or None.
    max_future_skew_us
        Event times later than the wall clock by more than this are invalid, too; None for no such rule.
    announces
        The watermark is announced by rows, so that Spark's own watermark follows it.
    group
        Name of the alignment group that other sources of the application may be in; None if this source is alone.
    counts_late
        The number of late records of each split must be exact, since they are taken out of the frame.
    routes_late
        They are, and a query of their own reads them.
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
