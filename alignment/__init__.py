"""Event time without Spark: FLIP-27's per-split watermarks, idleness and alignment as a pure engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

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


def lazy_names(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package whose names are in the modules `homes`, given as in `from .home import`.

    So a process loads what it uses (PEP 562): an audit needs times and watermarks, and plans nothing.
    """

    def found(name: str) -> Any:
        for home, names in homes.items():
            if name in names:
                return getattr(import_module(home, package), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return found


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
