"""Event times of an enumerator that has an index of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from alignment.index import FirstLater
from streaming_source.api import SourceSplit, SplitRange, SupportsEventTimeIndex
from streaming_source.coordinator.event_times.provider import EventTimeProvider
from streaming_source.coordinator.state import SourceState

if TYPE_CHECKING:
    from streaming_source.coordinator.event_times.scanned_records import SeenBlock

__all__ = ["IndexedTimes"]

SplitT = TypeVar("SplitT", bound=SourceSplit)


class IndexedTimes(EventTimeProvider[SplitT]):
    """The enumerator knows its records' event times, and adds them to the index.

    Parameters
    ----------
    index
        The enumerator.
    read
        Reads the records of a split up to its stop in the planner: their event times, and the columns that a watermark
        generator needs.
    """

    # What it added of the records since an earlier state is forgotten.
    goes_back = False

    def __init__(
        self, index: SupportsEventTimeIndex[SplitT], read: Callable[[SplitT], Iterable[SeenBlock]] | None = None
    ) -> None:
        self._index = index
        self._read = read

    @property
    def locate(self) -> FirstLater:
        """See `EventTimeProvider`."""
        return self._index.first_later

    def restore_splits(self, state: SourceState[SplitT, Any]) -> None:
        """See `EventTimeProvider`."""
        # Those that the last micro-batch finished, too: they leave it next.
        self._index.restore_splits(state.splits)

    def finish_splits(self, split_ids: Iterable[str]) -> None:
        """See `EventTimeProvider`."""
        for split_id in split_ids:
            self._index.finish_split(split_id)

    def assign_waiting(self, readable: int, nearest_us: int) -> bool:
        """See `EventTimeProvider`."""
        return self._index.assign_waiting(readable, nearest_us)

    def commit_plan(self, split_ids: Sequence[str], positions: Sequence[int]) -> tuple[SplitT, ...]:
        """See `EventTimeProvider`."""
        return tuple(self._index.split_at(i, position) for i, position in zip(split_ids, positions, strict=True))

    def ranges(self, start: SplitT, end: SplitT, rows_per_range: int) -> Sequence[SplitRange[SplitT]]:
        """See `EventTimeProvider`."""
        return self._index.ranges(start, end, rows_per_range)

    def event_times(self, split_id: str, start: int, stop: int) -> npt.NDArray[np.int64]:
        """See `EventTimeProvider`."""
        return self._index.event_times(split_id, start, stop)

    def blocks(self, split_id: str, start: int, stop: int) -> Iterable[SeenBlock]:
        """See `EventTimeProvider`. The index has no records: those that are planned are read here as well."""
        assert self._read is not None, "a generator that needs columns has a way to read them"
        ends = self._index.split_at(split_id, start), self._index.split_at(split_id, stop)
        for part in self._index.ranges(*ends, stop - start):
            yield from self._read(part.split)

    def extend_snapshot(self) -> None:
        """See `EventTimeProvider`."""
        self._index.extend_snapshot()
