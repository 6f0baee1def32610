"""Settings of a session beside the exact watermark: what each changes of a query, by the table in docs/semantics.md."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from alignment import WatermarkStrategy
from alignment.watermarks import MAX_WATERMARK
from streaming_source import explain, from_source, read_stream, with_exact_watermark
from streaming_source.checkpoint import POLICY
from streaming_source.connectors.files import FileSource
from streaming_source.exceptions import OptionError
from streaming_source.monitoring.explained import explain_checkpoint
from streaming_source.spark.registration import _OF_SESSION
from tests.spark.support import MS, SECOND, T0, Run, available_now, fails_with, watermark_ms, write_file

pytestmark = pytest.mark.spark

ROWS = 120
STEPS = {"slow": SECOND, "fast": 60 * SECOND}
PAGE = Path(__file__).parents[2] / "docs/semantics.md"


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.unset(name)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Two sources, of which one is an hour and a half ahead at its end."""
    for name, step in STEPS.items():
        for part in range(3):
            write_file(tmp_path / name / f"{part}.parquet", T0 + (np.arange(ROWS // 3) + part * ROWS // 3) * step)
    return tmp_path


def load(spark: SparkSession, logs: Path, name: str, *, bounded: bool = True) -> DataFrame:
    options = {"eventTimeColumn": "ts", "maxOutOfOrderness": "5 seconds", "maxRowsPerTrigger": 60}
    return read_stream(spark).format("aligned_files").options(**options, bounded=bounded).load(str(logs / name))


def counted(slow: DataFrame, fast: DataFrame) -> DataFrame:
    """A union: 120 records in windows of a minute, two of the slow source and 120 of the fast one."""
    return slow.union(fast).groupBy(F.window("ts", "1 minute")).count().select("count")


def joined(slow: DataFrame, fast: DataFrame) -> DataFrame:
    """A left outer join on the time: a row for each record of the slow source, two of which have a match."""
    left, right = slow.select(F.col("ts").alias("t")), fast.select(F.col("ts").alias("u"))
    return left.join(right, F.expr("t = u"), "leftOuter").selectExpr("t IS NOT NULL AS t", "u IS NOT NULL AS u")


def check_counted(rows: list[tuple[object, ...]]) -> None:
    assert sum(int(str(count)) for (count,) in rows) == 2 * ROWS
    assert len(rows) == ROWS


def check_joined(rows: list[tuple[object, ...]]) -> None:
    assert rows == [(True, False)] * (ROWS - 2) + [(True, True)] * 2


QUERIES: dict[str, tuple[Callable[..., DataFrame], Callable[..., None]]] = {
    "union": (counted, check_counted),
    "join": (joined, check_joined),
}


# ---- multipleWatermarkPolicy -----------------------------------------------------------------------------------------


def test_with_the_largest_watermark_each_door_refuses_a_frame(spark: SparkSession, logs: Path) -> None:
    plain = spark.readStream.format("aligned_files").option("eventTimeColumn", "ts").load(str(logs / "slow"))
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("5 seconds").with_timestamp_assigner("ts")
    doors: list[Callable[[], DataFrame]] = [
        lambda: load(spark, logs, "slow"),
        lambda: from_source(spark, FileSource(str(logs / "slow")), strategy, "slow"),
        lambda: with_exact_watermark(plain),
    ]
    with setting(spark, POLICY, "MAX"):
        for door in doors:
            with pytest.raises(OptionError, match=r"is max: Spark then goes by .* before the frame is made$"):
                door()
        # Without the exact watermark it is the user's affair.
        spark.readStream.format("aligned_files").option("eventTimeColumn", "ts").load(str(logs / "slow"))
    for door in doors:
        door()


def test_a_policy_that_is_set_after_the_frames_were_made_fails_the_query_and_its_restart(
    spark: SparkSession, logs: Path, tmp_path: Path
) -> None:
    query = counted(load(spark, logs, "slow"), load(spark, logs, "fast"))
    with setting(spark, POLICY, "max"):
        run = Run(spark, query, tmp_path / "max", trigger={"availableNow": True}, files=tmp_path / "out")
        with fails_with(f"{POLICY} is max"):
            run.query.awaitTermination(60)
    assert "give it a new checkpointLocation" in " ".join(str(explain(run.query)).split())
    again = Run(spark, query, tmp_path / "max", trigger={"availableNow": True}, files=tmp_path / "out")
    with fails_with("give it a new checkpointLocation"):
        again.query.awaitTermination(60)


@pytest.mark.soak
def test_a_session_does_not_change_the_policy_of_a_checkpoint(spark: SparkSession, logs: Path, tmp_path: Path) -> None:
    query = counted(load(spark, logs, "slow", bounded=False), load(spark, logs, "fast", bounded=False))
    available_now(spark, query, tmp_path / "min", files=tmp_path / "found")
    for name, step in STEPS.items():
        write_file(logs / name / "9.parquet", T0 + (np.arange(ROWS) + ROWS) * step)
    with setting(spark, POLICY, "max"):
        run = available_now(spark, query, tmp_path / "min", files=tmp_path / "found")
    assert watermark_ms(run.progress[-1]) == (T0 + (2 * ROWS - 1 - 5) * SECOND - 1) // MS


# ---- all others ------------------------------------------------------------------------------------------------------


HARMLESS = {
    "spark.sql.streaming.statefulOperator.allowMultiple": "false",
    "spark.sql.streaming.unsupportedOperationCheck": "false",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.session.timeZone": "Pacific/Auckland",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan": "true",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.statefulOperator.checkCorrectness.enabled": "false",
    "spark.sql.streaming.optimizeOneRowPlan.enabled": "true",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.skipNullsForStreamStreamJoins.enabled": "true",
    "spark.sql.streaming.offsetLog.formatVersion": "2",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.parser.quotedRegexColumnNames": "true",
    "spark.sql.execution.arrow.useLargeVarTypes": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "7",
}
"""Settings beside which a query gives the same, each with the value that is not the default."""


@contextmanager
def all_of(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    with ExitStack() as stack:
        for name, value in settings.items():
            stack.enter_context(setting(spark, name, value))
        yield


@pytest.mark.soak
def test_the_same_comes_out_beside_all_settings_that_may_be_set_together(
    spark: SparkSession, logs: Path, tmp_path: Path
) -> None:
    with all_of(spark, HARMLESS):
        for name, (make, check) in QUERIES.items():
            run = available_now(spark, make(load(spark, logs, "slow"), load(spark, logs, "fast")), tmp_path / name)
            check(run.rows)


@pytest.mark.soak
@pytest.mark.parametrize("name", HARMLESS)
@pytest.mark.parametrize("query", QUERIES)
def test_the_same_comes_out_beside_each_setting(
    spark: SparkSession, logs: Path, tmp_path: Path, name: str, query: str
) -> None:
    make, check = QUERIES[query]
    with setting(spark, name, HARMLESS[name]):
        check(available_now(spark, make(load(spark, logs, "slow"), load(spark, logs, "fast")), tmp_path / "cp").rows)


def test_every_setting_that_was_tried_is_in_the_table_and_each_of_the_table_was_tried() -> None:
    table = PAGE.read_text(encoding="utf-8").split("### Settings of the session")[1].split("\n## ")[0]
    named = {name for row in re.findall(r"^\| (.*?) \|", table, re.M) for name in re.findall(r"`([\w.]+)`", row)}
    tried = {
        name.removeprefix("spark.sql.") for name in (*HARMLESS, *(name for name, _ in _OF_SESSION.values()), POLICY)
    }
    assert tried <= named, tried - named


def test_the_log_of_a_sink_is_ignored_where_the_session_says_so(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "sink"
    write_file(root / "a.parquet", [T0])
    write_file(root / "failed.parquet", [T0 + SECOND])
    (root / "_spark_metadata").mkdir()
    (root / "_spark_metadata/0").write_text("v1\n" + json.dumps({"path": f"file://{root}/a.parquet", "action": "add"}))
    source = FileSource(str(root))
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("0 s").with_timestamp_assigner("ts")
    for value, rows in (("false", 1), ("true", 2)):
        with setting(spark, _OF_SESSION["ignoreSinkLog"][0], value):
            by_spark = spark.read.parquet(str(root)).count() if value == "true" else rows
            frame = read_stream(spark).format("aligned_files").option("eventTimeColumn", "ts").load(str(root))
            run = available_now(spark, frame.select("k"), tmp_path / value)
            batch = from_source(spark, source, strategy, "sink", batch=True).count()
        assert len(run.rows) == batch == by_spark == rows


def test_columns_in_names_are_text_where_the_session_says_so(spark: SparkSession, tmp_path: Path) -> None:
    write_file(tmp_path / "day=2024-01-01/n=007/a.parquet", [T0])
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("0 s").with_timestamp_assigner("ts")
    for value in ("true", "false"):
        with setting(spark, _OF_SESSION["textInNames"][0], value):
            kinds = dict(spark.read.parquet(str(tmp_path)).select("day", "n").dtypes)
            frame = read_stream(spark).format("aligned_files").option("eventTimeColumn", "ts").load(str(tmp_path))
            batch = from_source(spark, FileSource(str(tmp_path)), strategy, "names", batch=True)
        assert dict(frame.select("day", "n").dtypes) == dict(batch.select("day", "n").dtypes) == kinds
        assert [row.n for row in batch.collect()] == ["007" if value == "false" else 7]


@pytest.mark.soak
def test_spark_refuses_the_continuous_trigger_and_asynchronous_progress_of_state(
    spark: SparkSession, logs: Path, tmp_path: Path
) -> None:
    frame = load(spark, logs, "slow")
    with pytest.raises(AnalysisException, match="Continuous processing does not support"):
        frame.writeStream.format("noop").trigger(continuous="1 second").start()
    query = counted(frame, load(spark, logs, "fast")).writeStream.format("noop")
    query = query.option("asyncProgressTrackingEnabled", "true").option("checkpointLocation", str(tmp_path / "cp"))
    with fails_with("does not support async progress tracking"):
        query.trigger(processingTime="0 seconds").start().awaitTermination(60)


@pytest.mark.soak
def test_without_state_progress_may_be_tracked_asynchronously(spark: SparkSession, logs: Path, tmp_path: Path) -> None:
    read: list[int] = []
    frame = load(spark, logs, "slow").select("k")
    writer = frame.writeStream.foreachBatch(lambda batch, number: read.append(batch.count()))
    writer = writer.option("asyncProgressTrackingEnabled", "true").option("checkpointLocation", str(tmp_path / "cp"))
    query = writer.option("_asyncProgressTrackingOverrideSinkSupportCheck", "true").start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert sum(read) == ROWS
    assert explain_checkpoint(str(tmp_path / "cp")).sources[0].report.explanation.watermark == MAX_WATERMARK
