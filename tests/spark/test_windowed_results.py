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
from tests.spark import twin as twins
from tests.spark.answers import Windows
from tests.spark.conftest import Loader
from tests.spark.support import (
    MS,
    SECOND,
    SKEWS,
    T0,
    Logs,
    Run,
    available_now,
    naive_windows,
    out_of_orderness,
    skewed_logs,
    windows,
    write_file,
    write_logs,
)
from tests.spark.twin import Twin

BOUND = "5 seconds"


def strategy(bound_us: int) -> WatermarkStrategy:
    return WatermarkStrategy.for_bounded_out_of_orderness(timedelta(microseconds=bound_us))


@pytest.mark.parametrize("logs", SKEWS.values(), ids=SKEWS)
def test_the_data_of_these_tests_is_out_of_order_by_exactly_its_bound(logs: Logs) -> None:
    assert max(out_of_orderness(times) for times in logs.values()) == 5 * SECOND


@pytest.mark.spark
def test_a_batch_read_counts_every_row(batch: Loader, tmp_path: Path) -> None:
    write_logs(tmp_path, SKEWS["one-ahead"])
    assert sorted(map(tuple, windows(batch(tmp_path)).collect())) == naive_windows(SKEWS["one-ahead"])


@pytest.mark.spark
def test_exact_mode_gives_all_windows_of_the_batch_result_on_spark(
    spark: SparkSession, exact: Loader, tmp_path: Path
) -> None:
    write_logs(tmp_path / "in", SKEWS["one-ahead"])
    frame = exact(tmp_path / "in", maxOutOfOrderness=BOUND, bounded="true", maxRowsPerTrigger=300)
    run = available_now(spark, windows(frame), tmp_path / "cp")
    assert run.rows == naive_windows(SKEWS["one-ahead"])
    # Watermark rows beside.
    assert max(p["numInputRows"] for p in run.progress) <= 300 + 1


@pytest.mark.parametrize("split_by", ["directory", "file"])
@pytest.mark.parametrize(
    ("skew", "max_rows"), [("one-ahead", 300), ("one-fast", 500), ("one-tiny", None), ("one-tiny", 170)]
)
def test_exact_mode_gives_all_windows_of_the_batch_result(
    tmp_path: Path, skew: str, max_rows: int | None, split_by: str
) -> None:
    write_logs(tmp_path / "in", SKEWS[skew])
    limit = {} if max_rows is None else {"maxRowsPerTrigger": max_rows}
    loaded = twins.frame(tmp_path / "in", maxOutOfOrderness=BOUND, bounded="true", splitBy=split_by, **limit)
    twin = Twin(tmp_path / "cp", loaded, answer=Windows()).run()
    assert twin.rows == naive_windows(SKEWS[skew])
    assert max_rows is None or max(sum(map(len, batch.read)) for batch in twin.batches) <= max_rows


@pytest.mark.spark
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


def test_exact_mode_gives_all_windows_by_trigger_once_run_until_it_is_done(tmp_path: Path) -> None:
    write_logs(tmp_path / "in", SKEWS["one-tiny"])
    loaded = twins.frame(tmp_path / "in", maxOutOfOrderness=BOUND, bounded="true", maxRowsPerTrigger=600)
    twin = Twin(tmp_path / "cp", loaded, answer=Windows())
    for _ in range(4):  # two with data, one that closes the last windows, one with nothing to do
        twin.run("once")
    assert twin.rows == naive_windows(SKEWS["one-tiny"])


def test_an_unbounded_source_closes_exactly_the_windows_that_the_slowest_split_has_passed(tmp_path: Path) -> None:
    logs = SKEWS["one-ahead"]
    write_logs(tmp_path / "in", logs)
    loaded = twins.frame(tmp_path / "in", maxOutOfOrderness=BOUND)
    twin = Twin(tmp_path / "cp", loaded, answer=Windows()).run()
    slowest = min(int(times.max()) - 5 * SECOND - 1 for times in logs.values())
    assert twin.rows == [row for row in naive_windows(logs) if row[1] <= slowest]


def plain(frame: DataFrame, delay: str) -> DataFrame:
    return frame.withWatermark("ts", delay)


