"""`eventLog` of a query over Kafka, with answers of the broker's time index in it, replays to its micro-batches."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from alignment.simulation import RecordedWorkload
from streaming_source import read_stream
from streaming_source.monitoring.history import History
from tests.kafka.support import BOUND, SKEWS, format_options
from tests.kafka.topics import Topic
from tests.spark.support import available_now
from tests.spark.test_event_log import replayed_rows

pytestmark = pytest.mark.spark


@pytest.mark.soak
def test_the_log_of_a_query_over_a_topic_replays_to_its_micro_batches(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    topic.create(3).write_logs(SKEWS["one-fast"])
    options = {"maxOutOfOrderness": BOUND, "maxDrift": "1 minute", "maxRowsPerTrigger": 300}
    given = format_options(topic, eventLog=tmp_path / "log", **options)
    frame = read_stream(spark).format("aligned_kafka").options(**given).load()
    run = available_now(spark, frame.select("offset"), tmp_path / "cp")
    assert len(run.rows) == sum(len(times) for times in SKEWS["one-fast"].values())
    assert len(run.progress) > 2
    assert replayed_rows(tmp_path / "log") == len(run.rows)
    # What brokers say of their indexes is enough to play it with other settings, too.
    workload = RecordedWorkload.of_log(tmp_path / "log")
    recorded, other = workload.compare(max_drift=["none"], max_rows=[200]).outcomes
    # Without the micro-batch that says that the run has ended.
    read = [rows for rows in History.of_progress(run.progress).sources()["rows"].to_pylist() if rows]
    assert recorded.trace.rows.tolist()[: len(read)] == read
    assert other.trace.rows.sum() == len(run.rows)
    assert other.trace.rows.max() == 200
