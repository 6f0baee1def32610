"""Sources that know nothing of event times ahead of reading: their readers report, and splits are held together so."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

import streaming_source
from alignment import WatermarkStrategy
from alignment.watermarks import MAX_WATERMARK
from streaming_source.exceptions import OptionError
from tests.spark import unindexed
from tests.spark.support import (
    SECOND,
    T0,
    Logs,
    Run,
    available_now,
    end_offset,
    eventually,
    naive_windows,
    windows,
)
from tests.spark.unindexed import AskingLogs, UnindexedLogs, append_log

pytestmark = pytest.mark.spark

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
LOGS = skewed(7, 30_000, STEPS, (0, 0, 60, 0, 300, 0, 30, 1200))


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


def test_the_windows_are_those_of_the_batch_and_drift_is_bounded(spark: SparkSession, tmp_path: Path) -> None:
    unindexed.write_logs(tmp_path / "logs", LOGS)
    runs = {}
    for drift_us in (DRIFT, None):
        frame = reported(spark, tmp_path / "logs", f"drift_{drift_us}", strategy(drift_us), maxRowsPerTrigger=24_000)
        run = Run(spark, windows(frame, "10 seconds"), tmp_path / f"cp-{drift_us}")
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
    assert most_state(runs[DRIFT]) < most_state(runs[None]) / 2


SMALL = skewed(3, 600, (SECOND, 2 * SECOND, 10 * SECOND), (0, 30, 0))


def test_what_is_appended_between_runs_to_the_end_is_read_once(spark: SparkSession, tmp_path: Path) -> None:
    for part in range(3):
        for split, times in SMALL.items():
            append_log(tmp_path / "logs", split, np.array_split(times, 3)[part])
        frame = reported(spark, tmp_path / "logs", f"part_{part}", strategy(), bounded=False)
        available_now(spark, frame.select("s", "k"), tmp_path / "cp", files=tmp_path / "out")
    rows = sorted(map(tuple, spark.read.parquet(str(tmp_path / "out")).collect()))
    assert rows == sorted((split, k) for split, times in SMALL.items() for k in range(times.size))


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


def test_where_drift_would_cost_records_reports_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="lateness = 'none' needs event times ahead of reading"):
        reported(spark, tmp_path, "perfect", strategy(), lateness="none")
    own = WatermarkStrategy.for_generator(lambda: None).with_timestamp_assigner("ts")  # type: ignore[arg-type, return-value]
    with pytest.raises(OptionError, match="needs a built-in watermark generator"):
        reported(spark, tmp_path, "own", own)
