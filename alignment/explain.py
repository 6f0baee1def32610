"""Why the watermark stands where it does: what an `Engine` says of itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from alignment.combine import SplitStatus
from alignment.durations import format_duration
from alignment.iso8601 import format_timestamp
from alignment.plan.model import LimitedBy, MicroBatchPlan, SplitTable
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK

__all__ = ["Explanation", "SplitExplanation", "WaitsFor", "explain"]

_NAMED: Final = 3


class WaitsFor(StrEnum):
    """What a split waits for."""

    NOTHING = "nothing"
    RECORDS = "records"
    TRANSACTION = "transaction"
    DRIFT = "drift"
    ROWS = "rows"
    GROUP = "group"
    HORIZON = "horizon"


@dataclass(frozen=True, slots=True)
class SplitExplanation:
    """One split in work.

    Attributes
    ----------
    split_id, status
        Which one, and what it does.
    watermark
        Its own, in microseconds; `MIN_WATERMARK` before its first record.
    position, available
        Its next record, and the one after the last that is known to be there.
    waits_for
        Why it is not read further.
    idle_in_us
        In how much processing time it becomes idle if nothing comes; None if it does not.
    """

    split_id: str
    status: SplitStatus
    watermark: int
    position: int
    available: int
    waits_for: WaitsFor
    idle_in_us: int | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """A source between two micro-batches.

    Attributes
    ----------
    watermark
        The announced one, in microseconds.
    held_by
        The splits that hold it there, by id: of those that count, all with the smallest watermark that do not wait
        for the others.
    stands_for_us
        For how much processing time the watermark has not moved.
    bound_us
        No record later than this is in the last plan; `MAX_WATERMARK` for no bound.
    splits
        All splits in work, by id.
    """

    watermark: int
    held_by: tuple[str, ...]
    stands_for_us: int
    bound_us: int
    splits: tuple[SplitExplanation, ...]

    def __str__(self) -> str:
        """One sentence on the watermark, and one on the splits that wait for others."""
        if self.watermark == MAX_WATERMARK:
            return "The source has ended: every window is closed."
        where = "There is no watermark yet"
        if self.watermark > MIN_WATERMARK:
            where = f"The watermark stands at {format_timestamp(self.watermark)}"
        if not self.splits:
            return f"{where}: no split is in work."
        if not self.held_by:
            return f"{where}: all {len(self.splits)} splits are idle."
        return f"{where} because {self._holders()}.{self._waiting()}"

    def _holders(self) -> str:
        holders = [split for split in self.splits if split.split_id in self.held_by]
        first, others = holders[0], len(holders) - 1
        named = f"split {first.split_id!r}" + (f" (and {others} more)" if others else "")
        for_long = f" for {format_duration(self.stands_for_us // 1000 * 1000)}" if self.stands_for_us >= 1000 else ""
        why = {
            WaitsFor.RECORDS: f"has had nothing to read{for_long}",
            WaitsFor.TRANSACTION: f"has had an open transaction{for_long}",
            WaitsFor.ROWS: "has more to read than the read limit admits",
            WaitsFor.GROUP: "waits for another source of its alignment group",
            WaitsFor.HORIZON: "waits for splits that are not read yet",
        }.get(first.waits_for, "is the slowest")
        if first.idle_in_us is not None:
            why += f"; it becomes idle in {format_duration(first.idle_in_us // 1000 * 1000)}"
        return f"{named} {why}"

    def _waiting(self) -> str:
        paused = [split.split_id for split in self.splits if split.status is SplitStatus.PAUSED]
        if not paused:
            return ""
        names = ", ".join(map(repr, paused[:_NAMED])) + (f" and {len(paused) - _NAMED} more" if paused[_NAMED:] else "")
        return f" At the limit, {format_timestamp(self.bound_us)}: {names}."


def explain(
    plan: MicroBatchPlan | None,
    table: SplitTable,
    *,
    available: Mapping[str, tuple[int, int]],
    idle_at_us: npt.NDArray[np.int64],
    blocked: Collection[str],
    group_limit_us: int,
    stands_since_us: int,
    now_us: int,
) -> Explanation:
    """Explain the state of an engine. O(n).

    Parameters
    ----------
    plan, table
        The last plan, None before any; and the splits in work, with the statuses after it.
    available
        Of each split its next position, and the one after the last record known to be there.
    idle_at_us
        `int64[n]`: processing time at which each split is idle if nothing comes; `MAX_WATERMARK` for never.
    blocked
        Splits with records that cannot be read yet.
    group_limit_us
        The bound that other sources of the same alignment group set.
    stands_since_us, now_us
        Processing time of the plan that moved the watermark last, and now.
    """
    limited_by, bound_us = (None, MAX_WATERMARK) if plan is None else (plan.limited_by, plan.bound_us)
    columns = table.watermarks.tolist(), table.statuses.tolist(), idle_at_us.tolist()
    splits = []
    for split_id, watermark, status, idle_us in zip(table.split_ids, *columns, strict=True):
        position, end = available[split_id]
        if split_id in blocked:
            waits_for = WaitsFor.TRANSACTION
        elif position == end:
            waits_for = WaitsFor.RECORDS
        else:
            waits_for = _limit(limited_by, is_group=bound_us == group_limit_us < MAX_WATERMARK)
        becomes_idle = status == SplitStatus.ACTIVE and waits_for is WaitsFor.RECORDS and idle_us < MAX_WATERMARK
        idle_in_us = max(idle_us - now_us, 0) if becomes_idle else None
        splits.append(SplitExplanation(split_id, SplitStatus(status), watermark, position, end, waits_for, idle_in_us))
    counting = [split for split in splits if split.status in (SplitStatus.ACTIVE, SplitStatus.PAUSED)]
    slowest_us = min((split.watermark for split in counting), default=MAX_WATERMARK)
    slowest = [split for split in counting if split.watermark == slowest_us]
    # One that waits for the others at the limit is not what holds them.
    holders = [split for split in slowest if split.waits_for is not WaitsFor.DRIFT] or slowest
    held_by = tuple(split.split_id for split in holders)
    stands_for_us = max(now_us - stands_since_us, 0)
    return Explanation(table.combined, held_by, stands_for_us, bound_us, tuple(splits))


def _limit(limited_by: LimitedBy | None, *, is_group: bool) -> WaitsFor:
    """Why a split that has something to read is not read further."""
    if limited_by is LimitedBy.ROWS:
        return WaitsFor.ROWS
    if is_group:
        return WaitsFor.GROUP
    if limited_by is LimitedBy.HORIZON:
        return WaitsFor.HORIZON
    return WaitsFor.DRIFT if limited_by in (LimitedBy.DRIFT, LimitedBy.GAP) else WaitsFor.NOTHING
