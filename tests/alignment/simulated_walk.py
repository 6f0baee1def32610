"""One random simulation: a scenario drawn from a seed, played with all invariants after every step, and to its end."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from alignment.combine import SplitStatus
from alignment.engine import Engine
from alignment.simulation.described import SimulatedSource, SimulationResult, simulate
from alignment.simulation.scenario import Faults, Planning, Scenario, SourceScenario
from alignment.simulation.trace import SimulatedStep
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK, Int64Array
from tests.alignment.naive_planner import watermark_of

ACTIVE, PAUSED, IDLE, FINISHED = SplitStatus
BATCH_US = 1_000_000


def random_scenario(chance: random.Random) -> Scenario:
    in_group = chance.random() < 0.5
    sources = tuple(_random_source(chance, in_group) for _ in range(chance.choice([2, 2, 3]) if in_group else 1))
    faults = Faults(
        lost=chance.choice([0, 0, 0.1, 0.5, 1]),
        delayed=chance.choice([0, 0, 0.3]),
        repeated=chance.choice([0, 0, 0.3]),
        restart=chance.choice([0, 0, 0.1]),
        hang=chance.choice([0, 0, 0.02]) if in_group else 0,
        death=chance.choice([0, 0, 0.02]) if in_group else 0,
    )
    return Scenario(sources=sources, faults=faults, batch_us=BATCH_US, lease_us=3 * BATCH_US, max_steps=5000)


def _random_source(chance: random.Random, in_group: bool) -> SourceScenario:
    bounded = chance.random() < 0.6
    spacing = chance.choice([100, 1000, 5000])
    drifts = [0, 3 * spacing, 20 * spacing, 200 * spacing]
    disorder = chance.choice([0, 0, spacing, 10 * spacing])
    source = SourceScenario(
        planning=chance.choice([Planning.REACTIVE, Planning.REACTIVE, Planning.REACTIVE, Planning.INDEXED]),
        splits=chance.choice([1, 2, 3, 5, 8]),
        records=chance.choice([1, 5, 15, 40]),
        rate=chance.choice([0, 0, 0, 5, 20]),
        spacing_us=spacing,
        unevenness=chance.choice([1, 1, 1.5, 3]),
        skew_us=chance.choice([0, 5, 50]) * spacing,
        disorder_us=disorder,
        gap_us=chance.choice([0, 0, 100 * spacing]),
        pause_us=chance.choice([0, 2, 5]) * BATCH_US,
        joining=chance.choice([0, 0, 0.5]),
        bounded=bounded,
        out_of_orderness_us=chance.choice([disorder, disorder, 0]),
        max_drift_us=chance.choice([None, *drifts, *drifts]),
        idle_timeout_us=chance.choice([1, 2]) * BATCH_US if not bounded else chance.choice([None, 3 * BATCH_US]),
        max_rows=chance.choice([None, None, 1, 10, 50]),
        first_rows=chance.choice([1, 2, 8, 30]),
        growth=chance.choice([2, 4]),
    )
    return replace(source, group_drift_us=chance.choice(drifts)) if in_group else source


def steps_needed(scenario: Scenario, result: SimulationResult) -> int:
    """Within how many steps all must have been read.

    In each step the slowest split of some source is read, by `first_rows` at least, or one record where it is cut at
    event times; or it waits: for records to arrive, to be idle, for the reports that are under way, for a source that
    hangs. What was read is known to its own planner with the next step, to the others of a group with the one after:
    there it takes two. At worst one split waits after another.
    """
    needed = 20
    for source, trace in zip(scenario.sources, result.sources, strict=True):
        at_once = min(source.first_rows, source.max_rows or source.first_rows)
        if source.planning is Planning.INDEXED:
            at_once = 1
        to_be_known = 1 if source.group_drift_us is None else 2
        needed += source.splits * (source.records // at_once + 5) * to_be_known
        arrival_us = 1e6 * source.records / source.rate + source.pause_us if source.rate else 0
        needed += int((arrival_us + 5_000_000 * (source.joining > 0)) / BATCH_US) + 10
        needed += source.splits * ((source.idle_timeout_us or 0) // BATCH_US)
        if trace.now_us.size:
            needed += int(trace.now_us[-1]) // BATCH_US + 1 - trace.now_us.size
            # One that hangs or is killed last is not seen to come back.
            needed += 5 * (not trace.has_ended)
    return needed


class Watcher:
    """Looks at every step of every source."""

    def __init__(self) -> None:
        self.last_rows: dict[tuple[int, str], int] = {}
        self.late: dict[int, int] = {}
        self.late_told: dict[int, int] = {}
        # Of each source its engine, and the latest event times that were reported to it; and up to which watermark
        # splits may be late though they are on time: since they came, or came back from idleness, when it stood there.
        self.reported: dict[int, tuple[Engine, dict[str, int]]] = {}
        self.excused: dict[int, dict[str, int]] = {}

    def __call__(self, source: SimulatedSource, step: SimulatedStep) -> None:
        before, after = step.before, step.plan.after
        numbers = _numbers(step)
        ends = np.maximum(source.records.arrived(step.now_us)[numbers], before.positions)
        source.engine.validate()
        assert after.combined >= before.combined, "the watermark went back"
        assert (after.positions >= before.positions).all()
        assert (after.positions <= ends).all()
        assert (after.watermarks >= before.watermarks).all()
        assert (after.watermarks <= step.reached_us).all(), "a watermark of what was not read"
        self._none_is_late_that_is_on_time(source, step, ends)
        rows = after.positions - before.positions
        assert rows.sum() == step.plan.rows
        max_rows = source.scenario.max_rows
        assert max_rows is None or step.plan.rows <= max_rows
        if source.scenario.planning is Planning.REACTIVE:
            assert not rows[after.statuses == PAUSED].any(), "paused, and read on"
            self._is_the_minimum(source, step)
            self._is_within_the_bound(source, step)
            self._late_is_told_once(source, step)
        else:
            for number, start, stop in zip(numbers, before.positions, after.positions, strict=True):
                times = source.records.times_us[number, start:stop]
                assert (times <= step.plan.bound_us).all(), "read past the bound"
            assert (after.watermarks == step.reached_us).all()

    def _is_the_minimum(self, source: SimulatedSource, step: SimulatedStep) -> None:
        bound, after = source.scenario.out_of_orderness_us, step.plan.after
        reported = self._told(source, step)
        told = [reported.get(split_id, NO_TIMESTAMP) for split_id in after.split_ids]
        known = step.before.watermarks.tolist()
        own = [max(was, watermark_of(time, bound)) for was, time in zip(known, told, strict=True)]
        assert after.watermarks.tolist() == own, "not what the reports that came say"
        statuses = after.statuses.tolist()
        counting = [w for w, status in zip(own, statuses, strict=True) if status in (ACTIVE, PAUSED)]
        idling = [w for w, status in zip(own, statuses, strict=True) if status == IDLE]
        ending = [w for w, s in zip(own, statuses, strict=True) if s == FINISHED and w > MIN_WATERMARK]
        minimum = min(counting) if counting else max(idling, default=MIN_WATERMARK)
        expected = max(step.before.combined, minimum, min(counting + ending, default=MIN_WATERMARK))
        if set(statuses) <= {FINISHED}:
            # All that is there was read.
            expected = max(expected, step.before.furthest, *own, MIN_WATERMARK)
        assert after.combined in (expected, MAX_WATERMARK)
        if after.combined == MAX_WATERMARK > step.before.combined:
            assert source.scenario.bounded
            assert set(statuses) <= {FINISHED}

    def _is_within_the_bound(self, source: SimulatedSource, step: SimulatedStep) -> None:
        scenario, plan, after = source.scenario, step.plan, step.plan.after
        limit = plan.bound_us
        rows = (after.positions - step.before.positions).tolist()
        thinnest = scenario.spacing_us * scenario.unevenness**2 + 1
        factor = scenario.unevenness * (1 + 2 / scenario.spacing_us)
        for slot, split_id in enumerate(after.split_ids):
            if not rows[slot]:
                continue
            key = (id(source), split_id)
            at_most = max(scenario.first_rows, scenario.growth * self.last_rows.get(key, 0))
            self.last_rows[key] = rows[slot]
            if limit == MAX_WATERMARK:
                continue
            assert rows[slot] <= at_most, "grown too fast"
            number, start = _numbers(step)[slot], int(step.before.positions[slot])
            told, reached = int(after.watermarks[slot]), int(step.reached_us[slot])
            if told == MIN_WATERMARK:
                continue
            was = watermark_of(int(source.records.latest_us[number, start - 1]), scenario.out_of_orderness_us)
            assert reached - was <= rows[slot] * thinnest + scenario.disorder_us + scenario.gap_us
            if not scenario.disorder_us and not scenario.gap_us:
                widest = max(scenario.first_rows * thinnest, (factor - 1) * (limit - told))
                assert reached - limit <= widest + was - told, "past the limit by more than the bound"

    def _none_is_late_that_is_on_time(self, source: SimulatedSource, step: SimulatedStep, ends: Int64Array) -> None:
        before, bound_us = step.before, source.scenario.out_of_orderness_us
        excused = self.excused.setdefault(id(source), {})
        columns = (before.statuses, before.positions, step.plan.after.positions, ends)
        rows = zip(before.split_ids, _numbers(step), *(column.tolist() for column in columns), strict=True)
        for split_id, number, status, start, stop, end in rows:
            if split_id not in excused or (status == IDLE and end > start):
                excused[split_id] = before.combined
            times, latest = (column[number] for column in (source.records.times_us, source.records.latest_us))
            for position in range(start, stop):
                on_time = position == 0 or times[position] >= latest[position - 1] - bound_us
                is_late = excused[split_id] < times[position] <= before.combined
                assert not (on_time and is_late), "on time by its split, and late"

    def _told(self, source: SimulatedSource, step: SimulatedStep) -> dict[str, int]:
        """Of each split the latest event time that was reported to this engine while the split was in work."""
        engine, told = self.reported.get(id(source), (None, {}))
        if engine is not source.engine:
            told = {}
        self.reported[id(source)] = source.engine, told
        for report in step.reports:
            if report.split_id in step.before.split_ids:
                told[report.split_id] = max(told.get(report.split_id, NO_TIMESTAMP), report.max_us)
        return told

    def _late_is_told_once(self, source: SimulatedSource, step: SimulatedStep) -> None:
        key = id(source)
        self.late_told[key] = self.late_told.get(key, 0) + int(step.plan.late.sum())
        assert self.late_told[key] <= self.late.get(key, 0), "late records are told twice"
        self.late[key] = self.late.get(key, 0) + step.late


def _numbers(step: SimulatedStep) -> list[int]:
    """Which splits of the scenario those of the table are."""
    return [int(split_id.removeprefix("split-")) for split_id in step.before.split_ids]


def run(seed: int) -> SimulationResult:
    """Play a random scenario; whatever does not hold names the seed."""
    scenario = random_scenario(random.Random(seed))
    try:
        result = simulate(scenario, seed, Watcher())
        _is_live(scenario, result)
    except Exception as error:
        raise AssertionError(f"simulated_walk.run({seed}): {error}: {scenario}") from error
    return result


def _is_live(scenario: Scenario, result: SimulationResult) -> None:
    needed = steps_needed(scenario, result)
    assert result.steps <= needed, f"{result.steps} steps, and {needed} are enough"
    for source, trace in zip(scenario.sources, result.sources, strict=True):
        if scenario.faults.death == 0:
            assert trace.has_ended, "not at its end"
        if trace.has_ended:
            assert trace.rows.sum() == source.splits * source.records, "not all was read"
            if source.bounded:
                assert trace.watermark[-1] == MAX_WATERMARK
            elif source.planning is Planning.INDEXED or not np.any(list(_reporting_faults(scenario.faults))):
                assert trace.watermark[-1] > MIN_WATERMARK
                assert trace.held_rows[-1] <= source.splits * source.records


def _reporting_faults(faults: Faults) -> tuple[float, ...]:
    return faults.lost, faults.delayed, faults.restart
