"""Simulated sources with their records and settings, and the faults that they meet."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final

from alignment.exceptions import InvalidArgumentError

_LONGEST_US: Final = 100_000 * 366 * 24 * 3_600_000_000


def _at_least(owner: object, **minimum: int) -> None:
    for name, least in minimum.items():
        value = getattr(owner, name)
        if value < least:
            raise InvalidArgumentError(f"{name} = {value}: must be at least {least}")


class Planning(StrEnum):
    """Ways to plan a source: by event times known ahead of reading, or by those that readers report."""

    INDEXED = "indexed"
    REACTIVE = "reactive"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceScenario:
    """One source: its splits, their records, and what the user decided.

    The source has `splits` with `records` each, at least 1. `rate` records of a split arrive in a second; with 0 all
    are there at the start. The event times of a split are `spacing_us` apart, times a random factor between 1 and
    `unevenness` for the split, and another for each record. Splits begin at event times up to `skew_us` apart, and each
    record is earlier by up to `disorder_us`. In half of the splits the event time jumps once by `gap_us`; in half of
    them, with a `rate`, nothing arrives for `pause_us`. A share `joining` of the splits is found during the run. If
    `bounded`, splits end with their last record.

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
        longest_us = self.records * self.spacing_us * self.unevenness**2
        if not self.skew_us + self.disorder_us + self.gap_us + longest_us < _LONGEST_US:
            raise InvalidArgumentError(
                f"records = {self.records}, spacing_us = {self.spacing_us}, unevenness = {self.unevenness}, skew_us = "
                f"{self.skew_us}: event times must lie within 100,000 years; give less of one"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Faults, each with a probability from 0 to 1.

    A report is `lost`, `repeated` with a later plan, or `delayed` by up to three plans. In a step of a source its
    planner starts again from the last state and the last micro-batch is read again (`restart`), it does nothing for one
    and a half times the lease (`hang`), or it is killed and never comes back (`death`).
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

    A micro-batch takes `batch_us`. The last report of a source that hangs holds the group for `lease_us`. A run ends
    after `max_steps` at the latest, as a source that is not bounded has no end.
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
