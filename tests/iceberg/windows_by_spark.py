"""Count rows by minutes into the Iceberg table `db.minutes`: `python windows_by_spark.py JARS FOLDER`.

By Spark's sink, for a Python with PySpark 4.1, the newest that Iceberg has a runtime for. The rows are in
Parquet files in `rows`, one a micro-batch. The query ends when all are read.
"""

from __future__ import annotations

import sys

from pyspark.sql import functions as F
from spark_catalog import session_on


def main(jars: str, folder: str) -> None:
    session = session_on(jars, folder)
    minutes = "window STRUCT<start: TIMESTAMP, end: TIMESTAMP>, count BIGINT"
    session.sql(f"CREATE TABLE IF NOT EXISTS tests.db.minutes ({minutes}) USING iceberg")
    files = session.readStream.schema("ts timestamp").option("maxFilesPerTrigger", 1).parquet(f"{folder}/rows")
    counts = files.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "1 minute")).count()
    writer = counts.writeStream.format("iceberg").option("checkpointLocation", f"{folder}/writer")
    query = writer.trigger(availableNow=True).toTable("tests.db.minutes")
    assert query.awaitTermination(500)
    session.stop()


main(*sys.argv[1:])
