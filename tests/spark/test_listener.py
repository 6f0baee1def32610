"""`AlignmentListener` on a running Spark: its history, its metrics, its log, and Spark's statistics put right."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from pyspark.sql import SparkSession

import streaming_source
from streaming_source import AlignmentListener
from streaming_source.monitoring.explained import explain
from streaming_source.monitoring.history import History
from streaming_source.monitoring.micro_batch import Statistics
from streaming_source.tools.pages.watch import CheckpointWatch
from tests.spark.conftest import Loader
from tests.spark.support import MS, SECOND, T0, Run, available_now, eventually, windows, write_file, write_logs

pytestmark = pytest.mark.spark

LOGS = {"a": T0 + np.arange(200) * SECOND, "b": T0 + np.arange(200) * 2 * SECOND}


@pytest.fixture
def listener(spark: SparkSession) -> Iterator[AlignmentListener]:
    made = AlignmentListener()
    spark.streams.addListener(made)
    yield made
    spark.streams.removeListener(made)


@pytest.mark.soak
def test_spark_counts_a_watermark_row_and_the_statistics_do_not(
    spark: SparkSession, stream: Loader, tmp_path: Path
) -> None:
    write_logs(tmp_path / "in", LOGS)
    frame = stream(tmp_path / "in", maxOutOfOrderness="5 seconds", bounded=True, maxRowsPerTrigger=150)
    # With a name, Spark counts event times.
    frame = streaming_source.with_exact_watermark(frame, name="logs")
    *progress, closing = available_now(spark, windows(frame), tmp_path / "checkpoint").progress
    read = np.sort(np.concatenate([*LOGS.values()]))
    for reported, times in zip(progress, np.split(read, [150, 300]), strict=True):
        assert reported["numInputRows"] == times.size + 1
        assert reported["eventTime"]["max"][:2] in ("60", "99")
        # Of the rows of 2023 and the one row four thousand years later.
        assert reported["eventTime"]["avg"] > "2049"
        found = Statistics.of_progress(reported)
        assert (found.rows, found.earliest_us, found.latest_us) == ((times.size,), times.min(), times.max())
        assert found.mean_us == pytest.approx(times.mean(), abs=2 * MS)
        assert found.invalid == 0
    # Windows that the last watermark closes: a micro-batch without records, and without a watermark row.
    last = Statistics.of_progress(closing)
    assert (last.rows, last.latest_us, last.mean_us, last.state_rows) == ((0,), None, None, 0)


@pytest.mark.soak
def test_two_sources_of_which_one_has_ended_and_records_without_an_event_time(
    spark: SparkSession, exact: Loader, stream: Loader, tmp_path: Path
) -> None:
    write_logs(tmp_path / "in", LOGS)
    odd = pa.array([T0, None, T0 + SECOND], pa.timestamp("us", "UTC"))
    write_file(tmp_path / "odd" / "c" / "f.parquet", odd, "c")
    frames = [
        exact(tmp_path / "in", bounded=True, maxRowsPerTrigger=150),
        exact(tmp_path / "odd", bounded=True, invalidTimestamp="null"),
        stream(tmp_path / "odd", bounded=True, invalidTimestamp="drop").withWatermark("ts", "5 seconds"),
    ]
    first, second, third = (frame.select("ts", "k") for frame in frames)
    run = available_now(spark, first.union(second).union(third), tmp_path / "checkpoint")
    counted = [[source["numInputRows"] for source in reported["sources"]] for reported in run.progress]
    assert counted == [[151, 4, 2], [151, 0, 0], [101, 0, 0]]
    found = [Statistics.of_progress(reported) for reported in run.progress]
    assert [statistics.rows for statistics in found] == [(150, 3, 2), (150, 0, 0), (100, 0, 0)]
    assert [statistics.invalid for statistics in found] == [1, 0, 0]


def test_the_history_of_a_query_that_runs_is_that_of_its_checkpoint(
    spark: SparkSession,
    exact: Loader,
    tmp_path: Path,
    listener: AlignmentListener,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "streaming_source.tools.listener")
    write_logs(tmp_path / "in", LOGS)
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "100ms")
    try:
        options = {"maxOutOfOrderness": "5 seconds", "maxDrift": "1 minute", "idleTimeout": "none"}
        frame = exact(tmp_path / "in", maxRowsPerTrigger=150, **options)
        run = Run(spark, windows(frame), tmp_path / "checkpoint")
        run.query.processAllAvailable()
        history = listener.history(run.query)
        last = eventually(lambda: silent(history), "an idle query to say so", run.query)
        registry = CollectorRegistry()
        registry.register(listener)
        exposed = generate_latest(registry).decode()
        listener.write_report(run.query, tmp_path / "report.html")
        explained = explain(run.query).to_json()["sources"][0]
    finally:
        spark.conf.unset("spark.sql.streaming.noDataProgressEventInterval")
        run.query.stop()
    assert (last["held_by"], explained["heldBy"]) == (["a"], ["a"])
    columns = ["batch", "split", "status", "watermark", "position", "late"]
    stored = History.of_checkpoint(str(tmp_path / "checkpoint"))
    assert history.splits().select(columns) == stored.splits().select(columns)
    assert history.batches()["batch"] == stored.batches()["batch"]
    assert sum(history.sources()["rows"].to_pylist()) == 400 - explained["rowsBehind"]
    name = run.query.name
    assert f'split_holds_watermark{{query="{name}",source="0:aligned_files",split="a"}} 1.0' in exposed
    assert f'split_status{{query="{name}",source="0:aligned_files",split="b",status="paused"}} 1.0' in exposed
    assert exposed.rstrip().endswith("# EOF")
    assert '"state":[' in (tmp_path / "report.html").read_text()
    # `streaming-source watch` shows the same, of the checkpoint alone.
    (watched,) = CheckpointWatch(str(tmp_path / "checkpoint")).latest.data["sources"]
    assert watched["batches"] == history.batches()["batch"].to_pylist()
    assert (watched["held"][-1], watched["behind"][-1]) == ([["a"], 1], explained["rowsBehind"])
    assert "has delivered nothing since" in caplog.messages[-1]


def silent(history: History) -> dict[str, Any] | None:
    rows = history.sources().to_pylist()
    return rows[-1] if rows and rows[-1]["cause"] == "silent" else None
