"""The exact watermark under Spark Connect, where a plan is Python's and nothing reaches the JVM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.spark.support import SECOND, T0, naive_windows, write_file

pytestmark = pytest.mark.spark

_PROGRAM = """
import json, sys
from pyspark.sql import SparkSession, functions as F
from streaming_source import late_records, read_stream, register, with_exact_watermark
from streaming_source.exceptions import OptionError

root = sys.argv[1]
spark = (
    SparkSession.builder.remote("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.session.timeZone", "UTC")
    .getOrCreate()
)
register(spark)
options = {"eventTimeColumn": "TS", "maxOutOfOrderness": "5 seconds", "bounded": "true", "maxRowsPerTrigger": "100"}
plain = spark.readStream.format("aligned_files").schema("s string, ts timestamp").options(**options).load(root + "/in")
refused = []
for frame in (plain.where("s > ''"), plain.dropna(), plain.withWatermark("ts", "5 seconds"),
              with_exact_watermark(plain), plain.join(plain, "s"), spark.readStream.format("rate").load(),
              spark.read.format("aligned_files").options(**options).load(root + "/in")):
    try:
        with_exact_watermark(frame)
    except OptionError as error:
        refused.append(str(error))
frames = {
    "read_stream": read_stream(spark).format("aligned_files").options(**options).load(root + "/in"),
    "with_exact_watermark": with_exact_watermark(plain),
}
rows = {}
for name, frame in frames.items():
    counted = frame.groupBy(F.window("ts", "1 minute"), "s").count().select(
        F.unix_micros("window.start"), F.unix_micros("window.end"), "s", "count"
    )
    query = counted.writeStream.format("memory").queryName(name).option("checkpointLocation", root + "/" + name)
    query.trigger(availableNow=True).start().awaitTermination(120)
    rows[name] = sorted(map(tuple, spark.table(name).collect()))
routing = read_stream(spark).format("aligned_files").options(**options, late="route").load(root + "/in")
late = late_records(routing, root + "/read_stream").writeStream.format("memory").queryName("late")
late.option("checkpointLocation", root + "/late").trigger(availableNow=True).start().awaitTermination(120)
print(json.dumps([refused, rows, spark.table("late").count()]))
"""


def test_both_ways_to_the_exact_watermark_under_spark_connect(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="Spark Connect needs pyspark[connect]")
    logs = {"a": T0 + np.arange(200) * SECOND, "b": T0 + np.arange(200) * 5 * SECOND}
    for split, times in logs.items():
        write_file(tmp_path / "in" / split / "f.parquet", times, split)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PROGRAM, str(tmp_path)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=280,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    refused, rows, late = json.loads(done.stdout.splitlines()[-1])
    told = [
        "this one has Filter on it",
        "this one has NADrop on it",
        "this one has WithWatermark on it",
        "carries the exact watermark already",
        "this one has Join on it",
        "this one is of rate",
        "needs a streaming frame",
    ]
    assert [expected in message for expected, message in zip(told, refused, strict=True)] == [True] * len(told)
    expected = [list(row) for row in naive_windows(logs)]
    assert rows == {"read_stream": expected, "with_exact_watermark": expected}
    assert late == 0
