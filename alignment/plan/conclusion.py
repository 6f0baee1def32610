"""The splits of a source between two micro-batches, and the conclusion of a plan: statuses and watermark after one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from alignment.combine import SplitStatus, combine_watermarks
from alignment.plan.rules import PlanConditions, PlanningRules, total
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK, BoolArray, Int64Array, saturating_add


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
        return SplitTable(**self._columns, positions=positions)

    @property
    def _columns(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(WatermarkTable)}

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
        return WatermarkTable(**self._columns)

    def joined(self, split_ids: Collection[str], positions: Sequence[int]) -> tuple[SplitTable, npt.NDArray[np.intp]]:
        """The table with new splits, active and without a watermark; and the order: first the old ones, then the new.

        O(n log n).
        """
        ids: npt.NDArray[Any] = np.array([*self.split_ids, *split_ids], dtype=object)
        order = np.argsort(ids, kind="stable")
        new = len(positions)
        table = replace(
            self,
            split_ids=tuple(ids[order]),
            positions=np.append(self.positions, positions)[order],
            watermarks=np.append(self.watermarks, np.full(new, MIN_WATERMARK))[order],
            statuses=np.append(self.statuses, np.full(new, SplitStatus.ACTIVE, np.int8))[order],
        )
        return table, order

    def without_finished(self) -> tuple[SplitTable, npt.NDArray[np.intp], list[str]]:
        """The table without its finished splits, the slots of those that stay, the ids of those that leave. O(n)."""
        finished = self.statuses == SplitStatus.FINISHED
        keep = np.flatnonzero(~finished)
        table = replace(
            self,
            split_ids=tuple(self.split_ids[slot] for slot in keep),
            positions=self.positions[keep],
            watermarks=self.watermarks[keep],
            statuses=self.statuses[keep],
        )
        return table, keep, [self.split_ids[slot] for slot in np.flatnonzero(finished)]

    def slowest_unread(self, ends: Int64Array) -> int | None:
        """The smallest watermark of the splits with records before `ends`; None without any. O(n).

        That is how far a group must let a source without an index go for it to go on: `SourceReport.next_us`. If each
        source of a group waits for another the nearest goes on, and one that reports None is taken to have read all.
        """
        unread = self.positions < ends
        return int(self.watermarks[unread].min()) if unread.any() else None


class LimitedBy(StrEnum):
    """Which rule decided `T`: the answer to "why was no more read?"."""

    AVAILABLE = "available"
    ROWS = "rows"
    MIN_ROWS = "minRows"
    DRIFT = "drift"
    GAP = "gap"
    HORIZON = "horizon"


@dataclass(frozen=True, slots=True)
class MicroBatchPlan:
    """The ranges that one micro-batch reads, and the state after it.

    The positions of the table `after` are the ends of the batch. Nothing later than `bound_us`, the `T` that was
    chosen, is read; `rows` are, or as many are predicted where readers report. `late` are the records of each split
    (`int64[n]`) at or below the watermark announced before it; `outside` is how many lie outside of the range of event
    times that is wanted, read or passed by, as far as event times are known. `holds_us` is where each holds the
    combined watermark after it, if it counts (`int64[n]`). It does not count if it `awaits_scan`: what is found of
    splits that are not scanned yet may change what it reads. `slowest_us` is how far the other sources of an alignment
    group take this one to be, None if no split counts: the smallest of these, whatever else is unread. A split that no
    longer bounds `T` is left out of it, as long as another one has records.
    """

    after: SplitTable
    bound_us: int
    limited_by: LimitedBy
    rows: int
    late: Int64Array
    slowest_us: int | None
    holds_us: Int64Array
    outside: int = 0
    awaits_scan: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The ends of a micro-batch, however they were chosen; arrays have an entry for each split of the table.

    Attributes
    ----------
    ends, watermarks
        `int64[n]`: the positions up to which it reads, and each split's own watermark after it.
    held
        `int64[n]`: where each split holds the combined watermark: at its own, or where that is foreseen.
    unread_us
        `int64[n]`: the smallest event time that each split has unread after it, `MAX_WATERMARK` where there is none or
        it is not known. The combined watermark stays below it. None where the combined watermark may pass it.
    paused, idle, finished
        `bool[n]`: the statuses; active where none of them. The last one that is set holds.
    late
        `int64[n]`: the records at or below the watermark announced before it.
    bounding
        `bool[n]`: the splits that bound `T` in the next plan; None for all that count.
    rows
        How many it reads; None where every position is one.
    bound_us, limited_by, outside, awaits_scan
        Those of the plan.
    """

    ends: Int64Array
    watermarks: Int64Array
    held: Int64Array
    paused: BoolArray
    idle: BoolArray
    finished: BoolArray
    late: Int64Array
    bound_us: int
    limited_by: LimitedBy
    unread_us: Int64Array | None = None
    bounding: BoolArray | None = None
    rows: int | None = None
    outside: int = 0
    awaits_scan: bool = False


