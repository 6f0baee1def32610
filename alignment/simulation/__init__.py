"""The engine on a fake clock: what-if runs over made-up records and faults, without Spark and without waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alignment import lazy_names

__all__ = [
    "Capacity",
    "Comparison",
    "Faults",
    "Load",
    "Outcome",
    "Planning",
    "RecordedWorkload",
    "Records",
    "Scenario",
    "Settings",
    "SimulationResult",
    "SourceScenario",
    "SourceTrace",
    "capacity",
    "combinations",
    "simulate",
]

if TYPE_CHECKING:
    from alignment.simulation.described import Records, SimulationResult, simulate
    from alignment.simulation.recorded import RecordedWorkload
    from alignment.simulation.scenario import Faults, Planning, Scenario, SourceScenario
    from alignment.simulation.throughput import Capacity, Load, capacity
    from alignment.simulation.trace import Comparison, Outcome, Settings, SourceTrace, combinations

if not TYPE_CHECKING:  # A type checker knows the names above, and refuses others.
    _HOMES = {
        ".described": ["Records", "SimulationResult", "simulate"],
        ".recorded": ["RecordedWorkload"],
        ".scenario": ["Faults", "Planning", "Scenario", "SourceScenario"],
        ".throughput": ["Capacity", "Load", "capacity"],
        ".trace": ["Comparison", "Outcome", "Settings", "SourceTrace", "combinations"],
    }
    __getattr__ = lazy_names(__name__, _HOMES)
