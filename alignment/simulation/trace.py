"""What a run on a fake clock comes to, micro-batch after micro-batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from alignment.combine import SplitStatus
from alignment.plan import MicroBatchPlan, SplitTable
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK

__all__ = ["SourceTrace", "TraceColumns"]

Int64Array: TypeAlias = npt.NDArray[np.int64]

_COLUMNS: Final = ("now_us", "watermark", "drift_us", "overshoot_us", "paused", "idle", "rows", "held_rows", "late")


@dataclass(frozen=True, slots=True)
class SourceTrace:
    """What each step of one source came to. All arrays are `int64[steps]`; a source that hangs or ended has no steps.

    Attributes
    ----------
    now_us
        When the step was planned, from the beginning of the run.
    watermark
        Announced with the step.
    drift_us
        Between the watermarks that what was read gives the fastest and the slowest split that count.
    overshoot_us
        How far what was read takes a split past the limit, at most.
    paused, idle
        How many splits are, after the step.
    rows
        Records read.
    held_rows
        Records read so far that are later than the watermark announced before: what Spark has in its state behind the
        step, if it keeps records, as joins and deduplication do. It drops what a watermark has passed one step later.
    late
        Records at or below the watermark that was announced before.
    holding_back
        Of each step a split that holds the watermark back; empty where none counts.
    unread
        Records that were there, or would have come, and were not read.
    has_ended
        Whether all was read, and the watermark is where it stays.
    """

    now_us: Int64Array
    watermark: Int64Array
    drift_us: Int64Array
    overshoot_us: Int64Array
    paused: Int64Array
    idle: Int64Array
    rows: Int64Array
    held_rows: Int64Array
    late: Int64Array
    holding_back: tuple[str, ...]
    unread: int
    has_ended: bool


class TraceColumns:
    """A trace while its run goes on."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, ...]] = []
        self._holding_back: list[str] = []

    def add(
        self,
        now_us: int,
        before: SplitTable,
        plan: MicroBatchPlan,
        *,
        reached_us: Int64Array,
        held_rows: int,
        late: int,
    ) -> None:
        """One more step, planned from `before`. O(n).

        Parameters
        ----------
        reached_us
            `int64[n]`: the watermark that what was read gives each split, whether it is known to the planner or not.
        now_us, held_rows, late
            See `SourceTrace`.
        """
        after = plan.after
        paused = after.statuses == SplitStatus.PAUSED
        counts = paused | (after.statuses == SplitStatus.ACTIVE)
        begun = reached_us[counts & (reached_us > MIN_WATERMARK)]
        read = (after.positions > before.positions) & (after.watermarks > MIN_WATERMARK)
        past = reached_us[read] - plan.bound_us if plan.bound_us < MAX_WATERMARK else reached_us[:0]
        self._rows.append(
            (
                now_us,
                after.combined,
                int(begun.max() - begun.min()) if begun.size else 0,
                int(past.max(initial=0)),
                int(np.count_nonzero(paused)),
                int(np.count_nonzero(after.statuses == SplitStatus.IDLE)),
                plan.rows,
                held_rows,
                late,
            )
        )
        slowest = np.flatnonzero(counts)[np.argmin(after.watermarks[counts])] if counts.any() else None
        self._holding_back.append("" if slowest is None else after.split_ids[slowest])

    @property
    def rows(self) -> int:
        """Records read so far. O(steps)."""
        return sum(row[_COLUMNS.index("rows")] for row in self._rows)

    def trace(self, *, unread: int, has_ended: bool) -> SourceTrace:
        """All of it."""
        columns = np.array(self._rows, np.int64).reshape(-1, len(_COLUMNS)).T
        return SourceTrace(
            **dict(zip(_COLUMNS, columns, strict=True)),
            holding_back=tuple(self._holding_back),
            unread=unread,
            has_ended=has_ended,
        )
