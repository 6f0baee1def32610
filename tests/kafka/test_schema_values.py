"""Avro and Protobuf values by a schema registry: every version is read as the latest, in the client's own framing."""

from __future__ import annotations

import base64
import json
import pickle
import struct
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streaming_source.connectors.kafka import KafkaSource
from streaming_source.connectors.kafka import registry as schema_registry
from streaming_source.connectors.kafka.subscription import Partition
from streaming_source.exceptions import MalformedDataError, OptionError, SourceError
from tests.kafka.registry import Registry, serving
from tests.kafka.support import reading, to_end
from tests.kafka.topics import MS, Record, Topic
from tests.spark.support import SECOND, T0

pytest.importorskip("fastavro", reason="needs the extra kafka-schema")
pytest.importorskip("google.protobuf", reason="needs the extra kafka-schema")

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pool, timestamp_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message_factory import GetMessageClass

SECRET = "correct-horse-battery"
TOPIC_NAMES = {"subject.name.strategy.type": "TOPIC"}
VALUE = SerializationContext("orders", MessageField.VALUE)
TS = {"type": "long", "logicalType": "timestamp-micros"}
T = datetime(2024, 1, 1, tzinfo=UTC)


@pytest.fixture
def registry() -> Iterator[Registry]:
    # A port may be given to another one of these again, and what was asked of this one is remembered.
    schema_registry._by_id.cache_clear()
    with serving() as served:
        yield served


def record(*fields: Any, name: str = "Order") -> str:
    return json.dumps({"type": "record", "name": name, "fields": list(fields)})


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


ID, AT = field("id", "long"), field("ts", TS)


def values_of(registry: Registry, kind: str = "avro", **options: Any) -> Any:
    """The format, as an executor has it: behind planning and pickling."""
    given = {"schemaRegistryUrl": registry.url, "schemaRegistry.max.retries": "0", **options}
    source = KafkaSource.of("host:9092", "orders", valueFormat=kind, **given)
    source.schema()
    return pickle.loads(pickle.dumps(source)).values


def column(values: Any, *written: bytes | None) -> list[Any]:
    made = values.column([*written], Partition("orders", 1), np.arange(10, 10 + len(written)))
    assert made.type == values.type
    found: list[Any] = made.to_pylist()
    return found


def avro(registry: Registry, schema: str, context: SerializationContext = VALUE) -> Any:
    """Writes a value with the client's own serializer, which registers the schema at once."""

    def write(value: Any) -> bytes:
        with SchemaRegistryClient({"url": registry.url}) as client:
            written: bytes = AvroSerializer(client, schema, conf=TOPIC_NAMES)(value, context)
            return written

    return write


# ---- Avro ------------------------------------------------------------------------------------------------------------


def test_a_record_of_avro_has_every_kind_of_field(registry: Registry) -> None:
    inner = {
        "type": "record",
        "name": "Place",
        "fields": [field("lat", "double"), field("tags", {"type": "map", "values": "int"})],
    }
    schema = record(
        *(ID, AT, field("name", ["null", "string"]), field("place", inner), field("from", ["null", "Place"])),
        *(field("many", {"type": "array", "items": "int"}), field("raw", "bytes"), field("ok", "boolean")),
        field("price", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}),
        field("day", {"type": "int", "logicalType": "date"}),
        field("kind", {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}),
        field("uid", {"type": "string", "logicalType": "uuid"}),
    )
    row = {
        **{"id": 2**40, "ts": T, "name": None, "place": {"lat": 1.5, "tags": {"a": 1}}, "from": None, "many": [1, 2]},
        **{"raw": b"\xff", "ok": True, "price": Decimal("1.25"), "day": date(2024, 2, 1), "kind": "B"},
        "uid": "12345678-1234-5678-1234-567812345678",
    }
    written = avro(registry, schema)(row)
    read = column(values_of(registry), written, None)
    assert read == [{**row, "place": {"lat": 1.5, "tags": [("a", 1)]}}, None]


