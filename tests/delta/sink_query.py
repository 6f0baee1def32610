"""Let Spark's Delta sink write a table while a query reads it by event time, as a process with Delta's JARs."""

from __future__ import annotations

import sys

from pyspark.sql import functions as F

from streaming_source import read_stream
from tests.delta.spark_delta import session_with_delta


def main(jars: str, rows: str, table: str, sink: str, checkpoints: str) -> None:
    session = session_with_delta(jars)
    files = session.readStream.schema("ts timestamp, id long").option("maxFilesPerTrigger", 1).parquet(rows)
    writer = files.writeStream.format("delta").option("checkpointLocation", f"{checkpoints}/writer")
    writing = writer.trigger(availableNow=True).start(table)
    while not writing.recentProgress:
        assert not writing.awaitTermination(0.1)
    frame = read_stream(session).format("aligned_delta").option("eventTimeColumn", "ts").option("maxRowsPerTrigger", 70)
    read = frame.load(table).select("id", F.unix_micros("ts").alias("us"))
    reader = (
        read.writeStream.format("parquet").option("path", sink).option("checkpointLocation", f"{checkpoints}/reader")
    )
    reading = reader.start()
    assert writing.awaitTermination(200)
    while_written = sum(progress.numInputRows for progress in reading.recentProgress)
    reading.processAllAvailable()
    reading.stop()
    print("read while it was written:", while_written)
    session.stop()


main(*sys.argv[1:])
