"""Whatever stands in a record, and whatever a schema registry answers, is a value, null, or an error with its place."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from streaming_source.connectors.kafka import KafkaSource
from streaming_source.connectors.kafka import registry as schema_registry
from streaming_source.connectors.kafka.subscription import Partition
from streaming_source.exceptions import AlignmentError, MalformedDataError
from tests.examples import examples
from tests.kafka import test_schema_values as samples
from tests.kafka.registry import Registry, serving

pytest.importorskip("fastavro", reason="needs the extra kafka-schema")
pytest.importorskip("google.protobuf", reason="needs the extra kafka-schema")

from google.protobuf import descriptor_pool, timestamp_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.text_format import Parse

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["schema", "id", "schemaType", "subject", "version", "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)

ODD = st.sampled_from([None, 5, "x", [], {}, True, "int"])
AVRO = st.recursive(
    st.sampled_from(["null", "int", "bytes", "x"]) | ODD,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.fixed_dictionaries(
            {"type": st.sampled_from(["array", "map", "fixed", "enum"]) | inner, "name": st.sampled_from("xy") | ODD},
            optional={"items": inner, "values": inner, "size": st.just(16) | ODD, "symbols": st.just(["A"]) | ODD}
            | {"logicalType": st.sampled_from(["uuid", "decimal"]) | ODD, "precision": ODD, "scale": ODD},
        )
    ),
    max_leaves=4,
).map(lambda kind: {"type": "record", "name": "r", "fields": [{"name": "f", "type": kind}]})


def avro_of(kind: Any, **of_record: Any) -> dict[str, Any]:
    """An answer whose schema is a record with a field of a type."""
    schema = {"type": "record", "name": "r", "fields": [{"name": "f", "type": kind}], **of_record}
    return {"schema": json.dumps(schema), "id": 1}


ORDER = Parse(
    """
    name: "order.proto" package: "shop" syntax: "proto3" dependency: "google/protobuf/timestamp.proto"
    message_type {
      name: "Order"
      field { name: "id" number: 1 type: TYPE_UINT64 label: LABEL_OPTIONAL }
      field { name: "ts" number: 2 type: TYPE_MESSAGE label: LABEL_OPTIONAL type_name: ".google.protobuf.Timestamp" }
      field { name: "name" number: 3 type: TYPE_STRING label: LABEL_OPTIONAL proto3_optional: true oneof_index: 0 }
      field { name: "kinds" number: 4 type: TYPE_ENUM label: LABEL_REPEATED type_name: ".shop.Kind" }
      field { name: "parts" number: 5 type: TYPE_MESSAGE label: LABEL_REPEATED type_name: ".shop.Part" }
      field { name: "counts" number: 6 type: TYPE_MESSAGE label: LABEL_REPEATED type_name: ".shop.Order.CountsEntry" }
      nested_type {
        name: "CountsEntry" options { map_entry: true }
        field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
        field { name: "value" number: 2 type: TYPE_SINT32 label: LABEL_OPTIONAL }
      }
      oneof_decl { name: "_name" }
    }
    message_type {
      name: "Part"
      field { name: "weight" number: 1 type: TYPE_DOUBLE label: LABEL_OPTIONAL }
      field { name: "raw" number: 2 type: TYPE_BYTES label: LABEL_OPTIONAL }
    }
    enum_type { name: "Kind" value { name: "NONE" number: 0 } value { name: "SOME" number: 7 } }
    """,
    FileDescriptorProto(),
)


def order() -> bytes:
    """A message as the registry's serializer frames it."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(ORDER)
    make = GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    row = {"id": 2**64 - 1, "ts": {"seconds": 1_704_067_200}, "name": "Grüße", "kinds": [7, 0], "counts": {"a": -1}}
    return samples.framed(1, make(**row, parts=[{"weight": 0.5, "raw": b"\xff"}, {}]))