def test_every_version_of_avro_is_resolved_to_the_latest(registry: Registry) -> None:
    first = avro(registry, record(field("id", "int"), AT, field("old", "string")))({"id": 1, "ts": T, "old": "x"})
    second = avro(registry, record(ID, AT, field("new", "string", default="none")))({"id": 2, "ts": T, "new": "y"})
    assert column(values_of(registry), first, second) == [
        {"id": 1, "ts": T, "new": "none"},
        {"id": 2, "ts": T, "new": "y"},
    ]


def test_a_given_schema_of_avro_goes_before_the_latest_and_may_leave_out_fields(registry: Registry) -> None:
    written = avro(registry, record(ID, field("u", ["int", "string"])))({"id": 7, "u": "x"})
    with pytest.raises(OptionError, match=r"value\.u has no type of Spark: it is a union .* valueSchema"):
        values_of(registry)
    assert column(values_of(registry, valueSchema=record(ID)), written) == [{"id": 7}]


def test_the_schema_that_was_planned_with_is_read_with_when_a_newer_one_comes(registry: Registry) -> None:
    written = avro(registry, record(ID))({"id": 7})
    values = values_of(registry)
    newer = avro(registry, record(ID, field("more", "int", default=1)))({"id": 8, "more": 3})
    assert column(values, written, newer) == [{"id": 7}, {"id": 8}]


def test_schemas_of_avro_may_refer_to_others(registry: Registry) -> None:
    registry.register("place", record(field("lat", "double"), name="Place"))
    reference = {"name": "Place", "subject": "place", "version": 1}
    number = registry.register("orders-value", record(ID, field("at", "Place")), references=[reference])
    written = struct.pack(">bI", 0, number) + b"\x0e" + struct.pack("<d", 2.5)
    assert column(values_of(registry), written) == [{"id": 7, "at": {"lat": 2.5}}]


def test_a_record_that_contains_itself_has_no_column(registry: Registry) -> None:
    registry.register("orders-value", record(ID, field("next", ["null", "Order"])))
    with pytest.raises(OptionError, match=r"value\.next has no type of Spark: Order contains itself"):
        values_of(registry)


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\x00",
        b"\x01text",
        b"{}",
        b"\x00\x00\x00\x00\x63\x02",
        b"\x00\x00\x00\x00\x01",
        b"\x00\x00\x00\x00\x01\x02\x02",
    ],
    ids=["empty", "short", "magic", "json", "unknown-id", "no-record", "too-long"],
)
def test_what_is_no_avro_fails_by_its_place_or_is_null(registry: Registry, bad: bytes) -> None:
    good = avro(registry, record(ID))({"id": 7})
    with pytest.raises(
        MalformedDataError, match=r"partition orders-1, offset 11: the value .* is not Avro .* invalidValue"
    ):
        column(values_of(registry), good, bad, good)
    assert column(values_of(registry, invalidValue="null"), good, bad, good) == [{"id": 7}, None, {"id": 7}]


def test_a_writer_that_does_not_fit_the_reader_is_no_value(registry: Registry) -> None:
    text = avro(registry, record(field("id", "string")))({"id": "x"})
    registry.register("orders-value", record(ID))
    assert column(values_of(registry, invalidValue="null"), text) == [None]


# ---- Protobuf --------------------------------------------------------------------------------------------------------


