"""Where the source model meets Spark: data source, readers, offsets, watermark rows."""

from streaming_source.spark.registration import from_source, register
from streaming_source.spark.watermark_rows import required_delay, with_exact_watermark

__all__ = ["from_source", "register", "required_delay", "with_exact_watermark"]
