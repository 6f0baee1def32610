"""Whatever stands in a record, and whatever a schema registry answers, is a value, null, or an error with its place."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
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

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["schema", "id", "schemaType", "subject", "version", "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)


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
    return {
        "avro": samples.avro(registry, schema)({"id": 1, "ts": samples.T}),
        "json": b'{"id": 1, "ts": "2024-01-01T00:00:00Z"}',
        "string": "Grüße".encode(),
    }


@cache
def planned(kind: str, options: tuple[tuple[str, str], ...]) -> Any:
    source = KafkaSource.of("host:9092", "orders", valueFormat=kind, **dict(options))
    source.schema()
    return source.values


@pytest.mark.parametrize("kind", ["avro", "json", "string"])
@pytest.mark.parametrize("invalid", ["fail", "null"])
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_are_a_value_or_invalid(
    registry: Registry, written: dict[str, bytes], kind: str, invalid: str, data: st.DataObject
) -> None:
    options: dict[str, Any] = {} if kind == "string" else {"invalidValue": invalid}
    if kind == "json":
        options["valueSchema"] = "id bigint, ts timestamp"
    if kind == "avro":
        options |= {"schemaRegistryUrl": registry.url, "schemaRegistry.max.retries": "0"}
    values = planned(kind, tuple(sorted(options.items())))
    mutated = bytearray(written[kind])
    for _ in range(data.draw(st.integers(0, 3))):
        begin = data.draw(st.integers(0, len(mutated)))
        mutated[begin : begin + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    given_ = [written[kind], bytes(mutated), data.draw(st.none() | st.binary(max_size=30))]
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


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(answer=JSON | st.fixed_dictionaries({"schema": st.text(max_size=20) | JSON.map(json.dumps), "id": JSON}))
def test_any_answer_of_a_registry_is_a_schema_or_an_error(registry: Registry, answer: Any) -> None:
    source = KafkaSource.of(
        "host:9092",
        "orders",
        valueFormat="avro",
        schemaRegistryUrl=registry.url,
        **{"schemaRegistry.max.retries": "0"},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "answer", lambda *_: answer)
        with contextlib.suppress(AlignmentError):
            assert "value" in source.schema().names
