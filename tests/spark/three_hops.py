"""Three hops with Spark's own sinks: raw files -> bronze -> silver -> gold, of several pipelines in one program.

Run as `python -m tests.spark.three_hops FORMAT FOLDER JARS HOPS [TRIGGER]`. Each folder in FOLDER that has `raw` is a
pipeline, and HOPS are those that this program runs of each, separated by commas: others may run in programs of their
own. Nothing is configured at hops 2 and 3 but the checkpoint of the hop before. With `availableNow` one hop after
another reads all that there is; else all run side by side, each at its own pace, until the process is killed.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from streaming_source import read_stream
from streaming_source.spark.frames import ExactStreamReader
from tests.spark_home import FILE_MANAGER

HOPS = ("bronze", "silver", "gold")
LOGS = {"delta": "_delta_log", "parquet": "_spark_metadata"}
KEPT = {"bronze": 5, "silver": 5, "gold": 1000}
"""How many micro-batches the checkpoint of each hop keeps: claims outlive the offsets from which they follow."""
EVERY = {"bronze": "3 seconds", "silver": "1 second", "gold": "500 milliseconds"}
"""So that one hop is not at its end before the next one begins."""


def session(format_name: str, jars: str) -> SparkSession:
    if format_name == "delta":
        from tests.delta.spark_delta import session_with_delta

        spark = session_with_delta(jars)
    else:
        builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", "2g")
        builder = builder.config("spark.ui.enabled", "false").config("spark.sql.session.timeZone", "UTC")
        # The sink's own compaction.
        spark = builder.config("spark.sql.streaming.fileSink.log.compactInterval", "3").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    # Of a query that goes on Spark keeps the number that it has started with.
    spark.conf.set("spark.sql.shuffle.partitions", random.randint(1, 3))
    spark.conf.set("spark.sql.streaming.checkpointFileManagerClass", FILE_MANAGER)
    return spark


class Hops:
    """The queries of one pipeline, over tables and checkpoints in its folder."""

    def __init__(self, spark: SparkSession, root: Path, format_name: str, trigger: str) -> None:
        self._spark, self._root, self._format, self._trigger = spark, root, format_name, trigger

    def start(self, name: str, **trigger: str | bool) -> StreamingQuery:
        self._spark.conf.set("spark.sql.streaming.minBatchesToRetain", KEPT[name])
        made = getattr(self, f"_{name}")().writeStream.format(self._format).queryName(f"{self._root.name}-{name}")
        made = made.option("checkpointLocation", f"{self._root}/cp/{name}").option("path", f"{self._root}/{name}")
        started: DataStreamWriter = made.trigger(**trigger)
        return started.start()

    def is_ready(self, name: str) -> bool:
        """Whether the table that a hop reads is there."""
        if name == HOPS[0]:
            return True
        before = HOPS[HOPS.index(name) - 1]
        return any((self._root / before / LOGS[self._format]).glob("[0-9]*"))

    def _reader(self, kind: str, name: str) -> ExactStreamReader:
        reader = read_stream(self._spark).format(kind)
        if self._trigger != "availableNow":
            return reader
        # For Spark before 4.2.
        return reader.option("availableNowCheckpoint", f"{self._root}/cp/{name}")

    def _bronze(self) -> DataFrame:
        reader = self._reader("aligned_files", "bronze").option("eventTimeColumn", "ts")
        reader = reader.option("bounded", "true").option("splitBy", "directory").option("maxRowsPerTrigger", 100)
        return reader.load(f"{self._root}/raw").select("ts", "amount")

    def _silver(self) -> DataFrame:
        rows = self._after("bronze", "silver", "ts").groupBy(F.window("ts", "1 minute"))
        return rows.agg(F.count("*").alias("n"), F.sum("amount").alias("total"))

    def _gold(self) -> DataFrame:
        # The event time of the frame is the end of a minute.
        minutes = self._after("silver", "gold", "window.end").groupBy(F.window("event_time", "10 minutes"))
        return minutes.agg(F.sum("n").alias("n"), F.sum("total").alias("total"))

    def _after(self, before: str, name: str, column: str) -> DataFrame:
        kind = {"parquet": "aligned_files", "delta": "aligned_delta"}[self._format]
        reader = self._reader(kind, name).option("eventTimeColumn", column)
        return reader.option("watermarkFrom", f"{self._root}/cp/{before}").load(f"{self._root}/{before}")


def run(pipelines: Sequence[Hops], names: Sequence[str]) -> None:
    """Start each query as soon as what it reads is there, and watch all of them."""
    waiting = [(hops, name) for name in names for hops in pipelines]
    started: list[StreamingQuery] = []
    while True:
        for hops, name in [one for one in waiting if one[0].is_ready(one[1])]:
            started.append(hops.start(name, processingTime=EVERY[name]))
            waiting.remove((hops, name))
        for query in started:
            if not query.isActive:
                raise RuntimeError(f"{query.name} has ended: {query.exception()}")
        time.sleep(0.2)


def drain(pipelines: Sequence[Hops], names: Sequence[str]) -> None:
    for name in names:
        for query in [hops.start(name, availableNow=True) for hops in pipelines]:
            query.awaitTermination()


def main(format_name: str, folder: str, jars: str, hops: str, trigger: str) -> None:
    spark = session(format_name, jars)
    pipelines = [Hops(spark, raw.parent, format_name, trigger) for raw in sorted(Path(folder).glob("*/raw"))]
    names = hops.split(",")
    if trigger == "availableNow":
        drain(pipelines, names)
        spark.stop()
    else:
        run(pipelines, names)


if __name__ == "__main__":
    main(*sys.argv[1:])
