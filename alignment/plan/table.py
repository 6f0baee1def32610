"""The splits of a source between two micro-batches."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from alignment.combine import SplitStatus
from alignment.watermarks import MIN_WATERMARK, Int64Array

__all__ = ["SplitTable"]


@dataclass(frozen=True, slots=True)
class SplitTable:
    """The state of a source's splits between two micro-batches, in columns.

    In the order of the `split_ids`, which are sorted: the position of the next record of each split, in the table of an
    engine as its index counts, in that of a state as the source does; the watermark that its own records gave it,
    `MIN_WATERMARK` before any; and its `SplitStatus`. `combined` is the watermark announced so far; it never goes back.
    """

    split_ids: tuple[str, ...]
    positions: Int64Array
    watermarks: Int64Array
    statuses: npt.NDArray[np.int8]
    combined: int = MIN_WATERMARK

    @classmethod
    def empty(cls) -> SplitTable:
        """No splits, nothing announced."""
        return cls((), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int8))

    def joined(self, split_ids: Collection[str], positions: Sequence[int]) -> tuple[SplitTable, npt.NDArray[np.intp]]:
        """The table with new splits, active and without a watermark; and the order: first the old ones, then the new.

        O(n log n).
        """
        ids: npt.NDArray[Any] = np.array([*self.split_ids, *split_ids], dtype=object)
        order = np.argsort(ids, kind="stable")
        new = len(positions)
        table = SplitTable(
            tuple(ids[order]),
            np.append(self.positions, positions)[order],
            np.append(self.watermarks, np.full(new, MIN_WATERMARK))[order],
            np.append(self.statuses, np.full(new, SplitStatus.ACTIVE, np.int8))[order],
            self.combined,
        )
        return table, order

    def without_finished(self) -> tuple[SplitTable, npt.NDArray[np.intp], list[str]]:
        """The table without its finished splits, the slots of those that stay, the ids of those that leave. O(n)."""
        gone = self.statuses == SplitStatus.FINISHED
        keep = np.flatnonzero(~gone)
        table = SplitTable(
            tuple(self.split_ids[slot] for slot in keep),
            self.positions[keep],
            self.watermarks[keep],
            self.statuses[keep],
            self.combined,
        )
        return table, keep, [self.split_ids[slot] for slot in np.flatnonzero(gone)]

    def holders(self) -> list[str]:
        """Ids of the splits that count and have the smallest watermark. O(n)."""
        slowest = self.slowest_counting()
        counting = (self.statuses == SplitStatus.ACTIVE) | (self.statuses == SplitStatus.PAUSED)
        return [self.split_ids[slot] for slot in np.flatnonzero(counting & (self.watermarks == slowest))]

    def slowest_counting(self) -> int | None:
        """The smallest watermark among the splits that count; None if none does. O(n)."""
        counting = (self.statuses == SplitStatus.ACTIVE) | (self.statuses == SplitStatus.PAUSED)
        return int(self.watermarks[counting].min()) if counting.any() else None

    def slowest_unread(self, ends: Int64Array) -> int | None:
        """The smallest watermark of the splits with records before `ends`; None without any. O(n).

        That is how far a group must let a source without an index go for it to go on: `SourceReport.next_us`. If each
        source of a group waits for another the nearest goes on, and one that reports None is taken to have read all.
        """
        unread = self.positions < ends
        return int(self.watermarks[unread].min()) if unread.any() else None

    def __len__(self) -> int:
        return len(self.split_ids)
