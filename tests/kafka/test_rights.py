"""What a user must be allowed on a broker that refuses everything else, right by right."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from pyspark.sql import SparkSession

from streaming_source import read_stream
from streaming_source.api.clients import KEPT_CLIENTS
from streaming_source.exceptions import SourceError
from tests.kafka.broker import GUEST, PASSWORD, KafkaBroker
from tests.kafka.support import format_options, on_executor, reading, records, to_end
from tests.kafka.test_secure import java, settings, token
from tests.kafka.topics import Record, Topic, wait_until
from tests.spark.support import T0, available_now

T0_MS = T0 // 1000
ROWS = 1500
"""Of these the planner reads some, and asks the brokers' index for others."""

LACKS_DESCRIBE = (
    r"The user of this query lacks the right Describe on topic '{topic}', or there is no such topic.*"
    r"kafka-acls --add --allow-principal User:NAME --operation Read --topic {topic}'$"
)
LACKS_READ = r"lacks the right Read on topic '{topic}': .* --operation Read --topic {topic}'$"
MISSING = {(): LACKS_DESCRIBE, ("DESCRIBE",): LACKS_READ, ("READ",): "", ("READ", "of the group"): ""}
"""What is said to whom has these rights on the topic; empty where all is read."""


def guest_token() -> tuple[str, float]:
    return token(GUEST)


HOW: dict[str, dict[str, str | None]] = {
    "index": {},
    "scan": {"indexing": "scan"},
    "reports": {"indexing": "off", "watermarkRows": "true"},
    "pattern": {"subscribe": None, "subscribePattern": "^{topic}$"},
    "group": {"kafka.group.id": "of-others"},
    "prefix": {"groupIdPrefix": "{topic}"},
    "token": {
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.username": None,
        "kafka.sasl.password": None,
        "tokenProvider": f"{__name__}:guest_token",
    },
}


def login(broker: KafkaBroker) -> dict[str, str]:
    return settings(broker, **{"sasl.mechanism": "PLAIN", "sasl.username": GUEST, "sasl.password": PASSWORD})


def options(topic: Topic, how: str) -> dict[str, str | None]:
    given = {**login(topic.broker), "brokerTimeout": "5 seconds", **HOW[how]}
    return {name: value and value.format(topic=topic.name) for name, value in given.items()}


def give(topic: Topic, *rights: str) -> None:
    """Give rights on the topic to the guest, and the one on a group that has the name of the topic."""
    for right in rights:
        of_group = right == "of the group"
        kind, name = (ResourceType.GROUP, f"{topic.name}-aligned") if of_group else (ResourceType.TOPIC, topic.name)
        operation = AclOperation.READ if of_group else AclOperation[right]
        binding = AclBinding(
            kind, name, ResourcePatternType.LITERAL, f"User:{GUEST}", "*", operation, AclPermissionType.ALLOW
        )
        Topic._done(topic.admin.create_acls([binding]))


def take(topic: Topic, operation: AclOperation = AclOperation.ANY) -> None:
    filter_ = AclBindingFilter(
        ResourceType.TOPIC,
        topic.name,
        ResourcePatternType.LITERAL,
        None,
        None,
        operation,
        AclPermissionType.ANY,
    )
    Topic._done(topic.admin.delete_acls([filter_]))


def written(topic: Topic) -> Topic:
    topic.create(2).write([Record(T0_MS + i, b"%d" % i, partition=i % 2) for i in range(ROWS)])
    return topic


def told(topic: Topic, how: str) -> str:
    """The error of a query, empty if it has read all."""
    with reading(topic, **options(topic, how)) as begun:
        try:
            assert sum(len(records(table)) for table in to_end(begun)) == ROWS
        except SourceError as error:
            return str(error)
    return ""


@pytest.mark.parametrize(
    ("rights", "how"),
    [
        *((rights, "index") for rights in MISSING),
        *((rights, how) for rights in ((), ("READ",)) for how in ("scan", "reports")),
        *(
            pytest.param(rights, how, marks=pytest.mark.soak)
            for rights in (("DESCRIBE",), ("READ", "of the group"))
            for how in ("scan", "reports")
        ),
        (("READ",), "group"),
        (("READ",), "prefix"),
        # A client waits a second or more for its first token.
        pytest.param(("READ",), "token", marks=pytest.mark.soak),
        pytest.param(("DESCRIBE",), "token", marks=pytest.mark.soak),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value) or "none",
)
def test_the_right_to_read_the_topic_is_the_only_one_that_is_needed(
    topic: Topic, rights: tuple[str, ...], how: str
) -> None:
    give(written(topic), *rights)
    said = told(topic, how)
    assert re.search(MISSING[rights].format(topic=topic.name), " ".join(said.split())) if MISSING[rights] else not said
    for wrong in ("No broker has answered", "None-0", PASSWORD, GUEST):
        assert wrong not in said


