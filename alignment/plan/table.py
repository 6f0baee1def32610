"""The splits of a source between two micro-batches: their watermarks, and for planning their positions as well."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from alignment.combine import SplitStatus
from alignment.watermarks import MIN_WATERMARK, Int64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkTable:
    """The watermarks of a source's splits between two micro-batches, in columns.

    In the order of the `split_ids`, which are sorted: the watermark that its own records gave each split,
    `MIN_WATERMARK` before any; and its `SplitStatus`. `combined` is the watermark announced so far; it never goes back.
    `furthest` is the largest watermark of a split that has finished, as long as it is beyond the combined one; else
    `MIN_WATERMARK`.
    """

    split_ids: tuple[str, ...]
    watermarks: Int64Array
    statuses: npt.NDArray[np.int8]
    combined: int = MIN_WATERMARK
    furthest: int = MIN_WATERMARK

    @classmethod
    def empty(cls) -> WatermarkTable:
        """No splits, nothing announced."""
        return WatermarkTable(split_ids=(), watermarks=np.empty(0, np.int64), statuses=np.empty(0, np.int8))

    def holders(self) -> list[str]:
        """Ids of the splits that count and have the smallest watermark. O(n)."""
        slowest = self.slowest_counting()
        counting = (self.statuses == SplitStatus.ACTIVE) | (self.statuses == SplitStatus.PAUSED)
        return [self.split_ids[slot] for slot in np.flatnonzero(counting & (self.watermarks == slowest))]

    def slowest_counting(self) -> int | None:
        """The smallest watermark among the splits that count; None if none does. O(n)."""
        counting = (self.statuses == SplitStatus.ACTIVE) | (self.statuses == SplitStatus.PAUSED)
        return int(self.watermarks[counting].min()) if counting.any() else None

    def at(self, positions: Int64Array) -> SplitTable:
        """The same as an engine plans from it: the next record of each split is at its place in `positions`."""
        return SplitTable(
            split_ids=self.split_ids,
            positions=positions,
            watermarks=self.watermarks,
            statuses=self.statuses,
            combined=self.combined,
            furthest=self.furthest,
        )

    def __len__(self) -> int:
        return len(self.split_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitTable(WatermarkTable):
    """The same with the `positions` of the next records, as the index of an engine counts them."""

    positions: Int64Array

    @classmethod
    def empty(cls) -> SplitTable:
        """No splits, nothing announced."""
        return WatermarkTable.empty().at(np.empty(0, np.int64))

    def without_positions(self) -> WatermarkTable:
        """Return what is known of the watermarks, wherever reading goes on. O(1)."""
        return WatermarkTable(
            split_ids=self.split_ids,
            watermarks=self.watermarks,
            statuses=self.statuses,
            combined=self.combined,
            furthest=self.furthest,
        )

    def joined(self, split_ids: Collection[str], positions: Sequence[int]) -> tuple[SplitTable, npt.NDArray[np.intp]]:
        """The table with new splits, active and without a watermark; and the order: first the old ones, then the new.

        O(n log n).
        """
        ids: npt.NDArray[Any] = np.array([*self.split_ids, *split_ids], dtype=object)
        order = np.argsort(ids, kind="stable")
        new = len(positions)
        table = SplitTable(
            split_ids=tuple(ids[order]),
            positions=np.append(self.positions, positions)[order],
            watermarks=np.append(self.watermarks, np.full(new, MIN_WATERMARK))[order],
            statuses=np.append(self.statuses, np.full(new, SplitStatus.ACTIVE, np.int8))[order],
            combined=self.combined,
            furthest=self.furthest,
        )
        return table, order

    def without_finished(self) -> tuple[SplitTable, npt.NDArray[np.intp], list[str]]:
        """The table without its finished splits, the slots of those that stay, the ids of those that leave. O(n)."""
        finished = self.statuses == SplitStatus.FINISHED
        keep = np.flatnonzero(~finished)
        table = SplitTable(
            split_ids=tuple(self.split_ids[slot] for slot in keep),
            positions=self.positions[keep],
            watermarks=self.watermarks[keep],
            statuses=self.statuses[keep],
            combined=self.combined,
            furthest=self.furthest,
        )
        return table, keep, [self.split_ids[slot] for slot in np.flatnonzero(finished)]

    def slowest_unread(self, ends: Int64Array) -> int | None:
        """The smallest watermark of the splits with records before `ends`; None without any. O(n).

        That is how far a group must let a source without an index go for it to go on: `SourceReport.next_us`. If each
        source of a group waits for another the nearest goes on, and one that reports None is taken to have read all.
        """
        unread = self.positions < ends
        return int(self.watermarks[unread].min()) if unread.any() else None
