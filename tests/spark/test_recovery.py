"""Each row once: over runs, restarts, kills, and at the seams between the logs of a checkpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.conftest import Loader
from tests.spark.support import (
    SECOND,
    SKEWS,
    T0,
    Run,
    available_now,
    end_offset,
    eventually,
    fails_with,
    forget_batches,
    last_batch,
    last_offset,
    naive_windows,
    skewed_logs,
    state_rows,
    windows,
    write_file,
    write_logs,
)

pytestmark = pytest.mark.spark

LOGS = skewed_logs(21, rows=(120, 80), starts=(0, 300 * SECOND), steps=(SECOND, 2 * SECOND))
Rows = list[tuple[str, int]]


def batches_of(frame: DataFrame, checkpoint: Path) -> dict[int, Rows]:
    """Run to the end of what is there; the `(_split, _position)` that each micro-batch read."""
    read: dict[int, Rows] = {}

    def keep(batch: DataFrame, number: int) -> None:
        read[number] = sorted(map(tuple, batch.select("_split", "_position").collect()))

    writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)
    return read


@pytest.mark.parametrize("split_by", ["directory", pytest.param("file", marks=pytest.mark.soak)])
def test_available_now_run_again_with_new_files_between_gives_each_row_once(
    spark: SparkSession, exact: Loader, tmp_path: Path, split_by: str
) -> None:
    later = {split: times + 1000 * SECOND for split, times in LOGS.items()}

    def run() -> dict[int, Rows]:
        frame = exact(tmp_path / "in", includeMetadata="true", maxRowsPerTrigger=90, splitBy=split_by)
        return batches_of(frame, tmp_path / "cp")

    write_logs(tmp_path / "in", LOGS, files=2)
    first = run()
    for split, times in later.items():
        write_file(tmp_path / "in" / split / "part-900.parquet", times, split)
    write_file(tmp_path / "in" / "new" / "part-000.parquet", later["split-0"])
    second = run()
    third = run()
    seen = [row for read in (first, second, third) for rows in read.values() for row in rows]
    assert len(seen) == len(set(seen)) == 200 + 200 + 120
    assert not any(third.values())
    assert min(second) == max(first) + 1


def test_available_now_run_again_with_nothing_new_reads_nothing(
    spark: SparkSession, stream: Loader, tmp_path: Path
) -> None:
    write_logs(tmp_path / "in", LOGS)
    frame = stream(tmp_path / "in", includeMetadata="true", maxOutOfOrderness="1 hour")
    batches_of(frame, tmp_path / "cp")
    before = last_offset(tmp_path / "cp")
    assert batches_of(frame, tmp_path / "cp") == {}
    assert last_offset(tmp_path / "cp") == before


@pytest.mark.parametrize("split_by", [pytest.param("directory", marks=pytest.mark.soak), "file"])
def test_a_batch_that_was_planned_but_not_committed_is_read_again_to_the_row(
    spark: SparkSession, exact: Loader, tmp_path: Path, split_by: str
) -> None:
    write_logs(tmp_path / "in", LOGS, row_group_size=16)
    options = {"includeMetadata": "true", "maxRowsPerTrigger": 60, "splitBy": split_by, "bounded": "true"}
    first = batches_of(exact(tmp_path / "in", **options), tmp_path / "cp")
    for seam in (last_batch(tmp_path / "cp"), 1):
        planned = (tmp_path / "cp" / "offsets" / str(seam)).read_text()
        forget_batches(tmp_path / "cp" / "commits", seam)
        forget_batches(tmp_path / "cp" / "offsets", seam + 1)
        again = batches_of(exact(tmp_path / "in", **options), tmp_path / "cp")
        assert again[seam] == first[seam]
        assert [row for n in sorted(again) if n > seam for row in again[n]] == [
            row for n in sorted(first) if n > seam for row in first[n]
        ]
        assert (tmp_path / "cp" / "offsets" / str(seam)).read_text() == planned


def test_a_planned_batch_is_read_again_although_files_were_added_behind_it(
    spark: SparkSession, exact: Loader, tmp_path: Path
) -> None:
    write_logs(tmp_path / "in", LOGS, files=2)
    options = {"includeMetadata": "true", "maxRowsPerTrigger": 150}
    first = batches_of(exact(tmp_path / "in", **options), tmp_path / "cp")
    seam = last_batch(tmp_path / "cp")
    forget_batches(tmp_path / "cp" / "commits", seam)
    write_file(tmp_path / "in" / "split-0" / "part-900.parquet", LOGS["split-0"] + 1000 * SECOND, "split-0")
    again = batches_of(exact(tmp_path / "in", **options), tmp_path / "cp")
    assert again[seam] == first[seam]
    assert sum(len(rows) for n, rows in again.items() if n > seam) == 120


def test_a_planned_batch_whose_file_was_deleted_fails_and_says_which(
    spark: SparkSession, exact: Loader, tmp_path: Path
) -> None:
    write_logs(tmp_path / "in", LOGS, files=1)
    frame = exact(tmp_path / "in", maxRowsPerTrigger=150)
    batches_of(exact(tmp_path / "in", includeMetadata="true"), tmp_path / "cp")
    forget_batches(tmp_path / "cp" / "commits", 0)
    (tmp_path / "in" / "split-0" / "part-000.parquet").unlink()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "cp"))
    with fails_with("split 'split-0' has changed: the records 0 to 120 that were planned"):
        query.trigger(availableNow=True).start().awaitTermination(120)


def test_a_split_in_work_that_is_gone_at_a_restart_is_told_and_not_waited_for(
    spark: SparkSession, exact: Loader, tmp_path: Path
) -> None:
    write_logs(tmp_path / "in", LOGS, files=1)
    options = {"maxRowsPerTrigger": 60, "bounded": "true"}
    batches_of(exact(tmp_path / "in", includeMetadata="true", **options), tmp_path / "cp")
    for log in ("commits", "offsets"):
        forget_batches(tmp_path / "cp" / log, 1)
    (tmp_path / "in" / "split-0" / "part-000.parquet").unlink()
    (tmp_path / "in" / "split-0").rmdir()
    query = exact(tmp_path / "in", **options).writeStream.format("noop").option("checkpointLocation", tmp_path / "cp")
    with fails_with("split-0/part-000.parquet is gone, and not all of it was read"):
        query.trigger(availableNow=True).start().awaitTermination(120)


def test_finished_files_are_forgotten_and_not_read_again(spark: SparkSession, exact: Loader, tmp_path: Path) -> None:
    def write(name: str, modified_s: int) -> None:
        path = tmp_path / "in" / name
        write_file(path, T0 + modified_s * SECOND + np.arange(10) * SECOND)
        os.utime(path, (1_600_000_000 + modified_s, 1_600_000_000 + modified_s))

    def run() -> list[str]:
        frame = exact(tmp_path / "in", includeMetadata="true", splitBy="file", maxFileAge="1 hour")
        read = batches_of(frame, tmp_path / "cp")
        return sorted({split for rows in read.values() for split, _ in rows})

    write("a.parquet", 0)
    write("b.parquet", 600)
    assert run() == ["a.parquet", "b.parquet"]
    write("c.parquet", 4000)
    assert run() == ["c.parquet"]
    write("d.parquet", 8000)
    assert run() == ["d.parquet"]
    remembered = last_offset(tmp_path / "cp")
    assert "a.parquet" not in remembered
    assert "b.parquet" not in remembered
    write("c-2.parquet", 5000)
    # Known limit: what is found to be as old as what was forgotten cannot be told from it.
    write("a-2.parquet", 100)
    assert run() == ["c-2.parquet"]


_KILLED = """
import sys
from pyspark.sql import SparkSession
import streaming_source

