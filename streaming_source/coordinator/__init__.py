"""Runs a source's enumerator in Spark's planner process, and plans its micro-batches."""

from streaming_source.coordinator.assignment import assign_ranges
from streaming_source.coordinator.coordinator import ReadRules, SourceCoordinator
from streaming_source.coordinator.state import SourceState

__all__ = ["ReadRules", "SourceCoordinator", "SourceState", "assign_ranges"]
