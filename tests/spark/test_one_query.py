"""Sources of one query plan one event time together: drift between two joined backlogs costs no micro-batches."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from alignment import WatermarkStrategy
from streaming_source import read_stream
from tests.spark.groups import kill_some_planners
from tests.spark.reports import reported
from tests.spark.support import SECOND, T0, Logs, Run, available_now, end_offset, eventually, last_batch, write_file
from tests.spark.unindexed import append_log

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = 100
DRIFT = 10 * SECOND


def load(spark: SparkSession, folder: Path, name: str) -> DataFrame:
    reader = read_stream(spark).format("aligned_files").name(name)
    reader = reader.options(eventTimeColumn="ts", maxOutOfOrderness="2 seconds", numReaders=1, maxRowsPerTrigger=ROWS)
    reader = reader.options(alignmentGroup=folder.name, alignmentScope="query", maxDrift="10 seconds")
    return reader.load(str(folder / name))


def joined(spark: SparkSession, folder: Path) -> DataFrame:
    return pairs(load(spark, folder, "left"), load(spark, folder, "right"))


def pairs(left: DataFrame, right: DataFrame) -> DataFrame:
    left = left.select(F.col("ts").alias("lt"), F.col("k").alias("lk"))
    right = right.select(F.col("ts").alias("rt"), F.col("k").alias("rk"))
    at_once = F.expr("lt = rt and rt between lt - interval 1 second and lt")
    return left.join(right, at_once).select(F.unix_micros("lt"), F.unix_micros("rt"))


def write(folder: Path, logs: Logs) -> None:
    for name, times in logs.items():
        write_file(folder / name / "log" / "0.parquet", times, name)


def expected(logs: Logs) -> list[tuple[int, int]]:
    count = Counter(logs["left"].tolist())
    return sorted((t, t) for t in logs["right"].tolist() for _ in range(count[t]))


def reached(checkpoint: Path) -> list[tuple[int, int]]:
    """Where the watermarks of both sources stood after each micro-batch, by the offset log."""
    logged = sorted(
        (file for file in (checkpoint / "offsets").iterdir() if file.name.isdigit()), key=lambda f: int(f.name)
    )
    found = [[json.loads(line)["watermark"] for line in file.read_text().splitlines()[2:]] for file in logged]
    return [(left, right) for left, right in found if left is not None and right is not None]


def check_drift(checkpoint: Path, logs: Logs, drift: int = DRIFT) -> None:
    """Neither is ahead by more than the drift, after any micro-batch, until one has ended."""
    end = min(int(times[-1]) for times in logs.values()) - 4 * SECOND
    apart = [abs(left - right) for left, right in reached(checkpoint) if max(left, right) < end]
    assert len(apart) > 2
    assert max(apart) <= drift


@pytest.mark.parametrize(
    "trigger", [pytest.param("available now"), pytest.param("again and again", marks=pytest.mark.soak)]
)
def test_a_join_of_two_backlogs_takes_the_micro_batches_of_its_read_limits(
    spark: SparkSession, tmp_path: Path, trigger: str
) -> None:
    """A second for each record: the present way would take one micro-batch for each drift, 80 of them."""
    logs = {name: T0 + np.arange(800, dtype=np.int64) * SECOND for name in ("left", "right")}
    write(tmp_path, logs)
    if trigger == "available now":
        run = available_now(spark, joined(spark, tmp_path), tmp_path / "cp")
    else:
        run = Run(spark, joined(spark, tmp_path), tmp_path / "cp").caught_up()
    planned = [progress for progress in run.progress if progress["numInputRows"]]
    assert len(planned) <= 11
    assert run.rows == expected(logs)
    check_drift(tmp_path / "cp", logs)
    # Rows that wait for the other side: of one micro-batch, and of the time for which they may match.
    kept = [sum(operator["numRowsTotal"] for operator in progress["stateOperators"]) for progress in planned]
    assert max(kept) <= 2 * ROWS + 2 * 10


@pytest.mark.soak
def test_the_first_micro_batch_is_aligned_where_one_source_begins_later(spark: SparkSession, tmp_path: Path) -> None:
    logs = {
        "left": T0 + np.arange(300, 500, dtype=np.int64) * SECOND,
        "right": T0 + np.arange(500, dtype=np.int64) * SECOND,
    }
    write(tmp_path, logs)
    run = Run(spark, joined(spark, tmp_path), tmp_path / "cp")
    eventually(lambda: run.progress, "the first micro-batch", run.query)
    first = run.progress[0]
    assert end_offset(first, 0)["watermark"] >= int(logs["left"][0]) - 1 - DRIFT
    assert first["numInputRows"] <= ROWS + 2
    run.caught_up()
    assert run.rows == expected(logs)
    # The one that begins later has read nothing, as long as the other is behind its first record.
    begin = int(logs["left"][0])
    before = [left for left, right in reached(tmp_path / "cp") if right < begin - 3 * SECOND]
    assert len(before) > 2
    assert set(before) == {begin - 1}


@pytest.mark.soak
def test_a_day_takes_as_many_micro_batches_for_each_two_hours_as_two_hours_do(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A record each 10 seconds, and 100 of them in a micro-batch; with a drift of 10 seconds."""
    logs = {name: T0 + np.arange(8_640, dtype=np.int64) * 10 * SECOND for name in ("left", "right")}
    write(tmp_path, logs)
    run = Run(spark, joined(spark, tmp_path), tmp_path / "cp", trigger={"availableNow": True}).finished(900)
    assert last_batch(tmp_path / "cp") < 12 * 12
    assert run.rows == expected(logs)
    check_drift(tmp_path / "cp", logs)


