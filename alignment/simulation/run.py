"""The engine on a fake clock: what a drift, a read limit or a fault would come to, without Spark and without waiting.

The planners, the combination of watermarks and the limits between sources are those that run in Spark; only the
records, the clock and the faults are made up, from a seed. The same scenario and seed give the same run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from alignment.groups import SourceReport, source_limit
from alignment.simulation.described import Records, SimulatedSource
from alignment.simulation.scenario import Scenario
from alignment.simulation.trace import SimulatedStep, SourceTrace, TraceColumns
from alignment.watermarks import MAX_WATERMARK

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
