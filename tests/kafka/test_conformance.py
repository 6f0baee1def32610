"""The suite for connectors, over partitions of a topic on a real broker."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta

import pytest

from streaming_source.connectors.kafka import KafkaSource
from streaming_source.testing import FakeClock
from streaming_source.testing.conformance import Expected, SourceConformance
from streaming_source.tools.testing.conformance.connector import ROWS
from tests.kafka.topics import MS, Record, Topic


class BesideABroker(FakeClock):
    """A broker does not stand still: whatever time passes here, it is given some to deliver what was written."""

    def advance(self, duration: timedelta | str) -> None:
        super().advance(duration)
        time.sleep(0.03)


class TestPartitions(SourceConformance):
    """Each partition is a split; the event time is the record's own."""

    def set_up(self) -> None:
        super().set_up()
        self.clock = BesideABroker()

    @pytest.fixture(autouse=True)
    def _topic(self, topic: Topic, request: pytest.FixtureRequest) -> None:
        self.topic = topic
        self.partitions = 0
        # A restart for each of a few records is enough: each makes its consumers anew.
        restarts_at_any_step = "restart_at_any_step" in request.node.name
        self.rows = 3 if restarts_at_any_step else ROWS

    def fill(self, splits: int, rows: int = ROWS) -> Expected:
        return super().fill(splits, min(rows, self.rows))

    def create_source(self, bounded: bool) -> KafkaSource:
        return KafkaSource.of(
            self.topic.broker.bootstrap,
            self.topic.name,
            startingOffsets="earliest",
            bounded=bounded,
            discoveryInterval="1 second",
        )

    def write(self, split: int, times_us: Sequence[int]) -> None:
        if not self.partitions:
            self.topic.create(partitions=split + 1)
        elif split >= self.partitions:
            self.topic.add_partitions(split + 1)
        self.partitions = max(self.partitions, split + 1)
        self.topic.write([Record(time_us // MS, partition=split) for time_us in times_us])

    def split_id(self, split: int) -> str:
        return f"{self.topic.name}-{split}"
