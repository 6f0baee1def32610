"""Event time without Spark: FLIP-27's per-split watermarks, idleness and alignment as a pure engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alignment.lazy_names import lazy_names

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

if TYPE_CHECKING:
    from alignment.combine import SplitWatermarks
    from alignment.event_time_range import EventTimeRange
    from alignment.groups import AlignmentGroup
    from alignment.index import EventTimeIndex
    from alignment.strategy import WatermarkStrategy
    from alignment.timestamps import NO_TIMESTAMP, TimestampAssigner
    from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK, WatermarkGenerator, WatermarkOutput

if not TYPE_CHECKING:  # A type checker knows the names above, and refuses others.
    _HOMES = {
        ".combine": ["SplitWatermarks"],
        ".event_time_range": ["EventTimeRange"],
        ".groups": ["AlignmentGroup"],
        ".index": ["EventTimeIndex"],
        ".strategy": ["WatermarkStrategy"],
        ".timestamps": ["NO_TIMESTAMP", "TimestampAssigner"],
        ".watermarks": ["MAX_WATERMARK", "MIN_WATERMARK", "WatermarkGenerator", "WatermarkOutput"],
    }
    __getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
