"""Runs a source's enumerator in Spark's planner process, and plans its micro-batches.

What plans is imported when it is used: most of Spark's Python processes need only the rules and states.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from streaming_source.coordinator.clocks import monotonic_us, processing_time_us, wall_clock_us
from streaming_source.coordinator.state import ReadRules, SourceState, assign_ranges, one_range_each

__all__ = [
    "AssignmentTracker",
    "ReadRules",
    "SourceCoordinator",
    "SourceState",
    "WorkerPool",
    "Workers",
    "assign_ranges",
    "monotonic_us",
    "one_range_each",
    "processing_time_us",
    "wall_clock_us",
]

if TYPE_CHECKING:
    from streaming_source.coordinator.coordinator import SourceCoordinator
    from streaming_source.coordinator.enumerator_host import AssignmentTracker
    from streaming_source.coordinator.workers import WorkerPool, Workers

_MODULES = {
    "AssignmentTracker": "enumerator_host",
    "SourceCoordinator": "coordinator",
    "WorkerPool": "workers",
    "Workers": "workers",
}


if not TYPE_CHECKING:  # A type checker knows the names above, and refuses others.

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
