"""Two brokers, and the one that leads a single partition is away: what it has waits, the rest is read, each once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from alignment.explain import Cause, Explanation
from streaming_source.exceptions import SourceError
from streaming_source.monitoring.causes.answer import cause_of, sentence
from tests.kafka.broker import _PORTS, KafkaBroker, _free_port
from tests.kafka.support import reading, records
from tests.kafka.test_faults import numbered
from tests.kafka.topics import Record, Topic, wait_until
from tests.spark.reading import Reading

pytestmark = pytest.mark.soak


class JoiningBroker(KafkaBroker):
    """A broker that joins the cluster of another, which has its controller."""

    def __init__(self, folder: Path, jars: Sequence[Path], first: KafkaBroker, number: int = 2) -> None:
        super().__init__(folder, jars)
        self._first = first
        self._number = number

    def _format(self) -> None:
        port = _free_port()
        assert port in _PORTS
        self._folder.mkdir(parents=True, exist_ok=True)
        first = self._first._folder
        (self._folder / "log4j2.yaml").write_text((first / "log4j2.yaml").read_text())
        lines = (first / "server.properties").read_text().splitlines()
        own = {
            "process.roles": "broker",
            "node.id": str(self._number),
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "log.dirs": str(self._folder / "data"),
        }
        kept = [line for line in lines if line.partition("=")[0] not in own and "sasl_ssl" not in line]
        kept = [line for line in kept if not re.match(r"ssl\.|sasl\.|\s", line)]
        properties = self._folder / "server.properties"
        properties.write_text("\n".join([*kept, *(f"{name}={value}" for name, value in own.items()), ""]))
        self._cluster = self._first._cluster
        self.run_tool(
            *("kafka.tools.StorageTool", "format", "-t", self._cluster, "-c", str(properties)),
            "--no-initial-controllers",
        )
        self.bootstrap = f"127.0.0.1:{port}"


@pytest.fixture
def second_broker(own_broker: KafkaBroker, kafka_jars: list[Path], tmp_path: Path) -> Iterator[KafkaBroker]:
    broker = JoiningBroker(tmp_path / "second", kafka_jars, own_broker)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


@pytest.mark.parametrize("indexing", ["auto", "scan", "off"])
def test_the_leader_of_one_partition_that_is_away_is_waited_for_while_the_others_are_read(
    own_broker: KafkaBroker, second_broker: KafkaBroker, indexing: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = Topic(own_broker)
    admin = AdminClient({"bootstrap.servers": own_broker.bootstrap})
    for future in admin.create_topics([NewTopic(topic.name, num_partitions=2, replica_assignment=[[1], [2]])]).values():
        future.result(30)
    topic.write([*numbered(10), *numbered(10, partition=1)])
    given = {"idleTimeout": "300 ms", "discoveryInterval": "100 ms", "watermarkRows": "true", "indexing": indexing}
    seen: list[Record] = []

    def have(begun: Reading, n: int) -> bool:
        table = begun.next()
        seen.extend(records(table) if table is not None else ())
        return len(seen) >= n

    def why(begun: Reading) -> Explanation:
        begun.next()
        explanation = begun.reader._planning._coordinator.explain()
        assert explanation is not None
        return explanation

    with reading(topic, **given) as begun:
        wait_until(lambda: have(begun, 20), "what is there")
        wait_until(lambda: cause_of(why(begun)) is Cause.ALL_IDLE, "all to be idle")
        second_broker.kill()
        topic.write(numbered(10, 10))
        wait_until(lambda: have(begun, 30), "what the other leader has", 60)
        wait_until(lambda: cause_of(why(begun)) is Cause.SOURCE, "the reason", 60)
        assert f"because split '{topic.name}-1' cannot be reached" in sentence(why(begun))
        # What its leader may have is not known: it is not idle, and holds the watermark.
        held = begun.offset["watermark"]
        second_broker.start()
        topic.write(numbered(10, 10, partition=1))
        wait_until(lambda: have(begun, 40), "what was written meanwhile and afterwards", 90)
        assert len(seen) == len({(r.partition, r.offset) for r in seen}) == 40
        assert begun.offset["watermark"] >= held
        at = begun.offset
    assert f"partition {topic.name}-1 is waited for" in caplog.text
    assert f"the leader of partition {topic.name}-1 is back" in caplog.text
    with reading(topic, **given, brokerTimeout="10 seconds") as begun:
        begun.offset = at
        wait_until(lambda: cause_of(why(begun)) is Cause.ALL_IDLE, "all to have answered")
        second_broker.kill()
        topic.write(numbered(10, 20))
        with pytest.raises(SourceError, match=rf"partition {topic.name}-1 could not be read for 10 s.*broker.? 2"):
            wait_until(lambda: have(begun, 51), "what will not come", 90)
        assert len(seen) == 50
