"""A topic is deleted and created again while a query reads it: each record of the new one is read exactly once."""

from __future__ import annotations

from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from streaming_source import read_stream
from streaming_source.exceptions import DataLossError, SourceError
from tests.examples import one_in
from tests.kafka.support import BOUND, format_options, on_executor, reading, records
from tests.kafka.test_faults import T0_MS
from tests.kafka.topics import Record, Topic, wait_until
from tests.spark.reading import Reading
from tests.spark.support import Run


def named(what: str, n: int, partition: int = 0) -> list[Record]:
    return [Record(T0_MS + i, b"%s-%d-%d" % (what.encode(), partition, i), partition=partition) for i in range(n)]


def create_again(topic: Topic, partitions: int, counts: dict[int, int]) -> list[bytes | None]:
    """Returns the values of the new topic."""
    topic.delete()
    written = [record for partition, n in counts.items() for record in named("new", n, partition)]
    topic.create(partitions=partitions).write(written)
    return [record.value for record in written]


def values(table: pa.Table | None) -> list[bytes | None]:
    return [record.value for record in records(table)] if table is not None else []


def read_until(begun: Reading, wanted: list[bytes | None], read: Counter[bytes | None]) -> None:
    def step() -> bool:
        read.update(values(begun.next()))
        return all(read[value] for value in wanted)

    wait_until(step, "all records of the new topic")
    for _ in range(5):
        read.update(values(begun.next()))


def first_task(begun: Reading) -> Any:
    """The only task of the first micro-batch that has records, which is planned and not read."""

    def planned() -> Any:
        start = begun.offset
        begun.offset = begun.reader.latestOffset(start, begun.reader.getDefaultReadLimit())
        return begun.reader.partitions(start, begun.offset)

    (task,) = wait_until(planned, "a plan")
    return task


AGAIN: dict[str, tuple[str, int, dict[int, int]]] = {
    "more": ("2 seconds", 1, {0: 20}),
    "many more": ("2 seconds", 1, {0: 2000}),
    "as many": ("2 seconds", 1, {0: 5}),
    "fewer": ("2 seconds", 1, {0: 3}),
    "none": ("2 seconds", 1, {0: 0}),
    "more partitions": ("2 seconds", 3, {0: 20, 1: 4, 2: 9}),
    "more, soon": ("500 ms", 1, {0: 20}),
    "more, late": ("10 seconds", 1, {0: 20}),
}
"""How often the query looks, and what is in which partition of the new topic."""


# One in nine: each way of indexing, with more, many more and as many records.
@pytest.mark.parametrize(("indexing", "again"), one_in(9, product(["auto", "scan", "off"], AGAIN)))
def test_each_record_of_a_topic_that_is_created_again_is_read_once(topic: Topic, again: str, indexing: str) -> None:
    interval, partitions, counts = AGAIN[again]
    topic.create(partitions=2).write(named("old", 5) + named("old", 5, 1))
    read: Counter[bytes | None] = Counter()
    options = {"failOnDataLoss": "false", "discoveryInterval": interval, "indexing": indexing, "watermarkRows": "true"}
    with reading(topic, **options) as begun:
        wait_until(lambda: read.update(values(begun.next())) or sum(read.values()) == 10, "the old topic")
        new = create_again(topic, partitions, counts)
        read_until(begun, new, read)
        assert {value: n for value, n in read.items() if n > 1} == {}
        assert all(read[value] for value in new)


@pytest.mark.spark
@pytest.mark.soak
def test_a_spark_query_reads_each_record_of_a_topic_that_is_created_again_once(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    topic.create(partitions=2).write(named("old", 5) + named("old", 5, 1))
    given = format_options(topic, failOnDataLoss="false", discoveryInterval="2 seconds", maxOutOfOrderness=BOUND)
    frame = read_stream(spark).format("aligned_kafka").options(**given).load().select("value")
    run = Run(spark, frame, tmp_path / "checkpoint")

    def read() -> Counter[bytes | None]:
        return Counter(bytes(value) for (value,) in run.rows)

    try:
        wait_until(lambda: sum(read().values()) == 10, "the old topic")
        new = create_again(topic, 2, {0: 15, 1: 5})
        wait_until(lambda: read().keys() >= {*new}, "all records of the new topic")
        run.query.processAllAvailable()
        assert {value: n for value, n in read().items() if n > 1} == {}
        assert sum(read().values()) == 30
    finally:
        run.query.stop()


@pytest.mark.parametrize("indexing", ["auto", "scan"])
def test_a_task_reads_nothing_of_a_topic_that_was_created_again_since_it_was_planned(
    topic: Topic, indexing: str
) -> None:
    topic.create().write(named("old", 10))
    options = {"discoveryInterval": "1 hour", "indexing": indexing}
    with reading(topic, failOnDataLoss="false", **options) as begun:
        task = first_task(begun)
        assert len(values(pa.Table.from_batches(on_executor(begun.reader).read(task)))) == 10
        create_again(topic, 1, {0: 30})
        assert list(on_executor(begun.reader).read(task)) == []
    with reading(topic, **options) as strict, pytest.raises(DataLossError, match=r"created again.*failOnDataLoss"):
        list(on_executor(strict.reader).read(task))


def test_a_task_fails_whose_topic_is_created_again_while_it_emits_and_reads_nothing_when_it_is_tried_again(
    topic: Topic,
) -> None:
    topic.create().write(named("old", 40_000))
    with reading(topic, failOnDataLoss="false", discoveryInterval="1 hour", maxRowsPerTrigger=30_000) as begun:
        task = first_task(begun)
        batches = iter(on_executor(begun.reader).read(task))
        assert next(batches).num_rows > 0
        create_again(topic, 1, {0: 40_000})
        with pytest.raises(SourceError, match=r"created again, while this task read it.*start the query again"):
            list(batches)
        assert list(on_executor(begun.reader).read(task)) == []


@pytest.mark.parametrize("indexing", one_in(2, ["auto", "scan"]))
def test_topics_that_are_gone_leave_the_offset_and_one_of_their_names_may_come_again(
    topic: Topic, indexing: str
) -> None:
    others = [Topic(topic.broker, f"{topic.name}-{i}").create() for i in range(4)]
    topic.create()
    options = {"subscribe": None, "subscribePattern": topic.name, "discoveryInterval": "200 ms", "indexing": indexing}
    read: Counter[bytes | None] = Counter()
    with reading(topic, failOnDataLoss="false", watermarkRows="true", **options) as begun:

        def known() -> set[str]:
            # Each state follows from news.
            topic.write(named("more", 1))
            read.update(values(begun.next()))
            written = begun.offset["enumerator"]
            return set(written[1]["topics"]) if written else set()

        wait_until(lambda: len(known()) == 5, "all topics")
        for other in others:
            other.delete()
        wait_until(lambda: known() == {topic.name}, "the deleted ones to be forgotten")
        again = others[0].create()
        again.write(named("again", 7))
        wait_until(lambda: len(known()) == 2 and read[b"again-0-6"], "the one that came again")
        assert f"{again.name}-0" in {f"{entry[0][0]}-{entry[0][1]}" for entry in begun.offset["splits"]}
    assert {value: n for value, n in read.items() if value and value.startswith(b"again")} == {
        b"again-0-%d" % i: 1 for i in range(7)
    }
    for other in others:
        other.close()
