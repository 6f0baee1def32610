"""No broker answers, or a transaction stays open: `explain`, the progress and the log name it with its numbers."""

from __future__ import annotations

import pytest

from alignment.explain import Cause, Explanation
from streaming_source.connectors.kafka.faults import Away
from streaming_source.monitoring.causes.answer import cause_of, sentence
from streaming_source.monitoring.report import WatermarkReport
from tests.kafka.broker import KafkaBroker
from tests.kafka.support import reading, records
from tests.kafka.test_faults import T0_MS, numbered
from tests.kafka.topics import Record, Topic, wait_until
from tests.spark.reading import Reading


def explained(begun: Reading) -> Explanation:
    """What the progress of a trigger would have, through its JSON."""
    begun.next()
    planning = begun.reader._planning
    found = planning._coordinator.explain()
    assert found is not None
    read = WatermarkReport.from_json(WatermarkReport("orders", 1, found).to_json()).explanation
    assert sentence(read) == sentence(found)
    return found


@pytest.mark.parametrize("indexing", ["auto", *(pytest.param(i, marks=pytest.mark.soak) for i in ("scan", "off"))])
def test_brokers_that_are_all_down_are_the_reason_and_named(
    own_broker: KafkaBroker, indexing: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = Topic(own_broker).create(partitions=2)
    topic.write([*numbered(10), *numbered(10, partition=1)])
    seen: list[Record] = []

    def have(n: int) -> bool:
        table = begun.next()
        seen.extend(records(table) if table is not None else ())
        return len(seen) >= n

    with reading(topic, idleTimeout="1 hour", indexing=indexing, watermarkRows="true") as begun:
        wait_until(lambda: have(20), "what is there")
        own_broker.kill()
        wait_until(lambda: cause_of(explained(begun)) is Cause.SOURCE, "the reason", 60)
        text = sentence(explained(begun))
        assert "cannot be reached, like all 2 splits" in text
        assert f"no Kafka broker at {own_broker.bootstrap} has answered since " in text
        assert "the query fails at " in text
        assert "has been read" not in text
        assert "idle" not in text
        assert any("See that they run" in record.message for record in caplog.records)
        own_broker.start()
        topic.write(numbered(10, 10))
        wait_until(lambda: have(30), "what was written afterwards", 60)
        wait_until(lambda: explained(begun).away is None, "the brokers to be back")
        assert f"the Kafka brokers at {own_broker.bootstrap} answer again" in caplog.text


@pytest.mark.parametrize("indexing", ["auto", "scan", "off"])
def test_records_of_an_open_transaction_are_counted_beside_those_that_can_be_read(topic: Topic, indexing: str) -> None:
    topic.create().write(numbered(10))
    topic.transaction([Record(T0_MS + 100 + i, b"open") for i in range(6)], end="open")
    with reading(topic, indexing=indexing, watermarkRows="true") as begun:
        wait_until(lambda: cause_of(explained(begun)) is Cause.TRANSACTION, "the reason")
        wait_until(lambda: not explained(begun).splits[0].behind, "all that can be read")
        found = explained(begun)
        assert [(split.behind, split.locked) for split in found.splits] == [(0, 6)]
        assert "6 records of it cannot be read until that ends, and 0 can be" in sentence(found)


def test_an_outage_begins_with_the_first_question_without_an_answer() -> None:
    now = [100.0]
    outage = Away("b1:9092", 300, lambda: now[0], lambda: now[0])
    outage.begin()
    outage.end()
    assert outage.description() is None
    now[0] = 1000.0
    outage.begin()
    now[0] += 1
    assert outage.description() is None
    now[0] += 10
    outage.fail("timed out")
    outage.begin()
    text = outage.description()
    assert text is not None
    assert text.startswith("no Kafka broker at b1:9092 has answered since 00:16:40 UTC (timed out); ")
    assert "the query fails at 00:21:40 UTC (brokerTimeout)" in text
    outage.end()
    assert outage.description() is None
