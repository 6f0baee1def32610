"""Runs a source's enumerator in Spark's planner process, and plans its micro-batches."""

from streaming_source.coordinator.clocks import monotonic_us, processing_time_us, wall_clock_us
from streaming_source.coordinator.coordinator import SourceCoordinator
from streaming_source.coordinator.enumerator_host import AssignmentTracker
from streaming_source.coordinator.state import ReadRules, SourceState, assign_ranges, one_range_each
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
    "one_range_each",
    "processing_time_us",
    "wall_clock_us",
]
