"""Three brokers: partitions are moved between them, led by others, and added, while a query reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from streaming_source import read_stream
from tests.kafka.broker import KafkaBroker
from tests.kafka.support import format_options
from tests.kafka.test_lost_leader import JoiningBroker
from tests.kafka.topics import Record, Topic, wait_until
from tests.spark.support import T0, Run, eventually

pytestmark = [pytest.mark.soak, pytest.mark.spark]

T0_MS = T0 // 1000
EACH = 300
"""Records of each partition in one step, a second apart."""


@pytest.fixture
def three_brokers(own_broker: KafkaBroker, kafka_jars: list[Path], tmp_path: Path) -> Iterator[list[KafkaBroker]]:
    with ExitStack() as stack:
        brokers = [own_broker]
        for number in (2, 3):
            brokers.append(JoiningBroker(tmp_path / f"broker-{number}", kafka_jars, own_broker, number))
            stack.callback(brokers[-1].stop)
            brokers[-1].start()
        yield brokers


class Moving:
    """A topic whose replicas the test moves."""

    def __init__(self, brokers: list[KafkaBroker], replicas: list[list[int]]) -> None:
        self.brokers = brokers
        self.topic = Topic(brokers[0])
        self.admin = AdminClient({"bootstrap.servers": ",".join(broker.bootstrap for broker in brokers)})
        new = NewTopic(self.topic.name, num_partitions=len(replicas), replica_assignment=replicas)
        Topic._done(self.admin.create_topics([new]))
        self.written = 0
        self.total = 0

    def write(self, partitions: int) -> None:
        first, self.written = self.written, self.written + EACH
        self.total += EACH * partitions
        self.topic.write(
            Record(T0_MS + 1000 * i, b"%d" % i, partition=partition)
            for i in range(first, first + EACH)
            for partition in range(partitions)
        )

    def placed(self) -> dict[int, tuple[int, list[int]]]:
        """Leader and replicas by partition."""
        found = self.admin.list_topics(self.topic.name, timeout=30).topics[self.topic.name].partitions
        return {number: (part.leader, list(part.replicas)) for number, part in found.items()}

    def reassign(self, replicas: list[list[int]], folder: Path) -> None:
        """Move each partition to these brokers, and wait until it is there alone."""
        moves = [{"topic": self.topic.name, "partition": number, "replicas": to} for number, to in enumerate(replicas)]
        plan = folder / "plan.json"
        plan.write_text(json.dumps({"version": 1, "partitions": moves}))
        tool = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
        where = ("--bootstrap-server", self.brokers[0].bootstrap, "--reassignment-json-file", str(plan))
        self.brokers[0].run_tool(tool, *where, "--execute")
        wait_until(
            lambda: [sorted(on) for _, on in self.placed().values()] == [sorted(to) for to in replicas], "the move", 60
        )

    def elect_preferred(self) -> None:
        wanted = [TopicPartition(self.topic.name, number) for number in self.placed()]

        def elected() -> bool:
            try:
                self.admin.elect_leaders(ElectionType.PREFERRED, wanted).result(30)
            except KafkaException:
                return False
            return all(leader == on[0] for leader, on in self.placed().values())

        wait_until(elected, "the preferred leaders", 60)


@pytest.mark.parametrize("indexing", ["auto", "scan", "off"])
def test_each_record_is_counted_once_while_partitions_are_moved_elected_and_added(
    spark: SparkSession, three_brokers: list[KafkaBroker], tmp_path: Path, indexing: str
) -> None:
    moving = Moving(three_brokers, [[1, 2], [2, 3], [3, 1]])
    topic = moving.topic
    brokers = ",".join(broker.bootstrap for broker in three_brokers)
    given = format_options(
        topic,
        **{
            "kafka.bootstrap.servers": brokers,
            "indexing": indexing,
            "maxOutOfOrderness": "5 seconds",
            "discoveryInterval": "1 second",
            "maxRowsPerTrigger": 200,
            "idleTimeout": "1 hour",
        },
    )
    frame = read_stream(spark).format("aligned_kafka").options(**given).load()
    # Partitions that are added may come too late for a window: of the others no record may.
    minutes = F.window("timestamp", "1 minute")
    counted = frame.where("partition < 3").groupBy(minutes).count().select("window.start", "count")
    plain = frame.select("partition", "offset")
    runs = [Run(spark, plain, tmp_path / "plain"), Run(spark, counted, tmp_path / "counted")]

    def has_read_all() -> bool:
        return len(runs[0].rows) >= moving.total

    try:
        moving.write(3)
        moving.reassign([[2, 3], [3, 1], [1, 2]], tmp_path)
        moving.write(3)
        eventually(has_read_all, "what was written while partitions moved", runs[0].query)
        # One is away for a while, and others lead what it led; then it leads again.
        three_brokers[2].stop()
        moving.write(3)
        three_brokers[2].start()
        moving.elect_preferred()
        moving.write(3)
        eventually(has_read_all, "what was written before and after the election", runs[0].query)
        # To brokers that had none of it.
        moving.reassign([[1], [1], [3]], tmp_path)
        topic.add_partitions(5)
        moving.write(5)
        moving.reassign([[3], [2], [1], [2], [3]], tmp_path)
        moving.write(5)
        eventually(has_read_all, "the partitions that were added", runs[0].query)
        runs[1].query.processAllAvailable()
        rows = [tuple(row) for row in runs[0].rows]
        batch = spark.read.format("aligned_kafka").options(**format_options(topic)).load()
        there = sorted((row.partition, row.offset) for row in batch.select("partition", "offset").collect())
        assert sorted(rows) == there
        assert len(there) == moving.total == 4 * 3 * EACH + 2 * 5 * EACH
        counts = dict(runs[1].rows)
        whole = batch.where("partition < 3").groupBy(minutes).count().select("window.start", "count").collect()
        assert counts.items() <= dict(map(tuple, whole)).items()
        assert len(counts) >= len(whole) - 2
    finally:
        for run in runs:
            run.query.stop()