def changed(data: st.DataObject, written: bytes) -> bytes:
    """The same with up to three runs of bytes replaced."""
    mutated = bytearray(written)
    for _ in range(data.draw(st.integers(0, 3))):
        begin = data.draw(st.integers(0, len(mutated)))
        mutated[begin : begin + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    return bytes(mutated)


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    """One for all examples: schemas are remembered by its address."""
    schema_registry._by_id.cache_clear()
    with serving() as served:
        yield served


@pytest.fixture(scope="module")
def written(registry: Registry) -> dict[str, bytes]:
    """A value of each format as its own serializer writes it."""
    schema = samples.record(samples.ID, samples.AT)
    registry.register("orders", base64.b64encode(ORDER.SerializeToString()).decode(), "PROTOBUF")
    return {
        "avro": samples.avro(registry, schema)({"id": 1, "ts": samples.T}),
        "json": b'{"id": 1, "ts": "2024-01-01T00:00:00Z"}',
        "protobuf": order(),
        "string": "Grüße".encode(),
    }


@cache
def planned(kind: str, options: tuple[tuple[str, str], ...]) -> Any:
    source = KafkaSource.of("host:9092", "orders", valueFormat=kind, **dict(options))
    source.schema()
    return source.values


@pytest.mark.parametrize("kind", ["avro", "json", "protobuf", "string"])
@pytest.mark.parametrize("invalid", ["fail", "null"])
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_are_a_value_or_invalid(
    registry: Registry, written: dict[str, bytes], kind: str, invalid: str, data: st.DataObject
) -> None:
    options: dict[str, Any] = {} if kind == "string" else {"invalidValue": invalid}
    if kind == "json":
        options["valueSchema"] = "id bigint, ts timestamp"
    if kind == "protobuf":
        options["valueSubject"] = "orders"
    if kind in ("avro", "protobuf"):
        options |= {"schemaRegistryUrl": registry.url, "schemaRegistry.max.retries": "0"}
    values = planned(kind, tuple(sorted(options.items())))
    given_ = [written[kind], changed(data, written[kind]), data.draw(st.none() | st.binary(max_size=30))]
    error = ""
    try:
        made = values.column(given_, Partition("orders", 1), np.arange(10, 13))
    except MalformedDataError as raised:
        error = str(raised)
    if error:
        assert invalid == "fail" or kind == "string"
        assert "orders-1" in error
        return
    made.validate(full=True)
    assert len(made) == 3
    assert made[0].is_valid
    assert made[2].is_valid or given_[2] is None or invalid == "null"


@pytest.mark.parametrize("kind", ["avro", "protobuf"])
@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    answer=JSON
    | st.fixed_dictionaries({"schema": st.text(max_size=20) | (JSON | AVRO).map(json.dumps), "id": st.just(1) | JSON})
)
@example(answer={"schema": "[]", "id": 1})
@example(answer=avro_of([]))
@example(answer=avro_of({"type": "array", "items": []}))
@example(answer=avro_of({"type": "fixed", "name": "x", "size": "a"}))
@example(answer=avro_of({"type": "fixed", "name": "x", "size": None}))
@example(answer=avro_of({"type": "int", "logicalType": {}}))
@example(answer=avro_of("int", fields=[{"name": 5, "type": "int"}]))
@example(answer=avro_of("int", fields=[{"name": [], "type": "int"}]))
def test_any_answer_of_a_registry_is_a_schema_or_an_error(registry: Registry, kind: str, answer: Any) -> None:
    with answering(registry, answer), contextlib.suppress(AlignmentError):
        assert "value" in asking(registry, kind).schema().names


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_descriptor_of_protobuf_is_a_schema_that_values_are_read_with_or_an_error(
    registry: Registry, data: st.DataObject
) -> None:
    text = base64.b64encode(changed(data, ORDER.SerializeToString())).decode()
    source = asking(registry, "protobuf")
    with answering(registry, {"schema": text, "id": 1, "schemaType": "PROTOBUF"}):
        try:
            source.schema()
        except AlignmentError:
            return
    with contextlib.suppress(MalformedDataError):
        source.values.column([order(), changed(data, order())], Partition("orders", 1), np.arange(2)).validate(
            full=True
        )


def asking(registry: Registry, kind: str) -> KafkaSource:
    settings = {"schemaRegistryUrl": registry.url, "schemaRegistry.max.retries": "0"}
    return KafkaSource.of("host:9092", "orders", valueFormat=kind, **settings)


@contextlib.contextmanager
def answering(registry: Registry, answer: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "answer", lambda *_: answer)
        yield