@pytest.mark.soak
def test_sources_that_go_by_reports_align_with_those_of_their_query(spark: SparkSession, tmp_path: Path) -> None:
    """How far they get in a trigger is not known ahead: each waits for the last watermark of the other."""
    logs = {name: T0 + np.arange(400, dtype=np.int64) * SECOND for name in ("left", "right")}
    bounded = WatermarkStrategy.for_bounded_out_of_orderness("2 seconds").with_timestamp_assigner("ts")
    aligned = bounded.with_watermark_alignment(tmp_path.name, "10 seconds")
    options: dict[str, Any] = {"alignmentScope": "query", "maxRowsPerTrigger": ROWS, "numReaders": 1}
    for name, times in logs.items():
        append_log(tmp_path / name, "log", times)
    left, right = (reported(spark, tmp_path / name, name, aligned, **options) for name in logs)
    run = available_now(spark, pairs(left, right), tmp_path / "cp")
    assert run.rows == expected(logs)
    assert len(run.progress) > 4
    # Readers report after a micro-batch, so that one may be read beyond the limit.
    check_drift(tmp_path / "cp", logs, DRIFT + ROWS * SECOND)


@pytest.mark.soak
def test_two_queries_of_a_group_each_plan_their_own_sources_together(spark: SparkSession, tmp_path: Path) -> None:
    logs = {name: T0 + np.arange(600, dtype=np.int64) * SECOND for name in ("left", "right")}
    write(tmp_path, logs)
    runs = [Run(spark, joined(spark, tmp_path), tmp_path / f"cp-{i}") for i in range(2)]
    for number, run in enumerate(runs):
        assert run.caught_up().rows == expected(logs)
        check_drift(tmp_path / f"cp-{number}", logs)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_killed_planners_change_neither_the_result_nor_the_drift(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    logs = {
        name: T0 + SECOND * np.sort(rng.integers(0, 600, int(rng.integers(300, 900)))) for name in ("left", "right")
    }
    write(tmp_path, logs)
    trigger = {"availableNow": True} if seed % 2 else None
    for _ in range(5):
        run = Run(spark, joined(spark, tmp_path), tmp_path / "cp", trigger=trigger, files=tmp_path / "out")
        kill_some_planners(spark, run, int(rng.integers(0, 4)), rng)
    available_now(spark, joined(spark, tmp_path), tmp_path / "cp", files=tmp_path / "out")
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(map(tuple, rows)) == expected(logs)
    check_drift(tmp_path / "cp", logs)
