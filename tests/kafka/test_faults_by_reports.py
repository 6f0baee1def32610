"""What is lost, gone, aborted or away with `indexing=off`, where nobody reads ahead of the readers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from streaming_source.exceptions import DataLossError, SourceError
from tests.kafka import test_faults as indexed
from tests.kafka.broker import KafkaBroker
from tests.kafka.registry import serving
from tests.kafka.support import by_split, reading, records, to_end
from tests.kafka.test_faults import lose_by_deletion, lose_by_retention, numbered, offsets, step_until
from tests.kafka.test_reading import until
from tests.kafka.topics import Record, Topic

OFF = {"indexing": "off", "watermarkRows": "true"}


@pytest.mark.parametrize("lose", [lose_by_deletion, pytest.param(lose_by_retention, marks=pytest.mark.soak)])
def test_records_that_are_deleted_before_a_restart(topic: Topic, lose: Callable[[Topic], None]) -> None:
    topic.create().write(numbered(10))
    with reading(topic, maxRowsPerTrigger=5, **OFF) as begun:
        begun.reader.prepareForTriggerAvailableNow()
        step_until(begun, lambda: begun.offset["splits"] and begun.offset["splits"][0][0][2] >= 5)
        at = begun.offset
    assert at["splits"][0][0][2] == 5
    lose(topic)
    left = [record.offset for record in topic.read()[0]]
    with reading(topic, **OFF) as begun:
        begun.offset = at
        with pytest.raises(DataLossError, match=rf"{topic.name}-0.*offset 5.*failOnDataLoss"):
            to_end(begun)
    with reading(topic, failOnDataLoss="false", **OFF) as begun:
        begun.offset = at
        assert offsets(to_end(begun)) == left


@pytest.mark.parametrize("fails", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_a_topic_that_is_created_again_while_it_is_read(topic: Topic, fails: bool) -> None:
    topic.create().write(numbered(10))
    options = {"discoveryInterval": "50 ms", "failOnDataLoss": str(fails).lower(), **OFF}
    with reading(topic, **options) as begun:
        step_until(begun, lambda: begun.offset["splits"] and begun.offset["splits"][0][0][2] == 10)
        topic.delete()
        topic.create().write(numbered(12, 100))
        if fails:
            with pytest.raises(DataLossError, match=f"{topic.name}.*created again.*failOnDataLoss"):
                step_until(begun, lambda: False)
        else:
            assert [record.value for record in records(until(begun, 12))] == [b"%d" % n for n in range(100, 112)]


def test_aborted_transactions_and_partitions_that_are_added_are_read_over_and_read(topic: Topic) -> None:
    topic.create()
    topic.write(numbered(4))
    topic.transaction(numbered(5, 100), end="abort")
    topic.write(numbered(3, 4))
    with reading(topic, discoveryInterval="50 ms", **OFF) as begun:
        assert [record.value for record in records(until(begun, 7))] == [b"%d" % n for n in range(7)]
        topic.add_partitions(2)
        topic.write(numbered(3, 50, partition=1))
        topic.transaction(numbered(2, 60, partition=1), end="abort")
        assert by_split(until(begun, 3)) == {1: [0, 1, 2]}


@pytest.mark.soak
def test_a_broker_that_is_paused_and_killed_is_waited_for(
    own_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_reports = indexed.reading
    monkeypatch.setattr(indexed, "reading", lambda topic, **options: with_reports(topic, **{**options, **OFF}))
    indexed.test_a_broker_that_is_paused_and_killed_is_waited_for(own_broker)


# ---- a registry ------------------------------------------------------------------------------------------------------


def test_a_registry_that_is_away_fails_what_needs_it_and_a_restart_goes_on(topic: Topic) -> None:
    pytest.importorskip("fastavro", reason="needs the extra kafka-schema")
    from tests.kafka import test_schema_values as samples

    topic.create()
    samples.schema_registry._by_id.cache_clear()
    with serving() as registry:
        schema = samples.record(samples.ID, samples.AT)
        write = samples.avro(registry, schema, samples.SerializationContext(topic.name, samples.MessageField.VALUE))
        values = [write({"id": n, "ts": samples.T}) for n in range(4)]
        topic.write([Record(indexed.T0_MS + n, value) for n, value in enumerate(values[:2])])
        options = {"valueFormat": "avro", "schemaRegistryUrl": registry.url, "schemaRegistry.max.retries": "0"}
        with reading(topic, **options) as begun:
            read = [row["id"] for table in to_end(begun) for row in table["value"].to_pylist() if row]
            at = begun.offset
        topic.write([Record(indexed.T0_MS + n, value) for n, value in enumerate(values[2:], 2)])
        registry.fails = True
        samples.schema_registry._by_id.cache_clear()
        failed = r"looking up .* in the schema registry failed"
        with pytest.raises(SourceError, match=failed), reading(topic, **options):
            pass
        registry.fails = False
        with reading(topic, **options) as begun:
            # Planned while it was there, and read when it is away: no value is taken for invalid.
            begun.offset = at
            begun.reader.prepareForTriggerAvailableNow()
            end = begun.reader.latestOffset(at, begun.reader.getDefaultReadLimit())
            registry.fails = True
            samples.schema_registry._by_id.cache_clear()
            with pytest.raises(SourceError, match="looking up schema 1 in the schema registry failed"):
                begun.between(at, end)
            registry.fails = False
            read += [row["id"] for row in begun.between(at, end)["value"].to_pylist() if row]
        assert read == [0, 1, 2, 3]
