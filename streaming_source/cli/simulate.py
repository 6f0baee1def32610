"""`streaming-source simulate`: what other settings would come to, for a recorded workload or a described one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from alignment.simulation.comparison import Comparison, Settings, combinations
from alignment.simulation.recorded import RecordedWorkload
from alignment.simulation.run import simulate
from alignment.simulation.scenario import Faults, Scenario, SourceScenario
from alignment.simulation.trace import SourceTrace

__all__ = ["compare_described", "compare_recorded"]

_DRIFTS: Final = ("30 seconds", "none")
_MAX_ROWS: Final = 1000


def compare_recorded(log: Path, varied: Mapping[str, Sequence[str]]) -> None:
    """Print what a recorded workload comes to with its settings and with others; the last line is JSON."""
    _print(RecordedWorkload.of_log(log).compare(**varied))


def compare_described(source: SourceScenario, faults: Faults, seed: int, varied: Mapping[str, Sequence[str]]) -> None:
    """The same of a workload that is drawn from a description."""

    def play(settings: Settings) -> SourceTrace:
        return simulate(Scenario(sources=(replace(source, **asdict(settings)),), faults=faults), seed).sources[0]

    base = Settings(max_drift_us=None, out_of_orderness_us=source.disorder_us, idle_timeout_us=None, max_rows=_MAX_ROWS)
    workload = f"{source.splits * source.records:,} records of {source.splits:,} splits, drawn from seed {seed}"
    settings = combinations(base, **{**varied, "max_drift": varied["max_drift"] or _DRIFTS})
    _print(Comparison.of(play, settings, workload))


def _print(comparison: Comparison) -> None:
    print(comparison)
    print(json.dumps([outcome.to_json() for outcome in comparison.outcomes]), flush=True)
