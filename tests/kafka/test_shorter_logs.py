"""A broker loses the last records of a log, and writes others at their offsets: what is there is read once."""

from __future__ import annotations

import pytest

from streaming_source.exceptions import DataLossError
from tests.kafka.broker import KafkaBroker
from tests.kafka.support import reading, records, to_end
from tests.kafka.test_faults import T0_MS
from tests.kafka.topics import Record, Topic, wait_until
from tests.spark.reading import Reading

pytestmark = pytest.mark.soak


def write(topic: Topic, what: str, n: int) -> list[bytes]:
    """Each record in a batch of its own."""
    values = [b"%s-%d" % (what.encode(), i) for i in range(n)]
    wait_until(lambda: _leads(topic), "the leader")
    for i, value in enumerate(values):
        topic.write([Record(T0_MS + i, value)])
    return values


def _leads(topic: Topic) -> bool:
    found = topic.admin.list_topics(topic.name, timeout=10).topics[topic.name].partitions
    return bool(found) and found[0].leader >= 0


def read(begun: Reading, most: int = 10_000) -> list[bytes | None]:
    table = begun.next(most)
    return [record.value for record in records(table)] if table is not None else []


@pytest.mark.parametrize("indexing", ["auto", "scan", "off"])
def test_each_time_a_log_becomes_shorter_what_is_written_then_is_read_once(
    own_broker: KafkaBroker, indexing: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = Topic(own_broker).create()
    options = {"failOnDataLoss": "false", "indexing": indexing, "watermarkRows": "true", "brokerTimeout": "1 minute"}
    seen: list[bytes | None] = []

    def await_all(wanted: list[bytes]) -> None:
        wait_until(lambda: seen.extend(read(begun)) or len(seen) >= len(wanted), f"{len(wanted)} records", 60)
        seen.extend(read(begun))
        assert seen == wanted

    with reading(topic, **options) as begun:
        wanted = write(topic, "first", 30)
        await_all(wanted)
        for what, end in (("second", 20), ("third", 10)):
            own_broker.shorten(topic.name, 0, end)
            # What is written before the loss is noticed cannot be told from what was lost.
            noticed = f"the partition ends at {end}"
            wait_until(lambda noticed=noticed: seen.extend(read(begun)) or noticed in caplog.text, "the loss", 60)  # type: ignore[misc]
            wanted += write(topic, what, 5)
            await_all(wanted)
        at = begun.offset
    # While the query is down.
    own_broker.shorten(topic.name, 0, 5)
    with reading(topic, **{**options, "failOnDataLoss": "true"}) as begun:
        begun.offset = at
        with pytest.raises(DataLossError, match=r"offset 15 is not there.*failOnDataLoss"):
            to_end(begun)
    with reading(topic, **options) as begun:
        begun.offset = at
        assert [record.value for table in to_end(begun) for record in records(table)] == []
        at = begun.offset
    last = write(topic, "fourth", 5)
    with reading(topic, **options) as begun:
        begun.offset = at
        assert [record.value for table in to_end(begun) for record in records(table)] == last
