"""Run a query with Spark's own source under an older PySpark, as a process; it needs nothing but that and this file."""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F


def main(text: str) -> None:
    """Run until all is read; print how many rows the sink has."""
    given: dict[str, Any] = json.loads(text)
    builder = SparkSession.builder.master("local[1]").config("spark.sql.shuffle.partitions", "1")
    builder = builder.config("spark.ui.enabled", "false").config("spark.sql.session.timeZone", "UTC")
    for name, value in given["conf"].items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    reader = session.readStream.format(given["format"]).options(**given["options"])
    reader = reader if given["format"] != "parquet" else reader.schema("ts timestamp")
    time = "timestamp" if given["format"] == "kafka" else "ts"
    rows, other = (reader.load(given["path"]).withWatermark(time, "10 seconds") for _ in range(2))
    if given["operator"] == "aggregation":
        found = (
            rows.groupBy(F.window(time, "1 minute")).count().select(F.unix_micros("window.end").alias("end"), "count")
        )
    elif given["operator"] == "sessionWindow":
        # Spark has no sessions without a key.
        found = rows.groupBy(F.session_window(time, "1 minute"), F.second(time)).count().select("count")
    elif given["operator"] == "join":
        found = rows.join(other.withColumnRenamed(time, "other"), F.col(time) == F.col("other"))
        found = found.select(F.lit(1).alias("count"))
    else:
        found = getattr(rows, given["operator"])([time]).select(F.lit(1).alias("count"))
    writer = found.writeStream.format("parquet").option("path", given["sink"])
    query = writer.option("checkpointLocation", given["checkpoint"]).trigger(availableNow=True).start()
    query.awaitTermination()
    print("emitted", session.read.parquet(given["sink"]).agg(F.sum("count")).first()[0])
    session.stop()


main(*sys.argv[1:])
