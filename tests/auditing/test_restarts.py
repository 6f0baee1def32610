"""An audit of a query whose driver was killed, and of one whose sources have names."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.auditing import naive
from tests.auditing.test_on_spark import (
    MINUTE,
    Sink,
    assert_counted,
    audited,
    load,
    logged_batches,
    run,
    skewed,
    write,
)

pytestmark = pytest.mark.spark

QUERY = naive.Query(10_000, MINUTE, MINUTE)
LIMIT_S = 120.0


@pytest.mark.soak
def test_a_query_whose_driver_was_killed_by_sigkill_is_counted_to_the_row(tmp_path: Path) -> None:
    root, checkpoint, out = (tmp_path / name for name in ("in", "checkpoint", "sink"))
    files = skewed(1)
    write(root, files, "parquet")
    command = [sys.executable, "-m", "tests.auditing.file_query", *map(str, (root, checkpoint, out))]
    with (tmp_path / "first.log").open("wb") as log:
        first = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            until = time.monotonic() + LIMIT_S
            while not (checkpoint / "commits/3").exists():
                assert first.poll() is None, (tmp_path / "first.log").read_text()[-3000:]
                assert time.monotonic() < until, "no fourth micro-batch"
                time.sleep(0.01)
        finally:
            # The process group: Python and the JVM at once.
            os.killpg(first.pid, signal.SIGKILL)
            first.wait()
    killed_at = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    assert killed_at < len(files) - 1
    second = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert second.returncode == 0, second.stderr[-3000:]

    found = audited(checkpoint, QUERY, "parquet")

    sink, rows = Sink("append"), pq.ParquetDataset(str(out), partitioning=None)
    sink.batches[0] = Counter()
    for row in rows.read().to_pylist():
        sink.batches[0][row["end"]] += row["count"]
    assert_counted(found, naive.run(QUERY, logged_batches(checkpoint, root, files)), sink, QUERY, checkpoint)
    assert found.dropped > 0


def test_a_source_that_has_a_name_is_counted_from_an_offset_log_of_version_2(
    spark: SparkSession, tmp_path: Path
) -> None:
    if not hasattr(spark.readStream, "name"):
        pytest.skip("sources have names from Spark 4.3 on")
    root, checkpoint, sink, files = tmp_path / "in", tmp_path / "checkpoint", Sink("append"), skewed(2)
    write(root, files, "parquet")
    confs = {"queryEvolution.enableSourceEvolution": "true", "offsetLog.formatVersion": "2"}
    for name, value in confs.items():
        spark.conf.set(f"spark.sql.streaming.{name}", value)
    try:
        run(load(spark, root, "parquet", 4, QUERY.delay_ms, name="flights"), QUERY, sink, checkpoint)
    finally:
        for name in confs:
            spark.conf.unset(f"spark.sql.streaming.{name}")
    assert (checkpoint / "offsets/0").read_text().startswith("v2\n")

    found = audited(checkpoint, QUERY, "parquet")

    batches = logged_batches(checkpoint, root, files, source="flights")
    assert_counted(found, naive.run(QUERY, batches), sink, QUERY, checkpoint)
    assert found.dropped > 0
