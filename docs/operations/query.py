"""Counts the events of a Kafka topic by minute, and serves the metrics of the query on port 9400.

Started by compose.yaml; anywhere else: `KAFKA=localhost:9092 CHECKPOINT=/data/checkpoint python query.py`.
"""

from __future__ import annotations

import os

import prometheus_client
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from streaming_source import AlignmentListener, read_stream

spark = (
    SparkSession.builder.master(os.environ.get("SPARK_MASTER", "local[2]"))
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)
listener = AlignmentListener()
spark.streams.addListener(listener)
prometheus_client.REGISTRY.register(listener)
prometheus_client.start_http_server(int(os.environ.get("METRICS_PORT", "9400")))

events = (
    read_stream(spark)
    .format("aligned_kafka")
    .option("kafka.bootstrap.servers", os.environ.get("KAFKA", "localhost:9092"))
    .option("subscribe", os.environ.get("TOPIC", "events"))
    .option("startingOffsets", "earliest")
    .option("maxOutOfOrderness", "5 seconds")
    .option("idleTimeout", "1 minute")
    .load()
)
counts = events.groupBy(F.window("timestamp", "1 minute"), F.col("key").cast("string").alias("device")).count()
query = (
    counts.writeStream.queryName("counts")
    .format("console")
    .outputMode("append")
    .option("checkpointLocation", os.environ.get("CHECKPOINT", "checkpoint"))
    .start()
)
query.awaitTermination()
