"""Run a query over Parquet files with Spark's own source, as a process that a test kills."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F


def main(root: str, checkpoint: str, sink: str) -> None:
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    reader = session.readStream.schema("ts timestamp, k string").option("maxFilesPerTrigger", 1)
    rows = reader.option("recursiveFileLookup", True).parquet(root).withWatermark("ts", "10 seconds")
    counts = rows.groupBy(F.window("ts", "1 minute")).count()
    counts = counts.select(F.unix_micros("window.end").alias("end"), "count")
    writer = counts.writeStream.format("parquet").option("path", sink).option("checkpointLocation", checkpoint)
    query = writer.trigger(processingTime="0 seconds").start()
    query.processAllAvailable()
    query.stop()
    session.stop()


main(*sys.argv[1:])
