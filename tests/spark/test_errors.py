"""What a user is told by Spark when something is wrong: each message names the thing, the rule and the fix."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from streaming_source import explain, read_stream
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


def _changed_option(spark: SparkSession, root: Path) -> StreamingQuery:
    write_file(root / "in" / "a" / "f.parquet", TIMES)
    run(files(spark, root, splitBy="directory"), root / "cp")
    return started(files(spark, root, splitBy="file"), root)


def _damaged_file(spark: SparkSession, root: Path) -> StreamingQuery:
    write_file(root / "in" / "a" / "f.parquet", TIMES)
    query = started(files(spark, root, discoveryInterval="100 ms"), root)
    query.processAllAvailable()
    (root / "in" / "a" / "g.parquet").write_bytes(b"nothing that Parquet knows")
    return query


def _malformed_record(spark: SparkSession, root: Path) -> StreamingQuery:
    (root / "in" / "a").mkdir(parents=True)
    (root / "in" / "a" / "f.csv").write_text("2026-01-01T00:00:00Z,1\n2026-01-01T00:00:01Z,many\n")
    lines = {"fileFormat": "csv", "mode": "FAILFAST", "dataSchema": "ts timestamp, n int"}
    return started(files(spark, root, **lines), root)


def files(spark: SparkSession, root: Path, **options: str) -> DataFrame:
    return read_stream(spark).format("aligned_files").options(eventTimeColumn="ts", **options).load(root / "in")


def started(frame: DataFrame, root: Path) -> StreamingQuery:
    return frame.writeStream.format("noop").option("checkpointLocation", str(root / "cp")).start()


@pytest.mark.parametrize(
    ("begin", "sentence"),
    [
        (_changed_option, "streaming_source.exceptions.OffsetError: "),
        (_damaged_file, "streaming_source.exceptions.MalformedDataError: "),
        (_malformed_record, "streaming_source.exceptions.MalformedDataError: "),
    ],
    ids=["at the start", "while it looks for more", "in a task"],
)
def test_the_first_line_of_sparks_error_has_the_sentence_of_the_library(
    spark: SparkSession, tmp_path: Path, begin: Callable[[SparkSession, Path], StreamingQuery], sentence: str
) -> None:
    query = begin(spark, tmp_path)
    with pytest.raises(PySparkException) as raised:
        query.awaitTermination(120)
    for error in (raised.value, query.exception()):
        first, *others = str(error).splitlines()
        assert sentence in first
        assert not [line for line in (first, *others) if "Traceback" in line or line.startswith("  File")]
    assert sentence in " ".join(str(explain(query)).split())


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
