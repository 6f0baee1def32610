"""Iceberg tables on a real Spark: every row counted, by each way in, and while the table is written."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from streaming_source import IcebergSource, WatermarkStrategy, from_source, read_stream
from tests.iceberg.tables import SECOND, append, batch_times, catalog_options, create, properties_in, rows
from tests.spark.support import available_now

pytestmark = pytest.mark.spark

DEVICES, ROWS = 12, 600


@pytest.fixture(scope="module")
def skewed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Table]:
    """A year of twelve devices, exported one after another: 7,200 rows in 24 files."""
    folder = tmp_path_factory.mktemp("skewed")
    table = create(folder, rows([0], device=0).schema)
    start, step = 1_735_689_600 * SECOND, 52_500 * SECOND
    for device in range(DEVICES):
        times = [start + step * i + device * SECOND for i in range(ROWS)]
        for part in (times[: ROWS // 2], times[ROWS // 2 :]):
            append(table, part, device=device)
    return folder, table


def options(folder: Path, **given: Any) -> dict[str, str]:
    catalog = {f"catalog.{name}": value for name, value in {"name": "tests", **catalog_options(folder)}.items()}
    return {"eventTimeColumn": "ts", "timeZone": "UTC", **catalog, **{name: str(of) for name, of in given.items()}}


def windows(frame: DataFrame) -> DataFrame:
    counted = frame.groupBy(F.window("ts", "1 hour"), "device").count()
    return counted.select(F.unix_micros("window.start").alias("start"), "device", "count")


@pytest.mark.soak
def test_every_row_of_an_export_is_counted(spark: SparkSession, skewed: tuple[Path, Table], tmp_path: Path) -> None:
    folder, _ = skewed
    given = options(folder, maxRowsPerTrigger=900, maxOutOfOrderness="0 seconds", bounded="true")
    frame = windows(read_stream(spark).format("aligned_iceberg").options(**given).load("db.t"))

    run = available_now(spark, frame, tmp_path / "checkpoint")

    assert sum(count for _, _, count in run.rows) == DEVICES * ROWS
    assert len(run.rows) == len({(start, device) for start, device, _ in run.rows})
    assert len(run.progress) >= 8


def test_each_way_in_leads_to_the_table(spark: SparkSession, skewed: tuple[Path, Table]) -> None:
    folder, table = skewed
    session, given = spark.newSession(), options(folder)
    first = table.refresh().history()[0].snapshot_id
    batch = session.read.format("aligned_iceberg").options(**given)
    assert batch.load("db.t").count() == DEVICES * ROWS
    assert batch.option("snapshot-id", first).load("db.t").count() == ROWS // 2
    assert session.readStream.format("aligned_iceberg").options(**given).load("db.t").isStreaming
    named = ", ".join(f"`{name}` '{value}'" for name, value in given.items())
    session.sql(f"CREATE TEMPORARY VIEW devices USING aligned_iceberg OPTIONS (table 'db.t', {named})")
    assert session.sql("SELECT count(DISTINCT device), max(ts) - min(ts) > INTERVAL 300 DAY FROM devices").head() == (
        DEVICES,
        True,
    )
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("ts")
    source = IcebergSource("db.t", catalog=properties_in(folder))
    assert from_source(session, source, strategy, "devices", batch=True).count() == DEVICES * ROWS


@pytest.mark.soak
def test_a_table_is_read_while_it_is_written_and_after_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    table = create(tmp_path / "t", rows([0], n=0).schema)
    for part in range(4):
        append(table, [(100 * part + i) * SECOND for i in range(30)], n=part)
    written = threading.Event()

    def write() -> None:
        for part in range(4, 10):
            append(table, [(60 * part + i) * SECOND for i in range(30)], n=part)
        written.set()

    given = options(tmp_path / "t", maxRowsPerTrigger=40)
    frame = read_stream(spark).format("aligned_iceberg").options(**given).load("db.t")
    out = tmp_path / "out"
    writer = threading.Thread(target=write)
    writer.start()
    query = (
        frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .format("parquet")
        .option("path", str(out))
        .start()
    )
    try:
        assert written.wait(90)
    finally:
        query.stop()
        writer.join()
    append(table, [5000 * SECOND], n=10)

    available_now(spark, frame, tmp_path / "checkpoint", files=out)

    read = spark.read.parquet(str(out))
    found = read.select(F.unix_micros("ts").alias("at")).toArrow()["at"]
    assert sorted(found.cast(pa.int64()).to_pylist()) == batch_times(table)
