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
    rows = (reader if given["format"] != "parquet" else reader.schema("ts timestamp")).load(given["path"])
    time = "timestamp" if given["format"] == "kafka" else "ts"
    rows = rows.withWatermark(time, "10 seconds")
    if given["operator"] == "aggregation":
        found = (
            rows.groupBy(F.window(time, "1 minute")).count().select(F.unix_micros("window.end").alias("end"), "count")
        )
    elif given["operator"] == "sessionWindow":
        found = rows.groupBy(F.session_window(time, "1 minute")).count().select("count")
    elif given["operator"] == "join":
        other = rows.withColumnRenamed(time, "other")
        found = rows.join(other, F.col(time) == F.col("other")).select(F.lit(1).alias("count"))
    else:
        found = getattr(rows, given["operator"])([time]).select(F.lit(1).alias("count"))
    writer = found.writeStream.format("parquet").option("path", given["sink"])
    query = writer.option("checkpointLocation", given["checkpoint"]).trigger(availableNow=True).start()
    query.awaitTermination()
    print("emitted", session.read.parquet(given["sink"]).agg(F.sum("count")).first()[0])
    session.stop()


main(*sys.argv[1:])
