"""What a user is told by Spark when something is wrong: each message names the thing, the rule and the fix."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.conftest import Loader
from tests.spark.support import SECOND, T0, fails_with, write_file

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


def test_a_checkpoint_of_sparks_own_source_is_refused(spark: SparkSession, stream: Loader, tmp_path: Path) -> None:
    write_file(tmp_path / "in" / "a" / "f.parquet", TIMES)
    run(spark.readStream.schema("ts timestamp").parquet(str(tmp_path / "in" / "a")), tmp_path / "cp")
    told = """this is not an offset of aligned_files: {"logOffset": 0}"""
    with fails_with(told, "belongs to another source: use a new checkpointLocation"):
        run(stream(tmp_path / "in"), tmp_path / "cp")


_OTHER_PYTHON = """
import sys
from pyspark.sql import SparkSession
from streaming_source import read_stream

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
read_stream(spark).format("aligned_files").option("eventTimeColumn", "ts").load(sys.argv[1])
"""


@pytest.mark.soak
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
