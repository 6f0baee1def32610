"""The engine on a fake clock: what-if runs over made-up records and faults, without Spark and without waiting."""

from __future__ import annotations

from alignment.simulation.capacity import Capacity, Load, capacity
from alignment.simulation.comparison import Comparison, Outcome, Settings, combinations
from alignment.simulation.described import Records
from alignment.simulation.recorded import RecordedWorkload
from alignment.simulation.run import SimulationResult, simulate
from alignment.simulation.scenario import Faults, Planning, Scenario, SourceScenario
from alignment.simulation.trace import SourceTrace

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
