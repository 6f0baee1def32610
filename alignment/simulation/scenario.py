"""What a simulation plays through: sources whose splits, records and faults are drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final

import numpy as np

from alignment.exceptions import InvalidArgumentError
from alignment.watermarks import Int64Array

__all__ = ["Faults", "Planning", "Records", "Scenario", "SourceScenario"]


_LATEST_JOIN_US: Final = 5_000_000
"""How long after the arrival of the other records a split is found at the latest."""


def _at_least(owner: object, **minimum: int) -> None:
    for name, least in minimum.items():
        value = getattr(owner, name)
        if value < least:
            raise InvalidArgumentError(f"{name} = {value}: must be at least {least}")


class Planning(StrEnum):
    """How a source is planned: event times known ahead of reading, or learnt from what readers report."""

    INDEXED = "indexed"
    REACTIVE = "reactive"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceScenario:
    """One source: its splits, their records, and what the user decided.

    There are so many `splits`, and `records` in each, at least 1. Of these `rate` arrive in a second; with 0 all are
    there from the start. Event time passes by `spacing_us` from one record of a split to the next; each split is
    thinner by a factor drawn between 1 and `unevenness`, and so is each record after the one before it. Splits begin at
    event times drawn from `skew_us`, and each record is earlier by as much as is drawn from `disorder_us`. In half of
    the splits the event time jumps once by `gap_us`; in half of them nothing arrives for `pause_us`, from an instant
    drawn, where there is a `rate`. The first record of the share `joining` of the splits comes later: they are found
    during the run. With `bounded` splits end with their last record.

    For the other attributes see `PlanningRules`, `plan_micro_batch` and `ReactivePlanner`. `group_drift_us` is how far
    this source may be ahead of the other ones of the scenario; None if it is not in their group.
    """

    planning: Planning = Planning.REACTIVE
    splits: int = 8
    records: int = 1000
    rate: float = 0.0
    spacing_us: int = 1000
    unevenness: float = 1.0
    skew_us: int = 0
    disorder_us: int = 0
    gap_us: int = 0
    pause_us: int = 0
    joining: float = 0.0
    bounded: bool = True
    out_of_orderness_us: int = 0
    max_drift_us: int | None = 1_000_000
    idle_timeout_us: int | None = None
    max_rows: int | None = None
    first_rows: int = 4096
    growth: int = 4
    group_drift_us: int | None = None

    def __post_init__(self) -> None:
        _at_least(self, splits=1, records=1, rate=0, spacing_us=0, unevenness=1, skew_us=0, disorder_us=0)
        _at_least(self, gap_us=0, pause_us=0, joining=0, out_of_orderness_us=0, first_rows=1, growth=2)
        if self.joining > 1:
            raise InvalidArgumentError(f"joining = {self.joining}: must be a share of the splits, at most 1")
        for name in ("max_drift_us", "idle_timeout_us", "max_rows", "group_drift_us"):
            if getattr(self, name) is not None:
                _at_least(self, **{name: 1 if name == "max_rows" else 0})


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What goes wrong, each with a probability from 0 to 1.

    Of each report: it is `lost`; `repeated` with a later plan; `delayed` by up to three plans. Of each step of a
    source: its planner starts again from its last state, and the last micro-batch is read again (`restart`); it does
    nothing for one and a half times the lease (`hang`); it is killed, and never comes back (`death`).
    """

    lost: float = 0.0
    repeated: float = 0.0
    delayed: float = 0.0
    restart: float = 0.0
    hang: float = 0.0
    death: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 <= value <= 1:
                raise InvalidArgumentError(f"{field.name} = {value}: must be a probability, from 0 to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Sources, at least one, that run side by side; those with a `group_drift_us` are one alignment group.

    A micro-batch takes `batch_us`. The last word of a source that hangs holds the group for `lease_us`. A run ends
    after `max_steps` at the latest: a source that is not bounded has no end of its own.
    """

    sources: tuple[SourceScenario, ...] = (SourceScenario(),)
    faults: Faults = Faults()
    batch_us: int = 1_000_000
    lease_us: int = 10_000_000
    max_steps: int = 10_000

    def __post_init__(self) -> None:
        if not self.sources:
            raise InvalidArgumentError("sources = (): must be at least one")
        _at_least(self, batch_us=1, lease_us=1, max_steps=1)


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
        """How long it takes a split to get all its records, pauses aside."""
        rate = self._scenario.rate
        return int(np.ceil(self._scenario.records / rate * 1e6)) if rate else 0

    def arrived(self, now_us: int) -> Int64Array:
        """`int64[splits]`: how many records of each split are there."""
        records, rate = self._scenario.records, self._scenario.rate
        if not rate:
            return np.where(now_us >= self.joins_us, records, 0)
        paused_us = np.minimum(now_us - np.minimum(self._pause_from_us, now_us), self._scenario.pause_us)
        flowing_us = np.maximum(now_us - self.joins_us - paused_us, 0)
        count: Int64Array = np.minimum(np.floor(flowing_us * (rate / 1e6)), records).astype(np.int64)
        return count
