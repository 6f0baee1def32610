"""Everything that a source must remember between two micro-batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from alignment.combine import SplitStatus
from alignment.plan.model import SplitTable
from streaming_source.api import SourceSplit

__all__ = ["SourceState"]

SplitT = TypeVar("SplitT", bound=SourceSplit)
CheckpointT = TypeVar("CheckpointT")


@dataclass(frozen=True, slots=True)
class SourceState(Generic[SplitT, CheckpointT]):
    """A source between two micro-batches; what an offset says.

    Attributes
    ----------
    sequence
        Counts the states of a query: 0 is the one before its first micro-batch.
    splits
        The splits in work and those that the last micro-batch finished, in order of their ids.
    table
        Their positions, watermarks and statuses, and the announced watermark.
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
    """

    sequence: int
    splits: tuple[SplitT, ...]
    table: SplitTable
    late: npt.NDArray[np.int64]
    silent_since_us: npt.NDArray[np.int64]
    checkpoint: CheckpointT | None
    routed: int = 0

    @classmethod
    def initial(cls) -> SourceState[SplitT, CheckpointT]:
        """Nothing discovered, nothing read."""
        return cls(0, (), SplitTable.empty(), np.empty(0, np.int64), np.empty(0, np.int64), None)

    def unfinished(self) -> list[SplitT]:
        """The splits in work."""
        statuses = zip(self.splits, self.table.statuses, strict=True)
        return [split for split, status in statuses if status != SplitStatus.FINISHED]

    def finished(self) -> list[str]:
        """Ids of the splits that the last micro-batch finished."""
        statuses = zip(self.splits, self.table.statuses, strict=True)
        return [split.split_id for split, status in statuses if status == SplitStatus.FINISHED]

    def by_id(self) -> dict[str, SplitT]:
        """The splits by their ids."""
        return {split.split_id: split for split in self.splits}