def proto(registry: Registry, *fields: tuple[str, int, int], name: str = "order.proto") -> Any:
    """A class of messages with optional and repeated fields, registered by the client's serializer when it writes."""
    file = FileDescriptorProto(
        name=name, package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    message = file.message_type.add(name="Order")
    for field_name, number, kind in fields:
        made = message.field.add(name=field_name, number=number, type=kind, label=Field.LABEL_OPTIONAL)
        if kind == Field.TYPE_MESSAGE:
            made.type_name = ".google.protobuf.Timestamp"
        if field_name.endswith("s") and field_name != "ts":
            made.label = Field.LABEL_REPEATED
    file.message_type.add(name="Other")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    registry.register("orders-value", base64.b64encode(file.SerializeToString()).decode(), "PROTOBUF")
    found = pool.FindFileByName(name)
    return GetMessageClass(found.message_types_by_name["Order"]), GetMessageClass(found.message_types_by_name["Other"])


def framed(number: int, message: Any, indexes: bytes = b"\x00") -> bytes:
    content: bytes = message.SerializeToString()
    return struct.pack(">bI", 0, number) + indexes + content


def test_messages_of_every_version_are_read_as_the_latest(registry: Registry) -> None:
    old, _ = proto(registry, ("id", 1, Field.TYPE_INT64), ("gone", 2, Field.TYPE_STRING))
    new, _ = proto(
        registry,
        *(("id", 1, Field.TYPE_INT64), ("ts", 3, Field.TYPE_MESSAGE), ("names", 4, Field.TYPE_STRING)),
        *(("big", 5, Field.TYPE_UINT64), ("ok", 6, Field.TYPE_BOOL)),
    )
    moment = timestamp_pb2.Timestamp(seconds=int(T.timestamp()), nanos=5_000)
    row = new(id=2, ts={"seconds": moment.seconds, "nanos": moment.nanos}, names=["a", "b"], big=2**64 - 1, ok=True)
    assert column(values_of(registry, "protobuf"), framed(1, old(id=1, gone="x")), framed(2, row), None) == [
        {"id": 1, "ts": None, "names": [], "big": Decimal(0), "ok": False},
        {"id": 2, "ts": T.replace(microsecond=5), "names": ["a", "b"], "big": Decimal(2**64 - 1), "ok": True},
        None,
    ]


def test_what_the_clients_serializer_of_protobuf_writes_is_read(registry: Registry) -> None:
    made, _ = proto(registry, ("id", 1, Field.TYPE_INT64))
    latest = {"auto.register.schemas": False, "use.latest.version": True, **TOPIC_NAMES}
    with SchemaRegistryClient({"url": registry.url}) as client:
        written = ProtobufSerializer(made, client, latest)(made(id=5), VALUE)
    assert column(values_of(registry, "protobuf"), written) == [{"id": 5}]


@pytest.mark.parametrize("bad", [b"", b"\x00", b"text", b"\x00\x00\x00\x00\x01\x00\xff"])
def test_what_is_no_protobuf_fails_by_its_place_or_is_null(registry: Registry, bad: bytes) -> None:
    made, other = proto(registry, ("id", 1, Field.TYPE_INT64))
    good = framed(1, made(id=7))
    with pytest.raises(MalformedDataError, match=r"offset 11: the value .* is not Protobuf .* invalidValue"):
        column(values_of(registry, "protobuf"), good, bad)
    second = framed(1, other(), b"\x02\x02")
    assert column(values_of(registry, "protobuf", invalidValue="null"), bad, good, second) == [None, {"id": 7}, None]


# ---- the registry ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"valueFormat": "avro"}, "option valueFormat = 'avro' needs schemaRegistryUrl"),
        ({"schemaRegistryUrl": "http://a"}, "option valueFormat = 'binary' takes no schemaRegistryUrl"),
        ({"schemaRegistry.timeout": "5"}, r"takes no schemaRegistry\.\*"),
        ({"valueFormat": "protobuf", "schemaRegistryUrl": "http://a", "valueSchema": "x"}, "takes no valueSchema"),
        (
            {"valueFormat": "avro", "schemaRegistryUrl": "a:1"},
            "schemaRegistryUrl: address 1 of 1 .* 'https://host:8081'",
        ),
        ({"valueFormat": "avro", "schemaRegistryUrl": "https://a,https://[b"}, "schemaRegistryUrl: address 2 of 2"),
        ({"valueFormat": "avro", "schemaRegistryUrl": "http://a:many"}, "schemaRegistryUrl: address 1 of 1"),
        ({"valueFormat": "avro", "schemaRegistryUrl": "http://"}, "schemaRegistryUrl: address 1 of 1"),
        (
            {"valueFormat": "avro", "schemaRegistryUrl": "http://a", "schemaRegistry.nothing": "1"},
            "Unrecognized.*nothing",
        ),
        ({"valueFormat": "avro", "schemaRegistryUrl": "http://a", "subscribe": "a,b"}, "needs valueSubject"),
    ],
)
def test_options_of_formats_are_checked(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        KafkaSource.of("host:9092", **{"subscribe": "orders", **options})


def test_a_subject_that_the_registry_does_not_know(registry: Registry) -> None:
    with pytest.raises(OptionError, match=r"knows no subject 'orders-value'.*option valueSubject"):
        values_of(registry)


def test_a_registry_that_fails_is_no_invalid_value(registry: Registry) -> None:
    written = avro(registry, record(ID))({"id": 7})
    values = values_of(registry, invalidValue="null")
    registry.fails = True
    with pytest.raises(SourceError, match="looking up schema 1 in the schema registry failed"):
        column(values, written)


def test_each_schema_is_asked_for_once(registry: Registry) -> None:
    written = avro(registry, record(ID))({"id": 7})
    values = values_of(registry)
    del registry.asked[:]
    for _ in range(3):
        assert column(values, written, written) == [{"id": 7}] * 2
    assert sum(path.startswith("/schemas/ids") for path in registry.asked) == 1


def test_a_schema_that_the_registry_does_not_know_is_not_asked_for_with_every_record(registry: Registry) -> None:
    avro(registry, record(ID))({"id": 7})
    values = values_of(registry, invalidValue="null")
    del registry.asked[:]
    assert column(values, *[b"\x00\x00\x00\x00\x63\x02"] * 50) == [None] * 50
    assert sum(path.startswith("/schemas/ids") for path in registry.asked) == 1


def test_what_is_secret_of_the_registry_is_in_no_error_and_no_repr() -> None:
    with serving(user="someone:right") as registry:
        secret = {"schemaRegistry.basic.auth.user.info": f"someone:{SECRET}"}
        with pytest.raises(SourceError) as error:
            values_of(registry, **secret)
        source = KafkaSource.of(
            "host:9092", "orders", valueFormat="avro", schemaRegistryUrl=registry.url.replace("//", f"//me:{SECRET}@")
        )
        with pytest.raises(SourceError) as other:
            source.schema()
        with pytest.raises(OptionError) as unknown:
            values_of(registry, **secret, **{"schemaRegistry.nothing": SECRET})
    for text in (repr(source), repr(error.value), repr(other.value), repr(unknown.value)):
        assert SECRET not in text
    assert error.value.__cause__ is None


def test_a_registry_with_users_is_asked_as_the_one_given() -> None:
    with serving(user=f"someone:{SECRET}") as registry:
        registry.register("orders-value", record(ID))
        values = values_of(registry, **{"schemaRegistry.basic.auth.user.info": f"someone:{SECRET}"})
        assert values.type == pa.struct([("id", pa.int64())])


# ---- on the broker ---------------------------------------------------------------------------------------------------


def test_event_times_come_from_a_field_of_avro_of_two_versions(topic: Topic, registry: Registry) -> None:
    topic.create(partitions=2)
    subject = f"{topic.name}-value"
    older, newer = record(AT), record(AT, field("n", "int", default=-1))
    context = SerializationContext(topic.name, MessageField.VALUE)
    times = {p: [T0 + (i + 100 * p) * SECOND for i in range(20)] for p in range(2)}
    for p, schema in enumerate((older, newer)):
        write = avro(registry, schema, context)
        rows = [{"ts": datetime.fromtimestamp(t / 1e6, UTC), "n": i} for i, t in enumerate(times[p])]
        topic.write(Record(T0 // MS, write(row), partition=p) for row in rows)
    assert registry.subjects == {subject: [1, 2]}
    options = {"valueFormat": "avro", "schemaRegistryUrl": registry.url, "eventTimeColumn": "value.ts"}
    with reading(topic, bounded="true", maxRowsPerTrigger=7, **options) as begun:
        tables = to_end(begun)
        assert registry.url not in json.dumps(begun.offset)
    table = pa.concat_tables(tables).sort_by([("partition", "ascending"), ("offset", "ascending")])
    assert table["event_time"].cast(pa.int64()).to_pylist() == times[0] + times[1]
    assert [value["n"] for value in table["value"].to_pylist()] == [-1] * 20 + list(range(20))
