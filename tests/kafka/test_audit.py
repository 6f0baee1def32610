"""An audit of queries over Spark's own Kafka source counts what Spark dropped, to the row and by partition."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import streaming_source
from streaming_source.exceptions import OptionError
from tests.auditing import naive
from tests.auditing.killed import killed_and_restarted, sink_of
from tests.auditing.naive import SECOND, Query, Time
from tests.auditing.test_on_spark import Sink, assert_counted, run
from tests.kafka.artifacts import SPARK_CONNECTOR, ArtifactsMissingError
from tests.kafka.topics import Record, Topic, whole_ms
from tests.spark.support import forget_batches, last_batch

pytestmark = pytest.mark.spark

MINUTE = 60 * SECOND
QUERY = Query(5_000, MINUTE, MINUTE)


def skewed(first: int, rows: int) -> dict[int, list[int]]:
    """Three partitions, of which the first is eight times as fast; whole milliseconds."""
    draw = np.random.default_rng(first)
    return {
        part: [
            naive.T0 + i * SECOND * (1 if part else 8) + int(draw.integers(0, 2_000)) * 1_000
            for i in range(first, first + rows)
        ]
        for part in range(3)
    }


def load(spark: SparkSession, topic: Topic, rows: int) -> DataFrame:
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", topic.broker.bootstrap)
    reader = reader.option("subscribe", topic.name).option("startingOffsets", "earliest")
    return reader.option("maxOffsetsPerTrigger", rows).load()


def logged(checkpoint: Path, topic: Topic, logs: dict[int, list[int]]) -> list[list[tuple[str, list[Time]]]]:
    """The records of each micro-batch, by the offset log."""
    found, begin = [], dict.fromkeys(logs, 0)
    for number in range(last_batch(checkpoint) + 1):
        ends = json.loads((checkpoint / f"offsets/{number}").read_text().splitlines()[2])[topic.name]
        batch: list[tuple[str, list[Time]]] = []
        for part, times in logs.items():
            end = ends.get(str(part), begin[part])
            if end > begin[part]:
                batch.append((f"{topic.name}-{part}", list(times[begin[part] : end])))
            begin[part] = end
        found.append(batch)
    return found


@pytest.mark.soak
@pytest.mark.parametrize("trigger", ["availableNow", "processingTime"])
def test_a_query_that_was_killed_and_restarted_is_counted_to_the_record(
    spark_kafka: SparkSession, topic: Topic, tmp_path: Path, trigger: str
) -> None:
    checkpoint, sink = tmp_path / "checkpoint", Sink("append")
    topic.create(3)
    logs = skewed(0, 90)
    topic.write_logs(logs)
    frame = load(spark_kafka, topic, 60).select(F.col("timestamp").alias("ts")).withWatermark("ts", "5 seconds")
    run(frame, QUERY, sink, checkpoint, trigger=trigger)
    forget_batches(checkpoint / "commits", last_batch(checkpoint))
    more = skewed(90, 60)
    topic.write_logs(more, first=90)
    logs = {part: [*times, *more[part]] for part, times in logs.items()}
    run(frame, QUERY, sink, checkpoint, trigger=trigger)

    found = streaming_source.audit(
        str(checkpoint), window="1 minute", mode="append", options={"kafka.bootstrap.servers": topic.broker.bootstrap}
    )

    done = naive.run(QUERY, logged(checkpoint, topic, logs))
    assert_counted(found, done, sink, QUERY, checkpoint)
    assert found.dropped > 0
    assert found.carriers[0].split == f"{topic.name}-0"


@pytest.mark.soak
def test_a_query_whose_driver_was_killed_by_sigkill_is_counted_to_the_record(topic: Topic, tmp_path: Path) -> None:
    try:
        jars = ",".join(map(str, SPARK_CONNECTOR.jars()))
    except ArtifactsMissingError as error:
        pytest.skip(f"no source of Spark's own for Kafka: {error}")
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "sink"
    topic.create(3)
    logs = skewed(0, 400)
    topic.write_logs(logs)
    servers = topic.broker.bootstrap
    arguments = (jars, servers, topic.name, checkpoint, out)
    killed_at = killed_and_restarted("tests.auditing.kafka_query", arguments, checkpoint, tmp_path / "first.log")
    assert killed_at < last_batch(checkpoint) - 1

    found = streaming_source.audit(
        str(checkpoint), window="1 minute", mode="append", options={"kafka.bootstrap.servers": servers}
    )

    assert_counted(found, naive.run(QUERY, logged(checkpoint, topic, logs)), sink_of(out), QUERY, checkpoint)
    assert found.dropped > 0


@pytest.mark.soak
def test_records_behind_retention_are_unknown(spark_kafka: SparkSession, topic: Topic, tmp_path: Path) -> None:
    checkpoint, sink = tmp_path / "checkpoint", Sink("append")
    topic.create(3)
    logs = skewed(0, 90)
    topic.write_logs(logs)
    frame = load(spark_kafka, topic, 60).select(F.col("timestamp").alias("ts")).withWatermark("ts", "5 seconds")
    run(frame, QUERY, sink, checkpoint)
    topic.delete_records({1: 30})

    found = streaming_source.audit(
        str(checkpoint), window="1 minute", mode="append", options={"kafka.bootstrap.servers": topic.broker.bootstrap}
    )

    assert (found.read, found.unknown) == (270, 30)
    assert "Not all can be seen any more; of 30 rows it is unknown" in str(found)
    done = naive.run(QUERY, logged(checkpoint, topic, logs))
    others = [row for row in found.splits().to_pylist() if row["split"] != f"{topic.name}-1"]
    assert [row["dropped"] for row in others] == [done.counts[row["split"]]["dropped"] for row in others]
    assert found.notes == ()


def test_the_event_time_may_be_in_the_value(spark_kafka: SparkSession, topic: Topic, tmp_path: Path) -> None:
    checkpoint, sink = tmp_path / "checkpoint", Sink("append")
    topic.create(3)
    logs = skewed(0, 60)
    for part, times in logs.items():
        topic.write(Record(whole_ms(naive.T0), json.dumps({"at": t // 1_000}).encode(), partition=part) for t in times)
    parsed = F.from_json(F.col("value").cast("string"), "at long")["at"]
    frame = load(spark_kafka, topic, 60).select(F.timestamp_millis(parsed).alias("ts")).withWatermark("ts", "5 seconds")
    run(frame, QUERY, sink, checkpoint)
    servers = {"kafka.bootstrap.servers": topic.broker.bootstrap}
    values = {"valueFormat": "json", "valueSchema": "at BIGINT", "timestampUnit": "ms"}

    found = streaming_source.audit(
        str(checkpoint), window="1 minute", mode="append", time="value.at", options={**servers, **values}
    )
    by_record = streaming_source.audit(str(checkpoint), window="1 minute", mode="append", options=servers)

    assert_counted(found, naive.run(QUERY, logged(checkpoint, topic, logs)), sink, QUERY, checkpoint)
    assert "from micro-batch 0 on the event times do not lead to the watermarks" in str(by_record.query.undecided)
    assert (by_record.dropped, by_record.unknown) == (0, by_record.read)
    seconds = {**servers, **values, "timestampUnit": "s"}
    wrong_unit = streaming_source.audit(str(checkpoint), mode="append", time="value.at", options=seconds)
    assert wrong_unit.unknown == wrong_unit.read
    assert "55840-11-" in str(wrong_unit)
    with pytest.raises(OptionError, match=r"its state has windows of 1 minute; leave it out"):
        streaming_source.audit(str(checkpoint), window="1 hour", mode="append", options=servers)
    with pytest.raises(OptionError, match=r"mode = 'complete' is not the query's"):
        streaming_source.audit(str(checkpoint), mode="complete", options=servers)
    with pytest.raises(OptionError, match=r"does not keep its brokers; give them with -o kafka\.bootstrap\.servers"):
        streaming_source.audit(str(checkpoint), window="1 minute", mode="append")
