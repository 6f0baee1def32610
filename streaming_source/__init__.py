"""FLIP-27 event-time sources for Spark Structured Streaming.

`read_stream(spark)` is where to begin: a reader like Spark's, whose frames have the exact watermark. `from_source`
gives such a frame over a `Source` and a `WatermarkStrategy`. `explain(query)` says why its watermark stands there.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "MAX_WATERMARK",
    "MIN_WATERMARK",
    "NO_TIMESTAMP",
    "AlignmentListener",
    "TimestampAssigner",
    "WatermarkGenerator",
    "WatermarkOutput",
    "WatermarkStrategy",
    "__version__",
    "explain",
    "from_source",
    "read_stream",
    "register",
    "required_delay",
    "with_exact_watermark",
]

if TYPE_CHECKING:
    from alignment import (
        MAX_WATERMARK,
        MIN_WATERMARK,
        NO_TIMESTAMP,
        TimestampAssigner,
        WatermarkGenerator,
        WatermarkOutput,
        WatermarkStrategy,
    )
    from streaming_source.monitoring.explained import explain
    from streaming_source.spark.exact_watermark import with_exact_watermark
    from streaming_source.spark.frame_reader import read_stream
    from streaming_source.spark.listener import AlignmentListener
    from streaming_source.spark.registration import from_source, register
    from streaming_source.spark.watermark_rows import required_delay

_HOMES = {
    "AlignmentListener": "spark.listener",
    "explain": "monitoring.explained",
    "from_source": "spark.registration",
    "read_stream": "spark.frame_reader",
    "register": "spark.registration",
    "required_delay": "spark.watermark_rows",
    "with_exact_watermark": "spark.exact_watermark",
}


def __getattr__(name: str) -> Any:
    # Lazily: the source model is of use without Spark, and importing PySpark takes a second.
    if name in __all__:
        home = f"streaming_source.{_HOMES[name]}" if name in _HOMES else "alignment"
        return getattr(import_module(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
