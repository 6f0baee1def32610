"""In exact mode Spark's watermark is the minimum over the splits' watermarks, in every micro-batch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import streaming_source
from alignment import WatermarkGenerator, WatermarkStrategy
from alignment.watermarks import WatermarkOutput
from streaming_source import from_source, read_stream
from streaming_source.connectors.files import FileSource
from streaming_source.spark.before_4_2 import IS_BEFORE_4_2
from tests.spark.answers import Rows, Windows
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
    eventually,
    naive_watermark,
    naive_windows,
    state_rows,
    watermark_ms,
    windows,
    write_file,
    write_logs,
)
from tests.spark.twin import Twin, frame, source_frame

Reads = dict[int, Counter[str]]

by_limits = pytest.mark.skipif(IS_BEFORE_4_2, reason="of a bounded source the first micro-batch reads all there is")


def positions_by_batch(spark: SparkSession, frame: DataFrame, checkpoint: Path) -> tuple[list[dict], Reads]:
    """Run to the end of what is there; the progresses, and after each batch how much of each split was really read.

    Checks on the way that each batch goes on where the split's last one ended.
    """
    read: Reads = {}
    so_far: Counter[str] = Counter()

    def keep(batch: DataFrame, number: int) -> None:
        rows = batch.groupBy("_split").agg(F.min("_position"), F.max("_position"), F.count("*")).collect()
        for split, first, last, count in rows:
            assert (first, last + 1 - first) == (so_far[split], count)
            so_far[split] = last + 1
        read[number] = so_far.copy()

    writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
    if IS_BEFORE_4_2:
        query = writer.start()
        query.processAllAvailable()
        query.stop()
    else:
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(120)
    return [json.loads(p.json) for p in query.recentProgress], read


MINIMA: list[tuple[str, dict[str, Any]]] = [
    ("one-ahead", {"bounded": "true", "maxRowsPerTrigger": 190}),
    ("one-fast", {"maxRowsPerTrigger": 230}),
    ("one-tiny", {"maxRowsPerTrigger": 150}),
    ("one-tiny", {"bounded": "true", "splitBy": "file", "maxRowsPerTrigger": 180}),
]


def written(folder: Path, skew: str, options: dict[str, Any]) -> Logs:
    """The files of a skew; its logs as the splits of a query with these options."""
    write_logs(folder, SKEWS[skew], row_group_size=40)
    if options.get("splitBy") != "file":
        return SKEWS[skew]
    return {
        f"{split}/part-{number:03d}.parquet": part
        for split, times in SKEWS[skew].items()
        for number, part in enumerate(np.array_split(times, 3))
    }


def check_minima(logs: Logs, watermarks_ms: dict[int, int], read: Reads, options: dict[str, Any]) -> None:
    """What a micro-batch reports, by its number, is what those before it announced."""
    assert len(read) >= 5
    assert sum(read[max(read)].values()) == sum(map(len, logs.values()))
    expected, seen = 0, []
    for batch, reported_ms in watermarks_ms.items():
        assert reported_ms == expected
        if batch not in read:
            continue
        naive = naive_watermark(logs, read[batch], 5 * SECOND, complete="bounded" in options)
        assert naive is not None
        expected = max(expected, naive // MS)
        seen.append(expected)
    assert seen == sorted(seen)
    # Where `split-1` has ended without saying so it holds the watermark: that is one value.
    assert len(set(seen)) >= (1 if options == {"maxRowsPerTrigger": 150} else 3)


@pytest.mark.spark
@by_limits
def test_the_watermark_that_spark_reports_is_the_naive_minimum_in_every_micro_batch(
    spark: SparkSession, exact: Loader, tmp_path: Path
) -> None:
    skew, options = MINIMA[-1]
    logs = written(tmp_path / "in", skew, options)
    frame = exact(tmp_path / "in", maxOutOfOrderness="5 seconds", includeMetadata="true", **options)
    progress, read = positions_by_batch(spark, frame, tmp_path / "cp")
    check_minima(logs, {p["batchId"]: watermark_ms(p) for p in progress}, read, options)


@pytest.mark.parametrize(("skew", "options"), MINIMA)
def test_the_watermark_is_the_naive_minimum_in_every_micro_batch(
    tmp_path: Path, skew: str, options: dict[str, Any]
) -> None:
    logs = written(tmp_path / "in", skew, options)
    read = twin_of(tmp_path, maxOutOfOrderness="5 seconds", includeMetadata="true", **options)
    check_minima(logs, {n: batch.watermark_ms for n, batch in enumerate(read.batches)}, positions(read), options)


def twin_of(folder: Path, answer: Rows | None = None, **options: Any) -> Twin:
    """A query that has read all that is there."""
    return Twin(folder / "cp", frame(folder / "in", **options), answer=answer or Windows()).run()


def positions(twin: Twin) -> Reads:
    """After each micro-batch how much of each split was read; each goes on where the split's last one ended."""
    read: Reads = {}
    so_far: Counter[str] = Counter()
    for number, batch in enumerate(twin.batches):
        (table,) = batch.read
        for split in set(table["_split"].to_pylist()):
            places = table.filter(pc.equal(table["_split"], split))["_position"].to_pylist()
            assert sorted(places) == list(range(so_far[split], so_far[split] + len(places)))
            so_far[split] += len(places)
        if len(table):
            read[number] = so_far.copy()
    return read