root = sys.argv[1]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.session.timeZone", "UTC")
    .getOrCreate()
)
options = {"eventTimeColumn": "ts", "includeMetadata": "true", "maxRowsPerTrigger": "20"}
frame = streaming_source.read_stream(spark).format("aligned_files").options(**options).load(root + "/in")
frame = frame.select("_split", "_position")
query = frame.writeStream.format("parquet").option("path", root + "/out")
query.option("checkpointLocation", root + "/cp").start().awaitTermination()
"""


def test_a_query_that_was_killed_gives_each_row_once_after_its_restart(
    spark: SparkSession, exact: Loader, tmp_path: Path
) -> None:
    write_logs(tmp_path / "in", SKEWS["one-tiny"], files=2)
    killed = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", _KILLED, str(tmp_path)],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    try:
        eventually(
            lambda: (tmp_path / "cp" / "commits" / "3").exists() or killed.poll() is not None,
            "the query in the subprocess to commit",
            seconds=150,
        )
        assert killed.poll() is None, killed.stderr and killed.stderr.read().decode()
    finally:
        # The JVM and all Python workers with it: none of them gets to say good-bye.
        os.killpg(killed.pid, signal.SIGKILL)
        killed.communicate()
    planned = last_batch(tmp_path / "cp")
    frame = exact(tmp_path / "in", includeMetadata="true", maxRowsPerTrigger=500).select("_split", "_position")
    run = available_now(spark, frame, tmp_path / "cp", files=tmp_path / "out")
    assert run.rows == [(split, i) for split, times in SKEWS["one-tiny"].items() for i in range(len(times))]
    assert last_batch(tmp_path / "cp") > planned


def test_windows_survive_restarts_in_the_middle(spark: SparkSession, exact: Loader, tmp_path: Path) -> None:
    logs = SKEWS["one-tiny"]
    write_logs(tmp_path / "in", {split: times[: len(times) // 2] for split, times in logs.items()}, files=1)
    # The second half comes later; in between the query is stopped with windows open.
    open_frame = windows(exact(tmp_path / "in", maxOutOfOrderness="5 seconds", maxRowsPerTrigger=300))
    available_now(spark, open_frame, tmp_path / "cp", files=tmp_path / "out")
    for split, times in logs.items():
        write_file(tmp_path / "in" / split / "part-001.parquet", times[len(times) // 2 :], split)
    Run(spark, open_frame, tmp_path / "cp", files=tmp_path / "out").caught_up()
    bounded = windows(exact(tmp_path / "in", maxOutOfOrderness="5 seconds", bounded="true"))
    run = available_now(spark, bounded, tmp_path / "cp", files=tmp_path / "out")
    assert run.rows == naive_windows(logs)
    assert state_rows(run) == 0
    assert end_offset(run.progress[-1])["watermark"] == 2**63 - 1
