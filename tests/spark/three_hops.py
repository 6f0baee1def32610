"""Three hops in one program: raw files -> bronze -> silver -> gold, each written by Spark's own sink.

Run as `python -m tests.spark.three_hops FORMAT FOLDER JARS TRIGGER`. Nothing is configured at hops 2 and 3 but the
checkpoint of the hop before. With `availableNow` one hop after another reads all that there is; with an interval all
three run side by side until the process is killed.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from streaming_source import read_stream

HOPS = ("bronze", "silver", "gold")
LOGS = {"delta": "_delta_log", "parquet": "_spark_metadata"}


def session(format_name: str, jars: str) -> SparkSession:
    if format_name == "delta":
        from tests.delta.spark_delta import session_with_delta

        return session_with_delta(jars)
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "1")
    return builder.config("spark.sql.session.timeZone", "UTC").config("spark.ui.enabled", "false").getOrCreate()


class Hops:
    """The queries, over tables and checkpoints in one folder."""

    def __init__(self, spark: SparkSession, root: Path, format_name: str) -> None:
        self._spark, self._root, self._format = spark, root, format_name

    def writer(self, name: str) -> DataStreamWriter:
        made = getattr(self, f"_{name}")().writeStream.format(self._format).queryName(name)
        return made.option("checkpointLocation", f"{self._root}/cp/{name}").option("path", f"{self._root}/{name}")

    def _bronze(self) -> DataFrame:
        reader = read_stream(self._spark).format("aligned_files").option("eventTimeColumn", "ts")
        reader = reader.option("bounded", "true").option("splitBy", "directory").option("maxRowsPerTrigger", 240)
        return reader.load(f"{self._root}/raw").select("ts", "amount")

    def _silver(self) -> DataFrame:
        rows = self._after("bronze", "ts").groupBy(F.window("ts", "1 minute"))
        return rows.agg(F.count("*").alias("n"), F.sum("amount").alias("total"))

    def _gold(self) -> DataFrame:
        # The event time of the frame is the end of a minute.
        minutes = self._after("silver", "window.end").groupBy(F.window("event_time", "10 minutes"))
        return minutes.agg(F.sum("n").alias("n"), F.sum("total").alias("total"))

    def _after(self, name: str, column: str) -> DataFrame:
        kind = {"parquet": "aligned_files", "delta": "aligned_delta"}[self._format]
        reader = read_stream(self._spark).format(kind).option("eventTimeColumn", column)
        return reader.option("watermarkFrom", f"{self._root}/cp/{name}").load(f"{self._root}/{name}")


def _exists(table: Path, format_name: str, query: StreamingQuery) -> None:
    while not [*(table / LOGS[format_name]).glob("[0-9]*")]:
        assert query.isActive, query.exception()
        time.sleep(0.1)


def main(format_name: str, folder: str, jars: str, trigger: str) -> None:
    root, spark = Path(folder), session(format_name, jars)
    hops = Hops(spark, root, format_name)
    for name in HOPS:
        if trigger == "availableNow":
            hops.writer(name).trigger(availableNow=True).start().awaitTermination()
        else:
            query = hops.writer(name).trigger(processingTime=trigger).start()
            _exists(root / name, format_name, query)
    if trigger != "availableNow":
        spark.streams.awaitAnyTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
