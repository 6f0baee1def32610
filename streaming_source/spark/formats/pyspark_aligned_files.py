"""The module by which Spark finds the format `aligned_files`; see `streaming_source.spark.format_class`."""

from streaming_source.spark.format_class import format_class

DefaultSource = format_class("aligned_files")
