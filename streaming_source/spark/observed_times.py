"""What a task saw of event times, for the planner to hear of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from alignment.reports import RangeReport
from alignment.timestamps import NO_TIMESTAMP, EventTimes
from streaming_source.api import SourceSplit

__all__ = ["ObservedTimes"]


@dataclass(slots=True)
class _Seen:
    rows: int = 0
    min_us: int = NO_TIMESTAMP
    max_us: int = NO_TIMESTAMP
    late: int = 0
    invalid: int = 0
    disorder_us: int = 0


class ObservedTimes:
    """Sums up event times by split, block by block."""

    def __init__(self) -> None:
        self._by_split: dict[str, _Seen] = {}

    def add(self, split_id: str, times: EventTimes, late: npt.NDArray[np.bool_]) -> None:
        """The next records of a split, `n` of them. O(n).

        Parameters
        ----------
        split_id
            Of the split.
        times
            Event times of the records.
        late
            `bool[n]`: which of them are at or below the announced watermark.
        """
        seen = self._by_split.setdefault(split_id, _Seen())
        seen.rows += len(times)
        valid = times.valid_values
        seen.invalid += len(times) - valid.size
        if not valid.size:
            return
        seen.late += int(np.count_nonzero(late))
        latest = np.maximum.accumulate(valid)
        if seen.max_us != NO_TIMESTAMP:
            latest = np.maximum(latest, seen.max_us)
        seen.disorder_us = max(seen.disorder_us, int((latest - valid).max()))
        earliest = int(valid.min())
        seen.min_us = earliest if seen.min_us == NO_TIMESTAMP else min(seen.min_us, earliest)
        seen.max_us = int(latest[-1])

    def take(self, ranges: Iterable[SourceSplit]) -> list[RangeReport]:
        """Reports of ranges that were read to their ends, one of each split; what was summed up of them is let go."""
        reports = []
        for split in ranges:
            seen = self._by_split.pop(split.split_id, _Seen())
            stop = split.position if split.stop is None else split.stop
            reports.append(
                RangeReport(
                    split.split_id,
                    split.position,
                    stop,
                    seen.rows,
                    seen.min_us,
                    seen.max_us,
                    seen.late,
                    seen.invalid,
                    seen.disorder_us,
                )
            )
        return reports
