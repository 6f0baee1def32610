"""A source without an index of event times, aligned by what its readers report, whatever Spark it runs on."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

import streaming_source
from alignment import WatermarkStrategy
from alignment.watermarks import MAX_WATERMARK
from tests.spark import unindexed
from tests.spark.support import SECOND, T0, Logs, Run, available_now, end_offset, eventually, naive_windows, windows
from tests.spark.unindexed import UnindexedLogs

cloudpickle.register_pickle_by_value(unindexed)

BOUND = 2 * SECOND
DRIFT = 120 * SECOND
FIRST_ROWS = 4096


def skewed(seed: int, rows: int, step_us: tuple[int, ...], ahead_s: tuple[int, ...]) -> Logs:
    """Splits of different speed and begin, each out of order by at most `BOUND`."""
    rng = np.random.default_rng(seed)
    return {
        f"split-{i}": T0 + ahead * SECOND + np.arange(rows, dtype=np.int64) * step + rng.integers(0, BOUND + 1, rows)
        for i, (step, ahead) in enumerate(zip(step_us, ahead_s, strict=True))
    }


STEPS = (4_000, 8_000, 8_000, 16_000, 20_000, 40_000, 40_000, 60_000)
SMALL = skewed(3, 600, (SECOND, 2 * SECOND, 10 * SECOND), (0, 30, 0))
LOGS = skewed(7, 15_000, STEPS, (0, 0, 60, 0, 300, 0, 30, 1200))


def strategy(drift_us: int | None = DRIFT, idle: timedelta | None = None) -> WatermarkStrategy:
    bounded = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(microseconds=BOUND))
    bounded = bounded.with_timestamp_assigner("ts")
    bounded = bounded if idle is None else bounded.with_idleness(idle)
    if drift_us is None:
        return bounded
    return bounded.with_watermark_alignment("own", timedelta(microseconds=drift_us))


def reported(
    spark: SparkSession, folder: Path, name: str, using: WatermarkStrategy, *, bounded: bool = True, **options: Any
) -> DataFrame:
    source = UnindexedLogs(str(folder), bounded)
    return streaming_source.from_source(spark, source, using, name, indexing="off", **options)


def split_states(run: Run) -> list[dict[str, tuple[int, int | None]]]:
    """Of each micro-batch: where every split is after it, and the watermark that was known of it."""
    return [
        {split["split_id"]: (split["position"], known) for split, known, *_ in end_offset(progress)["splits"]}
        for progress in run.progress
        if progress["sources"]
    ]


def announced(run: Run) -> int | None:
    watermarks = [end_offset(progress)["watermark"] for progress in run.progress if progress["sources"]]
    return watermarks[-1] if watermarks else None


def most_state(run: Run) -> int:
    return max(op["numRowsTotal"] for progress in run.progress for op in progress["stateOperators"])


def check_that_windows_are_those_of_the_batch(spark: SparkSession, folder: Path, **options: Any) -> None:
    """Of few rows, over several micro-batches with two readers each."""
    unindexed.write_logs(folder / "logs", SMALL)
    frame = reported(spark, folder / "logs", "small", strategy(), maxRowsPerTrigger=900, numReaders=2, **options)
    run = available_now(spark, windows(frame), folder / "cp")
    assert run.rows == naive_windows(SMALL), run.rows
    assert len(run.progress) > 1
    assert announced(run) == MAX_WATERMARK


def check_that_windows_are_those_of_the_batch_and_drift_is_bounded(
    spark: SparkSession, folder: Path, *, compares: bool
) -> None:
    """Windows are those of the batch; splits stay together. It `compares` the state with that of no bound on drift."""
    unindexed.write_logs(folder / "logs", LOGS)
    runs = {}
    for drift_us in (DRIFT, None) if compares else (DRIFT,):
        frame = reported(spark, folder / "logs", f"drift_{drift_us}", strategy(drift_us), maxRowsPerTrigger=18_000)
        run = Run(spark, windows(frame, "10 seconds"), folder / f"cp-{drift_us}")
        eventually(lambda run=run: announced(run) == MAX_WATERMARK, "the end", run.query, 180)
        runs[drift_us] = run.caught_up()
        assert run.rows == naive_windows(LOGS, 10 * SECOND)
    states = split_states(runs[DRIFT])
    for state in states:
        known = [(n, watermark) for n, watermark in state.values() if watermark is not None]
        if len(known) < len(LOGS):
            continue
        limit = min(watermark for _, watermark in known) + DRIFT
        for name, (position, watermark) in state.items():
            step = STEPS[int(name[-1])]
            latest = int(LOGS[name][:position].max())
            assert watermark is not None
            if watermark <= limit:
                assert latest - BOUND - 1 <= limit + FIRST_ROWS * step + BOUND
    if compares:
        assert most_state(runs[DRIFT]) < most_state(runs[None]) / 2
