"""Run a query over a table as a process, for a test that kills it, into Parquet files.

They get ids and event times or, with the option `window`, how many records each window has.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from streaming_source import read_stream


def main(options: str, name: str, checkpoint: str, sink: str, trigger: str) -> None:
    """Read the table `name`; `options` are JSON with the `format` among them. `availableNow` ends by itself."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.sql.session.timeZone", "UTC")
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    session = builder.getOrCreate()
    given = json.loads(options)
    window = given.pop("window", None)
    rows = read_stream(session).format(given.pop("format")).options(**given).load(name)
    if window is None:
        rows = rows.select("id", F.unix_micros("ts").alias("us"))
    else:
        rows = rows.groupBy(F.window("ts", window)).count().select(F.unix_micros("window.start").alias("us"), "count")
    writer = rows.writeStream.format("parquet").option("path", sink).option("checkpointLocation", checkpoint)
    of_trigger = {"availableNow": True} if trigger == "availableNow" else {"processingTime": trigger}
    query = writer.trigger(**of_trigger).start()
    query.awaitTermination()
    session.stop()


main(*sys.argv[1:])
