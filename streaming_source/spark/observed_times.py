"""What a task saw of event times, for its reports to the planner."""

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
    min_us: int = NO_TIMESTAMP
    max_us: int = NO_TIMESTAMP
    late: int = 0


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
        valid = times.valid_values
        if not valid.size:
            return
        seen = self._by_split.setdefault(split_id, _Seen())
        seen.late += int(np.count_nonzero(late))
        earliest = int(valid.min())
        seen.min_us = earliest if seen.min_us == NO_TIMESTAMP else min(seen.min_us, earliest)
        seen.max_us = max(seen.max_us, int(valid.max()))

    def take(self, ranges: Iterable[SourceSplit]) -> list[RangeReport]:
        """Reports of ranges that were read to their ends, one of each split; what was summed up of them is let go."""
        reports = []
        for split in ranges:
            seen = self._by_split.pop(split.split_id, _Seen())
            stop = split.position if split.stop is None else split.stop
            reports.append(RangeReport(split.split_id, split.position, stop, seen.min_us, seen.max_us, seen.late))
        return reports
