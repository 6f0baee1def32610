"""FLIP-27 event-time sources for Spark Structured Streaming.

Two doors lead in: `register(spark)` and `spark.readStream.format("aligned_files")` with options, or `from_source` with
a `Source` and a `WatermarkStrategy`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = ["__version__", "from_source", "register", "required_delay", "with_exact_watermark"]

if TYPE_CHECKING:
    from streaming_source.spark import from_source, register, required_delay, with_exact_watermark


def __getattr__(name: str) -> Any:
    # Lazily: the source model is of use without Spark, and importing PySpark takes a second.
    if name in __all__:
        from streaming_source import spark

        return getattr(spark, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
