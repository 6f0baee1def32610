"""Where the source model meets Spark: data source, readers, offsets, watermark rows."""

from streaming_source.spark.exact_watermark import with_exact_watermark
from streaming_source.spark.frame_reader import read_stream
from streaming_source.spark.registration import from_source, register
from streaming_source.spark.watermark_rows import required_delay

__all__ = ["from_source", "read_stream", "register", "required_delay", "with_exact_watermark"]
