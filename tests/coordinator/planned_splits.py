"""The splits of a query, changed one by one: each change is a plan that reads nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from alignment.combine import SplitStatus
from alignment.plan import LimitedBy, PlanConditions, PlanningRules, Reading, SplitTable, conclude
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK


class PlannedSplits:
    """`SplitWatermarks`, made of what a query runs: splits join and leave the table, and `conclude` combines them.

    A split that is unregistered has ended: there is no other way out of a query.
    """

    def __init__(self, bounded: bool = False) -> None:
        self._rules = PlanningRules(0, bounded=bounded)
        self._table = SplitTable.empty()
        self._idle: set[str] = set()
        self._finished: set[str] = set()
        self._had_splits = self._is_idle = self._no_more_splits = False
        self._open = 0

    def register(self, split_id: str, initial: int = MIN_WATERMARK) -> None:
        with self.together():
            self._table, _ = self._table.joined([split_id], [0])
            self._had_splits = True
            self._raise(split_id, initial)

    def unregister(self, split_id: str) -> None:
        with self.together():
            self._finished.add(split_id)

    def no_more_splits(self) -> None:
        with self.together():
            self._no_more_splits = True

    def update(self, split_id: str, watermark: int) -> None:
        with self.together():
            self._idle.discard(split_id)
            self._raise(split_id, watermark)

    def mark_idle(self, split_id: str) -> None:
        with self.together():
            self._idle.add(split_id)

    def mark_active(self, split_id: str) -> None:
        with self.together():
            self._idle.discard(split_id)

    @contextmanager
    def together(self) -> Iterator[None]:
        self._open += 1
        yield
        self._open -= 1
        if not self._open:
            self._plan()

    @property
    def combined(self) -> int:
        return self._table.combined

    @property
    def is_idle(self) -> bool:
        return self._had_splits and self._is_idle

    def status(self, split_id: str) -> SplitStatus:
        return SplitStatus(self._table.statuses[self._table.split_ids.index(split_id)])

    def _raise(self, split_id: str, watermark: int) -> None:
        watermarks, slot = self._table.watermarks.copy(), self._table.split_ids.index(split_id)
        watermarks[slot] = max(int(watermarks[slot]), watermark)
        self._table = replace(self._table, watermarks=watermarks)

    def _plan(self) -> None:
        before, n = self._table, len(self._table)
        reading = Reading(
            ends=before.positions,
            watermarks=before.watermarks,
            held=before.watermarks,
            paused=np.zeros(n, np.bool_),
            idle=np.array([split_id in self._idle for split_id in before.split_ids], np.bool_),
            finished=np.array([split_id in self._finished for split_id in before.split_ids], np.bool_),
            late=np.zeros(n, np.int64),
            bound_us=MAX_WATERMARK,
            limited_by=LimitedBy.AVAILABLE,
        )
        plan = conclude(before, self._rules, PlanConditions(no_more_splits=self._no_more_splits), reading)
        self._is_idle = plan.slowest_us is None
        self._table, _, gone = plan.after.without_finished()
        self._finished.difference_update(gone)
        self._idle.difference_update(gone)