@pytest.mark.parametrize("split_by", ["directory", "file"])
@pytest.mark.parametrize(("skew", "max_rows"), [("one-tiny", 200), ("one-ahead", 250), ("one-fast", 300)])
def test_plain_mode_at_the_required_delay_gives_all_closed_windows(
    tmp_path: Path, skew: str, max_rows: int, split_by: str
) -> None:
    logs = SKEWS[skew]
    write_logs(tmp_path / "in", logs)
    assert required_delay(strategy(5 * SECOND)) == BOUND
    options = {"maxOutOfOrderness": BOUND, "bounded": "true", "maxRowsPerTrigger": max_rows, "splitBy": split_by}
    twin = Twin(tmp_path / "cp", twins.plain_frame(tmp_path / "in", 5000, **options), answer=Windows()).run()
    final_us = (max(int(times.max()) for times in logs.values()) // MS - 5000) * MS
    expected = [row for row in naive_windows(logs) if row[1] <= final_us]
    assert len(expected) > 0.6 * len(naive_windows(logs))
    assert twin.rows == expected


def test_plain_mode_over_an_unbounded_source_loses_nothing_that_it_counts(tmp_path: Path) -> None:
    logs = SKEWS["one-fast"]
    write_logs(tmp_path / "in", logs)
    loaded = twins.plain_frame(tmp_path / "in", 5000, maxOutOfOrderness=BOUND, maxRowsPerTrigger=150)
    twin = Twin(tmp_path / "cp", loaded, answer=Windows(updates=True)).run()
    counted = {row[:3]: row[3] for row in twin.rows}
    read = {split: logs[split][:place] for split, place in places(twin).items()}
    assert {row[:3]: row[3] for row in naive_windows(read)} == counted
    # Alignment left back what is further ahead than the drift allows, and nothing else.
    reach = min(int(times.max()) for times in logs.values()) - 5 * SECOND - 1
    for split, times in logs.items():
        rest = times[len(read[split]) :]
        assert not rest.size or rest[0] > reach + 5 * SECOND


def places(twin: Twin) -> dict[str, int]:
    """How far each split was read."""
    return {split: place[0] for (split, *place), *_ in twin.batches[-1].offsets[0]["splits"]}


MILLIS = skewed_logs(7, rows=(120, 60, 120), starts=(0, 40 * MS, 3 * MS), steps=(MS, 2 * MS, 700), bound=5 * MS)


@pytest.mark.parametrize("max_rows", [60, 23])
def test_plain_mode_holds_for_windows_of_one_millisecond(tmp_path: Path, max_rows: int) -> None:
    write_logs(tmp_path / "in", MILLIS, row_group_size=16)
    assert required_delay(strategy(5 * MS)) == "5 milliseconds"
    options = {"maxOutOfOrderness": "5 ms", "bounded": "true", "maxRowsPerTrigger": max_rows}
    twin = Twin(tmp_path / "cp", twins.plain_frame(tmp_path / "in", 5, **options), answer=Windows(MS)).run()
    final_us = (max(int(times.max()) for times in MILLIS.values()) // MS - 5) * MS
    assert twin.rows == [row for row in naive_windows(MILLIS, MS) if row[1] <= final_us]


# A record on the very bound, two micro-batches after the record that set the watermark.
ON_THE_BOUND = np.array([T0 + 100 * MS, T0 + 100 * MS, T0 + 95 * MS, T0 + 200 * MS], np.int64)


@pytest.mark.spark
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


def test_the_gap_rule_goes_on_over_quiet_hours_and_loses_nothing(tmp_path: Path) -> None:
    # Long silences in all splits: every next record lies beyond the drift bound again and again.
    hours = np.repeat(np.arange(6, dtype=np.int64) * 3600 * SECOND, 4)
    logs = {f"s{i}": T0 + hours + i * 7 * SECOND + np.tile([2, 0, 1, 2], 6) * SECOND for i in range(3)}
    write_logs(tmp_path / "in", logs, files=2, row_group_size=4)
    loaded = twins.plain_frame(tmp_path / "in", 2000, maxOutOfOrderness="2 seconds", maxRowsPerTrigger=12)
    twin = Twin(tmp_path / "cp", loaded, answer=Windows(SECOND, updates=True)).run("processingTime")
    per_window = {row[:3]: row[3] for row in twin.rows}
    # The last records of the faster splits wait for the slowest one, which has no more.
    read = {split: logs[split][:place] for split, place in places(twin).items()}
    assert per_window == {row[:3]: row[3] for row in naive_windows(read, SECOND)}
    assert sum(map(len, read.values())) >= 72 - 8
