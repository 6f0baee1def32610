"""Hop 2 names hop 1 where that holds it, by real queries; `explain --through` and `complete` name the cause there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from typer.testing import CliRunner

from streaming_source import complete_until, explain, read_stream
from streaming_source.tools.cli.main import app
from tests.spark.support import SECOND, T0, end_offset, eventually

pytestmark = [pytest.mark.spark, pytest.mark.soak]

NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"


@pytest.fixture
def data_alone(spark: SparkSession) -> Iterator[None]:
    """Spark runs no micro-batches without data."""
    spark.conf.set(NO_DATA, "false")
    yield
    spark.conf.unset(NO_DATA)


def add(root: Path, split: str, *seconds: int) -> None:
    times = pa.array([T0 + second * SECOND for second in seconds], pa.timestamp("us", "UTC"))
    folder = root / "raw" / f"split={split}"
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"ts": times}), folder / f"{seconds[0]:04}.parquet")


def rows(spark: SparkSession, root: Path, name: str, column: str = "ts") -> DataFrame:
    reader = read_stream(spark).format("aligned_files").option("eventTimeColumn", column)
    if name == "raw":
        return reader.option("splitBy", "directory").load(f"{root}/raw").select("ts")
    return reader.option("watermarkFrom", f"{root}/cp/{name}").load(f"{root}/{name}")


def write(frame: DataFrame, root: Path, name: str) -> None:
    """Write all that there is by Spark's file sink."""
    writer = frame.writeStream.format("parquet").option("path", f"{root}/{name}").trigger(availableNow=True)
    writer.option("checkpointLocation", f"{root}/cp/{name}").start().awaitTermination()


def test_the_writer_upstream_is_the_cause_and_its_split_that_of_the_writer(spark: SparkSession, tmp_path: Path) -> None:
    add(tmp_path, "ahead", 0, 300)
    add(tmp_path, "behind", 0, 60)
    write(rows(spark, tmp_path, "raw"), tmp_path, "bronze")
    bronze = f"{tmp_path}/cp/bronze"
    counts = rows(spark, tmp_path, "bronze").groupBy(F.window("ts", "1 minute")).count()
    query = counts.writeStream.format("memory").queryName("upstream").trigger(processingTime="0 seconds")
    query = query.option("checkpointLocation", f"{tmp_path}/cp/silver").start()
    eventually(lambda: query.lastProgress and end_offset(query.lastProgress).get("watermark"), "no claim was read")
    query.processAllAvailable()
    (source,) = explain(query).sources
    assert (source.report.cause, source.report.explanation.upstream) == ("upstream", bronze)
    assert f"the writer of what is read here, {bronze}, has claimed" in source.report.sentence
    through = CliRunner().invoke(app, ["explain", f"{tmp_path}/cp/silver", "--through", "--json"])
    silver, first = (one["sources"][0] for one in json.loads(through.stdout)["hops"])
    assert (silver["cause"], silver["upstream"]) == ("upstream", bronze)
    assert first["heldBy"] == ["split=behind"]
    query.stop()
    complete = complete_until(f"{tmp_path}/bronze", bronze)
    assert complete.until_us == T0 + 60 * SECOND - 1
    assert complete.holder.held_by == ("split=behind",)


@pytest.mark.usefixtures("data_alone")
def test_a_writer_without_micro_batches_without_data_claims_later_and_complete_says_why(
    spark: SparkSession, tmp_path: Path
) -> None:
    def run() -> int | None:
        write(rows(spark, tmp_path, "raw").groupBy(F.window("ts", "1 minute")).count(), tmp_path, "silver")
        found = complete_until(f"{tmp_path}/silver", f"{tmp_path}/cp/silver")
        assert NO_DATA in str(found)
        return found.until_us

    add(tmp_path, "a", 0, 90)
    assert run() is None
    add(tmp_path, "a", 150, 200)
    assert run() == (T0 + 90 * SECOND - 1) // 1000 * 1000
