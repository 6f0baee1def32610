"""The steps of one simulated source, and the trace of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from alignment.combine import SplitStatus
from alignment.events import RangeReport
from alignment.plan import MicroBatchPlan, SplitTable
from alignment.watermarks import MIN_WATERMARK, Int64Array

_COLUMNS: Final = ("now_us", "watermark", "drift_us", "paused", "rows", "held_rows", "late")


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """One micro-batch of one source: when, and from which state, it was planned, and what.

    `reached_us` (`int64[n]`) is the watermark that all records read so far give each split, reported or not. `late`
    records are at or below the watermark announced before; `held_rows` is as in `SourceTrace`. `reports` came in before
    it was planned.
    """

    now_us: int
    before: SplitTable
    plan: MicroBatchPlan
    reached_us: Int64Array
    late: int
    held_rows: int
    reports: Sequence[RangeReport] = ()


@dataclass(frozen=True, slots=True)
class SourceTrace:
    """The result of each step of one source. All arrays are `int64[steps]`; a source that hangs or ended has no steps.

    Of each step: when it was planned, from the start of the run; the announced watermark; event time between the
    watermarks that what was read gives the fastest and the slowest split that count (`drift_us`); how many splits are
    paused; records read, and those at or below the watermark announced before (`late`). `held_rows` are records read so
    far that are later than that: what Spark has in its state after the step if it keeps records, as joins and
    deduplication do, since it drops what a watermark has passed one step later. `holding_back` is a split that holds
    the watermark, empty where none counts.

    `unread` records were there, or would have come. It `has_ended` if all was read, and the watermark stays there. If
    it is not `is_exact`, an estimated event time decided about some records: so many were `late` at least.
    """

    now_us: Int64Array
    watermark: Int64Array
    drift_us: Int64Array
    paused: Int64Array
    rows: Int64Array
    held_rows: Int64Array
    late: Int64Array
    holding_back: tuple[str, ...]
    unread: int
    has_ended: bool
    is_exact: bool = True


class TraceColumns:
    """A trace while its run goes on."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, ...]] = []
        self._holding_back: list[str] = []

    def add(self, step: SimulatedStep) -> None:
        """One more step. O(n)."""
        after, reached_us = step.plan.after, step.reached_us
        paused = after.statuses == SplitStatus.PAUSED
        counts = paused | (after.statuses == SplitStatus.ACTIVE)
        started = reached_us[counts & (reached_us > MIN_WATERMARK)]
        self._rows.append(
            (
                step.now_us,
                after.combined,
                int(started.max() - started.min()) if started.size else 0,
                int(np.count_nonzero(paused)),
                step.plan.rows,
                step.held_rows,
                step.late,
            )
        )
        slowest = np.flatnonzero(counts)[np.argmin(after.watermarks[counts])] if counts.any() else None
        self._holding_back.append("" if slowest is None else after.split_ids[slowest])

    @property
    def rows(self) -> int:
        """Records read so far. O(steps)."""
        return sum(row[_COLUMNS.index("rows")] for row in self._rows)

    def trace(self, *, unread: int, has_ended: bool, is_exact: bool = True) -> SourceTrace:
        """All of it."""
        columns = np.array(self._rows, np.int64).reshape(-1, len(_COLUMNS)).T
        return SourceTrace(
            **dict(zip(_COLUMNS, columns, strict=True)),
            holding_back=tuple(self._holding_back),
            unread=unread,
            has_ended=has_ended,
            is_exact=is_exact,
        )
