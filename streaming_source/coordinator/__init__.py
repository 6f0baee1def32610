"""Runs a source's enumerator in Spark's planner process, and plans its micro-batches."""

from streaming_source.coordinator.assignment import assign_ranges
from streaming_source.coordinator.calls import monotonic_us, processing_time_us, wall_clock_us
from streaming_source.coordinator.context import AssignmentTracker
from streaming_source.coordinator.coordinator import SourceCoordinator
from streaming_source.coordinator.rules import ReadRules
from streaming_source.coordinator.state import SourceState
from streaming_source.coordinator.workers import WorkerPool, Workers

__all__ = [
    "AssignmentTracker",
    "ReadRules",
    "SourceCoordinator",
    "SourceState",
    "WorkerPool",
    "Workers",
    "assign_ranges",
    "monotonic_us",
    "processing_time_us",
    "wall_clock_us",
]
