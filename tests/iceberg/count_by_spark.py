"""Count the rows of an Iceberg table by hours, by Spark's own source: `python count_by_spark.py JARS FOLDER BATCHES`.

For a Python with PySpark 4.1, the newest that Iceberg has a runtime for: it has nothing of this project. The catalog of
the folder is that of `tests.iceberg.tables`. The query ends after so many micro-batches.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F


def main(jars: str, folder: str, batches: str) -> None:
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
    rows = session.readStream.format("iceberg").option("streaming-max-files-per-micro-batch", 1).load("tests.db.t")
    counts = rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 hour")).count()
    counts = counts.select(F.unix_micros("window.start").alias("start"), "count")
    writer = counts.writeStream.format("parquet").option("path", f"{folder}/sink")
    # So that it is stopped between two micro-batches.
    query = writer.option("checkpointLocation", f"{folder}/old").trigger(processingTime="4 seconds").start()
    while not Path(folder, "old/commits", batches).exists():
        assert not query.awaitTermination(0.05)
    query.stop()
    session.stop()


main(*sys.argv[1:])
