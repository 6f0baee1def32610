"""`eventLog` of a real query: applied to a fresh engine, it gives the micro-batches that the query had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import streaming_source
from alignment.recording import replay
from tests.spark import twin as twins
from tests.spark.answers import Rows
from tests.spark.reports import DRIFT, reported, skewed, strategy
from tests.spark.support import available_now, skewed_logs, write_logs
from tests.spark.twin import Twin
from tests.spark.unindexed import write_logs as write_unindexed


def replayed_rows(folder: Path) -> int:
    """Rows in the plans of a folder of logs, each of which is the same when it is made again."""
    (log,) = folder.iterdir()
    with log.open(encoding="utf-8") as lines:
        plans = list(replay(lines))
    for plan in plans:
        assert plan.replayed == plan.recorded
    return sum(plan.recorded["rows"] for plan in plans)


def by_reports(spark: SparkSession, folder: Path, **options: Any) -> DataFrame:
    logs = skewed(5, 1_000, (4_000, 40_000), (0, 60))
    write_unindexed(folder / "in", logs)
    return reported(spark, folder / "in", "logged_reports", strategy(DRIFT), **options)


def generated(spark: SparkSession, folder: Path, **options: Any) -> DataFrame:
    reader = streaming_source.read_stream(spark).format("aligned_datagen").options(**options)
    reader = reader.options(splits=3, rowsPerSplit=500, bounded=True)
    return reader.options(maxOutOfOrderness="5 seconds", maxDrift="1 minute").load()


@pytest.mark.spark
@pytest.mark.parametrize("make", [by_reports, pytest.param(generated, marks=pytest.mark.soak)])
def test_the_log_of_a_query_on_spark_replays_to_its_micro_batches(
    make: Any, spark: SparkSession, tmp_path: Path
) -> None:
    frame = make(spark, tmp_path, eventLog=str(tmp_path / "log"), maxRowsPerTrigger=400)
    run = available_now(spark, frame.select(frame.columns[0]), tmp_path / "cp")
    assert len(run.progress) > 2
    assert replayed_rows(tmp_path / "log") == len(run.rows)


def test_the_log_of_a_query_replays_to_its_micro_batches(tmp_path: Path) -> None:
    write_logs(tmp_path / "in", skewed_logs(3), files=2)
    options = {"eventLog": str(tmp_path / "log"), "maxRowsPerTrigger": 400, "maxOutOfOrderness": "5 seconds"}
    twin = Twin(tmp_path / "cp", twins.frame(tmp_path / "in", **options), answer=Rows("k")).run()
    assert len(twin.batches) > 2
    assert replayed_rows(tmp_path / "log") == len(twin.rows)
