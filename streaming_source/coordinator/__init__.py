"""Runs a source's enumerator in Spark's planner process, and plans its micro-batches.

What plans is imported when it is used: most of Spark's Python processes need only the rules and states.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from alignment import lazy_names
from streaming_source.coordinator.calls import (
    WorkerPool,
    Workers,
    monotonic_us,
    processing_time_us,
    wall_clock_us,
)
from streaming_source.coordinator.ranges import assign_ranges, one_range_each
from streaming_source.coordinator.rules import ReadRules
from streaming_source.coordinator.state import SourceState

__all__ = [
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

if not TYPE_CHECKING:  # A type checker knows the names above, and refuses others.
    _HOMES = {
        ".coordinator": ["SourceCoordinator"],
    }
    __getattr__ = lazy_names(__name__, _HOMES)
