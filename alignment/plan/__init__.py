"""What a micro-batch begins from, what the user decided of all of them, and how one is concluded.

However the ends of a micro-batch are chosen, from event times known ahead of reading or from what readers reported,
the statuses and the watermark after it follow from the same rules, and who gets how much of a read limit where all
would get more. They are here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from alignment.combine import SplitStatus, combine_watermarks
from alignment.exceptions import InvalidArgumentError
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK, BoolArray, Int64Array, saturating_add

__all__ = [
    "LimitedBy",
    "MicroBatchPlan",
    "PlanConditions",
    "PlanningRules",
    "SplitTable",
    "bounding_splits",
    "conclude",
    "share_evenly",
]


@dataclass(frozen=True, slots=True)
class SplitTable:
    """The state of a source's splits between two micro-batches, in columns.

    In the order of the `split_ids`, which are sorted: the position of the next record of each split; the watermark that
    its own records gave it, `MIN_WATERMARK` before any; and its `SplitStatus`. `combined` is the watermark announced so
    far; it never goes back.
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


@dataclass(frozen=True, slots=True)
class PlanningRules:
    """What the user decided, for all micro-batches.

    Attributes
    ----------
    out_of_orderness_us
        Bound `B` of the generator; None if it is the user's own or none, whose watermarks cannot be foretold.
    max_drift_us
        How far `T` may be ahead of the smallest reach; None leaves it open.
    drains_past_caught_up
        While draining (AvailableNow), a split that has been read to its end no longer bounds `T`. Only safe where
        drift costs state and never records: with the exact watermark.
    perfect
        Watermarks never pass the smallest time that the index sees unread (option `lateness=none`).
    bounded
        When all splits are finished and no more will come, the watermark is `MAX_WATERMARK`.
    """

    out_of_orderness_us: int | None
    max_drift_us: int | None = None
    drains_past_caught_up: bool = False
    perfect: bool = False
    bounded: bool = False

    def __post_init__(self) -> None:
        for name in ("out_of_orderness_us", "max_drift_us"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InvalidArgumentError(f"{name} = {value}: must be at least 0, or None")
        if self.perfect and self.out_of_orderness_us is None:
            raise InvalidArgumentError(
                "perfect = True: must have out_of_orderness_us, or watermarks cannot be foretold"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConditions:
    """Inputs of one planning step that change from batch to batch.

    Attributes
    ----------
    max_rows
        Read limit, at least 1; None for no limit.
    group_limit_us
        The bound that other sources of the same alignment group set.
    horizon_us
        Splits that the source knows and has not let join yet have no record earlier than this: nothing later is read,
        and the watermark stays below it. So of a great many splits only those need to be here whose turn it is.
    idle, complete
        `bool[n]`: splits that have had nothing left to read for the idle timeout, and those to which no record will be
        added; None for none.
    no_more_splits
        No split will be added.
    draining
        Read to the ends known now, then stop (AvailableNow).
    """

    max_rows: int | None = None
    group_limit_us: int = MAX_WATERMARK
    horizon_us: int = MAX_WATERMARK
    idle: BoolArray | None = None
    complete: BoolArray | None = None
    no_more_splits: bool = False
    draining: bool = False

    def __post_init__(self) -> None:
        if self.max_rows is not None and self.max_rows < 1:
            raise InvalidArgumentError(f"max_rows = {self.max_rows}: must be at least 1, or None for no limit")

    def flags(self, n: int) -> tuple[BoolArray, BoolArray]:
        """`idle` and `complete` of all `n` splits."""
        none = np.zeros(n, np.bool_)
        return none if self.idle is None else self.idle, none if self.complete is None else self.complete


class LimitedBy(StrEnum):
    """Which rule decided `T`: the answer to "why was no more read?"."""

    AVAILABLE = "available"
    ROWS = "rows"
    DRIFT = "drift"
    GAP = "gap"
    HORIZON = "horizon"


@dataclass(frozen=True, slots=True)
class MicroBatchPlan:
    """What one micro-batch reads, and the state after it.

    The positions of the table `after` are the ends of the batch. Nothing later than `bound_us`, the `T` that was
    chosen, is read. `late` are the records of each split (`int64[n]`) at or below the watermark announced before it.
    `holds_us` is where each holds the combined watermark after it, if it counts (`int64[n]`); `slowest_us` the smallest
    of these, None if no split counts.
    """

    after: SplitTable
    bound_us: int
    limited_by: LimitedBy
    rows: int
    late: Int64Array
    slowest_us: int | None
    holds_us: Int64Array


def bounding_splits(
    rules: PlanningRules, unread: BoolArray, idle: BoolArray, complete: BoolArray, draining: bool
) -> BoolArray:
    """Which splits keep the others from going further than the drift ahead of them, `bool[n]`. O(n).

    Those with something to read, and those caught up with that may get more.
    """
    holds = unread | ~(idle | complete)
    if draining and rules.drains_past_caught_up:
        holds &= unread
    return holds


def share_evenly(wanted: Int64Array, positions: Int64Array, max_rows: int) -> Int64Array:
    """Each split as many as any other, or all that it wants: together `max_rows`, or all. O(n log(max_rows)).

    `wanted` is how many each could take, `int64[n]`. What cannot be divided goes to those of which least was read, by
    `positions`.
    """
    level, too_high = 0, max_rows + 1
    while too_high - level > 1:
        middle = (level + too_high) // 2
        fits = int(np.minimum(wanted, middle).sum()) <= max_rows
        level, too_high = (middle, too_high) if fits else (level, middle)
    shared: Int64Array = np.minimum(wanted, level)
    wanting = np.flatnonzero(wanted > level)
    least_read = wanting[np.argsort(positions[wanting], kind="stable")]
    shared[least_read[: max_rows - int(shared.sum())]] += 1
    return shared


def conclude(
    before: SplitTable,
    rules: PlanningRules,
    ends: Int64Array,
    watermarks: Int64Array,
    *,
    held: Int64Array,
    paused: BoolArray,
    idle: BoolArray,
    finished: BoolArray,
    late: Int64Array,
    bound_us: int,
    limited_by: LimitedBy,
    horizon_us: int,
    no_more_splits: bool,
) -> MicroBatchPlan:
    """The plan that reads up to `ends`, with the statuses and the combined watermark after it. O(n).

    `watermarks` and `held` (`int64[n]`) are each split's own after the batch, and where it holds the combined one.
    `paused`, `idle` and `finished` (`bool[n]`) say what each split is then; active where none of them. The last one
    that is set holds.
    """
    statuses = np.full(len(before), SplitStatus.ACTIVE, np.int8)
    statuses[paused] = SplitStatus.PAUSED
    statuses[idle] = SplitStatus.IDLE
    statuses[finished] = SplitStatus.FINISHED
    # What finishes was active up to its last record: its watermark counts once more, and only then is it left out.
    last_counted = statuses.copy()
    last_counted[finished & (watermarks > MIN_WATERMARK)] = SplitStatus.ACTIVE
    combined = max(combine_watermarks(held, counted).value for counted in (last_counted, statuses))
    if rules.bounded and no_more_splits and finished.all():
        combined = MAX_WATERMARK
    if horizon_us < MAX_WATERMARK:
        combined = min(combined, saturating_add(horizon_us, -1))
    after = SplitTable(before.split_ids, ends, watermarks, statuses, max(before.combined, combined))
    counting = (statuses == SplitStatus.ACTIVE) | (statuses == SplitStatus.PAUSED)
    slowest = min(int(held[counting].min()), horizon_us) if counting.any() else None
    return MicroBatchPlan(after, bound_us, limited_by, int((ends - before.positions).sum()), late, slowest, held)
