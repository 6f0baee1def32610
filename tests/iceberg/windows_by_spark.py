"""Count rows by minutes into the Iceberg table `db.minutes`: `python windows_by_spark.py JARS FOLDER`.

By Spark's sink, for a Python with PySpark 4.1, the newest that Iceberg has a runtime for. The rows are in
Parquet files in `rows`, one a micro-batch. The query ends when all are read.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F


def main(jars: str, folder: str) -> None:
    catalog = "spark.sql.catalog.tests"
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars)
        .config(catalog, "org.apache.iceberg.spark.SparkCatalog")
        .config(f"{catalog}.type", "jdbc")
        .config(f"{catalog}.uri", f"jdbc:sqlite:{folder}/catalog.db")
        .config(f"{catalog}.warehouse", f"file://{folder}/warehouse")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    minutes = "window STRUCT<start: TIMESTAMP, end: TIMESTAMP>, count BIGINT"
    session.sql(f"CREATE TABLE IF NOT EXISTS tests.db.minutes ({minutes}) USING iceberg")
    files = session.readStream.schema("ts timestamp").option("maxFilesPerTrigger", 1).parquet(f"{folder}/rows")
    counts = files.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "1 minute")).count()
    writer = counts.writeStream.format("iceberg").option("checkpointLocation", f"{folder}/writer")
    query = writer.trigger(availableNow=True).toTable("tests.db.minutes")
    assert query.awaitTermination(500)
    session.stop()


main(*sys.argv[1:])
