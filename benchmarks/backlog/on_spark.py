"""The jobs on Spark: from our source, and from Spark's own with the least delay that loses nothing."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

import streaming_source
from benchmarks import flink
from benchmarks.backlog.inputs import PARTS, START_MS, Backlog
from benchmarks.backlog.job import Counted, Job
from benchmarks.data import DDL

__all__ = ["OURS", "SPARKS", "jobs"]

OURS = "ours"
SPARKS = "Spark's own CSV stream, least delay"

_Frames = Callable[[Backlog], list[Any]]
_Drifts = Callable[[Path, Backlog], dict[int, int]]


def jobs(spark: Any, folder: Path, kind: str) -> dict[str, Job]:
    """The contestants of a `kind` of job, "count" or "join"."""

    def ours(backlog: Backlog) -> list[Any]:
        reader = streaming_source.read_stream(spark).format("aligned_files").schema(DDL["narrow"])
        reader = reader.options(fileFormat="csv", splitBy="directory", columns="ts,key", bounded="true")
        reader = reader.options(eventTimeColumn="ts", maxOutOfOrderness="2 seconds", maxDrift="1 minute")
        sources = backlog.sources()
        reader = reader.options(maxRowsPerTrigger=backlog.rows // len(sources) // backlog.micro_batches)
        if len(sources) > 1:
            reader = reader.options(alignmentGroup=uuid4().hex, alignmentScope="query")
        return [reader.load(str(source)) for source in sources]

    def sparks(backlog: Backlog) -> list[Any]:
        # As many files a micro-batch as make as many micro-batches; ours has a limit on rows.
        frames = []
        for (name, splits), source in zip(backlog.times.items(), backlog.sources(), strict=True):
            a_batch = sum(map(len, splits)) // backlog.micro_batches
            reader = spark.readStream.schema(DDL["narrow"]).option("recursiveFileLookup", "true")
            frame = reader.option("maxFilesPerTrigger", a_batch).csv(str(source))
            frames.append(frame.withWatermark("ts", f"{_least_delay_ms(backlog, name, a_batch)} milliseconds"))
        return frames

    run = {"count": _count, "join": _join}[kind]
    return {
        OURS: lambda backlog: run(spark, folder, ours(backlog), backlog, _drifts_of_ours, "append"),
        SPARKS: lambda backlog: run(spark, folder, sparks(backlog), backlog, _drifts_of_files, "update"),
    }


def _count(spark: Any, folder: Path, frames: list[Any], backlog: Backlog, drifts: _Drifts, mode: str) -> Counted:
    """Rows by minute and key."""
    from pyspark.sql import functions as F

    name = f"windows_{uuid4().hex}"
    writer = frames[0].groupBy(F.window("ts", "1 minute"), "key").count().writeStream.outputMode(mode)
    seconds, in_state, drifted = _run(writer.format("memory").queryName(name), folder / name, backlog, drifts)
    found = spark.table(name).select(F.unix_millis("window.start").alias("start"), "key", "count")
    # In update mode a window comes out again with each micro-batch that has rows of it.
    windows = flink.sorted_windows(found.groupBy("start", "key").agg(F.max("count")).toArrow())
    spark.catalog.dropTempView(name)
    return Counted(seconds, windows, in_state, drifted)


def _join(spark: Any, folder: Path, frames: list[Any], backlog: Backlog, drifts: _Drifts, _: str) -> Counted:
    """Pairs of an order and its payment in the same minute, written as Parquet."""
    from pyspark.sql import functions as F

    left, right = [
        frame.select(F.window("ts", "1 minute").alias(f"minute{i}"), F.col("key").alias(f"key{i}"))
        for i, frame in enumerate(frames)
    ]
    pairs = left.join(right, F.expr("minute0 = minute1 and key0 = key1"))
    output = folder / f"pairs-{uuid4().hex}"
    writer = pairs.select(F.unix_millis("minute0.start").alias("start")).writeStream.outputMode("append")
    writer = writer.format("parquet").option("path", str(output))
    seconds, in_state, drifted = _run(writer, folder / output.name.replace("pairs", "checkpoint"), backlog, drifts)
    starts = pa.concat_tables([pq.read_table(file) for file in output.glob("*.parquet")])
    counts = starts.group_by("start").aggregate([("start", "count")])
    columns = [counts["start"], pa.repeat(pa.scalar(0, pa.int64()), len(counts)), counts["start_count"]]
    windows = pa.table(columns, ["start", "key", "count"])
    shutil.rmtree(output)
    return Counted(seconds, flink.sorted_windows(windows), in_state, drifted)


def _run(
    writer: Any, checkpoint: Path, backlog: Backlog, drifts: _Drifts
) -> tuple[float, int, list[tuple[float, int]]]:
    """Seconds until all is read, the most rows in state, and the drift after each micro-batch."""
    began_at, began = time.time(), time.perf_counter()
    query = writer.trigger(availableNow=True).option("checkpointLocation", str(checkpoint)).start()
    query.awaitTermination()
    seconds = time.perf_counter() - began
    progress = query.recentProgress
    in_state = max(operator.numRowsTotal for each in progress for operator in each.stateOperators)
    ended = {each.batchId: _unix(each.timestamp) + each.durationMs["triggerExecution"] / 1e3 for each in progress}
    found = drifts(checkpoint, backlog)
    shutil.rmtree(checkpoint)
    return seconds, in_state, [(ended[number] - began_at, drift) for number, drift in found.items() if number in ended]


def _unix(timestamp: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(timestamp).timestamp()


# ---- drift, by what is in a checkpoint -------------------------------------------------------------------------------


def _drifts_of_ours(checkpoint: Path, backlog: Backlog) -> dict[int, int]:
    """By the watermarks of the splits in the offset log."""
    drifts = {}
    for file in _numbered(checkpoint / "offsets"):
        states = [json.loads(line) for line in file.read_text().splitlines()[2:]]
        at = [split[1] for state in states for split in state["splits"] if split[2] != "finished"]
        drifts[int(file.name)] = _spread([START_MS if us is None else us // 1000 for us in at])
    return drifts


def _drifts_of_files(checkpoint: Path, backlog: Backlog) -> dict[int, int]:
    """By the files that each micro-batch has read."""
    read = {(name, split): 0 for name, splits in backlog.times.items() for split in range(len(splits))}
    drifts = {}
    logs = [{_number(file): file for file in _numbered(log)} for log in sorted((checkpoint / "sources").iterdir())]
    for number in sorted({number for log in logs for number in log}):
        for log in logs:
            for line in log[number].read_text().splitlines()[1:] if number in log else ():
                path = Path(json.loads(line)["path"])
                key = path.parts[-3], int(path.parent.name.removeprefix("split-"))
                read[key] = max(read[key], 1 + int(path.stem.removeprefix("part-")))
        drifts[number] = _spread(
            int(backlog.times[name][split][n - 1].max()) if n else START_MS
            for (name, split), n in read.items()
            if n < len(backlog.times[name][split])
        )
    return drifts


def _spread(times: Iterable[int]) -> int:
    found = list(times)
    return max(found) - min(found) if found else 0


def _numbered(log: Path) -> list[Path]:
    return sorted(log.glob("[0-9]*"), key=_number)


def _number(file: Path) -> int:
    return int(file.name.split(".")[0])


def _least_delay_ms(backlog: Backlog, name: str, a_batch: int) -> int:
    """With which Spark drops no row: its watermark is the latest time of all earlier micro-batches, less the delay."""
    splits = backlog.times[name]
    files = [split[part] for part in range(PARTS) for split in splits if part < len(split)]
    latest, least = 0, 0
    for begin in range(0, len(files), a_batch):
        batch = files[begin : begin + a_batch]
        earliest = min(int(one.min()) for one in batch)
        least = max(least, latest - earliest)
        latest = max(latest, *(int(one.max()) for one in batch))
    return least + 1
