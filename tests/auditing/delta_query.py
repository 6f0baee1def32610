"""Run a query over a Delta table with Spark's own source, as a process: prints how many rows its sink has."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F


def main(jars: str, table: str, checkpoint: str, sink: str, trigger: str, statements: str = "") -> None:
    """Run SQL `statements` over the table first, where `{}` is its name; there are `;` between them."""
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars)
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.databricks.delta.snapshotPartitions", "2")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    for statement in filter(None, statements.split(";")):
        session.sql(statement.format(f"delta.`{table}`"))
    rows = session.readStream.format("delta").option("maxFilesPerTrigger", 2).load(table)
    counts = rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 hour"), "device").count()
    writer = counts.writeStream.format("parquet").option("path", sink).option("checkpointLocation", checkpoint)
    if trigger == "availableNow":
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(240)
    else:
        query = writer.trigger(processingTime="0 seconds").start()
        query.processAllAvailable()
        query.stop()
    print("emitted", session.read.parquet(sink).agg(F.sum("count")).first()[0])
    session.stop()


main(*sys.argv[1:])
