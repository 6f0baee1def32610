"""The conclusion of a plan: statuses and watermark after a micro-batch, however its ends were chosen."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from alignment.combine import SplitStatus, combine_watermarks
from alignment.plan.rules import PlanningRules, total
from alignment.plan.table import SplitTable
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK, BoolArray, Int64Array, saturating_add

__all__ = ["LimitedBy", "MicroBatchPlan", "conclude"]


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
    """What one micro-batch reads, and the state after it.

    The positions of the table `after` are the ends of the batch. Nothing later than `bound_us`, the `T` that was
    chosen, is read; `rows` are, or as many are predicted where readers report. `late` are the records of each split
    (`int64[n]`) at or below the watermark announced before it; `outside` is how many lie outside of the range of event
    times that is wanted, read or passed by, as far as event times are known. `holds_us` is where each holds the
    combined watermark after it, if it counts (`int64[n]`); `slowest_us` the smallest of these, None if no split counts.
    It is how far the other sources of an alignment group take this one to be: a split that no longer bounds `T` is left
    out of it, as long as another one has records.
    """

    after: SplitTable
    bound_us: int
    limited_by: LimitedBy
    rows: int
    late: Int64Array
    slowest_us: int | None
    holds_us: Int64Array
    outside: int = 0


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
    rows: int | None = None,
    bounding: BoolArray | None = None,
    outside: int = 0,
) -> MicroBatchPlan:
    """The plan that reads up to `ends`, with the statuses and the combined watermark after it. O(n).

    `watermarks` and `held` (`int64[n]`) are each split's own after the batch, and where it holds the combined one.
    `paused`, `idle` and `finished` (`bool[n]`) are the statuses then; active where none of them. The last one that is
    set holds. `outside` is that of the plan. `rows` are read up to `ends`; None where every position is one. `bounding`
    (`bool[n]`) are the splits that bound `T` in the next plan; None for all that count.
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
    after = SplitTable(
        split_ids=before.split_ids,
        positions=ends,
        watermarks=watermarks,
        statuses=statuses,
        combined=max(before.combined, combined),
    )
    counting = (statuses == SplitStatus.ACTIVE) | (statuses == SplitStatus.PAUSED)
    if bounding is not None and (counting & bounding).any():
        counting &= bounding
    slowest = min(int(held[counting].min()), horizon_us) if counting.any() else None
    rows = total(ends - before.positions) if rows is None else rows
    return MicroBatchPlan(
        after=after,
        bound_us=bound_us,
        limited_by=limited_by,
        rows=rows,
        late=late,
        slowest_us=slowest,
        holds_us=held,
        outside=outside,
    )
