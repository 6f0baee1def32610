"""The exact watermark under Spark Connect, where a plan is Python's and nothing reaches the JVM."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from streaming_source.monitoring.explained import explain_checkpoint
from streaming_source.spark.before_4_2 import IS_BEFORE_4_2
from tests.spark.support import SECOND, T0, naive_windows, write_file

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_PROGRAM = """
import json, sys, time
from collections import Counter
from pyspark.sql import SparkSession, functions as F
from pyspark.sql.connect.client import SparkConnectClient
from streaming_source import AlignmentListener, advise, explain, late_records, read_stream, with_exact_watermark
from streaming_source.exceptions import OptionError
from streaming_source.spark.before_4_2 import IS_BEFORE_4_2

root = sys.argv[1]
calls = Counter()


def counted(name):
    method = getattr(SparkConnectClient, name)

    def call(*arguments, **keywords):
        calls[name] += 1
        return method(*arguments, **keywords)

    setattr(SparkConnectClient, name, call)


for name in ("config", "_analyze", "_execute", "_execute_and_fetch"):
    counted(name)
spark = (
    SparkSession.builder.remote("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "1")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.streaming.noDataProgressEventInterval", "200ms")
    .getOrCreate()
)
listener = AlignmentListener()
spark.streams.addListener(listener)
options = {"eventTimeColumn": "TS", "maxOutOfOrderness": "5 seconds", "bounded": "true", "maxRowsPerTrigger": "200"}
plain = spark.readStream.format("aligned_files").schema("s string, ts timestamp").options(**options).load(root + "/in")
trips = []
for make in (
    lambda: read_stream(spark).format("aligned_files").options(**options, timeZone="UTC").load(root + "/in"),
    lambda: read_stream(spark).format("aligned_files").options(**options).load(root + "/in"),
    lambda: with_exact_watermark(plain),
    lambda: with_exact_watermark(spark.readStream.format("aligned_files").options(**options).load(root + "/in")),
):
    make()  # the client's own first calls
    calls.clear()
    make()
    trips.append(dict(calls))
refused = []
for frame in (plain.where("s > ''"), plain.dropna(), plain.withWatermark("ts", "5 seconds"),
              with_exact_watermark(plain), plain.join(plain, "s"), spark.readStream.format("rate").load(),
              spark.read.format("aligned_files").options(**options).load(root + "/in")):
    try:
        with_exact_watermark(frame)
    except OptionError as error:
        refused.append(str(error))
# With a schema and right after load(); read_stream is this, and is below.
counted = with_exact_watermark(plain).groupBy(F.window("ts", "1 minute"), "s").count().select(
    F.unix_micros("window.start"), F.unix_micros("window.end"), "s", "count"
)
query = counted.writeStream.format("memory").queryName("windows").option("checkpointLocation", root + "/windows")
query = query.trigger(availableNow=True).start()
query.awaitTermination(120)
rows, explained = sorted(map(tuple, spark.table("windows").collect())), [str(explain(query))]
unbounded = {**options, "bounded": "false", "idleTimeout": "1 hour", "maxDrift": "1 minute", "warnAfter": "1 second"}
live = read_stream(spark).format("aligned_files").options(**unbounded).load(root + "/in")
query = live.writeStream.format("memory").queryName("live").option("checkpointLocation", root + "/live").start()
query.processAllAvailable()
deadline, causes, warned = time.monotonic() + 60, set(), False
# Before Spark 4.2 no progress of an idle query has a report: this is of its last micro-batch.
idle = "slowest" if IS_BEFORE_4_2 else "silent"
while time.monotonic() < deadline and not (causes == {idle} and warned):
    time.sleep(0.05)
    with open(root + "/stderr") as logged:
        warned = "the watermark has been held for" in logged.read()
    source = explain(query).to_json()
    reported = listener.history(query).sources().select(["cause", "held_by", "rows"]).to_pylist()
    causes = {s["cause"] for s in [*source["sources"], *reported[-1:]]}
explained.append(source)
query.stop()
options |= {"late": "route", "lateLocation": root + "/log"}
routing = read_stream(spark).format("aligned_files").options(**options).load(root + "/in")
spark.conf.set("spark.sql.streaming.triggerAvailableNowWrapper.enabled", "false")  # for Spark before 4.2
late = late_records(routing, root + "/windows").writeStream.format("memory").queryName("late")
late.option("checkpointLocation", root + "/late").trigger(availableNow=True).start().awaitTermination(120)
# Spark removes no listener while it has events for it.
while any(metric.samples for metric in listener.collect()):
    time.sleep(0.05)
spark.streams.removeListener(listener)
print(json.dumps([trips, refused, rows, explained, spark.table("late").count(), reported, advise(live).rows]))
"""


@pytest.fixture(autouse=True)
def _stopped() -> None:
    """There is no session of this test here."""


@pytest.mark.soak
def test_both_ways_to_the_exact_watermark_and_what_explain_says_of_them_under_spark_connect(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="Spark Connect needs pyspark[connect]")
    logs = {"a": T0 + np.arange(200) * SECOND, "b": T0 + np.arange(200) * 5 * SECOND}
    for split, times in logs.items():
        write_file(tmp_path / "in" / split / "f.parquet", times, split)
    with (tmp_path / "stderr").open("w") as stderr:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _PROGRAM, str(tmp_path)],
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            timeout=280,
            cwd=tmp_path,
            check=False,
        )
    logged = (tmp_path / "stderr").read_text()
    assert done.returncode == 0, logged
    more = int(IS_BEFORE_4_2)
    trips, refused, rows, explained, late, reported, advised = json.loads(done.stdout.splitlines()[-1])
    # No analysis, nothing executed: the zone of the session, the case of names and whether the log of a sink counts are
    # all that come from the server. Before Spark 4.2 also whether AvailableNow closes windows.
    assert trips == [{"config": n} if n else {} for n in (3 + more, 4 + more, more, more)]
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
    assert rows == [list(row) for row in naive_windows(logs)]
    ended, live = explained
    heading, sentence, *_ = ended.splitlines()
    assert re.fullmatch(rf"Query 'windows', aligned_files {tmp_path}/in, as of .* UTC \(.* ago\):", heading)
    assert sentence == "The source has ended; all windows are closed."
    (source,) = live["sources"]
    assert (source["heldBy"], source["splits"]["b"]["waitsFor"]) == (["a"], "drift")
    # Split `b` ends far ahead: its rows are beyond the limit, and it waits for `a`.
    assert source["splits"]["b"]["rowsBehind"] > 0
    assert (reported[-1]["cause"], reported[-1]["held_by"]) == ("slowest" if more else "silent", ["a"])
    assert sum(batch["rows"] for batch in reported) + source["rowsBehind"] == 400
    stored = explain_checkpoint(str(tmp_path / "live")).to_json()["sources"][0]
    assert (stored["heldBy"], stored["watermark"]) == (["a"], source["watermark"])
    warned = [line for line in logged.splitlines() if "the watermark has been held for" in line]
    assert len(warned) == 1, logged[-4000:]
    assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z WARNING aligned_files /.*: ", warned[0])
    assert "because split 'a' has delivered nothing since" in warned[0]
    assert (late, advised) == (0, 400)
