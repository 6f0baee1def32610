"""Run a query over a topic with Spark's own Kafka source, as a process that a test kills."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F


def main(jars: str, bootstrap: str, topic: str, checkpoint: str, sink: str) -> None:
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars)
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    reader = session.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
    rows = reader.option("maxOffsetsPerTrigger", 60).load().withWatermark("timestamp", "5 seconds")
    counts = rows.groupBy(F.window("timestamp", "1 minute")).count()
    counts = counts.select(F.unix_micros("window.end").alias("end"), "count")
    writer = counts.writeStream.format("parquet").option("path", sink).option("checkpointLocation", checkpoint)
    query = writer.trigger(processingTime="0 seconds").start()
    query.processAllAvailable()
    query.stop()
    session.stop()


main(*sys.argv[1:])
