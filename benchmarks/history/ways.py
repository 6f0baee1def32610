"""What one way of reading a history and its topic comes to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from benchmarks.history.inputs import CLOSED_MS, HistoryAndTopic

__all__ = ["Found", "Way"]


@dataclass(frozen=True)
class Found:
    """The ids in each window by its start in milliseconds, the seconds by the clock, and how many micro-batches.

    A window may come from two jobs: it then has the ids of both. There are no micro-batches in Flink.
    """

    windows: Mapping[int, Iterable[int]]
    seconds: float
    micro_batches: int | None = None

    def lost(self, records: int) -> int:
        """How many of so many records are in no window."""
        return records - len(self._counts())

    def doubled(self) -> int:
        """How many times records are in windows once more."""
        return sum(count - 1 for count in self._counts().values())

    def awaited(self, given: HistoryAndTopic) -> int:
        """How many records are missing in the windows that the last watermark closes."""
        return given.closed - len({one for start, ids in self.windows.items() if start < CLOSED_MS for one in ids})

    def _counts(self) -> Counter[int]:
        return Counter(record for ids in self.windows.values() for record in ids)


Way = Callable[[HistoryAndTopic], Found]
