"""Event times of the unread records of a source, known ahead of reading them."""

from __future__ import annotations

from alignment.index.event_times import EventTimeIndex
from alignment.index.row_limit import CACHED_TIMES, EventTimeLoader, FirstLater

__all__ = ["CACHED_TIMES", "EventTimeIndex", "EventTimeLoader", "FirstLater"]
