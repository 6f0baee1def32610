"""How a user comes to a format: by its name, after installation alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from streaming_source import DataGeneratorSource, FileSource, WatermarkStrategy, from_source, read_stream, register
from streaming_source.spark.datasource import FORMATS
from streaming_source.spark.format_class import format_class
from tests.docs.pages import ROOT, code
from tests.spark.support import SECOND, T0, available_now, write_file

pytestmark = pytest.mark.spark


def test_spark_finds_the_formats_by_itself(spark: SparkSession, tmp_path: Path) -> None:
    # A session of its own, in which no other test has registered anything.
    session = spark.newSession()
    write_file(tmp_path / "a" / "f.parquet", T0 + np.arange(3) * SECOND)
    assert session.readStream.format("aligned_files").option("eventTimeColumn", "ts").load(str(tmp_path)).isStreaming
    assert session.read.format("Aligned_Files").option("eventTimeColumn", "ts").load(str(tmp_path)).count() == 3
    session.sql(f"CREATE TEMPORARY VIEW logs USING aligned_files OPTIONS (path '{tmp_path}', eventTimeColumn 'ts')")
    assert session.sql("SELECT count(*) FROM logs WHERE s = 'a'").head() == (3,)
    assert session.readStream.format("aligned_datagen").load().isStreaming
    brokers = {"kafka.bootstrap.servers": "nowhere:1", "subscribe": "topic"}
    assert session.readStream.format("aligned_kafka").options(**brokers).load().isStreaming
    register(session)  # does no harm


def test_a_format_that_spark_finds_is_not_registered_over_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Spark would warn of it, at load and at each start of a query.
    session, registered = spark.newSession(), []
    known = type(session.dataSource).register

    def register_and_note(self: Any, source: Any) -> None:
        registered.append(source.name())
        known(self, source)

    monkeypatch.setattr(type(session.dataSource), "register", register_and_note)
    write_file(tmp_path / "logs" / "a" / "f.parquet", T0 + np.arange(3) * SECOND)
    reader = read_stream(session).format("aligned_files").option("eventTimeColumn", "ts")
    assert reader.load(tmp_path / "logs").isStreaming
    assert reader.load([str(tmp_path / "logs")]).isStreaming
    with monkeypatch.context() as patch:
        patch.setattr("streaming_source.spark.frames.FORMATS", {**FORMATS})
        register(session, type("Ticks", (DataGeneratorSource,), {"name": "ticks"}))
    assert registered == ["ticks"]
    batch = session.read.format("aligned_files").option("eventTimeColumn", "ts").option("timeZone", "UTC")
    assert batch.load([str(tmp_path / "logs" / "a"), str(tmp_path / "logs")]).count() == 3


@contextmanager
def log_of(spark: SparkSession, path: Path) -> Iterator[None]:
    """Write what Spark's driver logs meanwhile to a file, too."""
    log4j = spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    builder = log4j.core.appender.FileAppender.newBuilder().withFileName(str(path))
    appender = builder.setName(path.name).setLayout(log4j.core.layout.PatternLayout.createDefaultLayout()).build()
    appender.start()
    root = log4j.LogManager.getRootLogger()
    level = str(root.getLevel())
    root.addAppender(appender)
    spark.sparkContext.setLogLevel("INFO")
    try:
        yield
    finally:
        spark.sparkContext.setLogLevel(level)
        root.removeAppender(appender)
        appender.stop()


@pytest.mark.soak
def test_spark_logs_of_no_query_that_a_data_source_was_replaced(spark: SparkSession, tmp_path: Path) -> None:
    warning = "replaced a statically registered data source"
    write_file(tmp_path / "logs" / "a" / "f.parquet", T0 + np.arange(3) * SECOND)
    session = spark.newSession()
    reader = read_stream(session).format("aligned_files").options(eventTimeColumn="ts", bounded="true")
    source = FileSource(str(tmp_path / "logs"), bounded=True)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("ts")
    with log_of(spark, tmp_path / "driver.log"):
        frames = [reader.load(str(tmp_path / "logs")), from_source(session, source, strategy, "never_replaced")]
        for number, frame in enumerate(frames):
            assert len(available_now(session, frame, tmp_path / f"checkpoint_{number}").rows) == 3
    logged = (tmp_path / "driver.log").read_text()
    assert "Streaming query made progress" in logged
    assert warning not in logged
    if spark.version.startswith("4.0."):
        with pytest.raises(AnalysisException, match="DATA_SOURCE_ALREADY_EXISTS"):
            session.dataSource.register(format_class("aligned_files"))
        return
    with log_of(spark, tmp_path / "registered.log"):
        session.dataSource.register(format_class("aligned_files"))
    assert warning in (tmp_path / "registered.log").read_text()


def test_what_spark_imports_to_find_them_is_next_to_nothing() -> None:
    program = (
        "import sys, pyspark.sql.worker.lookup_data_sources; before = {*sys.modules};"
        "import pyspark_aligned_datagen, pyspark_aligned_delta, pyspark_aligned_files, pyspark_aligned_iceberg;"
        "import pyspark_aligned_kafka;"
        "print(*{*sys.modules} - before)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    # Not numpy, pyarrow or `alignment`, which could be missing, too old or another project's.
    assert {*done.stdout.split()} == {
        *(f"pyspark_aligned_{name}" for name in ("datagen", "delta", "files", "iceberg", "kafka")),
        *("streaming_source", "streaming_source.spark", "streaming_source.spark.format_class"),
    }


@pytest.mark.soak
@pytest.mark.parametrize("how", ["wheel", "editable"])
def test_installed_into_an_empty_environment_the_quick_start_runs(tmp_path: Path, how: str) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    ours = {"PYTHONPATH", "PYSPARK_DRIVER_PYTHON", "VIRTUAL_ENV"}
    environment = {name: value for name, value in os.environ.items() if name not in ours}

    def run(*command: object) -> str:
        done = subprocess.run(
            list(map(str, command)),
            cwd=tmp_path,
            env={**environment, "PYSPARK_PYTHON": str(python)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, "-m", "venv", tmp_path / "venv")
    run(python, "-m", "pip", "install", *(["-e"] if how == "editable" else []), f"{ROOT}[pyspark]")
    plain_door = 'spark.readStream.format("aligned_files").option("eventTimeColumn", "ts").load(f"{root}/logs")'
    quick_start = code(ROOT / "docs" / "quick-start.md")
    (tmp_path / "quick_start.py").write_text(f"{quick_start}\n{plain_door}\n", encoding="utf-8")
    shown = [[cell.strip() for cell in line.split("|")[1:-1]] for line in run(python, "quick_start.py").splitlines()]
    rows = [row for row in shown if row and row[0] in ("fast", "slow")]
    assert rows == [["fast", "240", "3600"], ["slow", "60", "3600"]]