def test_splits_that_were_never_read_hold_the_watermark_below_their_first_record(tmp_path: Path) -> None:
    write_file(tmp_path / "in" / "early" / "f.parquet", T0 + np.arange(50) * SECOND)
    write_file(tmp_path / "in" / "late" / "f.parquet", T0 + 3600 * SECOND + np.arange(50) * SECOND)
    twin = twin_of(tmp_path, maxRowsPerTrigger=20, includeMetadata="true", bounded="true")
    read, watermarks_ms = positions(twin), [batch.watermark_ms for batch in twin.batches]
    assert read[1] == {"early": 40}
    assert watermarks_ms[2] == (T0 + 39 * SECOND - 1) // MS
    # `early` is finished; `late` holds the watermark at the last record read.
    assert read[2] == {"early": 50, "late": 10}
    assert watermarks_ms[3] == (T0 + 3609 * SECOND - 1) // MS


@pytest.mark.spark
def test_a_bounded_source_ends_at_the_latest_watermark_and_leaves_no_state(
    spark: SparkSession, exact: Loader, tmp_path: Path
) -> None:
    write_logs(tmp_path / "in", SKEWS["one-tiny"])
    run = available_now(spark, windows(exact(tmp_path / "in", bounded="true")), tmp_path / "cp")
    assert state_rows(run) == 0
    assert run.progress[-1]["eventTime"]["watermark"].startswith("5999-")
    assert end_offset(run.progress[-1])["watermark"] == 2**63 - 1


@pytest.fixture
def data_alone(spark: SparkSession) -> Iterator[None]:
    """Spark runs no micro-batches without data, in which it would close windows."""
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    yield
    spark.conf.unset("spark.sql.streaming.noDataMicroBatches.enabled")


@pytest.mark.spark
@pytest.mark.usefixtures("data_alone")
@pytest.mark.parametrize(
    "door",
    ["read_stream", *(pytest.param(door, marks=pytest.mark.soak) for door in ("with_exact_watermark", "from_source"))],
)
def test_a_bounded_source_closes_its_last_windows_without_micro_batches_without_data(
    spark: SparkSession, exact: Loader, tmp_path: Path, door: str
) -> None:
    logs = SKEWS["one-tiny"]
    write_logs(tmp_path / "in", logs)
    options = {"eventTimeColumn": "ts", "maxOutOfOrderness": "5 seconds", "bounded": True}
    if door == "read_stream":
        frame = read_stream(spark).format("aligned_files").options(**options).load(str(tmp_path / "in"))
    elif door == "with_exact_watermark":
        frame = exact(tmp_path / "in", maxOutOfOrderness="5 seconds", bounded="true")
    else:
        strategy = WatermarkStrategy.for_bounded_out_of_orderness("5 seconds").with_timestamp_assigner("ts")
        frame = from_source(spark, FileSource(str(tmp_path / "in"), bounded=True), strategy, "logs")
    for _ in range(2):
        # The second run has nothing to add.
        run = available_now(spark, windows(frame), tmp_path / "cp", files=tmp_path / "out")
        assert run.rows == naive_windows(logs)


