"""How a source is read, whatever it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from alignment.plan.model import PlanningRules
from alignment.strategy import WatermarkStrategy

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
    """

    strategy: WatermarkStrategy
    planning: PlanningRules
    time_limit_us: int | None = None
    announces: bool = False
    group: str | None = None
    counts_late: bool = False
    routes_late: bool = False
    reports: bool = False
    read_ahead_rows: int = 4_000_000

    @property
    def supports_opaque_blocks(self) -> bool:
        """Whether watermarks follow from a bound and one event time of each cut; late records are not counted then."""
        return (
            self.planning.out_of_orderness_us is not None
            and not self.planning.perfect
            and not self.reports
            and not self.counts_late
        )
