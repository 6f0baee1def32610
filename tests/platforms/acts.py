"""What each platform must do: `python acts.py FOLDER QUICK_START [URL]`.

It needs Spark's client, this library and a source of the tests. `QUICK_START` is a file with the quick start.
Without the URL of a Spark Connect server it is a classic session. It prints one line of JSON: the seconds of each act,
and what a worker and a planner may do there. An act compares what the query wrote with the batch result over the same
records.
"""

from __future__ import annotations

import json
import re
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from streaming_source import (
    DataGeneratorSource,
    FileSource,
    WatermarkStrategy,
    explain,
    from_source,
    read_stream,
    with_exact_watermark,
)
from tests.spark import unindexed

# Where Python runs for Spark there are no tests.
cloudpickle.register_pickle_by_value(unindexed)

START = datetime(2026, 1, 1, tzinfo=UTC)
BOUND = timedelta(seconds=5)
STEPS = {"slow": 1, "fast": 4}
"""Log -> seconds of event time between two of its records: one runs four times as fast."""

OPTIONS = {"eventTimeColumn": "ts", "maxOutOfOrderness": "5 seconds"}


def write(root: str, begin: int, end: int) -> None:
    """Records `begin` to `end` of each log."""
    for log, step in STEPS.items():
        times = [START + timedelta(seconds=step * i) for i in range(begin, end)]
        table = pa.table({"ts": pa.array(times, pa.timestamp("us", "UTC")), "s": [log] * len(times)})
        folder = Path(root) / "logs" / log
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, folder / f"_{end}")
        (folder / f"_{end}").rename(folder / f"part-{end:05d}.parquet")


def closed(end: int) -> list[tuple[int, str, int]]:
    """Minute, log and count of the windows that the slower log has closed, of the first `end` records of each."""
    watermark = min(START + timedelta(seconds=step * (end - 1)) for step in STEPS.values()) - BOUND
    counts: dict[tuple[int, str], int] = {}
    for log, step in STEPS.items():
        for i in range(end):
            counts[step * i // 60, log] = counts.get((step * i // 60, log), 0) + 1
    last = (watermark - START) // timedelta(minutes=1)
    return sorted((minute, log, n) for (minute, log), n in counts.items() if minute < last)


def minute(column: str) -> Any:
    return ((F.unix_micros(column) - int(START.timestamp()) * 1_000_000) / 60_000_000).cast("long")


def by_minute(frame: Any) -> Any:
    counted = frame.groupBy(F.window("ts", "1 minute"), "s").count()
    return counted.select(minute("window.start").alias("minute"), "s", "count")


def start(frame: Any, root: str, name: str, **trigger: Any) -> Any:
    writer = frame.writeStream.format("parquet").option("path", f"{root}/out/{name}")
    return writer.option("checkpointLocation", f"{root}/checkpoints/{name}").trigger(**trigger).start()


def run(frame: Any, root: str, name: str) -> Any:
    query = start(frame, root, name, availableNow=True)
    assert query.awaitTermination(120), name
    assert query.exception() is None, query.exception()
    return query


def rows(spark: SparkSession, root: str, name: str) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, spark.read.parquet(f"{root}/out/{name}").collect()))


def files(spark: SparkSession, root: str, **more: Any) -> Any:
    return read_stream(spark).format("aligned_files").options(**OPTIONS, **more).load(f"{root}/logs")


def quick_start(spark: SparkSession, root: str, code: str) -> None:
    """The code of the page Quick start, in this session."""
    code = re.sub(r"spark = \(\n.*?\n\)\n", "", code, count=1, flags=re.DOTALL)
    assert "getOrCreate" not in code
    scope = {"__name__": "quick_start", "spark": spark}
    code = code.replace("tempfile.mkdtemp()", repr(f"{root}/quick"))
    exec(compile(code, "quick-start.md", "exec"), scope)
    counted = spark.table("counts").groupBy("log").agg(F.count("*"), F.sum("count")).collect()
    assert sorted(map(tuple, counted)) == [("fast", 240, 3600), ("slow", 60, 3600)]