def test_a_bounded_source_is_complete_under_any_trigger_and_a_query_that_triggers_goes_on(tmp_path: Path) -> None:
    logs = SKEWS["one-tiny"]
    write_logs(tmp_path / "in", logs)

    def later(twin: Twin) -> None:
        if twin.rows == naive_windows(logs):
            write_file(tmp_path / "in" / "later" / "f.parquet", T0 + np.arange(100) * SECOND)

    bounded = frame(tmp_path / "in", maxOutOfOrderness="5 seconds", bounded="true")
    twin = Twin(tmp_path / "cp", bounded, answer=Windows()).run("processingTime", each=later)
    assert (tmp_path / "in" / "later").exists()
    assert twin.rows == naive_windows(logs)


@pytest.mark.spark
def test_filters_on_other_columns_do_not_take_the_watermark_row_away(
    spark: SparkSession, exact: Loader, tmp_path: Path
) -> None:
    logs = SKEWS["one-ahead"]
    write_logs(tmp_path / "in", logs)
    frame = exact(tmp_path / "in", maxOutOfOrderness="5 seconds", bounded="true", maxRowsPerTrigger=500)
    filtered = windows(frame.where("s = 'split-1'").where("k is not null"))
    run = available_now(spark, filtered, tmp_path / "cp")
    expected = {"split-1": logs["split-1"]}
    assert run.rows == naive_windows(expected)
    assert state_rows(run) == 0


def test_a_strategy_with_a_generator_of_the_users_own_sets_the_watermark(tmp_path: Path) -> None:
    class TenSecondsBehind(WatermarkGenerator):
        def __init__(self) -> None:
            self.latest = 0

        def on_event(self, record: object, timestamp: int, output: WatermarkOutput) -> None:
            self.latest = max(self.latest, timestamp)

        def on_periodic_emit(self, output: WatermarkOutput) -> None:
            output.emit_watermark(self.latest - 10_000_000)

        def snapshot_state(self) -> int:
            return self.latest

    for split, ahead in (("a", 0), ("b", 100)):
        write_file(tmp_path / "in" / split / "f.parquet", T0 + ahead * SECOND + np.arange(60) * SECOND)
    strategy = WatermarkStrategy.for_generator(TenSecondsBehind).with_timestamp_assigner("ts")
    loaded = source_frame(FileSource(str(tmp_path / "in")), strategy)
    twin = Twin(tmp_path / "cp", loaded, answer=Windows(10 * SECOND)).run()
    assert twin.watermark_ms == (T0 + 49 * SECOND) // MS


@pytest.mark.spark
def test_a_generator_of_the_users_own_lets_a_silent_split_go_although_no_record_comes(
    spark: SparkSession, tmp_path: Path
) -> None:
    class IdleAfterOneSecond(WatermarkGenerator):
        """Without an idleTimeout; its watermark is the latest event time."""

        def __init__(self) -> None:
            self.latest, self.quiet = 0, 0

        def on_event(self, record: object, timestamp: int, output: WatermarkOutput) -> None:
            self.latest, self.quiet = max(self.latest, timestamp), 0

        def on_periodic_emit(self, output: WatermarkOutput) -> None:
            self.quiet += 1
            if self.quiet == 1:
                output.emit_watermark(self.latest)
            if self.quiet == 6:
                output.mark_idle()

        def snapshot_state(self) -> list[int]:
            return [self.latest, self.quiet]

    logs = {"silent": T0 + np.arange(5) * SECOND, "goes-on": T0 + np.arange(60) * SECOND}
    write_logs(tmp_path / "in", logs, files=1)
    strategy = WatermarkStrategy.for_generator(IdleAfterOneSecond).with_timestamp_assigner("ts")
    frame = streaming_source.from_source(spark, FileSource(str(tmp_path / "in")), strategy, "own_idleness")
    run = Run(spark, windows(frame, "10 seconds"), tmp_path / "cp")
    last = T0 + 59 * SECOND
    eventually(lambda: run.progress and end_offset(run.progress[-1])["watermark"] == last, "the other", run.query)
    run.caught_up()
    assert run.rows == [window for window in naive_windows(logs, 10 * SECOND) if window[1] <= last]


