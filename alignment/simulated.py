"""One source of a simulation: its planner, its readers and its records, on a fake clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from alignment.combine import SplitStatus
from alignment.drift import SourceReport
from alignment.index import EventTimeIndex
from alignment.planner import MicroBatchPlan, PlanConditions, PlanningRules, SplitTable, plan_micro_batch
from alignment.reactive import ReactivePlanner, nearest_us
from alignment.reports import RangeReport
from alignment.scenario import Faults, Planning, Records, SourceScenario
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK, bounded_watermark

__all__ = ["SimulatedSource", "SimulatedStep"]

Int64Array: TypeAlias = npt.NDArray[np.int64]

_MOST_DELAY: Final = 3
"""Plans by which a report is late at most."""


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """One micro-batch of one source.

    Attributes
    ----------
    now_us
        When it was planned.
    before, plan
        The state before it, and what was planned.
    numbers
        `int64[n]`: which splits of the scenario those of the table are.
    ends
        `int64[n]`: positions after the last record that was there.
    reached_us
        `int64[n]`: the watermark that all records read so far give each split, whether reported or not.
    late
        Records of the batch at or below the watermark announced before it.
    wrongly_late
        Those of them that were on time by their own split, though it was there and not idle.
    held_rows
        Records read so far that are later than the watermark: what a window keeps in its state.
    """

    now_us: int
    before: SplitTable
    plan: MicroBatchPlan
    numbers: Int64Array
    ends: Int64Array
    reached_us: Int64Array
    late: int
    wrongly_late: int
    held_rows: int


class SimulatedSource:
    """A source that is planned and read step by step.

    Parameters
    ----------
    scenario, faults
        What to play.
    records
        Of its splits.
    chance
        For the faults.

    Attributes
    ----------
    told_us
        `int64[splits]`: the latest event time that the planner that runs now was told of each split, in reports that it
        had to take; `NO_TIMESTAMP` before any.
    has_ended
        Whether nothing more will happen.
    """

    def __init__(self, scenario: SourceScenario, records: Records, faults: Faults, chance: np.random.Generator) -> None:
        self.scenario, self.records = scenario, records
        self.rules = PlanningRules(scenario.out_of_orderness_us, scenario.max_drift_us, bounded=scenario.bounded)
        self._faults, self._chance = faults, chance
        n = scenario.splits
        self._ids = [f"split-{number:0{len(str(n - 1))}d}" for number in range(n)]
        self._in_work, self._known = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
        self._positions = np.zeros(n, np.int64)
        self._watermarks = np.full(n, MIN_WATERMARK)
        self._statuses = np.full(n, SplitStatus.ACTIVE, np.int8)
        self._combined: int = MIN_WATERMARK
        self._numbers = np.empty(0, np.int64)
        self._table_ids: tuple[str, ...] = ()
        self._caught_up_us = np.zeros(n, np.int64)
        self._excused_us = np.full(n, MIN_WATERMARK)
        self._held = np.empty(0, np.int64)
        self._in_flight: dict[int, list[RangeReport]] = {}
        self._last_read: list[RangeReport] = []
        self._indexed_to = np.zeros(n, np.int64)
        self._steps = 0
        self.told_us = np.full(n, NO_TIMESTAMP)
        self.has_ended = False
        self._start()

    def step(self, now_us: int, group_limit_us: int = MAX_WATERMARK) -> SimulatedStep:
        """Let arrive what does, plan, read, and send the reports. O(n log n), and O(1) a report."""
        if self._steps and self._chance.random() < self._faults.restart:
            self._start()
        arrived = self.records.arrived(now_us)
        self._take_joining(now_us, arrived)
        for report in self._in_flight.pop(self._steps, []):
            self._deliver(report)
        numbers, before = self._numbers, self._table()
        ends = np.maximum(arrived[numbers], before.positions)
        plan = self._plan(before, ends, now_us, group_limit_us)
        late, wrongly_late = self._read(before, plan)
        self._take_over(plan, now_us, ends)
        self._held = self._held[self._held > self._combined]
        step = SimulatedStep(
            now_us, before, plan, numbers, ends, self._reached(numbers), late, wrongly_late, self._held.size
        )
        self._steps += 1
        self.has_ended = self._is_at_its_end(step)
        return step

    def group_report(self, step: SimulatedStep) -> SourceReport:
        """What it tells its group after a step."""
        assert self.scenario.group_drift_us is not None
        after, next_us = step.plan.after, nearest_us(step.plan.after, step.ends)
        if next_us is not None and self.scenario.planning is Planning.INDEXED:
            left = np.flatnonzero(after.positions < step.ends)
            next_us = int(self.records.times_us[step.numbers[left], after.positions[left]].min())
        return SourceReport(self.scenario.group_drift_us, step.plan.slowest_us, next_us)

    def check_invariants(self) -> None:
        """Assert what always holds of the planner; for tests. O(n)."""
        if self.scenario.planning is Planning.REACTIVE:
            self._planner.check_invariants()

    # ---- inside: planning ----------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Begin, or begin again: nothing but the table is known, and the last micro-batch is read again."""
        table = self._table()
        if self.scenario.planning is Planning.REACTIVE:
            scenario = self.scenario
            self._planner = ReactivePlanner(self.rules, first_rows=scenario.first_rows, growth=scenario.growth)
            self._planner.rewind(table)
            self.told_us[:] = NO_TIMESTAMP
            # What was sent to the planner before does not reach this one.
            self._in_flight.clear()
            self._send(self._last_read, self._steps)
        else:
            self._index = EventTimeIndex(self._load)
            for split_id, number in zip(table.split_ids, self._numbers.tolist(), strict=True):
                self._index.add_split(split_id, int(self._positions[number]))
            self._indexed_to = self._positions.copy()

    def _take_joining(self, now_us: int, arrived: Int64Array) -> None:
        joining = np.flatnonzero(~self._known & (self.records.joins_us <= now_us))
        if joining.size:
            self._known[joining] = self._in_work[joining] = True
            self._excused_us[joining] = self._combined
            self._caught_up_us[joining] = now_us
            self._set_numbers()
            if self.scenario.planning is Planning.INDEXED:
                for number in joining.tolist():
                    self._index.add_split(self._ids[number])
        back = self._in_work & (self._statuses == SplitStatus.IDLE) & (arrived > self._positions)
        self._excused_us[back] = np.maximum(self._excused_us[back], self._combined)

    def _plan(self, before: SplitTable, ends: Int64Array, now_us: int, group_limit_us: int) -> MicroBatchPlan:
        numbers, scenario = self._numbers, self.scenario
        self._caught_up_us[numbers[ends > before.positions]] = now_us
        idle = np.zeros(numbers.size, np.bool_)
        if scenario.idle_timeout_us is not None:
            idle = now_us - self._caught_up_us[numbers] >= scenario.idle_timeout_us
        conditions = PlanConditions(
            max_rows=scenario.max_rows,
            group_limit_us=group_limit_us,
            idle=idle,
            complete=(ends == scenario.records) & scenario.bounded,
            no_more_splits=bool(self._known.all()),
        )
        if scenario.planning is Planning.INDEXED:
            self._tell_index(ends)
            return plan_micro_batch(before, self._index, self.rules, conditions)
        return self._planner.plan(before, ends, conditions)

    def _tell_index(self, ends: Int64Array) -> None:
        for slot in np.flatnonzero(ends > self._indexed_to[self._numbers]).tolist():
            number = int(self._numbers[slot])
            times = self.records.times_us[number, self._indexed_to[number] : ends[slot]]
            self._index.append(self._ids[number], times.size, times.min(), times.max())
        self._indexed_to[self._numbers] = ends

    def _load(self, split_id: str, start: int, stop: int) -> Int64Array:
        return self.records.times_us[int(split_id.removeprefix("split-")), start:stop]

    def _take_over(self, plan: MicroBatchPlan, now_us: int, ends: Int64Array) -> None:
        numbers, after = self._numbers, plan.after
        self._positions[numbers], self._watermarks[numbers] = after.positions, after.watermarks
        self._statuses[numbers], self._combined = after.statuses, after.combined
        gone = numbers[after.statuses == SplitStatus.FINISHED]
        if gone.size:
            self._in_work[gone] = False
            self._set_numbers()
            ids = [self._ids[number] for number in gone.tolist()]
            if self.scenario.planning is Planning.INDEXED:
                self._index.remove(ids)
            else:
                self._planner.forget(ids)
        if self.scenario.planning is Planning.INDEXED:
            self._index.forget_before(self._positions[self._numbers])

    def _table(self) -> SplitTable:
        numbers = self._numbers
        return SplitTable(
            self._table_ids,
            self._positions[numbers],
            self._watermarks[numbers],
            self._statuses[numbers],
            self._combined,
        )

    def _set_numbers(self) -> None:
        self._numbers = np.flatnonzero(self._in_work)
        self._table_ids = tuple(self._ids[number] for number in self._numbers.tolist())

    def _reached(self, numbers: Int64Array) -> Int64Array:
        last = self._positions[numbers] - 1
        latest = np.where(last >= 0, self.records.latest_us[numbers, np.maximum(last, 0)], NO_TIMESTAMP)
        return bounded_watermark(latest, self.scenario.out_of_orderness_us)

    def _is_at_its_end(self, step: SimulatedStep) -> bool:
        """Bounded: all splits are finished. Not bounded: all is there, read and reported, and what can be idle is."""
        if not self._known.all():
            return False
        if self.scenario.bounded:
            return not self._in_work.any()
        after = step.plan.after
        waits_to_be_idle = self.scenario.idle_timeout_us is not None and (after.statuses != SplitStatus.IDLE).any()
        is_quiet = step.plan.rows == 0 and after.combined == step.before.combined and not self._in_flight
        return bool(is_quiet and not waits_to_be_idle and (self._positions == self.scenario.records).all())

    # ---- inside: reading and reports -----------------------------------------------------------------------------

    def _read(self, before: SplitTable, plan: MicroBatchPlan) -> tuple[int, int]:
        """Read what was planned; how many records are late, and how many of those ought not to be."""
        reads = np.flatnonzero(plan.after.positions > before.positions)
        self._last_read = []
        if not reads.size:
            return 0, 0
        numbers, start, stop = self._numbers[reads], before.positions[reads], plan.after.positions[reads]
        rows = stop - start
        first = np.cumsum(rows) - rows
        owner = np.repeat(np.arange(reads.size), rows)
        position = np.arange(int(rows.sum())) - first[owner] + start[owner]
        times = self.records.times_us[numbers[owner], position]
        is_late = times <= before.combined
        latest = self.records.latest_us[numbers[owner], np.maximum(position - 1, 0)]
        is_on_time = (position == 0) | (times >= latest - self.scenario.out_of_orderness_us)
        is_wrong = is_late & is_on_time & (times > self._excused_us[numbers[owner]])
        self._held = np.append(self._held, times)
        if self.scenario.planning is Planning.REACTIVE:
            cuts = first[rows > 1] + rows[rows > 1] // 2 if self._chance.random() < 0.3 else first[:0]
            self._last_read = self._reports(numbers, np.union1d(first, cuts), owner, position, times, is_late)
            self._send(self._last_read, self._steps + 1)
        return int(is_late.sum()), int(is_wrong.sum())

    def _reports(
        self,
        numbers: Int64Array,
        starts: Int64Array,
        owner: Int64Array,
        position: Int64Array,
        times: Int64Array,
        is_late: npt.NDArray[np.bool_],
    ) -> list[RangeReport]:
        """One for each run of records that begins at `starts`."""
        low, high = np.minimum.reduceat(times, starts), np.maximum.reduceat(times, starts)
        late = np.add.reduceat(is_late, starts, dtype=np.int64)
        lasts = np.append(starts[1:], times.size) - 1
        columns = (numbers[owner[starts]], position[starts], position[lasts] + 1, low, high, late)
        return [
            RangeReport(self._ids[number], begin, end, end - begin, least, most, count)
            for number, begin, end, least, most, count in zip(*(c.tolist() for c in columns), strict=True)
        ]

    def _send(self, reports: list[RangeReport], due: int) -> None:
        """Let them arrive before the plan of that step, or later, twice, or never."""
        faults = self._faults
        luck = self._chance.random((len(reports), 3))
        delays = self._chance.integers(1, _MOST_DELAY + 1, (len(reports), 2))
        for report, (lost, delayed, repeated), (first, second) in zip(
            reports, luck.tolist(), delays.tolist(), strict=True
        ):
            if lost >= faults.lost:
                arrives = due + (first if delayed < faults.delayed else 0)
                self._in_flight.setdefault(arrives, []).append(report)
                if repeated < faults.repeated:
                    self._in_flight.setdefault(arrives + second, []).append(report)

    def _deliver(self, report: RangeReport) -> None:
        self._planner.report(report)
        number = int(report.split_id.removeprefix("split-"))
        if self._in_work[number]:
            self.told_us[number] = max(int(self.told_us[number]), report.max_us)
