"""Sources that know nothing of event times ahead of reading: their readers report, and splits are held together so."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

import streaming_source
from alignment import WatermarkStrategy
from alignment.watermarks import MAX_WATERMARK
from streaming_source.exceptions import OptionError
from tests.examples import one_in
from tests.spark import reports, unindexed
from tests.spark.reports import BOUND, DRIFT, SMALL, announced, reported, strategy
from tests.spark.support import (
    Run,
    available_now,
    end_offset,
    eventually,
    naive_windows,
    windows,
)
from tests.spark.unindexed import AskingLogs, EndingLogs, UnindexedLogs, append_log

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("compares", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_windows_are_those_of_the_batch_and_drift_is_bounded(
    spark: SparkSession, tmp_path: Path, compares: bool
) -> None:
    reports.check_that_windows_are_those_of_the_batch_and_drift_is_bounded(spark, tmp_path, compares=compares)


@pytest.mark.soak
def test_they_are_with_reports_in_a_directory_and_no_port(spark: SparkSession, tmp_path: Path) -> None:
    location = tmp_path / "reports"
    reports.check_that_windows_are_those_of_the_batch(spark, tmp_path, report_location=str(location))
    # Each is taken once; those of the last micro-batch may be left, since the planner of a query is not always closed.
    # One that is closed leaves nothing, or the empty folder of its run.
    assert location.is_dir()
    assert len([*location.glob("*/*.json")]) <= 2


@pytest.mark.parametrize("trigger", one_in(2, ["availableNow", "processingTime"]))
@pytest.mark.soak
def test_splits_that_their_reader_alone_knows_the_end_of_are_read_to_the_end_and_hold_nobody(
    spark: SparkSession, tmp_path: Path, trigger: str
) -> None:
    logs = {"short": SMALL["split-0"][:10], "long": SMALL["split-2"][:591]}
    unindexed.write_logs(tmp_path / "logs", logs)
    source = EndingLogs(str(tmp_path / "logs"), bounded=True)
    frame = streaming_source.from_source(spark, source, strategy(), trigger, indexing="off", maxRowsPerTrigger=200)
    value = {"availableNow": True, "processingTime": "0 seconds"}[trigger]
    run = Run(spark, windows(frame), tmp_path / trigger, trigger={trigger: value})
    eventually(lambda: announced(run) == MAX_WATERMARK, "the end", run.query, 90)
    run = run.finished() if trigger == "availableNow" else run.caught_up()
    assert run.rows == naive_windows(logs)


@pytest.mark.soak
def test_what_is_appended_between_runs_to_the_end_is_read_once(spark: SparkSession, tmp_path: Path) -> None:
    for part in range(3):
        for split, times in SMALL.items():
            append_log(tmp_path / "logs", split, np.array_split(times, 3)[part])
        frame = reported(spark, tmp_path / "logs", f"part_{part}", strategy(), bounded=False)
        available_now(spark, frame.select("s", "k"), tmp_path / "cp", files=tmp_path / "out")
    rows = sorted(map(tuple, spark.read.parquet(str(tmp_path / "out")).collect()))
    assert rows == sorted((split, k) for split, times in SMALL.items() for k in range(times.size))


@pytest.mark.soak
def test_a_split_that_is_idle_lets_the_windows_of_the_others_out(spark: SparkSession, tmp_path: Path) -> None:
    append_log(tmp_path / "logs", "early", SMALL["split-0"][:5])
    append_log(tmp_path / "logs", "late", SMALL["split-1"])
    frame = reported(
        spark, tmp_path / "logs", "idle", strategy(None, timedelta(seconds=2)), bounded=False, numReaders=2
    )
    run = Run(spark, windows(frame), tmp_path / "cp")
    last = int(SMALL["split-1"].max()) - BOUND - 1
    eventually(lambda: announced(run) == last, "the watermark of the split that is left", run.query, 90)
    run.caught_up()
    logs = {"early": SMALL["split-0"][:5], "late": SMALL["split-1"]}
    assert run.rows == [window for window in naive_windows(logs) if window[1] <= last // 1000 * 1000]


def test_a_reader_asks_its_enumerator_and_is_answered_while_it_reads(spark: SparkSession, tmp_path: Path) -> None:
    append_log(tmp_path / "logs", "a", SMALL["split-0"])
    source = AskingLogs(str(tmp_path / "logs"), bounded=True)
    frame = streaming_source.from_source(spark, source, strategy(None), "asking")
    run = available_now(spark, frame.select("k", "s"), tmp_path / "cp")
    # Each reader puts into `s` what it was told.
    assert run.rows == [(k, "the answer to reader 0") for k in range(600)]


def test_a_split_that_is_paused_while_nothing_is_read_shows_as_paused_in_the_progress(
    spark: SparkSession, tmp_path: Path
) -> None:
    for split in ("slow", "fast"):
        append_log(tmp_path / "logs", split, SMALL["split-0"][:10])
    frame = streaming_source.from_source(spark, UnindexedLogs(str(tmp_path / "logs")), strategy(), "paused")
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "200ms")
    try:
        run = Run(spark, frame.select("s", "k"), tmp_path / "cp")
        eventually(lambda: len(run.rows) == 20, "what is there", run.query)
        append_log(tmp_path / "logs", "fast", SMALL["split-0"][:1] + 10 * DRIFT)

        def shown() -> dict[str, Any]:
            return next(iter(streaming_source.explain(run.query).to_json()["sources"]), {})

        def splits() -> dict[str, Any]:
            found: dict[str, Any] = shown().get("splits", {})
            return found

        both = eventually(lambda: splits().get("fast", {}).get("rowsBehind") == 1 and splits(), "the new record")
        columns = ("position", "rowsBehind", "status", "waitsFor")
        assert {name: tuple(split[column] for column in columns) for name, split in both.items()} == {
            "slow": (10, 0, "active", "records"),
            "fast": (10, 1, "paused", "drift"),
        }
        assert shown()["heldBy"] == ["fast"]
        assert "because split 'fast' cannot go on before 'slow' has come that far" in shown()["why"]
        assert [entry[2] for entry in end_offset(run.progress[-1])["splits"]] == ["active", "active"]
    finally:
        spark.conf.unset("spark.sql.streaming.noDataProgressEventInterval")


_FRESH_WORKERS = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from tests.spark.reports import check_that_windows_are_those_of_the_batch

folder = Path(sys.argv[1])
builder = SparkSession.builder.master("local[2]").config("spark.python.worker.reuse", "false")
builder = builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
builder = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
check_that_windows_are_those_of_the_batch(spark, folder)
spark.stop()
"""


@pytest.mark.soak
def test_workers_that_spark_does_not_keep_between_tasks_report_as_well(tmp_path: Path) -> None:
    # A program of its own: the setting is one of the application's. All other tests here have workers that are kept.
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    program = [sys.executable, "-c", _FRESH_WORKERS, str(tmp_path)]
    run = subprocess.run(program, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)
    assert run.returncode == 0, run.stderr[-4000:]
    assert "the gateway" not in run.stderr, "no report was refused or lost"


def test_where_drift_would_cost_records_reports_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="lateness = 'none' needs event times ahead of reading"):
        reported(spark, tmp_path, "perfect", strategy(), lateness="none")
    own = WatermarkStrategy.no_watermarks().with_timestamp_assigner("ts")
    with pytest.raises(OptionError, match="needs watermarks, and the strategy has none"):
        reported(spark, tmp_path, "own", own)
