"""Count the rows of a Delta table by hours, by Spark's own source or by ours, as a process with Delta's JARs."""

from __future__ import annotations

import sys

from pyspark.sql import functions as F

from tests.delta.spark_delta import session_with_delta


def main(jars: str, kind: str, table: str, checkpoint: str, sink: str, batches: str) -> None:
    """End after so many micro-batches, or with all that there is for 0."""
    session = session_with_delta(jars)
    reader = session.readStream.format(kind)
    reader = reader.option("maxFilesPerTrigger", 1) if kind == "delta" else reader.option("eventTimeColumn", "ts")
    counts = reader.load(table).withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 hour")).count()
    counts = counts.select(F.unix_micros("window.start").alias("start"), "count")
    writer = counts.writeStream.format("parquet").option("path", sink).option("checkpointLocation", checkpoint)
    query = writer.start()
    if int(batches):
        while not query.lastProgress or query.lastProgress.batchId < int(batches):
            assert not query.awaitTermination(0.05)
    else:
        query.processAllAvailable()
    query.stop()
    session.stop()


main(*sys.argv[1:])
