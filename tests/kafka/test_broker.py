"""The broker and the tools of these tests do what the other tests take for granted."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from tests.kafka.artifacts import Artifacts, ArtifactsMissingError
from tests.kafka.broker import BrokerError, KafkaBroker
from tests.kafka.topics import Record, Topic, wait_until

T0_MS = 1_700_000_040_000


def numbered(n: int, start: int = 0, **fields: object) -> list[Record]:
    return [Record(T0_MS + i, b"%d" % i, **fields) for i in range(start, start + n)]  # type: ignore[arg-type]


def test_transactions_leave_gaps_and_an_open_one_holds_back_what_is_behind_it(topic: Topic) -> None:
    topic.create()
    topic.transaction(numbered(3), end="commit")
    topic.transaction(numbered(3, 10), end="abort")
    left_open = topic.transaction(numbered(3, 20), end="open")
    topic.write(numbered(1, 30))
    assert [r.offset for r in topic.read()[0]] == [0, 1, 2]
    assert topic.bounds(0, committed=True) == (0, 8)
    assert topic.bounds(0) == (0, 12)
    topic.end(left_open, "commit")
    assert [r.offset for r in topic.read()[0]] == [0, 1, 2, 8, 9, 10, 11]
    assert [r.offset for r in topic.read(committed=False)[0]] == [0, 1, 2, 4, 5, 6, 8, 9, 10, 11]


def test_compaction_leaves_the_last_record_of_each_key(topic: Topic) -> None:
    topic.create(cleanup_policy="compact", segment_ms=10, min_cleanable_dirty_ratio=0.001)
    for i in range(6):
        topic.write([Record(T0_MS + 1000 * i + k, b"%d" % i, b"key-%d" % k) for k in range(2)])
    # The newest segment is never compacted.
    topic.await_compaction(0, 4)
    assert topic.read()[0][-1].offset == 11
    assert topic.bounds(0) == (0, 12)


def test_records_can_be_deleted_and_expire(topic: Topic) -> None:
    topic.create(partitions=2)
    topic.write([*numbered(10), *numbered(10, partition=1)])
    topic.delete_records({0: 4})
    assert topic.bounds(0) == (4, 10)
    assert topic.bounds(1) == (0, 10)
    topic.expire()
    assert topic.bounds(0) == (10, 10)
    assert topic.bounds(1) == (10, 10)


def test_a_topic_is_deleted_created_again_and_grows(topic: Topic) -> None:
    topic.create(partitions=2).write(numbered(3))
    topic.delete()
    topic.create(partitions=1).write(numbered(1))
    topic.add_partitions(3)
    topic.write(numbered(1, partition=2))
    assert {p: len(records) for p, records in topic.read().items()} == {0: 1, 1: 0, 2: 1}


# Those with a broker of their own fail in other tests too, where they fail.
@pytest.mark.soak
def test_a_broker_that_was_killed_or_paused_comes_back_with_its_data(own_broker: KafkaBroker) -> None:
    topic = Topic(own_broker).create()
    topic.write(numbered(10))
    address = own_broker.bootstrap
    own_broker.kill()
    assert not own_broker.is_running
    own_broker.start()
    assert own_broker.bootstrap == address
    assert len(topic.read()[0]) == 10
    own_broker.pause()
    with pytest.raises(KafkaException):
        Topic(own_broker).admin.list_topics(timeout=0.5)
    own_broker.resume()
    topic.write(numbered(5, 10))
    assert [r.value for r in topic.read()[0]] == [b"%d" % i for i in range(15)]
    own_broker.pause()
    own_broker.stop()
    assert not own_broker.is_running


@pytest.mark.soak
def test_a_broker_that_does_not_start_shows_its_output(kafka_jars: list[Path], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        broker = KafkaBroker(tmp_path / "data", kafka_jars, port=taken.getsockname()[1])
        with pytest.raises(BrokerError, match=r"(?s)Kafka ended.*[Aa]ddress already in use"):
            broker.start()
    assert not broker.is_running


@pytest.mark.soak
def test_a_broker_dies_with_the_process_that_started_it(kafka_jars: list[Path], tmp_path: Path) -> None:
    script = f"""
import os, signal
from pathlib import Path
from tests.kafka.broker import KafkaBroker
broker = KafkaBroker.from_cache(Path({str(tmp_path)!r}))
broker.start()
print(broker._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    pid = int(done.stdout)

    def gone() -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        stat = Path(f"/proc/{pid}/stat")  # nobody may be there to bury it
        return stat.exists() and stat.read_text().rsplit(")")[-1].split()[0] == "Z"

    wait_until(gone, "the broker to die")


def test_artifacts_that_cannot_be_had_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pom = tmp_path / "nothing.xml"
    pom.write_text("<project><version>1</version></project>")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(
        ArtifactsMissingError, match=f"mvn is not on the PATH, and {tmp_path}.*nothing-1-.* does not exist"
    ):
        Artifacts(pom).jars()
    broken = tmp_path / "bin" / "mvn"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho '[ERROR] no such artifact'\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{broken.parent}:/bin:/usr/bin")
    with pytest.raises(ArtifactsMissingError, match=r"mvn could not resolve nothing.xml: no such artifact"):
        Artifacts(pom).jars()
    assert [f.name for f in (tmp_path / "spark-watermark-alignment").iterdir()] == []
