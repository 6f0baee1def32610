"""What all measurements on Spark share: a session, running a query to its end, rates side by side."""

from __future__ import annotations

import os
import shutil
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from benchmarks.report import in_turn, ratio, table


def session(*jars: Path) -> Any:
    """A session on all cores of this machine that knows our formats. A JVM takes jars when it starts, or never."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession


    spark = (
        SparkSession.builder.master("local[*]")
        .config("spark.driver.memory", "4g")
        .config("spark.jars", ",".join(map(str, jars)))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def drain(frame: Any, folder: Path) -> None:
    """Run a query into a no-op sink until all that is there was read."""
    checkpoint = folder / f"checkpoint-{uuid4().hex}"
    writer = frame.writeStream.format("noop").trigger(availableNow=True).outputMode("append")
    writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination()
    shutil.rmtree(checkpoint)


def compare(title: str, rows: int, rounds: int, contestants: Mapping[str, Callable[[], object]]) -> None:
    """Rows a second of each contestant, and what that of `ours` is of it."""
    seconds = in_turn(contestants, rounds)
    lines: list[Sequence[str]] = [
        [name, f"{rows / statistics.median(taken) / 1e6:.2f} M/s", ratio(taken, seconds["ours"])]
        for name, taken in seconds.items()
    ]
    table(f"{title} ({rounds} rounds in turn)", ["source", "median rate", "speed of ours against it"], lines)
