"""Run a query over a topic with Spark's own Kafka source, as a process that a test kills."""

from __future__ import annotations

import sys

from tests.auditing.counting import count_by_minute, session


def main(jars: str, bootstrap: str, topic: str, checkpoint: str, sink: str) -> None:
    reader = session(jars).readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
    rows = reader.option("maxOffsetsPerTrigger", 60).load().withWatermark("timestamp", "5 seconds")
    count_by_minute(rows, "timestamp", checkpoint, sink)


main(*sys.argv[1:])