def available_now_twice(spark: SparkSession, root: str) -> None:
    """Each way to the exact watermark, over what came before the first run, and between the two."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(BOUND).with_timestamp_assigner("ts")
    begun = 0
    for end in (400, 600):
        write(root, begun, end)
        begun = end
        plain = spark.readStream.format("aligned_files").options(**OPTIONS).load(f"{root}/logs")
        frames = {
            "read_stream": files(spark, root),
            "with_exact_watermark": with_exact_watermark(plain),
            "from_source": from_source(spark, FileSource(f"{root}/logs"), strategy, "logs"),
        }
        for name, frame in frames.items():
            query = run(by_minute(frame), root, name)
            assert rows(spark, root, name) == closed(end), name
            assert "'slow'" in str(explain(query)), name


def join(spark: SparkSession, root: str) -> None:
    """Two sources, windowed and joined, whose planners exchange in a directory how far they are."""
    group = {"alignmentGroup": "logs", "alignmentLocation": f"{root}/groups", "maxDrift": "1 hour"}
    sides = {
        log: files(spark, root, **group)
        .where(f"s = '{log}'")
        .groupBy(F.window("ts", "1 minute"))
        .agg(F.count("*").alias(log))
        for log in STEPS
    }
    joined = sides["slow"].join(sides["fast"], "window")
    run(joined.select(minute("window.start").alias("minute"), "slow", "fast"), root, "join")
    counts = {(at, log): n for at, log, n in closed(600)}
    expected = [(at, n, counts[at, "fast"]) for (at, log), n in sorted(counts.items()) if log == "slow"]
    assert rows(spark, root, "join") == expected


def reports(spark: SparkSession, root: str) -> None:
    """A source without an index of event times, whose readers report in a directory."""
    first = int(START.timestamp()) * 1_000_000
    unindexed.write_logs(
        Path(root) / "unindexed", {log: first + np.arange(600) * step * 1_000_000 for log, step in STEPS.items()}
    )
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(BOUND).with_timestamp_assigner("ts")
    source = unindexed.UnindexedLogs(f"{root}/unindexed")
    frame = from_source(spark, source, strategy, "reports", indexing="off", report_location=f"{root}/reports")
    run(by_minute(frame), root, "reports")
    assert rows(spark, root, "reports") == closed(600)


def restart(spark: SparkSession, root: str) -> None:
    """A query that follows its logs is stopped, and goes on with other limits where it was."""
    frame = read_stream(spark).format("aligned_files").options(**OPTIONS, maxRowsPerTrigger=150, maxDrift="5 minutes")
    query = start(by_minute(frame.load(f"{root}/logs")), root, "restart", processingTime="0 seconds")
    query.processAllAvailable()
    query.stop()
    write(root, 600, 900)
    frame = read_stream(spark).format("aligned_files").options(**OPTIONS, maxRowsPerTrigger=400)
    query = start(by_minute(frame.load(f"{root}/logs")), root, "restart", processingTime="0 seconds")
    query.processAllAvailable()
    query.stop()
    assert rows(spark, root, "restart") == closed(900)


def look() -> dict[str, Any]:
    """What a process has and may do: the file of the library, variables of its environment, writing, ports."""
    import os
    import socket

    import streaming_source

    def write_into(folder: str) -> None:
        with open(os.path.join(folder, "new"), "w"):
            pass
        os.remove(os.path.join(folder, "new"))

    def connect() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname(), 5):
            pass

    found: dict[str, Any] = {"file": streaming_source.__file__, "names": sorted(os.environ), "cwd": os.getcwd()}
    library = os.path.dirname(streaming_source.__file__)
    for what, attempt in (
        ("library", lambda: write_into(library)),
        ("cwd", lambda: write_into(".")),
        ("port", connect),
    ):
        try:
            attempt()
            found[f"may {what}"] = True
        except OSError:
            found[f"may {what}"] = False
    return found


class LooksAround(DataGeneratorSource):
    """Its planner fails with what it may do there."""

    def create_enumerator(self, *arguments: Any) -> Any:
        raise RuntimeError(f"LOOK{json.dumps(look())}LOOK")


def possible(spark: SparkSession, root: str) -> dict[str, Any]:
    """What a worker and a planner may do, as code of the user's in each of them finds it."""
    row = spark.range(1).select(F.udf(lambda _: json.dumps(look()), "string")("id")).first()
    assert row is not None
    frame = from_source(spark, LooksAround(), WatermarkStrategy.for_monotonous_timestamps(), "looks_around")
    query = start(frame, root, "look", availableNow=True)
    with suppress(Exception):
        query.awaitTermination(120)
    text = str(query.exception())
    assert "LOOK" in text, text
    return {"worker": json.loads(row[0]), "planner": json.loads(text.split("LOOK")[-2])}


def main(root: str, quick: str, url: str = "") -> None:
    builder = SparkSession.builder.remote(url) if url else SparkSession.builder.master("local[2]")
    for name, value in {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        **({} if url else {"spark.ui.enabled": "false", "spark.sql.warehouse.dir": f"{root}/warehouse"}),
    }.items():
        builder = builder.config(name, value)
    began = time.monotonic()
    spark = builder.getOrCreate()
    seconds = {"session": time.monotonic() - began}
    acts: dict[str, Any] = {
        "quick start": lambda: quick_start(spark, root, Path(quick).read_text(encoding="utf-8")),
        "AvailableNow twice": lambda: available_now_twice(spark, root),
        "join": lambda: join(spark, root),
        "reports": lambda: reports(spark, root),
        "restart": lambda: restart(spark, root),
    }
    found = possible(spark, root)
    for name, act in acts.items():
        began = time.monotonic()
        act()
        seconds[name] = time.monotonic() - began
    print(json.dumps({"seconds": {name: round(s, 1) for name, s in seconds.items()}, **found}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
