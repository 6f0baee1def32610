"""Many queries in one driver, two on one source; options that change between runs; and what a stopped query leaves."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from streaming_source import read_stream
from tests.spark.conftest import Loader
from tests.spark.support import (
    SECOND,
    Run,
    available_now,
    eventually,
    fails_with,
    is_planner,
    processes,
    skewed_logs,
    write_logs,
    write_table,
)

pytestmark = [pytest.mark.spark, pytest.mark.soak]

LOGS = skewed_logs(8, rows=(60, 40), starts=(0, 30 * SECOND), steps=(SECOND, 2 * SECOND))
ROWS = [(split, row) for split, times in sorted(LOGS.items()) for row in range(len(times))]


def planners(spark: SparkSession) -> int:
    """Processes of this driver in which Spark runs planners, with the one that they are forked of."""
    return sum(map(is_planner, processes(spark)))


def listening(spark: SparkSession) -> int:
    """Sockets that listen, of this process and of those that the driver has started.

    Not of the driver's JVM: Spark leaves one open there for each planner of any Python source (PySpark 4.1.4, 4.3.0).
    """
    held = set[str]()
    for pid in (os.getpid(), *processes(spark)):
        with contextlib.suppress(OSError):
            held |= {os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()}
    tables = (Path(f"/proc/self/net/{table}").read_text().splitlines()[1:] for table in ("tcp", "tcp6"))
    lines = [line.split() for table in tables for line in table]
    return sum(line[3] == "0A" and f"socket:[{line[9]}]" in held for line in lines)


def test_ten_queries_in_one_driver_of_which_two_read_one_path_read_all_and_leave_nothing(
    spark: SparkSession, exact: Loader, tmp_path: Path
) -> None:
    for number in range(9):
        write_logs(tmp_path / str(number), LOGS, files=2)
    # The process of which Python workers are forked stays.
    available_now(spark, exact(tmp_path / "0"), tmp_path / "cp" / "first")
    sockets, threads = listening(spark), threading.active_count()
    runs = []
    for number in range(10):
        frame = exact(tmp_path / str(min(number, 8)), includeMetadata="true", maxRowsPerTrigger=30)
        runs.append(Run(spark, frame.select("_split", "_position"), tmp_path / "cp" / str(number)))
        # One after another: Spark gives a planner 10 seconds to start.
        runs[-1].query.processAllAvailable()
    assert planners(spark) >= 10
    for run in runs:
        assert run.rows == ROWS
        run.query.stop()
    eventually(lambda: planners(spark) <= 1, "the planners to end", seconds=30)
    eventually(lambda: listening(spark) <= sockets, "their ports to be closed", seconds=30)
    assert threading.active_count() <= threads


def test_options_that_decide_event_times_must_stay_and_others_may_differ(spark: SparkSession, tmp_path: Path) -> None:
    import pyarrow as pa

    times = pa.array(range(0, 40 * SECOND, SECOND), pa.timestamp("us"))
    for split in ("a", "b"):
        write_table(tmp_path / "in" / split / "0.parquet", pa.table({"t": times, "u": times}), 10)

    def frame(door: Any, **options: Any) -> DataFrame:
        given = {"eventTimeColumn": "t", "includeMetadata": "true", **options}
        loaded: DataFrame = door.format("aligned_files").options(**given).load(str(tmp_path / "in"))
        return loaded.select("_split", "_position")

    def run(loaded: DataFrame, checkpoint: str = "cp") -> Run:
        return available_now(spark, loaded, tmp_path / checkpoint, files=tmp_path / f"{checkpoint}-out")

    run(frame(read_stream(spark), maxRowsPerTrigger="10"))
    with fails_with("OffsetError", "option eventTimeColumn is 'u', and was 't'", "use a new checkpointLocation"):
        run(frame(read_stream(spark), eventTimeColumn="u"))
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        with fails_with("OffsetError", "option timeZone is 'Europe/Berlin', and was 'UTC'"):
            run(frame(read_stream(spark)))
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    run(frame(spark.readStream, timeZone="UTC", maxRowsPerTrigger="10"), "plain")
    with fails_with("OffsetError", "a query with a plain withWatermark"):
        run(frame(read_stream(spark)), "plain")
    write_table(tmp_path / "in" / "a" / "1.parquet", pa.table({"t": times, "u": times}), 10)
    last = run(frame(read_stream(spark), numReaders="5", maxDrift="1 hour", idleTimeout="none", maxRowsPerTrigger="7"))
    assert last.rows == [("a", row) for row in range(80)] + [("b", row) for row in range(40)]
