"""Windowed results of a stream are those of a batch, whatever the skew, the limit, the layout and the trigger."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from alignment import WatermarkStrategy
from streaming_source import required_delay
from tests.spark.conftest import Loader
from tests.spark.support import (
    MS,
    SECOND,
    SKEWS,
    T0,
    Logs,
    Run,
    available_now,
    end_offset,
    naive_windows,
    out_of_orderness,
    skewed_logs,
    windows,
    write_file,
    write_logs,
)

pytestmark = pytest.mark.spark

BOUND = "5 seconds"


def strategy(bound_us: int) -> WatermarkStrategy:
    return WatermarkStrategy.for_bounded_out_of_orderness(timedelta(microseconds=bound_us))


@pytest.mark.parametrize("logs", SKEWS.values(), ids=SKEWS)
def test_the_data_of_these_tests_is_out_of_order_by_exactly_its_bound(logs: Logs) -> None:
    assert max(out_of_orderness(times) for times in logs.values()) == 5 * SECOND


def test_a_batch_read_counts_every_row(batch: Loader, tmp_path: Path) -> None:
    write_logs(tmp_path, SKEWS["one-ahead"])
    assert sorted(map(tuple, windows(batch(tmp_path)).collect())) == naive_windows(SKEWS["one-ahead"])


@pytest.mark.parametrize(
    ("skew", "max_rows", "split_by"),
    [
        ("one-ahead", 300, "directory"),
        ("one-fast", 500, "file"),
        pytest.param("one-tiny", None, "directory", marks=pytest.mark.soak),
        pytest.param("one-tiny", 170, "file", marks=pytest.mark.soak),
        pytest.param("one-ahead", 300, "file", marks=pytest.mark.soak),
        pytest.param("one-fast", 500, "directory", marks=pytest.mark.soak),
        pytest.param("one-tiny", None, "file", marks=pytest.mark.soak),
        pytest.param("one-tiny", 170, "directory", marks=pytest.mark.soak),
    ],
)
def test_exact_mode_gives_all_windows_of_the_batch_result(
    spark: SparkSession, exact: Loader, tmp_path: Path, skew: str, max_rows: int | None, split_by: str
) -> None:
    write_logs(tmp_path / "in", SKEWS[skew])
    limit = {} if max_rows is None else {"maxRowsPerTrigger": max_rows}
    frame = exact(tmp_path / "in", maxOutOfOrderness=BOUND, bounded="true", splitBy=split_by, **limit)
    run = available_now(spark, windows(frame), tmp_path / "cp")
    assert run.rows == naive_windows(SKEWS[skew])
    if max_rows is not None:
        # Watermark rows beside.
        assert max(p["numInputRows"] for p in run.progress) <= max_rows + 1


@pytest.mark.parametrize(
    "trigger", [{"processingTime": "200 milliseconds"}, pytest.param(None, marks=pytest.mark.soak)]
)
def test_exact_mode_gives_all_windows_under_a_running_trigger(
    spark: SparkSession, exact: Loader, tmp_path: Path, trigger: dict[str, str] | None
) -> None:
    write_logs(tmp_path / "in", SKEWS["one-ahead"])
    frame = exact(tmp_path / "in", maxOutOfOrderness=BOUND, bounded="true", maxRowsPerTrigger=300)
    assert Run(spark, windows(frame), tmp_path / "cp", trigger=trigger).caught_up().rows == naive_windows(
        SKEWS["one-ahead"]
    )


@pytest.mark.soak
def test_exact_mode_gives_all_windows_by_trigger_once_run_until_it_is_done(
    spark: SparkSession, exact: Loader, tmp_path: Path
) -> None:
    write_logs(tmp_path / "in", SKEWS["one-tiny"])
    frame = exact(tmp_path / "in", maxOutOfOrderness=BOUND, bounded="true", maxRowsPerTrigger=600)
    for _ in range(4):  # two with data, one that closes the last windows, one with nothing to do
        run = Run(spark, windows(frame), tmp_path / "cp", "append", {"once": True}, tmp_path / "out").finished()
    assert run.rows == naive_windows(SKEWS["one-tiny"])


def test_an_unbounded_source_closes_exactly_the_windows_that_the_slowest_split_has_passed(
    spark: SparkSession, exact: Loader, tmp_path: Path
) -> None:
    logs = SKEWS["one-ahead"]
    write_logs(tmp_path / "in", logs)
    run = available_now(spark, windows(exact(tmp_path / "in", maxOutOfOrderness=BOUND)), tmp_path / "cp")
    slowest = min(int(times.max()) - 5 * SECOND - 1 for times in logs.values())
    assert run.rows == [row for row in naive_windows(logs) if row[1] <= slowest]


def plain(frame: DataFrame, delay: str) -> DataFrame:
    return frame.withWatermark("ts", delay)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("skew", "max_rows", "split_by"),
    [
        ("one-tiny", 200, "file"),
        ("one-ahead", 250, "directory"),
        ("one-fast", 300, "file"),
        ("one-tiny", 200, "directory"),
    ],
)
def test_plain_mode_at_the_required_delay_gives_all_closed_windows(
    spark: SparkSession, stream: Loader, tmp_path: Path, skew: str, max_rows: int, split_by: str
) -> None:
    logs = SKEWS[skew]
    write_logs(tmp_path / "in", logs)
    frame = stream(
        tmp_path / "in", maxOutOfOrderness=BOUND, bounded="true", maxRowsPerTrigger=max_rows, splitBy=split_by
    )
    run = available_now(spark, windows(plain(frame, required_delay(strategy(5 * SECOND)))), tmp_path / "cp")
    final_us = (max(int(times.max()) for times in logs.values()) // MS - 5000) * MS
    expected = [row for row in naive_windows(logs) if row[1] <= final_us]
    assert len(expected) > 0.6 * len(naive_windows(logs))
    assert run.rows == expected


def test_plain_mode_over_an_unbounded_source_loses_nothing_that_it_counts(
    spark: SparkSession, stream: Loader, tmp_path: Path
) -> None:
    logs = SKEWS["one-fast"]
    write_logs(tmp_path / "in", logs)
    frame = stream(tmp_path / "in", maxOutOfOrderness=BOUND, maxRowsPerTrigger=150)
    run = available_now(spark, windows(plain(frame, "5 seconds")), tmp_path / "cp", "update")
    counted = {row[:3]: row[3] for row in sorted(run.rows)}
    offset = {split: entry for (split, *entry), *_ in run_end(run)["splits"]}
    read = {split: logs[split][: offset[split][0]] for split in logs}
    assert {row[:3]: row[3] for row in naive_windows(read)} == counted
    # Alignment left back what is further ahead than the drift allows, and nothing else.
    reach = min(int(times.max()) for times in logs.values()) - 5 * SECOND - 1
    for split, times in logs.items():
        rest = times[len(read[split]) :]
        assert not rest.size or rest[0] > reach + 5 * SECOND


def run_end(run: Run) -> dict[str, object]:
    return end_offset(run.progress[-1])


MILLIS = skewed_logs(7, rows=(120, 60, 120), starts=(0, 40 * MS, 3 * MS), steps=(MS, 2 * MS, 700), bound=5 * MS)


@pytest.mark.soak
@pytest.mark.parametrize("max_rows", [60, 23])
def test_plain_mode_holds_for_windows_of_one_millisecond(
    spark: SparkSession, stream: Loader, tmp_path: Path, max_rows: int
) -> None:
    write_logs(tmp_path / "in", MILLIS, row_group_size=16)
    frame = stream(tmp_path / "in", maxOutOfOrderness="5 ms", bounded="true", maxRowsPerTrigger=max_rows)
    counted = windows(plain(frame, required_delay(strategy(5 * MS))), "1 millisecond")
    run = available_now(spark, counted, tmp_path / "cp")
    final_us = (max(int(times.max()) for times in MILLIS.values()) // MS - 5) * MS
    assert run.rows == [row for row in naive_windows(MILLIS, MS) if row[1] <= final_us]


# A record on the very bound, two micro-batches after the record that set the watermark.
ON_THE_BOUND = np.array([T0 + 100 * MS, T0 + 100 * MS, T0 + 95 * MS, T0 + 200 * MS], np.int64)


def test_the_required_delay_keeps_a_window_and_a_row_that_a_millisecond_less_loses(
    spark: SparkSession, stream: Loader, tmp_path: Path
) -> None:
    write_file(tmp_path / "in" / "a" / "f.parquet", ON_THE_BOUND)
    assert required_delay(strategy(5 * MS)) == "5 milliseconds"
    assert required_delay(strategy(5 * MS), per_row=True) == "6 milliseconds"
    frame = stream(tmp_path / "in", maxOutOfOrderness="5 ms", bounded="true", maxRowsPerTrigger=1)

    def start(rows: DataFrame, name: str) -> Run:
        return Run(spark, rows, tmp_path / name, trigger={"availableNow": True})

    def delayed(milliseconds: int) -> DataFrame:
        return plain(frame, f"{milliseconds} milliseconds")

    def distinct(rows: DataFrame) -> DataFrame:
        return rows.dropDuplicates(["ts", "k"]).select(F.unix_micros("ts"))

    # All at once: each waits for Spark most of its time.
    counts = {n: start(windows(delayed(n), "1 millisecond"), f"windows-{n}") for n in (4, 5)}
    kept = {n: start(distinct(delayed(n)), f"rows-{n}") for n in (5, 6)}

    def found(run: Run) -> list[int]:
        return [(time - T0) // MS for time, *_ in run.finished().rows]

    assert {n: found(run) for n, run in counts.items()} == {4: [100], 5: [95, 100]}
    assert {n: found(run) for n, run in kept.items()} == {5: [100, 100, 200], 6: [95, 100, 100, 200]}


def test_the_gap_rule_goes_on_over_quiet_hours_and_loses_nothing(
    spark: SparkSession, stream: Loader, tmp_path: Path
) -> None:
    # Long silences in all splits: every next record lies beyond the drift bound again and again.
    hours = np.repeat(np.arange(6, dtype=np.int64) * 3600 * SECOND, 4)
    logs = {f"s{i}": T0 + hours + i * 7 * SECOND + np.tile([2, 0, 1, 2], 6) * SECOND for i in range(3)}
    write_logs(tmp_path / "in", logs, files=2, row_group_size=4)
    frame = stream(tmp_path / "in", maxOutOfOrderness="2 seconds", maxRowsPerTrigger=12)
    counted = windows(plain(frame, "2 seconds"), "1 second")
    run = Run(spark, counted, tmp_path / "cp", "update").caught_up()
    per_window = {row[:3]: row[3] for row in run.rows}
    # The last records of the faster splits wait for the slowest one, which has no more.
    read = {split: logs[split][: place[0]] for (split, *place), *_ in run_end(run)["splits"]}
    assert per_window == {row[:3]: row[3] for row in naive_windows(read, SECOND)}
    assert sum(map(len, read.values())) >= 72 - 8
