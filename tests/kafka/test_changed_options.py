"""Between two runs of a query over Kafka an option changes that may: the second run goes on with each record once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from alignment.watermarks import MIN_WATERMARK
from streaming_source.connectors.kafka import registry as schema_registry
from streaming_source.exceptions import OffsetError
from tests.kafka import test_secure
from tests.kafka.registry import serving
from tests.kafka.support import by_split, reading, records, to_end
from tests.kafka.topics import Record, Topic
from tests.spark.changed_options import FRAME, KAFKA, STRATEGY, Change
from tests.spark.support import T0

T0_MS = T0 // 1000
CHANGES = [change for change in (*STRATEGY[3:], *FRAME, *KAFKA) if not change.refused]
SCHEMA = '{"type": "record", "name": "Order", "fields": [{"name": "n", "type": "long"}]}'
LATER = SCHEMA.replace("]", ', {"name": "more", "type": "int", "default": 1}]')


def token() -> tuple[str, float]:
    return test_secure.token()


@pytest.fixture
def services(topic: Topic) -> Iterator[dict[str, str]]:
    """A registry, one that it moved to, and one with users: all have the same schemas; and the way in with a token."""
    schema_registry._by_id.cache_clear()
    with serving() as registry, serving() as moved, serving("user:password") as secured:
        for one in (registry, moved, secured):
            assert one.register(f"{topic.name}-value", SCHEMA) == 1
            one.register("other", LATER)
        urls = {"registry": registry.url, "moved": moved.url, "secured": secured.url}
        yield {**urls, "secure": topic.broker.secure_bootstrap, "certificate": str(topic.broker.certificate)}


def value(change: Change, n: int) -> bytes:
    """Of Avro with the schema 1, where it is read as that."""
    return b"\0\0\0\0\1" + bytes([2 * n % 128]) if "avro" in change.before.values() else b"%d" % n


# One after another over one topic: each begins where the one before has left it.
@pytest.mark.parametrize("changes", [CHANGES[::9], pytest.param(CHANGES, marks=pytest.mark.soak)], ids=["some", "all"])
def test_a_second_run_with_another_option_reads_each_record_once(
    topic: Topic, changes: list[Change], services: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    topic.create(partitions=2)
    end = 0
    for change in changes:
        given = [
            {name: text.format(topic=topic.name, tmp=tmp_path, **services) for name, text in options.items()}
            for options in (change.before, change.after)
        ]
        # `reading` says it, and each first run starts where the one before it has ended.
        for options, name in ((given[0], "startingOffsets"), *((options, "includeMetadata") for options in given)):
            options.pop(name, None)
        numbers = range(end, end + 6)
        topic.write([Record(T0_MS + 1000 * n, value(change, n), partition=p) for n in numbers for p in (0, 1)])
        start = {"startingOffsets": json.dumps({topic.name: {"0": end, "1": end}})}
        end += 6
        read: dict[int, list[int]] = {0: [], 1: []}
        watermarks: list[int] = []
        offset = None
        for options, micro_batches in zip(given, (1, 1000), strict=True):
            common = {"maxRowsPerTrigger": "5", **start}
            with reading(topic, **{**common, **options}) as begun:
                begun.offset = begun.offset if offset is None else offset
                begun.reader.prepareForTriggerAvailableNow()
                for _ in range(micro_batches):
                    if (table := begun.next()) is None:
                        break
                    for partition, offsets in by_split(table).items():
                        read[partition] += offsets
                    said = begun.offset["watermark"]
                    watermarks.append(MIN_WATERMARK if said is None else said)
                offset = json.loads(json.dumps(begun.offset))
        assert read == {p: list(range(end - 6, end)) for p in (0, 1)}, change.label
        assert watermarks == sorted(watermarks), change.label


def test_brokers_may_move_and_a_new_start_is_for_new_queries_alone(topic: Topic) -> None:
    topic.create().write([Record(T0_MS + n, b"%d" % n) for n in range(4)])
    with reading(topic) as begun:
        to_end(begun)
        at = begun.offset
    topic.write([Record(T0_MS + n, b"%d" % n) for n in range(4, 8)])
    port = topic.broker.bootstrap.rpartition(":")[2]
    moved = {"kafka.bootstrap.servers": f"localhost:{port}", "startingOffsets": "earliest"}
    with reading(topic, **moved) as begun:
        begun.offset = at
        assert [offset for table in to_end(begun) for offset in by_split(table).get(0, [])] == [4, 5, 6, 7]


def test_a_query_goes_on_with_more_topics_and_not_with_fewer(topic: Topic) -> None:
    topic.create(partitions=2).write([Record(T0_MS + n, b"%d" % n, partition=n % 2) for n in range(4)])
    other = Topic(topic.broker).create()
    other.write([Record(T0_MS + n, b"other %d" % n) for n in range(3)])
    both = f"{topic.name},{other.name}"
    with reading(topic) as begun:
        to_end(begun)
        at = json.loads(json.dumps(begun.offset))
    topic.write([Record(T0_MS + 9, b"later")])
    choices = (
        ({"subscribe": both}, 4),
        ({"subscribe": None, "subscribePattern": f"{topic.name}|{other.name}"}, 4),
        ({"subscribe": None, "assign": json.dumps({topic.name: [0, 1], other.name: [0]})}, 4),
        ({"subscribe": None, "assign": json.dumps({topic.name: [0, 1]})}, 1),
    )
    for options, expected in choices:
        with reading(topic, **options) as begun:
            begun.offset = at
            values = sorted(record.value or b"" for table in to_end(begun) for record in records(table))
            assert values == [b"later", *(b"other %d" % n for n in range(expected - 1))], options
            after = json.loads(json.dumps(begun.offset))
        with reading(topic, **options) as begun:
            begun.offset = after
            assert [record for table in to_end(begun) for record in records(table)] == []
    for fewer in ({"subscribe": other.name}, {"subscribe": None, "assign": json.dumps({topic.name: [0]})}):
        with reading(topic, **fewer) as begun:
            begun.offset = at
            with pytest.raises(OffsetError, match=r"what is read.* new checkpointLocation"):
                to_end(begun)
    other.close()
