"""A described workload, run on a fake clock without Spark: what a drift, a read limit or a fault would come to.

Each source has the engine that runs on Spark. Planned records are read at once; reports of them may be lost. Only the
records, the clock and the faults are made up: the same scenario and seed give the same run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from alignment.combine import SplitStatus
from alignment.engine import Engine
from alignment.events import (
    BlocksIndexed,
    GroupLimitMoved,
    NoMoreSplits,
    Probed,
    RangeReport,
    RangesReported,
    Restored,
    SplitCompleted,
    SplitsAssigned,
)
from alignment.groups import SourceReport, source_limit
from alignment.index import EventTimeIndex
from alignment.plan import MicroBatchPlan, PlanningRules, SplitTable
from alignment.plan.by_reports import ReactivePlanner
from alignment.simulation.scenario import Faults, Planning, Scenario, SourceScenario
from alignment.simulation.trace import SimulatedStep, SourceTrace, TraceColumns
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import LONG_AGO_US, MAX_WATERMARK, BoolArray, Int64Array, bounded_watermark

_LATEST_JOIN_US: Final = 5_000_000
"""Splits are found at the latest so long after the records of the others have arrived."""

_MOST_DELAY: Final = 3
"""The most plans by which a report is delayed."""


class Records:
    """The records of the splits of one source, drawn once.

    `int64[splits, records]` in the order of positions: event times, and the latest one up to and with each record.
    `int64[splits]`: when each split is found (`joins_us`).
    """

    def __init__(self, scenario: SourceScenario, chance: np.random.Generator, epoch_us: int) -> None:
        shape = (scenario.splits, scenario.records)
        self._scenario = scenario
        thinner = chance.uniform(1, scenario.unevenness, (scenario.splits, 1))
        steps = scenario.spacing_us * thinner * chance.uniform(1, scenario.unevenness, shape)
        gaps = np.flatnonzero(chance.random(scenario.splits) < 0.5)
        steps[gaps, chance.integers(0, scenario.records, gaps.size)] += scenario.gap_us
        begin = epoch_us + chance.integers(0, scenario.skew_us + 1, scenario.splits)
        self.times_us: Int64Array = begin[:, None] + np.cumsum(np.rint(steps).astype(np.int64), axis=1)
        self.times_us -= chance.integers(0, scenario.disorder_us + 1, shape)
        self.latest_us: Int64Array = np.maximum.accumulate(self.times_us, axis=1)
        arrival_us = self.last_arrival_us()
        late = chance.random(scenario.splits) < scenario.joining
        joins = chance.integers(1, arrival_us + _LATEST_JOIN_US + 1, scenario.splits)
        self.joins_us: Int64Array = np.where(late, joins, 0)
        self._pause_from_us = np.where(
            chance.random(scenario.splits) < 0.5,
            chance.integers(0, arrival_us + 1, scenario.splits),
            np.iinfo(np.int64).max,
        )

    def last_arrival_us(self) -> int:
        """Return how long it takes until a split has all its records, without pauses."""
        rate = self._scenario.rate
        return int(np.ceil(self._scenario.records / rate * 1e6)) if rate else 0

    def arrived(self, now_us: int) -> Int64Array:
        """Return how many records of each split have arrived, `int64[splits]`."""
        records, rate = self._scenario.records, self._scenario.rate
        if not rate:
            return np.where(now_us >= self.joins_us, records, 0)
        paused_us = np.minimum(now_us - np.minimum(self._pause_from_us, now_us), self._scenario.pause_us)
        flowing_us = np.maximum(now_us - self.joins_us - paused_us, 0)
        count: Int64Array = np.minimum(np.floor(flowing_us * (rate / 1e6)), records).astype(np.int64)
        return count


class SimulatedSource:
    """A source that is planned and read step by step; `chance` is for the faults.

    A restart makes a new `engine`. It `has_ended` when nothing more will happen.
    """

    def __init__(self, scenario: SourceScenario, records: Records, faults: Faults, chance: np.random.Generator) -> None:
        self.scenario, self.records = scenario, records
        self.rules = PlanningRules(
            scenario.out_of_orderness_us,
            scenario.max_drift_us,
            lateness="none" if scenario.planning is Planning.INDEXED else "bounded",
            bounded=scenario.bounded,
        )
        self._faults, self._chance = faults, chance
        n = scenario.splits
        self._ids = [f"split-{number:0{len(str(n - 1))}d}" for number in range(n)]
        self._number_of = {split_id: number for number, split_id in enumerate(self._ids)}
        self._known = np.zeros(n, np.bool_)
        self._indexed_to, self._positions = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self._held = np.empty(0, np.int64)
        self._in_flight: dict[int, list[RangeReport]] = {}
        self._last_read: list[RangeReport] = []
        self._steps = 0
        self.has_ended = False
        self.engine = self._new_engine()

    def step(self, now_us: int, group_limit_us: int = MAX_WATERMARK) -> SimulatedStep:
        """Let arrive what does, plan, read, and send the reports. O(n log n), and O(1) a report."""
        if self._steps and self._chance.random() < self._faults.restart:
            self._restart(now_us)
        engine, arrived = self.engine, self.records.arrived(now_us)
        self._assign_found(now_us)
        self._index_arrived(arrived)
        engine.apply(Probed(now_us))
        engine.apply(GroupLimitMoved(group_limit_us))
        if reports := self._in_flight.pop(self._steps, []):
            engine.apply(RangesReported(tuple(reports)))
        plan = engine.plan(now_us, self.scenario.max_rows)
        before = engine.table
        numbers = self._numbers(before)
        late = self._read(before, plan, numbers)
        self._positions[numbers] = plan.after.positions
        if engine.has_news(plan):
            engine.commit(plan)
        self._held = self._held[self._held > before.combined]
        reached_us = self._reached(numbers, plan.after.positions)
        step = SimulatedStep(
            now_us=now_us,
            before=before,
            plan=plan,
            reached_us=reached_us,
            late=late,
            held_rows=self._held.size,
            reports=reports,
        )
        self._steps += 1
        self.has_ended = self._is_at_its_end(step)
        return step

    def group_report(self, step: SimulatedStep) -> SourceReport:
        """Return what it reports to its group after a step."""
        assert self.scenario.group_drift_us is not None
        return SourceReport(self.scenario.group_drift_us, step.plan.slowest_us, self.engine.nearest_us())

    # ---- inside: what becomes known --------------------------------------------------------------------------------

    def _new_engine(self) -> Engine:
        scenario = self.scenario
        is_reactive = scenario.planning is Planning.REACTIVE
        return Engine(
            self.rules,
            EventTimeIndex(self._load),
            idle_timeout_us=scenario.idle_timeout_us,
            reactive=ReactivePlanner(self.rules, first_rows=scenario.first_rows, growth=scenario.growth)
            if is_reactive
            else None,
        )

    def _restart(self, now_us: int) -> None:
        """Begin again: nothing but the table is known, and the last micro-batch is read again."""
        table, late = self.engine.table, self.engine.late
        nowhere, unknown = np.zeros(len(table), np.int64), np.full(len(table), LONG_AGO_US)
        self.engine = self._new_engine()
        self.engine.apply(Restored(table, nowhere, late, unknown, now_us))
        self._indexed_to = self._positions.copy()
        if self._known.all():
            self.engine.apply(NoMoreSplits())
        # What was sent to the planner before does not reach this one.
        self._in_flight.clear()
        self._send(self._last_read, self._steps)

    def _assign_found(self, now_us: int) -> None:
        joining = np.flatnonzero(~self._known & (self.records.joins_us <= now_us))
        if joining.size:
            self._known[joining] = True
            ids = tuple(self._ids[number] for number in joining.tolist())
            self.engine.apply(SplitsAssigned(ids, (0,) * len(ids), (0,) * len(ids), now_us))
            if self._known.all():
                self.engine.apply(NoMoreSplits())

    def _index_arrived(self, arrived: Int64Array) -> None:
        is_indexed = self.scenario.planning is Planning.INDEXED
        for number in np.flatnonzero(self._known & (arrived > self._indexed_to)).tolist():
            times = self.records.times_us[number, self._indexed_to[number] : arrived[number]]
            low, high = (times.min(), times.max()) if is_indexed else (NO_TIMESTAMP, NO_TIMESTAMP)
            rows, low, high = (np.array([value], np.int64) for value in (times.size, low, high))
            self.engine.apply(BlocksIndexed(self._ids[number], rows, low, high))
        self._indexed_to = np.where(self._known, np.maximum(arrived, self._indexed_to), self._indexed_to)
        if self.scenario.bounded:
            whole, complete = self._indexed_to == self.scenario.records, self.engine.complete
            for split_id in self.engine.index.split_ids:
                if whole[self._number_of[split_id]] and split_id not in complete:
                    self.engine.apply(SplitCompleted(split_id))

    def _load(self, split_id: str, start: int, stop: int) -> Int64Array:
        return self.records.times_us[self._number_of[split_id], start:stop]

    def _numbers(self, table: SplitTable) -> Int64Array:
        return np.array([self._number_of[split_id] for split_id in table.split_ids], np.int64)

    def _reached(self, numbers: Int64Array, positions: Int64Array) -> Int64Array:
        last = positions - 1
        latest = np.where(last >= 0, self.records.latest_us[numbers, np.maximum(last, 0)], NO_TIMESTAMP)
        return bounded_watermark(latest, self.scenario.out_of_orderness_us)

    def _is_at_its_end(self, step: SimulatedStep) -> bool:
        """Bounded: all splits are finished. Not bounded: all is there, read and reported, and what can be idle is."""
        if not self._known.all():
            return False
        if self.scenario.bounded:
            return not len(self.engine.table)
        after = step.plan.after
        waits_to_be_idle = self.scenario.idle_timeout_us is not None and (after.statuses != SplitStatus.IDLE).any()
        is_quiet = step.plan.rows == 0 and after.combined == step.before.combined and not self._in_flight
        return bool(is_quiet and not waits_to_be_idle and (self._positions == self.scenario.records).all())

    # ---- inside: reading and reports -----------------------------------------------------------------------------

    def _read(self, before: SplitTable, plan: MicroBatchPlan, in_work: Int64Array) -> int:
        """Read what was planned; how many records are late."""
        reads = np.flatnonzero(plan.after.positions > before.positions)
        self._last_read = []
        if not reads.size:
            return 0
        numbers, start, stop = in_work[reads], before.positions[reads], plan.after.positions[reads]
        rows = stop - start
        first = np.cumsum(rows) - rows
        owner = np.repeat(np.arange(reads.size), rows)
        position = np.arange(int(rows.sum())) - first[owner] + start[owner]
        times = self.records.times_us[numbers[owner], position]
        is_late = times <= before.combined
        self._held = np.append(self._held, times)
        if self.scenario.planning is Planning.REACTIVE:
            cuts = first[rows > 1] + rows[rows > 1] // 2 if self._chance.random() < 0.3 else first[:0]
            self._last_read = self._reports(numbers, np.union1d(first, cuts), owner, position, times, is_late)
            self._send(self._last_read, self._steps + 1)
        return int(is_late.sum())

    def _reports(
        self,
        numbers: Int64Array,
        starts: Int64Array,
        owner: Int64Array,
        position: Int64Array,
        times: Int64Array,
        is_late: BoolArray,
    ) -> list[RangeReport]:
        """One for each run of records that begins at `starts`."""
        low, high = np.minimum.reduceat(times, starts), np.maximum.reduceat(times, starts)
        late = np.add.reduceat(is_late, starts, dtype=np.int64)
        lasts = np.append(starts[1:], times.size) - 1
        columns = (numbers[owner[starts]], position[starts], position[lasts] + 1, low, high, late)
        return [
            RangeReport(self._ids[number], begin, end, least, most, count)
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


_EPOCH_US: Final = 1_700_000_000_000_000


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """A run of so many micro-batches, and one trace for each source of the scenario."""

    steps: int
    sources: tuple[SourceTrace, ...]

    @property
    def has_ended(self) -> bool:
        """True if every source has."""
        return all(trace.has_ended for trace in self.sources)


@dataclass(slots=True)
class _Running:
    source: SimulatedSource
    report: SourceReport | None
    lease_ends_us: int = 0
    hangs_until_us: int = 0
    is_dead: bool = False
    columns: TraceColumns = field(default_factory=TraceColumns)


def simulate(
    scenario: Scenario, seed: int, on_step: Callable[[SimulatedSource, SimulatedStep], None] | None = None
) -> SimulationResult:
    """Play a scenario to its end; the seed decides all that is drawn: records and faults.

    `on_step` is called after each step of each source, with the source and what the step came to.

    Examples
    --------
    >>> from alignment.simulation.scenario import Scenario, SourceScenario
    >>> skewed = SourceScenario(splits=4, records=500, skew_us=200_000, max_drift_us=50_000, first_rows=10)
    >>> run = simulate(Scenario(sources=(skewed,)), seed=1)
    >>> run.has_ended, int(run.sources[0].rows.sum()), int(run.sources[0].late.sum())
    (True, 2000, 0)
    """
    chance = np.random.default_rng(seed)
    running = []
    for source in scenario.sources:
        records = Records(source, chance, _EPOCH_US)
        report = None if source.group_drift_us is None else SourceReport(source.group_drift_us)
        running.append(_Running(SimulatedSource(source, records, scenario.faults, chance), report))
    step = 0
    while step < scenario.max_steps and any(not (one.is_dead or one.source.has_ended) for one in running):
        now_us = step * scenario.batch_us
        for one in running:
            if _is_running(one, scenario, now_us, chance):
                _step(one, running, scenario, now_us, on_step)
        step += 1
    return SimulationResult(step, tuple(_trace(one) for one in running))


def _is_running(one: _Running, scenario: Scenario, now_us: int, chance: np.random.Generator) -> bool:
    if one.is_dead or one.source.has_ended or now_us < one.hangs_until_us:
        return False
    luck = chance.random(2)
    one.is_dead = bool(luck[0] < scenario.faults.death)
    if luck[1] < scenario.faults.hang:
        one.hangs_until_us = now_us + scenario.lease_us * 3 // 2
    return not one.is_dead and now_us >= one.hangs_until_us


def _step(
    one: _Running,
    running: list[_Running],
    scenario: Scenario,
    now_us: int,
    on_step: Callable[[SimulatedSource, SimulatedStep], None] | None,
) -> None:
    group_limit_us = MAX_WATERMARK
    one.lease_ends_us = now_us + scenario.lease_us
    if one.report is not None:
        group_limit_us = source_limit(str(running.index(one)), _group(running, now_us))
    step = one.source.step(now_us, group_limit_us)
    if one.report is not None:
        one.report = one.source.group_report(step)
    one.columns.add(step)
    if on_step is not None:
        on_step(one.source, step)


def _group(running: list[_Running], now_us: int) -> dict[str, SourceReport]:
    """Return the reports that count: those of running sources that did not hang for longer than their lease."""
    return {
        str(number): one.report
        for number, one in enumerate(running)
        if one.report is not None and not one.is_dead and not one.source.has_ended and one.lease_ends_us > now_us
    }


def _trace(one: _Running) -> SourceTrace:
    scenario, columns = one.source.scenario, one.columns
    return columns.trace(
        unread=scenario.splits * scenario.records - columns.rows,
        has_ended=one.source.has_ended,
    )
