"""Count the rows of an Iceberg table by hours, by Spark's own source: `python count_by_spark.py JARS FOLDER BATCHES`.

For a Python with PySpark 4.1, the newest that Iceberg has a runtime for: it has nothing of this project. The catalog of
the folder is that of `tests.iceberg.tables`. The query ends after so many micro-batches.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import functions as F
from spark_catalog import session_on


def main(jars: str, folder: str, batches: str) -> None:
    session = session_on(jars, folder)
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
