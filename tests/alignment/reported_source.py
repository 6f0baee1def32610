"""A source whose readers report what they saw, planned step by step: what each step must hold is checked after it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from alignment.combine import SplitStatus
from alignment.events import RangeReport
from alignment.plan import MicroBatchPlan, PlanConditions, PlanningRules, SplitTable
from alignment.plan.by_reports import ReactivePlanner
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from tests.alignment.naive_reactive import NaiveReactivePlan, ReportedSplit, naive_reactive_plan


@dataclass
class Log:
    """All records of a split, read or not."""

    times: list[int] = field(default_factory=list)
    complete: bool = False
    # Records at or below this were older than what was announced when the split joined or came back.
    excused: int = MIN_WATERMARK


@dataclass
class Snapshot:
    splits: dict[str, tuple[int, int, SplitStatus]]
    combined: int
    furthest: int


class ReportedSource:
    """Splits with their records; what each plan admits is read at once, and the reports of it are in flight."""

    def __init__(self, rules: PlanningRules, first_rows: int = 2, growth: int = 2) -> None:
        self.rules, self.first_rows, self.growth = rules, first_rows, growth
        self.planner = ReactivePlanner(rules, first_rows=first_rows, growth=growth)
        self.logs: dict[str, Log] = {}
        self.splits: dict[str, ReportedSplit] = {}
        self.statuses: dict[str, SplitStatus] = {}
        self.combined = self.furthest = MIN_WATERMARK
        self.no_more_splits = self.draining = False
        self.in_flight: list[RangeReport] = []
        self.history: list[Snapshot] = []
        self.remember()

    # ---- what happens to a source ---------------------------------------------------------------------------------

    def join(self, split_id: str, times: Sequence[int] = (), *, complete: bool = False) -> None:
        log = self.logs.setdefault(split_id, Log())
        log.times += times
        log.complete |= complete
        log.excused = max(log.excused, self.combined)
        self.splits[split_id] = ReportedSplit(0)
        self.statuses[split_id] = SplitStatus.ACTIVE

    def append(self, split_id: str, times: Sequence[int]) -> None:
        log, split = self.logs[split_id], self.splits[split_id]
        if times and self.statuses[split_id] is SplitStatus.IDLE and split.position == len(log.times):
            log.excused = max(log.excused, self.combined)
        split.idle = False
        log.times += times

    def is_caught_up(self, split_id: str) -> bool:
        return self.splits[split_id].position == len(self.logs[split_id].times)

    def leave_finished(self) -> None:
        gone = [i for i, status in self.statuses.items() if status is SplitStatus.FINISHED]
        for split_id in gone:
            del self.splits[split_id], self.statuses[split_id]
        self.planner.splits.forget(gone)

    def restart(self) -> None:
        """Only the table is left."""
        self.planner = ReactivePlanner(self.rules, first_rows=self.first_rows, growth=self.growth)
        self.planner.splits.rewind(self.table())
        for split in self.splits.values():
            split.story, split.covered, split.carried, split.reported_late = [], set(), 0, 0

    def rewind(self, back: int) -> None:
        """To the state `back` plans ago; splits that joined since are to be found again."""
        del self.history[-back:]
        state = self.history[-1]
        before, self.splits, self.statuses = self.splits, {}, {}
        self.combined, self.furthest = state.combined, state.furthest
        for split_id, (position, watermark, status) in state.splits.items():
            split = self.splits[split_id] = ReportedSplit(position, watermark)
            self.statuses[split_id] = status
            if split_id in before:
                was = before[split_id]
                reports = [r for r in was.story if isinstance(r, RangeReport)]
                covered = was.covered.union(*(range(r.start, r.stop) for r in reports))
                split.covered = {i for i in covered if i < position}
                split.carried = was.fresh_late() if position >= was.position else 0
        self.planner.splits.rewind(self.table())

    # ---- reports --------------------------------------------------------------------------------------------------

    def deliver(self, report: RangeReport) -> bool:
        changed = self.planner.splits.report(report)
        self.planner.splits.check_invariants()
        split = self.splits.get(report.split_id)
        if split is None or report.stop > split.position:
            assert not changed, "a report of a range that was not planned"
            return False
        again = self.planner.splits.report(report)
        assert not again, "a report that was taken in changed something once more"
        split.story.append(report)
        return changed

    def deliver_all(self) -> None:
        while self.in_flight:
            self.deliver(self.in_flight.pop(0))

    def _read(self, split_id: str, start: int, stop: int, pieces: int) -> None:
        cuts = sorted({start, stop, *(start + (stop - start) * k // pieces for k in range(1, pieces))})
        for begin, end in pairwise(cuts):
            times = self.logs[split_id].times[begin:end]
            timed = [time for time in times if time != NO_TIMESTAMP]
            self.in_flight.append(
                RangeReport(
                    split_id,
                    begin,
                    end,
                    min(timed, default=NO_TIMESTAMP),
                    max(timed, default=NO_TIMESTAMP),
                    sum(time <= self.combined for time in timed),
                )
            )

    # ---- planning -------------------------------------------------------------------------------------------------

    def plan(
        self,
        max_rows: int | None = None,
        group_limit: int = MAX_WATERMARK,
        horizon: int = MAX_WATERMARK,
        pieces: int = 1,
    ) -> MicroBatchPlan:
        for split_id, split in self.splits.items():
            split.end, split.complete = len(self.logs[split_id].times), self.logs[split_id].complete
        expected = naive_reactive_plan(
            self.splits,
            self.combined,
            self.rules,
            first_rows=self.first_rows,
            growth=self.growth,
            group_limit=group_limit,
            horizon=horizon,
            no_more_splits=self.no_more_splits,
            draining=self.draining,
            furthest=self.furthest,
        )
        before = self.table()
        ids = before.split_ids
        conditions = PlanConditions(
            max_rows=max_rows,
            group_limit_us=group_limit,
            horizon_us=horizon,
            idle=np.array([self.splits[i].idle for i in ids], np.bool_),
            complete=np.array([self.splits[i].complete for i in ids], np.bool_),
            no_more_splits=self.no_more_splits,
            draining=self.draining,
        )
        plan = self.planner.plan(before, np.array([self.splits[i].end for i in ids], np.int64), conditions)
        self.planner.splits.check_invariants()
        self._check(before, plan, expected, max_rows)
        late = plan.late.tolist()
        for slot, split_id in enumerate(ids):
            split = self.splits[split_id]
            assert late[slot] == split.fresh_late(), "late records are reported twice, or not at all"
            split.reported_late += late[slot]
            end = int(plan.after.positions[slot])
            if end > split.position:
                self._read(split_id, split.position, end, pieces)
                split.story.append((split.position, end))
            split.position, split.watermark = end, int(plan.after.watermarks[slot])
            self.statuses[split_id] = SplitStatus(int(plan.after.statuses[slot]))
        self.combined, self.furthest = plan.after.combined, plan.after.furthest
        assert self.furthest == (expected.furthest if expected.furthest > self.combined else MIN_WATERMARK)
        self.remember()
        return plan

    def read_to_the_end(self, steps: int, *, loses: bool = False) -> int:
        """Plan until nothing is left to read and nothing changes; how many plans that took."""
        for step in range(1, steps + 1):
            before = (self.combined, dict(self.statuses))
            plan = self.plan()
            if loses:
                self.in_flight.clear()
            self.deliver_all()
            self.leave_finished()
            if plan.rows == 0 and before == (self.combined, self.statuses):
                return step
        raise AssertionError(f"not at its end after {steps} plans: {self.splits}")

    def table(self) -> SplitTable:
        ids = sorted(self.splits)
        return SplitTable(
            split_ids=tuple(ids),
            positions=np.array([self.splits[i].position for i in ids], np.int64),
            watermarks=np.array([self.splits[i].watermark for i in ids], np.int64),
            statuses=np.array([self.statuses[i] for i in ids], np.int8),
            combined=self.combined,
            furthest=self.furthest,
        )

    def remember(self) -> None:
        splits = {i: (split.position, split.watermark, self.statuses[i]) for i, split in self.splits.items()}
        self.history.append(Snapshot(copy.copy(splits), self.combined, self.furthest))

    def _check(
        self, before: SplitTable, plan: MicroBatchPlan, expected: NaiveReactivePlan, max_rows: int | None
    ) -> None:
        ids, after = plan.after.split_ids, plan.after
        admitted = dict(zip(ids, (after.positions - before.positions).tolist(), strict=True))
        assert dict(zip(ids, after.watermarks.tolist(), strict=True)) == expected.watermarks
        assert dict(zip(ids, map(SplitStatus, after.statuses.tolist()), strict=True)) == expected.statuses
        assert (after.combined, plan.bound_us) == (expected.combined, expected.bound)
        assert after.combined >= before.combined
        assert plan.rows == sum(admitted.values())
        if max_rows is None or sum(expected.wanted.values()) <= max_rows:
            assert admitted == expected.wanted
        else:
            assert 0 < plan.rows <= max_rows
            assert all(0 <= admitted[i] <= expected.wanted[i] for i in ids)
        for split_id, rows in admitted.items():
            split, log = self.splits[split_id], self.logs[split_id]
            if expected.statuses[split_id] is SplitStatus.PAUSED:
                assert rows == 0, "paused, and read on"
                assert expected.watermarks[split_id] > expected.limit
            self._is_never_late(log, split.position, rows, before.combined)

    def _is_never_late(self, log: Log, start: int, rows: int, announced: int) -> None:
        """Records later than their own split's watermark are later than what was announced."""
        bound = self.rules.out_of_orderness_us
        assert bound is not None
        latest = max(log.times[:start], default=NO_TIMESTAMP)
        for time in log.times[start : start + rows]:
            is_on_time = time != NO_TIMESTAMP and (latest == NO_TIMESTAMP or time >= latest - bound)
            assert not is_on_time or time > announced or time <= log.excused, "on time by its split, and late"
            latest = max(latest, time)
