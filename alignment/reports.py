"""What readers report of the event times they saw: all that is known of them where a source has no index."""

from __future__ import annotations

from dataclasses import dataclass

from alignment.timestamps import NO_TIMESTAMP

__all__ = ["RangeReport"]


@dataclass(frozen=True, slots=True)
class RangeReport:
    """The records of `[start, stop)` of one split, as the reader of that range saw them.

    A range that is read twice gives the same report: taking one in twice makes no difference.

    Attributes
    ----------
    split_id
        Of the split.
    start, stop
        Positions between which was read; all of it.
    min_us, max_us
        Earliest and latest event time, in microseconds; `NO_TIMESTAMP` if none had one.
    late
        Records at or below the watermark that was announced before the micro-batch.
    """

    split_id: str
    start: int
    stop: int
    min_us: int = NO_TIMESTAMP
    max_us: int = NO_TIMESTAMP
    late: int = 0
