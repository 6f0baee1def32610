"""What is lost, gone, unreachable or wrong: each error names the thing, the rule and the fix, and no secret."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from streaming_source import read_stream
from streaming_source.exceptions import DataLossError, OptionError, SourceError
from streaming_source.spark.datasource import AlignedDataSource
from tests.examples import each_once, one_in
from tests.kafka.broker import KafkaBroker
from tests.kafka.support import format_options, on_executor, reading, records, to_end
from tests.kafka.topics import Record, Topic, wait_until
from tests.spark.reading import Reading
from tests.spark.support import T0, Run, available_now, fails_with, forget_batches, last_batch

T0_MS = T0 // 1000
SECRET = "correct-horse-battery"


def numbered(n: int, first: int = 0, **fields: Any) -> list[Record]:
    return [Record(T0_MS + i, b"%d" % i, **fields) for i in range(first, first + n)]


def step_until(begun: Reading, condition: Callable[[], object]) -> None:
    """Micro-batches until it holds; errors come from here."""

    def step() -> object:
        begun.next()
        return condition()

    wait_until(step, "it to be noticed")


def offsets(tables: list[pa.Table]) -> list[int]:
    return [record.offset for table in tables for record in records(table)]


# ---- lost ------------------------------------------------------------------------------------------------------------


def lose_by_deletion(topic: Topic) -> None:
    topic.delete_records({0: 8})


def lose_by_retention(topic: Topic) -> None:
    topic.expire()
    topic.write(numbered(2, 10))


@pytest.mark.parametrize("lose", [lose_by_deletion, lose_by_retention])
def test_records_that_are_deleted_before_a_restart(topic: Topic, lose: Callable[[Topic], None]) -> None:
    topic.create().write(numbered(10))
    with reading(topic, maxRowsPerTrigger=5) as begun:
        begun.reader.prepareForTriggerAvailableNow()
        begun.next()
        at = begun.offset
    lose(topic)
    left = [record.offset for record in topic.read()[0]]
    assert left[0] > 5
    with reading(topic) as begun:
        begun.offset = at
        with pytest.raises(DataLossError) as error:
            to_end(begun)
    for word in (f"{topic.name}-0", "offset 5", "failOnDataLoss", "checkpointLocation"):
        assert word in str(error.value)
    with reading(topic, failOnDataLoss="false") as begun:
        begun.offset = at
        assert offsets(to_end(begun)) == left


@pytest.mark.parametrize("lose", [lose_by_deletion, lose_by_retention])
def test_records_that_are_deleted_while_a_query_runs(topic: Topic, lose: Callable[[Topic], None]) -> None:
    def run(topic: Topic, *, fails: bool) -> list[int]:
        topic.create().write(numbered(10))
        with reading(topic, maxRowsPerTrigger=2, failOnDataLoss=str(fails).lower()) as begun:
            begun.reader.prepareForTriggerAvailableNow()
            tables = [begun.next()]
            lose(topic)
            while (table := begun.next()) is not None:
                tables.append(table)
        return offsets(tables)

    with pytest.raises(DataLossError, match=rf"{topic.name}-0.*offset 2 is not there"):
        run(topic, fails=True)
    other = Topic(topic.broker)
    read = run(other, fails=False)
    # Of what was there at the start of the run.
    assert read == [0, 1, *(record.offset for record in other.read()[0] if record.offset < 10)]


def test_records_that_are_deleted_between_planning_and_reading(topic: Topic) -> None:
    topic.create().write(numbered(10))
    with reading(topic) as begun:
        begun.reader.prepareForTriggerAvailableNow()
        start, end = begun.offset, begun.reader.latestOffset(begun.offset, begun.reader.getDefaultReadLimit())
        stop = end["splits"][0][0][2]
        assert stop > 6
        topic.delete_records({0: 6})
        with pytest.raises(DataLossError, match=r"offset 0 is not there.*6 to 10"):
            begun.between(start, end)
    with reading(topic, failOnDataLoss="false") as begun:
        assert offsets([begun.between(start, end)]) == list(range(6, stop))


# ---- gone ------------------------------------------------------------------------------------------------------------


def test_a_topic_that_was_never_there(topic: Topic) -> None:
    with reading(topic) as begun, pytest.raises(OptionError, match=f"no topic '{topic.name}'.*subscribePattern"):
        begun.next()


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "created-again"])
def test_a_topic_that_is_deleted_while_it_is_read(topic: Topic, again: bool) -> None:
    topic.create().write(numbered(10))
    with reading(topic, discoveryInterval="50 ms") as begun:
        step_until(begun, lambda: begun.offset["splits"][0][0][2] == 10)
        topic.delete()
        if again:
            # As many records as before, so that no offset gives it away.
            topic.create().write(numbered(10))
        with pytest.raises(DataLossError) as error:
            step_until(begun, lambda: False)
    for word in (topic.name, "failOnDataLoss", "checkpointLocation"):
        assert word in str(error.value)


def test_a_topic_that_was_created_again_while_the_query_was_down(topic: Topic) -> None:
    topic.create().write(numbered(10))
    with reading(topic) as begun:
        to_end(begun)
        at = begun.offset
    topic.delete()
    topic.create().write(numbered(12, 100))
    with reading(topic) as begun:
        begun.offset = at
        with pytest.raises(DataLossError, match=topic.name):
            to_end(begun)
    with reading(topic, failOnDataLoss="false") as begun:
        begun.offset = at
        assert offsets(to_end(begun)) == list(range(12))


@pytest.mark.parametrize(("indexing", "count"), each_once(["auto", "scan"], [40, 4000]))
def test_what_was_known_of_a_topic_is_not_read_of_the_one_that_was_created_after_it(
    topic: Topic, indexing: str, count: int
) -> None:
    topic.create().write(numbered(count))
    options = {"failOnDataLoss": "false", "indexing": indexing, "discoveryInterval": "200 ms"}
    with reading(topic, maxRowsPerTrigger=10, **options) as begun:
        step_until(begun, lambda: begun.offset["splits"] and begun.offset["splits"][0][0][2] >= 20)
        topic.delete()
        # All offsets that are known of the old one are there again.
        topic.create().write(numbered(count + 50, count))
        begun.await_unread(count + 50)
        read: list[int] = []

        def read_all() -> bool:
            table = begun.next(1000)
            read.extend(offsets([table] if table else []))
            return len(read) >= count + 50

        wait_until(read_all, "all records of the new topic")
        read_all()
    assert read == list(range(count + 50))


def plan_and_lose(begun: Reading, topic: Topic, left: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Plan a micro-batch of offsets 10 to 14; then the topic is created again with so many records, or deleted."""
    topic.create().write(numbered(10))
    step_until(begun, lambda: begun.offset["splits"] and begun.offset["splits"][0][0][2] == 10)
    start = begun.offset
    topic.write(numbered(5, 10))
    begun.await_unread(5)
    end = begun.reader.latestOffset(start, begun.reader.getDefaultReadLimit())
    assert end["splits"][0][0][2] == 15
    topic.delete()
    if left is not None:
        topic.create()
        topic.write(numbered(left, 100))
    return start, end


