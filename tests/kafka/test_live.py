"""A query while producers write at different speeds, one falls silent, partitions are added, the broker is killed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from streaming_source import read_stream
from tests.kafka.broker import KafkaBroker
from tests.kafka.support import format_options
from tests.kafka.topics import MS, Record, Topic
from tests.spark.support import SECOND, T0, Run, end_offset, eventually

pytestmark = pytest.mark.spark

TICK_S = 0.05


class Writing:
    """One producer that writes to some partitions, each at a speed of its own, a second of event time a tick."""

    def __init__(self, topic: Topic, producer: Producer, speeds: dict[int, int]) -> None:
        self._topic = topic
        self._producer = producer
        self._lock = threading.Lock()
        self._speeds = dict(speeds)
        self._ended = threading.Event()
        self.second = 0

    def run(self) -> None:
        while not self._ended.wait(TICK_S):
            with self._lock:
                for partition, speed in self._speeds.items():
                    start_ms = T0 // MS + self.second * 1000
                    times = (start_ms + i * 1000 // speed for i in range(speed))
                    self._topic.send(self._producer, (Record(t, b"live", partition=partition) for t in times))
                self.second += 1
            self._producer.poll(0)

    def set(self, partition: int, speed: int) -> int:
        """Write to it from now on at this speed; 0 to fall silent. Returns the second of event time it is."""
        # A producer learns of partitions when it asks for them.
        assert partition in self._producer.list_topics(self._topic.name).topics[self._topic.name].partitions
        with self._lock:
            self._speeds[partition] = speed
            if not speed:
                del self._speeds[partition]
            return self.second

    def end(self) -> None:
        self._ended.set()


@contextmanager
def writing(topic: Topic, speeds: dict[int, int]) -> Iterator[Writing]:
    # Idempotent: what is sent again after the broker was killed is not written again.
    with topic.producer(enable_idempotence=True, reconnect_backoff_max_ms=200) as producer:
        begun = Writing(topic, producer, speeds)
        thread = threading.Thread(target=begun.run)
        thread.start()
        try:
            yield begun
        finally:
            begun.end()
            thread.join()


@pytest.mark.soak
def test_a_live_run_reads_every_record_once_and_tells_what_is_late(
    spark: SparkSession, own_broker: KafkaBroker, tmp_path: Path
) -> None:
    topic = Topic(own_broker).create(partitions=3)
    options = format_options(
        topic,
        includeMetadata="true",
        maxOutOfOrderness="1 second",
        idleTimeout="2 seconds",
        discoveryInterval="200 ms",
    )
    frame = read_stream(spark).format("aligned_kafka").options(**options).load()
    rows = frame.select("partition", "offset", "_late", F.unix_micros("timestamp"))
    run = Run(spark, rows, tmp_path / "cp", trigger={"processingTime": "200 milliseconds"})

    def offset() -> dict[str, Any]:
        done = [p for p in run.progress if p["sources"][0]["endOffset"] is not None]
        return end_offset(done[-1]) if done else {"watermark": 0, "splits": []}

    def await_watermark(second: int, why: str) -> None:
        eventually(lambda: offset()["watermark"] > T0 + second * SECOND, why, run.query, 90)

    with writing(topic, {0: 20, 1: 1, 2: 5}) as live:
        await_watermark(20, "the watermark to follow the producers")

        silent_at = live.set(2, 0)
        await_watermark(silent_at + 20, "the watermark to go on without the silent partition")
        statuses = {entry[0][1]: entry[2] for entry in offset()["splits"]}
        assert statuses[2] == "idle"

        topic.add_partitions(4)
        live.set(3, 3)
        eventually(lambda: any(e[0][1] == 3 for e in offset()["splits"]), "the new partition", run.query)

        own_broker.kill()
        killed_at = live.second
        # Longer than idleTimeout: a partition of a broker that does not answer must not be taken for an idle one.
        eventually(lambda: live.second > killed_at + 3 / TICK_S, "time to pass without a broker", run.query)
        own_broker.start()
        await_watermark(live.second + 5, "the watermark to go on with the broker")

        announced = offset()["watermark"]
        old = [Record(T0 // MS + (silent_at + i) * 1000, b"old", partition=2) for i in range(25)]
        assert max(record.time_us for record in old) <= announced
        topic.write(old)
        eventually(lambda: len([row for row in run.rows if row[0] == 2]) >= 25, "the old records", run.query)
        resumed_at = live.set(2, 5)
        await_watermark(resumed_at + 5, "the watermark to go on with all partitions")

    written = topic.read()
    total = sum(map(len, written.values()))
    eventually(lambda: len(run.rows) >= total, "all records", run.query)
    run.caught_up()
    found = run.rows
    assert [row[:2] for row in found] == [(p, r.offset) for p, log in sorted(written.items()) for r in log]
    assert [row[3] for row in found] == [r.time_us for _, log in sorted(written.items()) for r in log]
    late = Counter(row[0] for row in found if row[2])
    assert late == {2: 25}
    counted = {entry[0][1]: entry[3] for entry in offset()["splits"] if any(entry[3:4])}
    assert counted == late
