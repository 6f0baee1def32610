"""What a user is told by Spark when something is wrong: each message names the thing, the rule and the fix."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

from streaming_source.spark.datasource import AlignedDataSource
from tests.spark.conftest import Loader
from tests.spark.support import SECOND, T0, available_now, end_offset, fails_with, write_file

pytestmark = pytest.mark.spark

TIMES = T0 + np.arange(20) * SECOND


def run(frame: DataFrame, checkpoint: Path) -> None:
    query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query.trigger(availableNow=True).start().awaitTermination(120)


def test_a_missing_path_is_told_when_the_frame_is_loaded(stream: Loader, batch: Loader, tmp_path: Path) -> None:
    for load in (stream, batch):
        with fails_with("does not exist; give an existing directory in option path"):
            load(tmp_path / "nowhere")
    with fails_with("holds no file yet whose columns could be read"):
        stream(tmp_path)


def test_a_file_with_other_columns_fails_the_query_with_its_name(stream: Loader, tmp_path: Path) -> None:
    write_file(tmp_path / "in" / "a" / "f.parquet", TIMES, more=list(range(20)))
    frame = stream(tmp_path / "in")
    write_file(tmp_path / "in" / "b" / "other.parquet", TIMES, more=["x"] * 20)
    with fails_with("column 'more' as string; the query reads it as int64"):
        run(frame, tmp_path / "cp")


def test_a_file_that_is_deleted_between_planning_and_reading_fails_the_query_with_its_name(
    spark: SparkSession, stream: Loader, tmp_path: Path
) -> None:
    for split in ("a", "b"):
        write_file(tmp_path / "in" / split / "f.parquet", TIMES)

    def delete(batch: DataFrame, number: int) -> None:
        # The micro-batch is planned, nothing of it is read.
        (tmp_path / "in" / "b" / "f.parquet").unlink()
        batch.collect()

    query = stream(tmp_path / "in").writeStream.foreachBatch(delete).option("checkpointLocation", str(tmp_path / "cp"))
    with fails_with("b/f.parquet is gone: it was deleted after it had been listed"):
        query.trigger(availableNow=True).start().awaitTermination(120)


def rewrite_offset(checkpoint: Path, change: Callable[[Any], Any]) -> None:
    """Change the source's offset of the first, uncommitted, micro-batch."""
    file = checkpoint / "offsets" / "0"
    *head, offset = file.read_text().splitlines()
    file.write_text("\n".join([*head, json.dumps(change(json.loads(offset)))]))
    for stale in (checkpoint / "offsets" / ".0.crc", checkpoint / "commits" / "0", checkpoint / "commits" / ".0.crc"):
        stale.unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda o: {**o, "v": 2}, "the offset has version 2, this library reads up to 1...upgrade"),
        (lambda o: {**o, "splits_v": 9}, "the offset's splits have version 9, this library reads up to 1...upgrade"),
        (lambda o: {**o, "source": "aligned_kafka"}, "of another source (aligned_kafka, ...new checkpointLocation"),
        (lambda o: {**o, "id": "00000000"}, "of another source...id 00000000...new checkpointLocation"),
        (lambda o: {"logOffset": 3}, "this is not an offset of aligned_files...belongs to another source"),
        (lambda o: 17, "this is not an offset of aligned_files: 17...belongs to another source"),
        (lambda o: {**o, "splits": [[["a"]]]}, "damaged offset...is no split of files"),
        (lambda o: {**o, "splits": [["a"]]}, "damaged offset"),
    ],
    ids=["newer", "newer-splits", "other-format", "other-path", "other-source", "number", "damaged-split", "damaged"],
)
def test_an_offset_that_this_source_did_not_write_is_refused(
    stream: Loader, tmp_path: Path, change: Callable[[Any], Any], message: str
) -> None:
    write_file(tmp_path / "in" / "a" / "f.parquet", TIMES)
    checkpoint = tmp_path / "cp"
    for log in ("offsets", "commits", "sources"):
        (checkpoint / log).mkdir(parents=True)
    (checkpoint / "metadata").write_text('{"id":"6a5ae6a3-0f33-4e5f-9d3d-6a2b2f8f1b11"}')
    source = AlignedDataSource.of_format("aligned_files", {"path": str(tmp_path / "in"), "eventTimeColumn": "ts"})
    reader = source.stream_reader(source.schema())
    offset = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    reader.stop()
    metadata = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'
    (checkpoint / "offsets" / "0").write_text(f"v1\n{metadata}\n{json.dumps(offset)}")
    rewrite_offset(checkpoint, change)
    with fails_with(*message.split("...")):
        run(stream(tmp_path / "in"), checkpoint)


def test_a_checkpoint_of_another_layout_of_the_same_path_is_refused(stream: Loader, tmp_path: Path) -> None:
    write_file(tmp_path / "in" / "a" / "f.parquet", TIMES)
    run(stream(tmp_path / "in"), tmp_path / "cp")
    with fails_with("splitBy = 'file': the checkpoint is of splitBy = 'directory'"):
        run(stream(tmp_path / "in", splitBy="file"), tmp_path / "cp")


_OTHER_PYTHON = """
import sys
from pyspark.sql import SparkSession
import streaming_source

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
streaming_source.register(spark)
spark.readStream.format("aligned_files").option("eventTimeColumn", "ts").load(sys.argv[1])
"""


def test_workers_that_run_another_python_are_named_with_the_fix(tmp_path: Path) -> None:
    # As bare as it comes: a worker finds PySpark, which Spark brings along, and not this library.
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    bare = tmp_path / "bare" / "bin" / "python"
    root = Path(__file__).parents[2]
    # The driver alone gets this library; not by PYTHONPATH, which workers inherit.
    code = f"import sys; sys.path.insert(0, {str(root)!r})\n{_OTHER_PYTHON}"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(tmp_path)],
        env={**os.environ, "PYSPARK_PYTHON": str(bare), "PYSPARK_DRIVER_PYTHON": sys.executable, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=200,
        cwd=tmp_path,
        check=False,
    )
    message = " ".join(done.stderr.split())
    assert done.returncode != 0
    assert f"Spark's workers run {bare}" in message
    assert f"the driver runs {sys.executable}. Install spark-watermark-alignment for the workers" in message
    assert "set PYSPARK_PYTHON" in message


def test_the_event_times_that_exact_mode_cannot_hold_are_invalid_and_told(
    spark: SparkSession, exact: Loader, stream: Loader, tmp_path: Path
) -> None:
    far = 253_370_764_800_000_000  # 9999-01-01
    write_file(tmp_path / "in" / "a" / "f.parquet", [T0, far, T0 + SECOND])
    with fails_with("position 1: no valid event time", "before the year 4000"):
        run(exact(tmp_path / "in"), tmp_path / "fail")
    frame = exact(tmp_path / "in", invalidTimestamp="null", bounded="true").selectExpr("k", "ts is null")
    out = available_now(spark, frame, tmp_path / "null")
    assert [row[1] for row in out.rows] == [False, True, False]
    assert end_offset(out.progress[0])["splits"][0][1] == T0 + SECOND - 1
    # Without watermark rows there is no such limit.
    plain = available_now(spark, stream(tmp_path / "in", bounded="true").selectExpr("unix_micros(ts)"), tmp_path / "p")
    assert (far,) in plain.rows
