"""The process of a query that counts rows by windows into Parquet files, for a test that kills it."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

__all__ = ["count_by_minute", "session"]


def session(jars: str | None = None) -> SparkSession:
    """A small session, with `jars` separated by commas."""
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.ui.enabled", "false")
    return (builder if jars is None else builder.config("spark.jars", jars)).getOrCreate()


def count_by_minute(rows: DataFrame, time: str, checkpoint: str, sink: str) -> None:
    """Count the rows there are by minutes of event time, as a stream that has a watermark, and end the session."""
    counts = rows.groupBy(F.window(time, "1 minute")).count()
    counts = counts.select(F.unix_micros("window.end").alias("end"), "count")
    writer = counts.writeStream.format("parquet").option("path", sink).option("checkpointLocation", checkpoint)
    query = writer.trigger(processingTime="0 seconds").start()
    query.processAllAvailable()
    query.stop()
    rows.sparkSession.stop()