@pytest.mark.parametrize("left", one_in(3, [30, 12, 0, None]), ids=["longer", "shorter", "empty", "deleted"])
def test_a_query_restarted_after_its_topic_was_created_again_under_a_planned_micro_batch(
    topic: Topic, left: int | None
) -> None:
    with reading(topic, watermarkRows="true") as begun:
        start, end = plan_and_lose(begun, topic, left)
    began = time.monotonic()
    with reading(topic) as begun, pytest.raises(DataLossError, match=f"{topic.name}.*created again.*failOnDataLoss"):
        begun.between(start, end)
    with reading(topic, failOnDataLoss="false", watermarkRows="true") as begun:
        # Nothing of the topic that is there now: all of it is read by the next micro-batches.
        assert offsets([begun.between(start, end)]) == []
        begun.offset = end
        assert offsets(to_end(begun)) == list(range(left or 0))
    assert time.monotonic() - began < 30  # not the 120 s for which a reader waits for records


@pytest.mark.parametrize(
    ("left", "read", "what"),
    [
        pytest.param(
            12,
            [],
            "(created again, since the range was planned|offset 12 is not there, the partition has 0 to 12)",
            marks=pytest.mark.soak,
        ),
        (3, [], "(created again, since the range was planned|offset 10 is not there, the partition has 0 to 3)"),
        (None, [], "the brokers know no partition"),
    ],
    ids=["shorter", "much-shorter", "deleted"],
)
def test_a_log_that_ends_before_a_range_that_was_planned(
    topic: Topic, left: int | None, read: list[int], what: str
) -> None:
    began = time.monotonic()
    with reading(topic, failOnDataLoss="false", discoveryInterval="1 hour", watermarkRows="true") as begun:
        start, end = plan_and_lose(begun, topic, left)
        (task,) = begun.reader.partitions(start, end)
        assert offsets([pa.Table.from_batches(on_executor(begun.reader).read(task))]) == read
    with reading(topic) as strict, pytest.raises(DataLossError, match=f"{topic.name}-0.*{what}"):
        list(on_executor(strict.reader).read(task))
    assert time.monotonic() - began < 30


