"""What Java's producers write reads the same: keys, headers, nulls, every codec, transactions."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from tests.kafka.support import reading, records, to_end
from tests.kafka.topics import CODECS, Record, Topic

ABORTING = Path(__file__).parent / "java" / "Aborting.java"
CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"


def read_all(topic: Topic, **options: str) -> list[Record]:
    with reading(topic, bounded="true", includeHeaders="true", **options) as begun:
        return records(pa.concat_tables(to_end(begun)))


@pytest.mark.parametrize("codecs", [("lz4",), pytest.param(CODECS, marks=pytest.mark.soak)], ids=["one", "every"])
def test_javas_console_producer_with_keys_headers_nulls_and_every_codec(topic: Topic, codecs: tuple[str, ...]) -> None:
    topic.create(partitions=2)
    properties = {"parse.key": "true", "parse.headers": "true", "null.marker": "NULL"}
    options = [word for name, value in properties.items() for word in ("--reader-property", f"{name}={value}")]

    def write(codec: str) -> None:
        lines = [f"from:java,codec:{codec}\tkey-{codec}-{i}\tvalue-{codec}-{i}" for i in range(40)]
        lines += [f"only:{codec}\tkey-{codec}\tNULL", f"NULL\tNULL\tbare-{codec}"]
        where = ("--bootstrap-server", topic.broker.bootstrap, "--topic", topic.name, "--compression-codec", codec)
        topic.broker.run_tool(CONSOLE_PRODUCER, *where, *options, stdin="\n".join(lines).encode() + b"\n")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, codecs))
    found = read_all(topic)
    assert found == [record for log in topic.read().values() for record in log]
    written = {
        (f"key-{codec}-{i}".encode(), f"value-{codec}-{i}".encode(), (("from", b"java"), ("codec", codec.encode())))
        for codec in codecs
        for i in range(40)
    }
    written |= {(f"key-{codec}".encode(), None, (("only", codec.encode()),)) for codec in codecs}
    written |= {(None, f"bare-{codec}".encode(), ()) for codec in codecs}
    assert len(found) == len(written)
    assert {(r.key, r.value, r.headers) for r in found} == written


@pytest.mark.soak
def test_what_java_aborts_is_not_read(topic: Topic) -> None:
    topic.create(partitions=2)
    if "jdk.compiler" not in topic.broker.run_tool("--list-modules"):
        pytest.skip("this Java has no compiler to run a program from its source")
    topic.broker.run_tool(str(ABORTING), topic.broker.bootstrap, topic.name)
    found = read_all(topic)
    kept = [turn for turn in range(12) if turn % 3 != 1]
    assert sorted(r.value for r in found if r.value) == sorted(f"{t}/{i}".encode() for t in kept for i in range(10))
    assert found == [record for log in topic.read().values() for record in log]
    everything = read_all(topic, **{"kafka.isolation.level": "read_uncommitted"})
    assert len(everything) == 120


@pytest.mark.soak
def test_javas_transactions(topic: Topic) -> None:
    topic.create(partitions=1)
    topic.broker.run_tool(
        PRODUCER_PERFORMANCE,
        *("--bootstrap-server", topic.broker.bootstrap, "--topic", topic.name, "--num-records", "5000"),
        *("--record-size", "50", "--throughput", "20000", "--transaction-duration-ms", "20"),
    )
    found = read_all(topic)
    assert len(found) == 5000
    assert found[-1].offset > 5000  # the marks of its transactions lie between
    assert found == topic.read()[0]
    assert read_all(topic, maxRowsPerTrigger="777") == found
