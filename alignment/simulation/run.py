"""The engine on a fake clock: what a drift, a read limit or a fault would come to, without Spark and without waiting.

The planners, the combination of watermarks and the limits between sources are those that run in Spark; only the
records, the clock and the faults are made up, from a seed. The same scenario and seed give the same run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from alignment.combine import SplitStatus
from alignment.groups import SourceReport, source_limit
from alignment.simulation.described import Records, Scenario, SimulatedSource, SimulatedStep
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK, Int64Array

__all__ = ["SimulationResult", "SourceTrace", "TraceColumns", "simulate"]


_EPOCH_US: Final = 1_700_000_000_000_000


_COLUMNS: Final = ("now_us", "watermark", "drift_us", "paused", "rows", "held_rows", "late")


@dataclass(frozen=True, slots=True)
class SourceTrace:
    """What each step of one source came to. All arrays are `int64[steps]`; a source that hangs or ended has no steps.

    Of each step: when it was planned, from the beginning of the run; the announced watermark; event time between the
    watermarks that what was read gives the fastest and the slowest split that count (`drift_us`); how many splits are
    paused; records read, and those at or below the watermark announced before (`late`). `held_rows` are records read so
    far that are later than that: what Spark has in its state behind the step if it keeps records, as joins and
    deduplication do, since it drops what a watermark has passed one step later. `holding_back` is a split that holds
    the watermark, empty where none counts.

    `unread` records were there, or would have come. It `has_ended` if all was read, and the watermark stays there.
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
        begun = reached_us[counts & (reached_us > MIN_WATERMARK)]
        self._rows.append(
            (
                step.now_us,
                after.combined,
                int(begun.max() - begun.min()) if begun.size else 0,
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

    def trace(self, *, unread: int, has_ended: bool) -> SourceTrace:
        """All of it."""
        columns = np.array(self._rows, np.int64).reshape(-1, len(_COLUMNS)).T
        return SourceTrace(
            **dict(zip(_COLUMNS, columns, strict=True)),
            holding_back=tuple(self._holding_back),
            unread=unread,
            has_ended=has_ended,
        )


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """A run of so many micro-batches, and one trace for each source of the scenario."""

    steps: int
    sources: tuple[SourceTrace, ...]

    @property
    def has_ended(self) -> bool:
        """Whether every source has."""
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
    >>> from alignment.simulation.described import Scenario, SourceScenario
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
    """The last words that count: of sources that live, and did not hang for longer than their lease."""
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