def conclude(before: SplitTable, rules: PlanningRules, conditions: PlanConditions, reading: Reading) -> MicroBatchPlan:
    """The plan that reads so far, with the statuses and the combined watermark after it. O(n)."""
    statuses = np.full(len(before), SplitStatus.ACTIVE, np.int8)
    statuses[reading.paused] = SplitStatus.PAUSED
    statuses[reading.idle] = SplitStatus.IDLE
    statuses[reading.finished] = SplitStatus.FINISHED
    horizon_us, holds_us = conditions.horizon_us, reading.held
    if reading.unread_us is not None:
        holds_us = np.minimum(holds_us, below(reading.unread_us))
    combined, furthest = _combined(before, rules, conditions, reading, statuses)
    combined = max(before.combined, combined)
    after = SplitTable(
        split_ids=before.split_ids,
        positions=reading.ends,
        watermarks=reading.watermarks,
        statuses=statuses,
        combined=combined,
        furthest=furthest if furthest > combined else MIN_WATERMARK,
    )
    counting = (statuses == SplitStatus.ACTIVE) | (statuses == SplitStatus.PAUSED)
    if reading.bounding is not None and (counting & reading.bounding).any():
        counting &= reading.bounding
    slowest = min(int(reading.held[counting].min()), horizon_us) if counting.any() else None
    return MicroBatchPlan(
        after=after,
        bound_us=reading.bound_us,
        limited_by=reading.limited_by,
        rows=total(reading.ends - before.positions) if reading.rows is None else reading.rows,
        late=reading.late,
        slowest_us=slowest,
        holds_us=holds_us,
        outside=reading.outside,
        awaits_scan=reading.awaits_scan,
    )


def below(times_us: Int64Array) -> Int64Array:
    """The largest watermarks that announce no record of these event times, `int64[n]`; `MAX_WATERMARK` for itself."""
    return np.where(times_us == MAX_WATERMARK, MAX_WATERMARK, times_us - 1)


def _combined(
    before: SplitTable,
    rules: PlanningRules,
    conditions: PlanConditions,
    reading: Reading,
    statuses: npt.NDArray[np.int8],
) -> tuple[int, int]:
    """The combined watermark that these statuses give, and the largest watermark of all splits that have finished."""
    held, watermarks, finished = reading.held, reading.watermarks, reading.finished
    furthest = max(before.furthest, int(watermarks[finished].max(initial=MIN_WATERMARK)))
    # What finishes was active up to its last record: its watermark counts once more, and only then is it left out.
    last_counted = statuses.copy()
    last_counted[finished & (watermarks > MIN_WATERMARK)] = SplitStatus.ACTIVE
    combined = max(combine_watermarks(held, counted).value for counted in (last_counted, statuses))
    if rules.by_source:
        # Whatever its splits are: one that was read to its end holds it no further than the source says, and no less.
        combined, furthest = conditions.source_us, MIN_WATERMARK
    if finished.all():
        # All that is there was read. Without a split ever this is no watermark.
        combined = max(combined, furthest)
        if rules.bounded and conditions.no_more_splits:
            combined = MAX_WATERMARK
    if reading.unread_us is not None:
        combined = min(combined, int(below(reading.unread_us).min(initial=MAX_WATERMARK)))
    if conditions.horizon_us < MAX_WATERMARK:
        combined = min(combined, saturating_add(conditions.horizon_us, -1))
    return combined, furthest
