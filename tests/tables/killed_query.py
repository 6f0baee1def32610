"""Run a query over a table as a process, for a test that kills it: ids and event times go into Parquet files."""

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
    session = builder.getOrCreate()
    given = json.loads(options)
    rows = read_stream(session).format(given.pop("format")).options(**given).load(name)
    rows = rows.select("id", F.unix_micros("ts").alias("us"))
    writer = rows.writeStream.format("parquet").option("path", sink).option("checkpointLocation", checkpoint)
    of_trigger = {"availableNow": True} if trigger == "availableNow" else {"processingTime": trigger}
    query = writer.trigger(**of_trigger).start()
    query.awaitTermination()
    session.stop()


main(*sys.argv[1:])
