"""What all measurements on Spark share: a session, and running a query to its end."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4


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
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def drain(frame: Any, folder: Path, phase: str = "addBatch") -> float:
    """Run a query into a no-op sink until all that is there was read; seconds of a phase, as the progress says.

    Of the micro-batches that read something: ours has one more, which closes the last windows. Others leave them open.
    """
    checkpoint = folder / f"checkpoint-{uuid4().hex}"
    writer = frame.writeStream.format("noop").trigger(availableNow=True).outputMode("append")
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    query.awaitTermination()
    progress = [json.loads(each.json) for each in query.recentProgress]
    shutil.rmtree(checkpoint)
    return float(sum(each["durationMs"].get(phase, 0) for each in progress if each["numInputRows"]) / 1e3)