def test_an_available_now_run_reads_a_topic_that_is_created_again_meanwhile(topic: Topic) -> None:
    topic.create().write(numbered(10))
    with reading(topic, maxRowsPerTrigger=4, failOnDataLoss="false", watermarkRows="true") as begun:
        begun.reader.prepareForTriggerAvailableNow()
        first = begun.next()
        topic.delete()
        topic.create().write(numbered(12, 100))
        read = [record.value for table in (first, *to_end(begun)) for record in records(table)]
    assert read == [b"%d" % i for i in (*range(4), *range(100, 112))]


# ---- unreachable -----------------------------------------------------------------------------------------------------


def test_brokers_that_cannot_be_reached_fail_the_query_when_its_patience_ends(topic: Topic) -> None:
    options = {"kafka.bootstrap.servers": "127.0.0.1:19", "brokerTimeout": "2 seconds"}
    began = time.monotonic()
    with reading(topic, **options) as begun, pytest.raises(SourceError, match=r"127\.0\.0\.1:19"):
        begun.next()
    assert time.monotonic() - began > 2


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        ({"kafka.bootstrap.servers": "no-such-host.invalid:9092"}, "Failed to resolve 'no-such-host.invalid:9092'"),
        ({"kafka.security.protocol": "SSL"}, "SSL"),
        (
            {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.username": "u", "kafka.sasl.password": "p"},
            "SASL",
        ),
    ],
    ids=["unresolvable", "tls", "sasl"],
)
def test_brokers_that_were_never_there_are_named_with_the_cause(
    topic: Topic, given: dict[str, str], cause: str
) -> None:
    options = {"kafka.sasl.mechanism": "PLAIN", "brokerTimeout": "2 seconds", **given}
    with reading(topic, **options) as begun, pytest.raises(SourceError) as error:
        begun.next()
    told = str(error.value).partition(". No broker has answered since the query started")
    assert told[1]
    assert cause in told[0]


