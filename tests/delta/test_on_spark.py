"""Delta tables on a real Spark: the table of many devices, by all doors."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from streaming_source import DeltaSource, WatermarkStrategy, explain, from_source, read_stream
from streaming_source.monitoring.explained import explain_checkpoint
from tests.spark.answers import Windows
from tests.spark.support import SECOND, Run, available_now
from tests.spark.twin import Twin, frame

DEVICES, EVERY_S = 6, 525
START = datetime(2025, 1, 1, tzinfo=UTC)


def export(path: Path, rows: int, files: int, devices: int = DEVICES) -> int:
    """Write device after device, as an export leaves a table; return the number of rows."""
    for device in range(devices):
        times = [START + timedelta(seconds=EVERY_S * i + device) for i in range(rows)]
        for part in range(files):
            chunk = times[part * rows // files : (part + 1) * rows // files]
            columns = {"ts": pa.array(chunk, pa.timestamp("us", "UTC")), "device": pa.array([device] * len(chunk))}
            deltalake.write_deltalake(str(path), pa.table(columns), mode="append")
    return devices * rows


def hourly(frame: DataFrame) -> DataFrame:
    return frame.groupBy(F.window("ts", "1 hour"), "device").count().select("device", "count")


def counted(run: Run) -> int:
    return sum(count for _, count in run.rows)


def test_no_row_of_many_devices_is_lost_and_commits_follow(tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    rows = export(tmp_path / "table", 600, 3)
    loaded = frame(table, "aligned_delta", maxRowsPerTrigger=900)
    twin = Twin(tmp_path / "run", loaded, answer=Windows(3600 * SECOND, "device")).run()
    # The last hours are still open: of rows every 525 seconds, the last ones of each device.
    assert rows - 7 * DEVICES <= sum(row[3] for row in twin.rows) < rows
    enumerator = twin.batches[-1].offsets[0]["enumerator"][1]
    assert (enumerator["after"], "steps" in enumerator) == (17, False)
    later = pa.table({"ts": pa.array([START + timedelta(days=9)], pa.timestamp("us", "UTC")), "device": [7]})
    deltalake.write_deltalake(table, later, mode="append")
    deltalake.DeltaTable(table).optimize.compact()
    assert sum(row[3] for row in twin.run().rows) == rows
    assert "has been read to its end" in " ".join(str(explain_checkpoint(str(twin.checkpoint))).split())


@pytest.mark.spark
def test_no_row_of_a_table_is_dropped_by_spark_and_a_later_commit_closes_its_windows(
    spark: SparkSession, tmp_path: Path
) -> None:
    table, files = str(tmp_path / "table"), tmp_path / "counts"
    rows = export(tmp_path / "table", 60, 1, devices=3)
    reader = read_stream(spark).format("aligned_delta").option("eventTimeColumn", "ts").option("maxRowsPerTrigger", 90)
    run = available_now(spark, hourly(reader.load(table)), tmp_path / "run", files=files)
    assert all(row["numRowsDroppedByWatermark"] == 0 for p in run.progress for row in p["stateOperators"])
    later = pa.table({"ts": pa.array([START + timedelta(days=9)], pa.timestamp("us", "UTC")), "device": [7]})
    deltalake.write_deltalake(table, later, mode="append")
    again = available_now(spark, hourly(reader.load(table)), tmp_path / "run", files=files)
    assert counted(again) == rows
    assert "aligned_delta" in str(explain(again.query))


@pytest.mark.spark
@pytest.mark.soak
def test_all_doors_lead_to_a_table(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "table"
    rows = export(path, 20, 1, devices=2)
    options = {"eventTimeColumn": "ts", "timeZone": "UTC"}
    batch = spark.read.format("aligned_delta").options(**options)
    assert batch.load(str(path)).count() == rows
    assert batch.option("versionAsOf", 0).load(str(path)).count() == rows // 2
    spark.sql(f"CREATE TEMPORARY VIEW one USING aligned_delta OPTIONS (path '{path}', eventTimeColumn 'ts')")
    assert spark.sql("SELECT max(device) FROM one").first()[0] == 1
    spark.catalog.dropTempView("one")
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("1 minute").with_timestamp_assigner("ts")
    exact = from_source(spark, DeltaSource(str(path), bounded=True), strategy, "table")
    plain = spark.readStream.format("aligned_delta").options(**options).load(str(path)).withWatermark("ts", "1 minute")
    assert counted(available_now(spark, hourly(exact), tmp_path / "a")) == rows
    assert len(available_now(spark, plain.select("device"), tmp_path / "b").rows) == rows


@pytest.mark.spark
@pytest.mark.soak
def test_of_the_export_of_twelve_devices_no_row_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    """Of the same table Delta's own source, four files a micro-batch and a delay of 1 hour, counts 107,987 rows."""
    rows = export(tmp_path / "table", 60_000, 5, devices=12)
    reader = read_stream(spark).format("aligned_delta").option("eventTimeColumn", "ts").option("bounded", True)
    frame = reader.option("maxRowsPerTrigger", 48_000).load(str(tmp_path / "table"))

    run = available_now(spark, hourly(frame), tmp_path / "run", files=tmp_path / "counts")

    assert (counted(run), len(run.rows)) == (rows, 105_000)
    assert rows == 720_000
