"""Providers of the engine's event times of unread records.

There are three providers: the enumerator's own index (`indexed`); the planner, which reads ahead of the readers
(`read_ahead`); and the readers themselves, which report what they read (`reported`).
"""

from __future__ import annotations

from streaming_source.coordinator.event_times.provider import EventTimeProvider, IndexedTimes, RecordNumber

__all__ = ["EventTimeProvider", "IndexedTimes", "RecordNumber"]