def test_perfect_watermarks_need_no_bound(tmp_path: Path) -> None:
    logs = SKEWS["one-fast"]  # out of order by 5 seconds, and no bound is given
    write_logs(tmp_path / "in", logs, row_group_size=40)
    twin = twin_of(tmp_path, lateness="none", late="fail", maxRowsPerTrigger=220, bounded="true")
    assert twin.rows == naive_windows(logs)
    assert not any(any(entry[3:4]) for batch in twin.batches for entry in batch.offsets[0]["splits"])


@pytest.mark.spark
def test_the_observed_metrics_count_rows_and_late_ones(spark: SparkSession, tmp_path: Path) -> None:
    write_file(tmp_path / "in" / "a" / "f.parquet", T0 + np.array([100, 200, 50, 210]) * SECOND)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(seconds=10)).with_timestamp_assigner("ts")
    source = FileSource(str(tmp_path / "in"))
    frame = streaming_source.from_source(
        spark, source, strategy, "observed", includeMetadata=True, maxRowsPerTrigger=2, lateness="bounded"
    )
    run = available_now(spark, frame.select(F.unix_micros("ts"), "_position", "_late"), tmp_path / "cp")
    assert [row[1:] for row in run.rows] == [(2, True), (0, False), (1, False), (3, False)]
    metrics = [p["observedMetrics"]["observed"] for p in run.progress if p["numInputRows"]]
    assert [(m["rows"], m["late"], m["invalid"]) for m in metrics] == [(1, 0, 0), (2, 1, 0), (1, 0, 0)]
    assert [m["latest"] for m in metrics] == [T0 + second * SECOND for second in (100, 200, 210)]
    assert end_offset(run.progress[-1])["splits"][0][3] == 1


@pytest.mark.spark
@pytest.mark.soak
def test_the_session_time_zone_makes_no_difference(spark: SparkSession, exact: Loader, tmp_path: Path) -> None:
    write_logs(tmp_path / "in", SKEWS["one-tiny"])
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        frame = exact(tmp_path / "in", maxOutOfOrderness="5 seconds", bounded="true", maxRowsPerTrigger=500)
        assert available_now(spark, windows(frame), tmp_path / "cp").rows == naive_windows(SKEWS["one-tiny"])
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


def test_a_read_limit_of_one_row_still_gives_every_row_and_never_a_late_one(tmp_path: Path) -> None:
    for split in ("a", "b"):
        write_file(tmp_path / "in" / split / "f.parquet", T0 + np.array([2, 0, 3]) * SECOND)
    options = {"maxOutOfOrderness": "2 seconds", "maxRowsPerTrigger": 1, "late": "fail", "bounded": "true"}
    twin = twin_of(tmp_path, Windows(SECOND), **options)
    assert [(start - T0) // SECOND for start, *_ in twin.rows] == [0, 0, 2, 2, 3, 3]


def test_a_record_from_the_future_closes_no_window(tmp_path: Path) -> None:
    logs = SKEWS["one-ahead"]
    broken = {split: times.copy() for split, times in logs.items()}
    broken["split-2"][40] += 200 * 365 * 86_400 * SECOND
    write_logs(tmp_path / "in", broken)
    options = {"maxOutOfOrderness": "5 seconds", "maxRowsPerTrigger": 300, "bounded": "true"}
    twin = twin_of(tmp_path, maxFutureSkew="1 hour", invalidTimestamp="drop", late="fail", **options)
    assert twin.rows == naive_windows({**logs, "split-2": np.delete(logs["split-2"], 40)})
