"""The driver program that faults strike: several queries, each begun again when it fails, until it shall finish.

`python -m tests.faults.query <folder>` reads `<folder>/plan.json`. A line on its standard input lets it read all that
there is to the end and stop; the end of its standard input ends it at once.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

import streaming_source.spark.registration as registration
from alignment import WatermarkStrategy
from streaming_source.spark.before_4_2 import IS_BEFORE_4_2
from streaming_source.spark.frames import from_source
from tests.faults.inputs import BOUND_US, BOUNDABLE, OF_KAFKA, event_time_of, source_of
from tests.faults.steps import Steps, stepped_format

WINDOW = "10 seconds"
_SAY_AFTER_S = 60.0
"""How often it says which queries have not finished: where that takes too long it is the end of the log."""


def session(plan: dict[str, Any]) -> SparkSession:
    builder = SparkSession.builder.master(plan["master"])
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stopTimeout": "60s",
        "spark.sql.streaming.minBatchesToRetain": "100000",
        **plan["settings"],
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


class Running:
    """One query, over its lives in this driver.

    Parameters
    ----------
    spark, folder
        Where it runs, and where all that it writes is.
    query
        Its part of the plan.
    """

    def __init__(self, spark: SparkSession, folder: Path, query: dict[str, Any]) -> None:
        self._spark, self._folder, self._query = spark, folder, query
        self.finishes = False
        self.name: str = query["name"]
        self._steps = Steps(folder, self.name)
        self._checkpoint = str(folder / "checkpoints" / self.name)
        self._frame = self._load(bounded=False)
        self.begun: StreamingQuery = self.begin()

    def begin(self) -> StreamingQuery:
        writer = self._frame.writeStream.option("checkpointLocation", self._checkpoint)
        writer = writer.trigger(**({"availableNow": True} if self.finishes else {"processingTime": "300 milliseconds"}))
        out = self._folder / "out" / self.name
        if self._query["sink"] == "files":
            self.begun = writer.format("parquet").option("path", str(out)).start()
        else:
            out.mkdir(parents=True, exist_ok=True)
            self.begun = writer.foreachBatch(lambda batch, number: self._keep(batch, number, out)).start()
        return self.begun

    def finish(self) -> None:
        """Stop, and go on to the end of what is there."""
        self.begun.stop()
        self.finishes = True
        if self._query["connector"] in BOUNDABLE or IS_BEFORE_4_2:
            self._frame = self._load(bounded=self._query["connector"] in BOUNDABLE)
        self.begin()

    def _load(self, *, bounded: bool) -> DataFrame:
        query = self._query
        source = source_of(query["connector"], query["place"], bounded=bounded)
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(f"{BOUND_US // 1_000_000} seconds")
        if (column := event_time_of(query["connector"])) is not None:
            strategy = strategy.with_timestamp_assigner(column)
        if query["group"]:
            strategy = strategy.with_watermark_alignment(query["group"], "2 minutes")
        registration.format_class = stepped_format(self._folder, self.name, query["readers"])  # type: ignore[assignment]
        frame = from_source(
            self._spark,
            source,
            strategy,
            self.name,
            include_metadata=True,
            max_rows_per_trigger=10_000_000 if bounded else query["max_rows"],
            num_readers=query["readers"],
            **({"indexing": "off"} if query["connector"] == "own, off" else {}),
            **({"available_now_checkpoint": self._checkpoint} if self.finishes and IS_BEFORE_4_2 else {}),
        )
        times = "timestamp" if query["connector"] in OF_KAFKA else "ts"
        if query["shape"] == "rows":
            return frame.select("_split", "_position", F.unix_micros(times).alias("us"))
        counted = frame.groupBy(F.window(times, WINDOW), "_split")
        counts = counted.agg(F.count("*").alias("count"), F.sum("_position").alias("positions"))
        return counts.select(F.unix_micros("window.start").alias("us"), "_split", "count", "positions")

    def _keep(self, batch: DataFrame, number: int, out: Path) -> None:
        written = out / f"_{number}"
        pq.write_table(batch.toArrow(), written)
        written.rename(out / f"{number}.parquet")
        self._steps.reach("written", number)


def main(folder: Path) -> None:
    plan = json.loads((folder / "plan.json").read_text())
    spark = session(plan)
    jvm = spark._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
    (folder / "driver.new").write_text(json.dumps({"driver": os.getpid(), "jvm": jvm}))
    (folder / "driver.new").rename(folder / "driver.json")
    shall_finish = threading.Event()

    def listen() -> None:
        if not sys.stdin.readline():
            os._exit(3)
        shall_finish.set()

    threading.Thread(target=listen, daemon=True).start()
    queries = [Running(spark, folder, query) for query in plan["queries"]]
    (folder / "started").touch()
    while not shall_finish.is_set():
        _begin_failed(folder, queries)
        time.sleep(0.05)
    for query in queries:
        query.finish()
    # A fault may come to light only now: Spark finds out that a daemon is dead when it needs it.
    said = time.monotonic()
    while any(query.begun.isActive or query.begun.exception() for query in queries):
        if time.monotonic() - said > _SAY_AFTER_S:
            said = time.monotonic()
            print({query.name: query.begun.status for query in queries if query.begun.isActive}, flush=True)
        _begin_failed(folder, queries)
        time.sleep(0.05)
    spark.stop()


def _begin_failed(folder: Path, queries: list[Running]) -> None:
    for query in queries:
        if query.begun.isActive:
            continue
        error = query.begun.exception()
        # Spark ends a query without an error where its own reading of the error fails.
        if error is None and query.finishes:
            continue
        with (folder / "failures.jsonl").open("a") as file:
            file.write(json.dumps({"query": query.name, "error": str(error)}) + "\n")
        query.begin()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
