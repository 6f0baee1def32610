"""Writers that write their offsets after the data claim nothing, and Spark lets none of them write files.

Nor Delta tables, by the same checks: its sink is not among those that are allowed either (tried on 4.2).
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter

from streaming_source import complete_until, read_stream
from streaming_source.exceptions import ClaimError
from tests.faults.killed_process import KilledQueryLog
from tests.spark.support import eventually

pytestmark = pytest.mark.spark

SECOND = 1_000_000
ASYNC = {"asyncProgressTrackingEnabled": "true", "asyncProgressTrackingCheckpointIntervalMs": "600000"}


@pytest.fixture
def writer(spark: SparkSession, tmp_path: Path) -> DataStreamWriter:
    """Of rows in several micro-batches into Parquet files."""
    (tmp_path / "raw").mkdir()
    times = pa.array(range(0, 120 * SECOND, SECOND), pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"ts": times}), tmp_path / "raw/0.parquet")
    reader = read_stream(spark).format("aligned_files").option("eventTimeColumn", "ts").option("maxRowsPerTrigger", 30)
    made = reader.load(str(tmp_path / "raw")).writeStream.format("parquet").option("path", str(tmp_path / "table"))
    return made.option("checkpointLocation", str(tmp_path / "checkpoint"))


def test_spark_refuses_them(writer: DataStreamWriter) -> None:
    with pytest.raises(Exception, match="does not support async progress tracking"):
        writer.options(**ASYNC).start()
    with pytest.raises(Exception, match="FileStreamSink is not in the sink allowlist for Real-Time Mode"):
        writer.trigger(realTime="5 minutes").start()


@pytest.mark.soak
def test_one_that_runs_all_the_same_is_refused_by_its_missing_offsets(writer: DataStreamWriter, tmp_path: Path) -> None:
    """By an option of Spark's own tests."""
    query = writer.options(**ASYNC, _asyncProgressTrackingOverrideSinkSupportCheck="true").start()
    written = tmp_path / "table/_spark_metadata"
    eventually(lambda: len([*written.glob("[0-9]*")]) >= 3, "three micro-batches", query)
    log = KilledQueryLog(tmp_path / "checkpoint")
    assert log.last("offsets") < 2, "the data of a micro-batch are there before its offsets"
    with pytest.raises(ClaimError, match=r"no offsets of that .* asyncProgressTrackingEnabled"):
        complete_until(str(tmp_path / "table"), str(log.checkpoint))
    query.stop()
