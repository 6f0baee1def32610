"""A windowed count over Spark's own Kafka source claims what it writes, to the end of each micro-batch."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from alignment import WatermarkStrategy
from streaming_source import complete_until
from streaming_source.checkpoint.writer import Writer
from streaming_source.connectors.files import FileSource
from streaming_source.exceptions import ClaimError
from streaming_source.testing import SourceHarness
from tests.faults.checks import batches_of_sink
from tests.kafka.test_audit import load, skewed
from tests.kafka.topics import Topic
from tests.spark.support import last_batch

pytestmark = [pytest.mark.spark, pytest.mark.soak]


def committed(table: Path) -> dict[int, list[int]]:
    """The ends of the windows that each micro-batch has written, by the log of the sink."""
    found: dict[int, list[int]] = {}
    for file, batch in batches_of_sink(table).items():
        ends = [row["window"]["end"] for row in pq.ParquetFile(file).read().to_pylist()]
        found.setdefault(batch, []).extend(round(end.timestamp()) * 1_000_000 for end in ends)
    return found


def test_no_window_comes_behind_the_claim_of_a_micro_batch(
    spark_kafka: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    topic.create(3)
    topic.write_logs(skewed(0, 600))
    table, checkpoint = tmp_path / "table", tmp_path / "checkpoint"
    rows = load(spark_kafka, topic, 200).select(F.col("timestamp").alias("ts")).withWatermark("ts", "5 seconds")
    counted = rows.groupBy(F.window("ts", "1 minute")).count().writeStream.format("parquet").option("path", str(table))
    query = counted.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(300)

    writer, windows = Writer(str(checkpoint)), committed(table)
    last = last_batch(checkpoint)
    assert last >= 8
    assert len([batch for batch in windows if windows[batch]]) >= 5
    for batch in range(last + 1):
        claimed = writer.claimed_us(batch)
        assert claimed is not None
        assert not [end for later in range(batch + 1, last + 1) for end in windows.get(later, []) if end <= claimed]
    found = complete_until(str(table), str(checkpoint))
    assert (found.column, found.version, found.until_us) == ("window.end", last, writer.claimed_us(last))
    assert "it reads Spark's own sources" in str(found)

    strategy = WatermarkStrategy.from_source_watermarks().with_timestamp_assigner("window.end")
    done = SourceHarness(FileSource(str(table), watermark_from=str(checkpoint)), strategy)
    done.run()
    assert done.watermark == found.until_us
    assert sum(map(len, done.records().values())) == sum(map(len, windows.values()))
    done.close()


def test_rows_of_a_topic_that_nothing_filters_are_not_claimed(
    spark_kafka: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    topic.create(3)
    topic.write_logs(skewed(0, 30))
    rows = load(spark_kafka, topic, 200).select(F.col("timestamp").alias("ts")).withWatermark("ts", "5 seconds")
    writer = rows.writeStream.format("parquet").option("path", str(tmp_path / "table"))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(300)
    with pytest.raises(ClaimError, match=r"Spark filters no row by the watermark.*read that source with this library"):
        complete_until(str(tmp_path / "table"), str(tmp_path / "checkpoint"))
