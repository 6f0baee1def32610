"""What readers report of the event times they saw: all that is known of them where a source has no index."""

from __future__ import annotations

from dataclasses import dataclass

from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MIN_WATERMARK

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
    watermark_us, is_idle
        What a generator of the user's own, or the source, said of these records: the largest watermark it emitted, and
        whether it marked the split as idle last.
    state_version, state
        Of such a generator behind them, see `alignment.split_generators.GeneratorState`; empty without one.
    """

    split_id: str
    start: int
    stop: int
    min_us: int = NO_TIMESTAMP
    max_us: int = NO_TIMESTAMP
    late: int = 0
    watermark_us: int = MIN_WATERMARK
    is_idle: bool = False
    state_version: int = 0
    state: str = ""
