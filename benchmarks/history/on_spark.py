"""On Spark: one union of ours, or a batch over the history and a stream over the topic."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from typing import Any
from uuid import uuid4

from benchmarks.history.inputs import BOUND_S, HistoryAndTopic
from benchmarks.history.ways import Found, Way
from streaming_source import cut_from, read_stream

__all__ = ["two_jobs", "union"]


def union(spark: Any, folder: Path, *, bounded: bool = True) -> Way:
    """One query over both, cut by offset; `bounded`: the topic ends with the records that are there."""

    def run(given: HistoryAndTopic) -> Found:
        began = time.monotonic()
        cut = cut_from(given.parquet, partitions={given.topic.name: len(given.offsets)})
        both = {"maxOutOfOrderness": f"{BOUND_S} seconds", "alignmentGroup": "both", "alignmentScope": "query"}
        both |= {"maxDrift": "1 day"}
        history = read_stream(spark).format("aligned_files").options(**both, bounded=True, eventTimeColumn="timestamp")
        live = read_stream(spark).format("aligned_kafka").options(**both, bounded=bounded, subscribe=given.topic.name)
        live = live.options(**{"kafka.bootstrap.servers": given.topic.broker.bootstrap})
        live = live.options(startingOffsets=cut.starting_offsets)
        frame = history.load(str(given.parquet)).select("timestamp", "id").unionByName(_with_id(live.load()))
        rows, micro_batches = _drain(spark, _windows(frame), folder / uuid4().hex)
        return _found(rows, began, micro_batches)

    return run


def two_jobs(spark: Any, folder: Path, *, from_latest: bool) -> Way:
    """A batch over the history, and a stream over the topic from one time on.

    That is the latest event time of the history, or with `from_latest=False` the one up to which it has all partitions.
    """

    def run(given: HistoryAndTopic) -> Found:
        began = time.monotonic()
        batch = _windows(spark.read.parquet(str(given.parquet)).select("timestamp", "id")).collect()
        from_ms = max(given.ends_ms) + 1 if from_latest else min(given.ends_ms)
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", given.topic.broker.bootstrap)
        reader = reader.option("subscribe", given.topic.name).option("startingTimestamp", str(from_ms))
        live = _with_id(reader.load()).withWatermark("timestamp", f"{BOUND_S} seconds")
        # In this mode the last windows come out too: what Spark leaves open in them is none of its losses.
        rows, micro_batches = _drain(spark, _windows(live), folder / uuid4().hex, mode="complete")
        return _found([*batch, *rows], began, micro_batches)

    return run


def _windows(frame: Any) -> Any:
    from pyspark.sql import functions as F

    by_hour = frame.groupBy(F.window("timestamp", "1 hour")).agg(F.collect_list("id").alias("ids"))
    return by_hour.select(F.unix_millis("window.start").alias("start"), "ids")


def _with_id(frame: Any) -> Any:
    from pyspark.sql import functions as F

    return frame.select("timestamp", F.col("value").cast("string").cast("bigint").alias("id"))


def _drain(spark: Any, frame: Any, checkpoint: Path, mode: str = "append") -> tuple[list[Any], int]:
    """What a query gives until all that is there is read, and in how many micro-batches."""
    name = f"windows_{checkpoint.name}"
    writer = frame.writeStream.format("memory").queryName(name).outputMode(mode).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    query.awaitTermination()
    rows = spark.table(name).collect()
    spark.catalog.dropTempView(name)
    return rows, len(query.recentProgress)


def _found(rows: list[Any], began: float, micro_batches: int) -> Found:
    windows: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        windows[row["start"]] += row["ids"]
    return Found(windows, time.monotonic() - began, micro_batches)