def test_a_pattern_that_matches_no_topic_the_user_may_describe_is_in_the_log(
    topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    written(topic)
    with reading(topic, **options(topic, "pattern")) as begun:
        # The first start is kept in an offset, also when it finds nothing.
        assert (table := begun.next()) is None or not len(table)
    assert "is not listed unless the user of this query has the right Describe on it" in caplog.text
    give(topic, "READ")
    assert told(topic, "pattern") == ""


def test_of_several_topics_those_are_named_that_are_refused(topic: Topic) -> None:
    allowed = Topic(topic.broker, f"a-{topic.name}")
    give(written(allowed), "READ")
    written(topic)
    both = options(topic, "index") | {"subscribe": f"{allowed.name},{topic.name}"}
    with reading(topic, **both) as begun, pytest.raises(SourceError, match=f"Describe on topic '{topic.name}'"):
        begun.next()
    give(topic, "DESCRIBE")
    with reading(topic, **both) as begun, pytest.raises(SourceError, match=f"Read on topic '{topic.name}'"):
        to_end(begun)
    allowed.close()


@pytest.mark.parametrize(
    ("how", "left"),
    [
        ("index", ""),
        ("scan", "DESCRIBE"),
        ("pattern", ""),
        *(pytest.param(how, left, marks=pytest.mark.soak) for how, left in (("index", "DESCRIBE"), ("scan", ""))),
        pytest.param("pattern", "DESCRIBE", marks=pytest.mark.soak),
    ],
)
def test_a_right_that_is_taken_while_a_query_reads_is_no_loss_of_the_topic(topic: Topic, how: str, left: str) -> None:
    give(written(topic), "READ")
    more = {"discoveryInterval": "200 ms", "failOnDataLoss": "false"}
    with reading(topic, **options(topic, how), **more) as begun:
        begun.reader.prepareForTriggerAvailableNow()
        assert sum(len(records(table)) for table in iter(begun.next, None)) == ROWS
        at = begun.offset
    read: list[Record] = []
    with reading(topic, **options(topic, how), **more) as begun:
        begun.offset = at
        begun.next()
        # At no moment fewer than are left.
        give(topic, *filter(None, [left]))
        take(topic, AclOperation.READ)
        topic.write([Record(T0_MS + ROWS + i, partition=i % 2) for i in range(10)])

        def step() -> None:
            table = begun.next()
            read.extend(records(table) if table is not None else ())

        with pytest.raises(SourceError, match=f"lacks the right {'Read' if left else 'Describe'} on topic"):
            wait_until(lambda: step(), "the error")
        at = begun.offset
    # With its right the query goes on where it was.
    give(topic, "READ")
    with reading(topic, **options(topic, how), **more) as begun:
        begun.offset = at
        read += [record for table in to_end(begun) for record in records(table)]
    assert sorted((record.partition, record.offset) for record in read) == [
        (p, ROWS // 2 + i) for p in range(2) for i in range(5)
    ]


def test_tasks_name_the_right_that_is_missing_each_time_they_are_tried(topic: Topic) -> None:
    give(written(topic), "READ")
    with reading(topic, **options(topic, "index")) as begun:
        begun.reader.prepareForTriggerAvailableNow()
        start, end = begun.offset, begun.reader.latestOffset(begun.offset, begun.reader.getDefaultReadLimit())
        task = begun.reader.partitions(start, end)[0]
        take(topic)
        for rights, right in (("",), "Describe"), (("DESCRIBE",), "Read"), (("DESCRIBE",), "Read"):
            give(topic, *filter(None, rights))
            with pytest.raises(SourceError, match=f"lacks the right {right} on topic '{topic.name}'"):
                list(on_executor(begun.reader).read(task))
        give(topic, "READ")
        KEPT_CLIENTS.close()
        assert sum(batch.num_rows for batch in on_executor(begun.reader).read(task))


@pytest.mark.parametrize("name", ["orders and more", "x" * 250], ids=["blank", "long"])
def test_a_name_that_no_topic_can_have_is_an_error_at_once(topic: Topic, name: str) -> None:
    with reading(topic, subscribe=name) as begun, pytest.raises(SourceError) as error:
        begun.next()
    for word in (f"topic {name!r}", "Names of topics have up to 249"):
        assert word in str(error.value)
    assert "No broker has answered" not in str(error.value)


@pytest.mark.soak
@pytest.mark.spark
def test_who_may_read_by_sparks_own_source_may_read_by_this_one(
    spark_kafka: SparkSession, topic: Topic, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    give(written(topic), "READ")
    given = format_options(topic, **login(topic.broker))
    asked: dict[str, dict[str, Any]] = {"latest": {}, "scan": {"indexing": "scan"}, "reports": {"indexing": "off"}}
    for name, more in asked.items():
        frame = read_stream(spark_kafka).format("aligned_kafka").options(**given, **more).load().select("offset")
        assert len(available_now(spark_kafka, frame, tmp_path / name).rows) == ROWS
    user = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="{GUEST}" password="{PASSWORD}";'
    of_java = format_options(topic, **{**java(topic.broker), "kafka.sasl.jaas.config": user})
    frame = spark_kafka.readStream.format("kafka").options(**of_java).load().select("offset")
    assert len(available_now(spark_kafka, frame, tmp_path / "own").rows) == ROWS
