"""Event time without Spark: FLIP-27's per-split watermarks, idleness and alignment as a pure engine."""

from __future__ import annotations

from alignment.combine import SplitWatermarks
from alignment.event_time_range import EventTimeRange
from alignment.groups import AlignmentGroup
from alignment.index import EventTimeIndex
from alignment.strategy import WatermarkStrategy
from alignment.timestamps import NO_TIMESTAMP, TimestampAssigner
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK, WatermarkGenerator, WatermarkOutput

__all__ = [
    "MAX_WATERMARK",
    "MIN_WATERMARK",
    "NO_TIMESTAMP",
    "AlignmentGroup",
    "EventTimeIndex",
    "EventTimeRange",
    "SplitWatermarks",
    "TimestampAssigner",
    "WatermarkGenerator",
    "WatermarkOutput",
    "WatermarkStrategy",
]
