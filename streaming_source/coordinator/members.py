"""Splits that join and leave the table of a source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from alignment.combine import SplitStatus
from alignment.planner import SplitTable
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from streaming_source.api import SourceSplit
from streaming_source.coordinator.idle_clock import IdleClock

if TYPE_CHECKING:
    from streaming_source.coordinator.hosting import HostedSource
    from streaming_source.coordinator.state import SourceState

__all__ = ["SplitsInWork", "has_news", "joined", "slowest_counting", "without_finished"]

SplitT = TypeVar("SplitT", bound=SourceSplit)

Slots = npt.NDArray[np.intp]


def joined(table: SplitTable, splits: Sequence[SourceSplit]) -> tuple[SplitTable, Slots]:
    """The table with new splits, which count at once; and the order of all: first the old, then the new. O(n log n)."""
    ids: npt.NDArray[Any] = np.array([*table.split_ids, *(split.split_id for split in splits)], dtype=object)
    order = np.argsort(ids, kind="stable")
    n = len(splits)
    return SplitTable(
        tuple(ids[order]),
        np.append(table.positions, [split.position for split in splits])[order],
        np.append(table.watermarks, np.full(n, MIN_WATERMARK))[order],
        np.append(table.statuses, np.full(n, SplitStatus.ACTIVE, np.int8))[order],
        table.combined,
    ), order


def without_finished(table: SplitTable) -> tuple[SplitTable, Slots, list[str]]:
    """The table without its finished splits, the slots of those that stay, and the ids of those that leave. O(n)."""
    gone = table.statuses == SplitStatus.FINISHED
    keep = np.flatnonzero(~gone)
    left = SplitTable(
        tuple(table.split_ids[slot] for slot in keep),
        table.positions[keep],
        table.watermarks[keep],
        table.statuses[keep],
        table.combined,
    )
    return left, keep, [table.split_ids[slot] for slot in np.flatnonzero(gone)]


def slowest_counting(table: SplitTable) -> int | None:
    """The smallest watermark among the splits that count; None if none does. O(n)."""
    counting = (table.statuses == SplitStatus.ACTIVE) | (table.statuses == SplitStatus.PAUSED)
    return int(table.watermarks[counting].min()) if counting.any() else None


def has_news(handed_out: SplitTable, before: SplitTable, after: SplitTable) -> bool:
    """Whether a plan changes anything, records aside, that Spark must know. Who is paused is no news. O(n).

    Parameters
    ----------
    handed_out
        Of the last state.
    before, after
        Between which the plan leads: since that state splits have left and joined.
    """
    known, _, _ = without_finished(handed_out)
    leaves = (SplitStatus.IDLE, SplitStatus.FINISHED)
    return bool(
        after.combined != handed_out.combined
        or known.split_ids != after.split_ids
        or any(((after.statuses == s) != (before.statuses == s)).any() for s in leaves)
    )


class SplitsInWork:
    """The splits that the next plan starts from, and what is known of each beside its place in the table.

    Parameters
    ----------
    idle_timeout_us
        After how long without anything to read a split is idle; None for never.
    now_us
        Processing time in microseconds, monotonic.

    Attributes
    ----------
    table
        Positions, watermarks, statuses.
    late
        `int64[n]`: late records of each split, so far.
    origins
        `int64[n]`: the position of each split before its first record.
    idle_clock
        Since when each split has had nothing left to read.
    """

    def __init__(self, idle_timeout_us: int | None, now_us: Callable[[], int]) -> None:
        self.table = SplitTable.empty()
        self.late = np.empty(0, np.int64)
        self.origins = np.empty(0, np.int64)
        self.idle_clock = IdleClock(idle_timeout_us, now_us)

    def take_over(self, state: SourceState[SplitT, Any], hosted: HostedSource[SplitT, Any]) -> None:
        """Start from the splits of a state. O(n)."""
        for split in state.splits:
            hosted.index.add_split(split.split_id, split.position)
        self.table, self.late, self.origins = state.table, state.late, _origins(state.splits)
        self.idle_clock.begin(state.table.statuses, state.silent_since_us)
        hosted.foresight.restore_splits(state)

    def take_changes(self, hosted: HostedSource[SplitT, Any]) -> None:
        """Let the splits join that were assigned since the last plan, and forget what is gone. O(n log n)."""
        if hosted.context.abandoned:
            for split_id, position in zip(self.table.split_ids, self.table.positions.tolist(), strict=True):
                if split_id in hosted.context.abandoned:
                    hosted.index.forget_unread(split_id, position)
        added = hosted.context.added
        if added:
            self.join(added)
            hosted.foresight.add_splits(added)
            added.clear()

    def assign_waiting(self, hosted: HostedSource[SplitT, Any]) -> None:
        """Let splits that wait join until something before the horizon can be read."""
        while hosted.context.horizon_us < MAX_WATERMARK:
            readable = int((self.table.positions < hosted.index.ends()).sum())
            if not hosted.foresight.assign_waiting(readable, hosted.index.nearest_time(self.table.positions)):
                return
            self.take_changes(hosted)

    def leave_finished(self, hosted: HostedSource[SplitT, Any]) -> list[str]:
        """Let finished splits leave, the state that says so was handed out; their ids. O(n)."""
        self.table, keep, finished = without_finished(self.table)
        if finished:
            self.late, self.origins = self.late[keep], self.origins[keep]
            self.idle_clock.keep(keep)
            hosted.index.remove(finished)
            for split_id in finished:
                hosted.foresight.finish_split(split_id)
                hosted.context.complete.discard(split_id)
                hosted.context.abandoned.discard(split_id)
        return finished

    def available(self, hosted: HostedSource[SplitT, Any] | None) -> dict[str, tuple[int, int]]:
        """Of each split its next position, and the one after the last record known to be there, where any is. O(n)."""
        at = zip(self.table.split_ids, self.table.positions.tolist(), strict=True)
        if hosted is None:
            return {split_id: (position, position) for split_id, position in at}
        position_at = hosted.foresight.position_at
        ends = dict(zip(hosted.index.split_ids, hosted.index.ends().tolist(), strict=True))
        return {i: (position_at(i, position), position_at(i, ends[i])) for i, position in at if i in ends}

    def join(self, splits: Sequence[SourceSplit]) -> None:
        """New splits. O(n log n)."""
        self.table, order = joined(self.table, splits)
        self.late = np.append(self.late, np.zeros(len(splits), np.int64))[order]
        self.origins = np.append(self.origins, _origins(splits))[order]
        self.idle_clock.add(len(splits), order)


def _origins(splits: Sequence[SourceSplit]) -> npt.NDArray[np.int64]:
    return np.array([split.origin().position for split in splits], np.int64)
