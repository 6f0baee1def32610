"""The example of `docs/pipelines.md`: `spark-pipelines run` with the exact watermark, twice."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds
import pytest

from tests.docs.pages import ROOT
from tests.spark.support import MINUTE, SECOND, T0, Logs, naive_windows, write_file

pytestmark = [pytest.mark.spark, pytest.mark.slow]

LOGS: Logs = {"slow": T0 + np.arange(600) * SECOND, "fast": T0 + np.arange(600) * 4 * SECOND}
"""One runs four times as fast; the slower one holds the watermark."""


_JOIN = """
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from streaming_source import read_stream

spark = SparkSession.active()
options = {"eventTimeColumn": "ts", "maxOutOfOrderness": "5 seconds"}


def side(log: str) -> DataFrame:
    events = read_stream(spark).format("aligned_files").options(**options).load(spark.conf.get("events.path"))
    return events.where(f"s = '{log}'").groupBy(F.window("ts", "1 minute")).agg(F.count("*").alias(log))


@dp.table
def both_logs() -> DataFrame:
    return side("slow").join(side("fast"), "window").select(F.col("window.start").alias("start"), "slow", "fast")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the example whose logs and storage are in a folder of this test."""
    pytest.importorskip("yaml", reason="spark-pipelines needs pyspark[pipelines]")
    copy = tmp_path / "pipeline"
    shutil.copytree(ROOT / "docs" / "pipeline", copy)
    (copy / "transformations" / "join.py").write_text(_JOIN)
    spec = copy / "spark-pipeline.yml"
    text = spec.read_text().replace("/data/logs", str(tmp_path / "logs"))
    spec.write_text(text.replace("/tmp/events-pipeline", str(tmp_path)))
    return copy


_PIPELINES = str(Path(sys.executable).with_name("spark-pipelines"))


def run(project: Path, catalog: str) -> None:
    done = subprocess.run(
        [
            _PIPELINES,
            "--conf",
            f"spark.sql.catalogImplementation={catalog}",
            "run",
            "--spec",
            str(project / "spark-pipeline.yml"),
        ],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONWARNINGS": "ignore"},
        cwd=project,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert "Run is COMPLETED" in done.stdout + done.stderr


def rows(project: Path, table: str) -> list[tuple[int, int, str, int]]:
    return sorted((start, start + MINUTE, row["s"], row["count"]) for start, row in starts(project, table))


def starts(project: Path, table: str) -> list[tuple[int, dict[str, Any]]]:
    """Starts of windows in microseconds, and the rows."""
    found = ds.dataset(project / "spark-warehouse" / table, exclude_invalid_files=True).to_table().to_pylist()
    return [(int(row["start"].timestamp()) * SECOND, row) for row in found]


def closed(logs: Logs) -> list[tuple[int, int, str, int]]:
    """The windows that the slower log has closed, 5 seconds and a microsecond behind its last record."""
    watermark = int(min(times.max() for times in logs.values())) - 5 * SECOND - 1
    return [window for window in naive_windows(logs) if window[1] <= watermark]


@pytest.mark.soak
@pytest.mark.parametrize("ends", [[600], [400, 600]], ids=["once", "going on where it ended"])
def test_a_pipeline_gives_the_batch_result_of_all_closed_windows(
    project: Path, tmp_path: Path, ends: list[int]
) -> None:
    so_far: Logs = {log: times[:0] for log, times in LOGS.items()}
    for end in ends:
        for log, times in LOGS.items():
            write_file(tmp_path / "logs" / log / f"part-{end}.parquet", times[len(so_far[log]) : end], log)
            so_far[log] = times[:end]
        # One that outlives a run, as every real one does; where there is one run, the one that starts faster.
        run(project, "hive" if len(ends) > 1 else "in-memory")
        expected = closed(so_far)
        assert len({window[0] for window in expected}) == {400: 6, 600: 9}[end]
        assert rows(project, "per_minute") == expected
    # Its watermark is that of both logs as well: the filter is behind it.
    assert rows(project, "of_one_log") == [window for window in expected if window[2] == "slow"]
    counts = {(start, log): count for start, _, log, count in expected}
    joined = sorted((start, row["slow"], row["fast"]) for start, row in starts(project, "both_logs"))
    assert joined == [(at, n, counts[at, "fast"]) for (at, log), n in sorted(counts.items()) if log == "slow"]
