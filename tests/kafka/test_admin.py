"""What the planner asks of brokers beside records, where the client would answer from what it heard long ago."""

from __future__ import annotations

import itertools

import pytest

from streaming_source.connectors.kafka.admin import KafkaAdmin
from streaming_source.connectors.kafka.client_config import ClientConfig
from streaming_source.connectors.kafka.faults import BrokerRetries
from streaming_source.connectors.kafka.subscription import EARLIEST, LATEST, Partition
from tests.kafka.broker import KafkaBroker
from tests.kafka.topics import Record, Topic, wait_until

T0_MS = 1_700_000_040_000


def admin_of(broker: KafkaBroker, patience_s: float) -> KafkaAdmin:
    return KafkaAdmin(ClientConfig.of({"bootstrap.servers": broker.bootstrap}), BrokerRetries(patience_s))


def write(topic: Topic, partition: int, n: int) -> None:
    topic.write(Record(T0_MS + i, partition=partition) for i in range(n))


def test_offsets_of_partitions_that_were_added_since_the_first_question(topic: Topic) -> None:
    topic.create(partitions=1)
    write(topic, 0, 3)
    admin = admin_of(topic.broker, 5)
    first, second = Partition(topic.name, 0), Partition(topic.name, 1)
    assert admin.offsets({first: LATEST}) == {first: 3}
    topic.add_partitions(2)
    write(topic, 1, 5)
    assert admin.offsets({first: LATEST, second: LATEST}) == {first: 3, second: 5}
    assert admin.offsets({first: T0_MS + 1, second: EARLIEST}) == {first: 1, second: 0}


def test_of_partitions_that_are_not_there_there_is_no_answer(topic: Topic) -> None:
    topic.create(partitions=1)
    there, gone = Partition(topic.name, 0), Partition(topic.name, 7)
    admin = admin_of(topic.broker, 5)
    assert admin.offsets({there: LATEST, gone: LATEST}) == {there: 0}


@pytest.mark.parametrize("deleted", [False, True], ids=["never-there", "deleted"])
def test_that_nothing_is_there_any_more_is_an_answer_and_no_trouble(topic: Topic, deleted: bool) -> None:
    part = Partition(topic.name, 0)
    # Any trial that fails is the last one.
    clock = itertools.count(step=1000.0).__next__
    config = ClientConfig.of({"bootstrap.servers": topic.broker.bootstrap})
    admin = KafkaAdmin(config, BrokerRetries(60, clock))
    if deleted:
        topic.create(partitions=1)
        assert admin.offsets({part: LATEST}) == {part: 0}
        topic.delete()
    # A broker may know for a moment longer what it leads.
    wait_until(lambda: admin.offsets({part: LATEST}) == {}, "nothing to be there")


# In make test a query has to go on with such a broker, in test_faults.py.
@pytest.mark.soak
def test_offsets_after_the_broker_was_killed_and_came_back(own_broker: KafkaBroker) -> None:
    topic = Topic(own_broker).create(partitions=1)
    write(topic, 0, 3)
    admin = admin_of(own_broker, 20)
    part = Partition(topic.name, 0)
    assert admin.offsets({part: LATEST}) == {part: 3}
    own_broker.kill()
    own_broker.start()
    write(topic, 0, 4)
    assert admin.offsets({part: LATEST}) == {part: 7}