def test_brokers_that_were_never_there_are_waited_for_seconds_and_not_for_all_of_broker_timeout(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming_source.connectors.kafka.enumerator._FIRST_CONTACT_S", 1.0)
    began = time.monotonic()
    options = {"kafka.bootstrap.servers": "127.0.0.1:19", "brokerTimeout": "10 minutes"}
    with reading(topic, **options) as begun, pytest.raises(SourceError, match="Connection refused"):
        begun.next()
    assert time.monotonic() - began < 60


@pytest.mark.soak
def test_a_broker_that_is_paused_and_killed_is_waited_for(own_broker: KafkaBroker) -> None:
    topic = Topic(own_broker).create(partitions=2)
    topic.write([*numbered(10), *numbered(10, partition=1)])
    with reading(topic, idleTimeout="300 ms", discoveryInterval="100 ms", watermarkRows="true") as begun:
        seen: list[Record] = []

        def have(n: int) -> Callable[[], bool]:
            def step() -> bool:
                table = begun.next()
                seen.extend(records(table) if table is not None else ())
                return len(seen) >= n

            return step

        wait_until(have(20), "what is there")
        for stop, start in ((own_broker.pause, own_broker.resume), (own_broker.kill, own_broker.start)):
            stop()
            for _ in range(50):
                assert begun.next() is None or len(seen) < 100
            start()
            n = len(seen)
            topic.write(numbered(10, n, partition=n // 10 % 2))
            wait_until(have(n + 10), "what was written afterwards", 60)
        assert len(seen) == len({(r.partition, r.offset) for r in seen}) == 40


# ---- wrong and secret ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": None}, "give exactly one of subscribe, subscribePattern, assign"),
        ({"assign": '{"t": [0]}'}, "exclude each other"),
        ({"startingOffset": "latest"}, "unknown option 'startingoffset'; did you mean startingOffsets"),
        ({"kafka.bootstrap.servers": None}, "kafka.bootstrap.servers is missing"),
        ({"kafka.auto.offset.reset": "latest"}, "startingOffsets"),
        ({"kafka.bootstrap.server": "x"}, "bootstrap.server"),
        ({"startingOffsets": '{"another": {"0": 1}}'}, "startingOffsets"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_options_are_told(topic: Topic, options: dict[str, str | None], message: str) -> None:
    topic.create().write(numbered(1))
    with pytest.raises((OptionError, SourceError)) as error, reading(topic, **options) as begun:
        to_end(begun)
    assert message.lower() in str(error.value).lower()


def test_a_secret_is_in_no_error_no_log_and_no_repr(
    topic: Topic, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    topic.create().write(numbered(3))
    secret = {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "someone",
        "kafka.sasl.password": SECRET,
    }
    caplog.set_level(logging.DEBUG)
    # The broker speaks no SASL: it hangs up.
    with reading(topic, **secret, brokerTimeout="2 seconds") as begun, pytest.raises(SourceError) as error:
        begun.next()
    wrong = {**secret, "kafka.sasl.mechanism": "NONSENSE"}
    with pytest.raises(OptionError) as other, reading(topic, **wrong):
        pass
    source = AlignedDataSource.of_format("aligned_kafka", format_options(topic, **secret))
    printed = capfd.readouterr()
    for text in (str(error.value), repr(error.value), str(other.value), repr(vars(source)), caplog.text, *printed):
        assert SECRET not in text
    assert error.value.__cause__ is None


@pytest.mark.spark
def test_a_secret_is_in_no_checkpoint_and_no_progress(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    topic.create().write(numbered(10))
    given = format_options(topic, **{"kafka.sasl.password": SECRET, "maxRowsPerTrigger": 4})
    frame = read_stream(spark).format("aligned_kafka").options(**given).load()
    run = available_now(spark, frame, tmp_path / "cp")
    assert len(run.rows) == 10
    assert SECRET not in json.dumps(run.progress)
    written = [path for path in (tmp_path / "cp").rglob("*") if path.is_file()]
    assert any("offsets" in path.parts for path in written)
    assert not [path for path in written if SECRET.encode() in path.read_bytes()]


@pytest.mark.spark
@pytest.mark.soak
def test_a_restart_after_a_crash_goes_on_with_the_topic_that_was_created_again(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    topic.create().write(numbered(10))
    cp, out = tmp_path / "cp", tmp_path / "out"

    def run(**more: object) -> Run:
        frame = read_stream(spark).format("aligned_kafka").options(**format_options(topic, **more)).load()
        return available_now(spark, frame.select("value"), cp, files=out)

    assert len(run().rows) == 10
    # As if the driver had died between planning the micro-batch and committing it.
    forget_batches(cp / "commits", last_batch(cp))
    forget_batches(out / "_spark_metadata", last_batch(cp))
    topic.delete()
    topic.create().write(numbered(4, 100))
    with fails_with("DataLossError", topic.name, "created again", "failOnDataLoss"):
        run()
    read = {bytes(row[0]) for row in run(failOnDataLoss="false").rows}
    assert {b"%d" % i for i in range(100, 104)} <= read


@pytest.mark.soak
@pytest.mark.spark
def test_spark_tells_what_was_lost(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    topic.create().write(numbered(10))

    def frame(**more: object) -> Any:
        return spark.readStream.format("aligned_kafka").options(**format_options(topic, **more)).load()

    available_now(spark, frame(), tmp_path / "cp", files=tmp_path / "out")
    topic.write(numbered(10, 10))
    topic.delete_records({0: 15})
    with fails_with("DataLossError", f"{topic.name}-0", "offset 10", "failOnDataLoss"):
        available_now(spark, frame(), tmp_path / "cp", files=tmp_path / "out")
    run = available_now(spark, frame(failOnDataLoss="false"), tmp_path / "cp", files=tmp_path / "out")
    assert len(run.rows) == 15
