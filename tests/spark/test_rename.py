"""`aligned_files` in place of `parquet`, nothing else changed: it is never worse than Spark's own source."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

from streaming_source import read_stream
from tests.spark.support import MINUTE, SECOND, T0, PlannerLog, Run, available_now, last_batch, write_file

pytestmark = pytest.mark.spark

Loader = Callable[..., DataFrame]

TEN = np.arange(10, dtype=np.int64) * SECOND


def write_two_logs_and_an_empty_one(root: Path) -> None:
    """Two logs of ten rows an hour apart, and a directory in which nothing has been written yet."""
    write_file(root / "a" / "part-0.parquet", T0 + TEN)
    write_file(root / "b" / "part-0.parquet", T0 + 60 * MINUTE + TEN)
    (root / "empty").mkdir()


def plain(frame: DataFrame) -> DataFrame:
    return frame.withWatermark("ts", "10 minutes").select("k")


def test_available_now_reads_20_of_20_rows_beside_an_empty_directory(
    spark: SparkSession, stream: Loader, tmp_path: Path
) -> None:
    write_two_logs_and_an_empty_one(tmp_path / "in")
    run = available_now(spark, plain(stream(tmp_path / "in")), tmp_path / "cp")
    assert len(run.rows) == 20


def test_the_default_trigger_reads_20_of_20_rows_beside_an_empty_directory(
    spark: SparkSession, stream: Loader, tmp_path: Path
) -> None:
    write_two_logs_and_an_empty_one(tmp_path / "in")
    run = Run(spark, plain(stream(tmp_path / "in", idleTimeout="none")), tmp_path / "cp").caught_up()
    assert len(run.rows) == 20


@pytest.mark.soak
def test_process_all_available_covers_the_12_files_that_were_written_before_it(
    spark: SparkSession, stream: Loader, tmp_path: Path
) -> None:
    write_file(tmp_path / "in" / "a" / "part-00.parquet", T0 + TEN)
    run = Run(spark, plain(stream(tmp_path / "in", discoveryInterval="1 hour")), tmp_path / "cp")
    counts = []
    for number in range(1, 13):
        write_file(tmp_path / "in" / "ab"[number % 2] / f"part-{number:02d}.parquet", T0 + TEN)
        run.query.processAllAvailable()
        counts.append(len(run.rows))
    assert counts == [10 * (number + 1) for number in range(1, 13)]


def test_a_nightly_run_reads_what_yesterdays_run_left_and_each_says_what_it_leaves(
    spark: SparkSession, stream: Loader, tmp_path: Path
) -> None:
    write_two_logs_and_an_empty_one(tmp_path / "in")

    def night() -> tuple[int, list[str]]:
        frame = plain(stream(tmp_path / "in", maxOutOfOrderness="1 minute", idleTimeout="1 hour"))
        with PlannerLog(spark, tmp_path / "log") as log:
            run = available_now(spark, frame, tmp_path / "cp", files=tmp_path / "out")
            return len(run.rows), log.lines("unread")

    rows, said = night()
    assert rows == 10
    (line,) = said
    assert "10 records unread, in 1 splits: {'b': 10}" in line
    assert "split 'a'" in line
    rows, said = night()
    assert rows == 10, "it is not idle yet"
    assert len(said) == 1
    make_yesterday_of_the_last_run(tmp_path / "cp")
    assert night() == (20, [])


def make_yesterday_of_the_last_run(checkpoint: Path) -> None:
    """Let the last offset say of each silent split that it is so since a day ago."""
    file = checkpoint / "offsets" / str(last_batch(checkpoint))
    *head, text = file.read_text().splitlines()
    offset: dict[str, Any] = json.loads(text)
    silent = [entry for entry in offset["splits"] if len(entry) > 4]
    assert [entry[0][0] for entry in silent] == ["a", "empty"]
    for entry in silent:
        entry[4] -= 24 * 60 * MINUTE
    file.write_text("\n".join([*head, json.dumps(offset)]))
    (file.parent / f".{file.name}.crc").unlink()


def test_the_output_of_another_query_is_read_by_its_log(
    spark: SparkSession, stream: Loader, batch: Loader, tmp_path: Path
) -> None:
    write_file(tmp_path / "in" / "part-0.parquet", T0 + TEN, "a")
    rows = spark.readStream.schema(batch(tmp_path / "in").drop("event_time").schema).parquet(str(tmp_path / "in"))
    sink = rows.writeStream.partitionBy("s").option("checkpointLocation", str(tmp_path / "cp"))
    assert sink.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination(60)
    write_file(tmp_path / "out" / "s=a" / "part-00000-of-a-micro-batch-that-failed.parquet", T0 + TEN)
    assert (
        len(
            Run(spark, spark.readStream.schema(rows.schema).parquet(str(tmp_path / "out")), tmp_path / "cp-1")
            .caught_up()
            .rows
        )
        == 10
    )
    assert batch(tmp_path / "out").count() == 10
    for split_by in ("directory", "file"):
        frame = plain(stream(tmp_path / "out", splitBy=split_by))
        assert len(available_now(spark, frame, tmp_path / f"cp-{split_by}").rows) == 10


@pytest.mark.soak
def test_what_sparks_own_writer_appends_to_a_running_query_is_read_with_its_metadata(
    spark: SparkSession, stream: Loader, tmp_path: Path
) -> None:
    def append(number: int) -> None:
        rows = spark.range(number, number + 1).selectExpr("timestamp_seconds(id) AS ts", "id AS k")
        rows.write.mode("append").parquet(str(tmp_path / "in"))

    append(0)
    frame = stream(tmp_path / "in", fileMetadata="true").withWatermark("ts", "10 minutes")
    run = Run(spark, frame.select("k", "_metadata"), tmp_path / "cp")
    for number in range(1, 6):
        append(number)
        run.query.processAllAvailable()
        assert sorted(k for k, _ in run.rows) == [*range(number + 1)]
    columns = ["file_path", "file_name", "file_size", "file_modification_time"]
    own = spark.read.parquet(str(tmp_path / "in")).select("k", *(f"_metadata.{column}" for column in columns))
    assert sorted((k, *file) for k, file in run.rows) == sorted(map(tuple, own.collect()))


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_times_that_spark_writes_are_the_same_moments_in_every_zone(
    spark: SparkSession, batch: Loader, tmp_path: Path, file_format: str
) -> None:
    written = spark.range(3).selectExpr("timestamp_seconds(id) AS ts", "named_struct('at', timestamp_seconds(id)) AS e")
    written.write.format(file_format).save(str(tmp_path / "in"))
    for column, event_time in (("ts", "ts"), ("e.at", "event_time")):
        frame = batch(tmp_path / "in", fileFormat=file_format, eventTimeColumn=column, timeZone="Europe/Berlin")
        rows = frame.selectExpr(f"unix_seconds({event_time})", "unix_seconds(e.at)").collect()
        assert sorted(map(tuple, rows)) == [(0, 0), (1, 1), (2, 2)]


def test_times_without_a_zone_are_those_that_sparks_own_readers_read(
    spark: SparkSession, batch: Loader, tmp_path: Path
) -> None:
    texts = ["2024-03-31 02:30:00", "2024-10-27 02:30:00", "2024-01-01 12:00:00", "2024-01-01T12:00:00Z"]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "f.csv").write_text("".join(f"{text},{text}\n" for text in texts))
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        ddl = "ts timestamp, s string"
        own = spark.read.schema(ddl).csv(str(tmp_path / "in")).selectExpr("unix_micros(ts)").collect()
        of_text = (
            spark.read.schema(ddl).csv(str(tmp_path / "in")).selectExpr("unix_micros(CAST(s AS timestamp))").collect()
        )
        options = {"fileFormat": "csv", "dataSchema": ddl}
        # The session's zone is that of the moment of `load`, whatever it was when the formats were registered.
        frame = (
            read_stream(spark)
            .format("aligned_files")
            .options(eventTimeColumn="ts", **options)
            .load(str(tmp_path / "in"))
        )
        spark.conf.set("spark.sql.session.timeZone", zone)
        run = available_now(spark, frame.selectExpr("unix_micros(ts)"), tmp_path / "cp")
        assert sorted(map(tuple, run.rows)) == sorted(own) == sorted(of_text)
        again = batch(tmp_path / "in", timeZone="Europe/Berlin", **{**options, "eventTimeColumn": "s"})
        assert sorted(again.selectExpr("unix_micros(event_time)").collect()) == sorted(own)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


def test_where_no_zone_is_set_times_without_one_are_in_that_of_the_jvm(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "f.csv").write_text("2024-07-01 12:00:00\n")
    set_zone, zones = spark.conf.get("spark.sql.session.timeZone"), spark._jvm.java.util.TimeZone  # type: ignore[union-attr]
    own_zone = zones.getDefault()
    spark.conf.unset("spark.sql.session.timeZone")
    zones.setDefault(zones.getTimeZone("America/New_York"))
    try:
        own = spark.read.schema("ts timestamp").csv(str(tmp_path / "in")).selectExpr("unix_seconds(ts)").collect()
        options = {"fileFormat": "csv", "dataSchema": "ts timestamp", "eventTimeColumn": "ts"}
        frame = read_stream(spark).format("aligned_files").options(**options).load(str(tmp_path / "in"))
        run = available_now(spark, frame.selectExpr("unix_seconds(ts)"), tmp_path / "cp")
        assert sorted(map(tuple, run.rows)) == sorted(own) == [(1719849600,)]
    finally:
        zones.setDefault(own_zone)
        spark.conf.set("spark.sql.session.timeZone", set_zone)


@pytest.mark.parametrize("split_by", ["directory", pytest.param("file", marks=pytest.mark.soak)])
@pytest.mark.soak
def test_a_bounded_query_that_has_ended_and_is_started_again_warns_that_later_files_are_not_part_of_it(
    spark: SparkSession, stream: Loader, tmp_path: Path, split_by: str
) -> None:
    write_file(tmp_path / "in" / "a" / "part-0.parquet", T0 + TEN)
    frame = plain(stream(tmp_path / "in", bounded="true", splitBy=split_by))
    available_now(spark, frame, tmp_path / "cp", files=tmp_path / "out")
    for number in range(1, 13):
        write_file(tmp_path / "in" / "a" / f"part-{number:02d}.parquet", T0 + TEN)
    with PlannerLog(spark, tmp_path / "log") as log:
        assert len(available_now(spark, frame, tmp_path / "cp", files=tmp_path / "out").rows) == 10
        (line,) = log.lines("not part of this query")
    assert "was read to its end by an earlier run" in line
