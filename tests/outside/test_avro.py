"""A schema of a registry and a record of some bytes neither end the process nor keep it for hours."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from streaming_source.connectors.kafka import registry as schema_registry
from streaming_source.connectors.kafka.avro_bounds import bounds_of
from streaming_source.exceptions import MalformedDataError, OptionError
from tests.kafka.registry import Registry, serving
from tests.kafka.test_schema_values import column, field, record, values_of
from tests.project.test_import_rule import ROOT

fastavro = pytest.importorskip("fastavro", reason="needs the extra kafka-schema")

NODE = {"type": "record", "name": "Node", "fields": [field("next", ["null", "Node"])]}
NOTHING = {"type": "record", "name": "Nothing", "fields": []}


@pytest.fixture
def registry() -> Iterator[Registry]:
    schema_registry._by_id.cache_clear()
    with serving() as served:
        yield served


def of(number: int, payload: bytes) -> bytes:
    return b"\0" + struct.pack(">I", number) + payload


def long(value: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, "long", value)
    return out.getvalue()


def doubling(depth: int) -> dict[str, Any]:
    """A record without bytes, of two records, each of two records, and so on."""
    kind: Any = NOTHING
    for n in range(depth):
        kind = {"type": "record", "name": f"D{n}", "fields": [field("a", kind), field("b", kind["name"])]}
    return kind


def chained(depth: int) -> list[Any]:
    """Records in each other, so many that a call for each takes the whole stack, in a schema that is flat."""
    kinds: list[Any] = [NOTHING]
    for n in range(depth):
        kinds.append({"type": "record", "name": f"C{n}", "fields": [field("of", kinds[-1]["name"])]})
    return kinds


HOSTILE: dict[str, tuple[Any, bytes]] = {
    "a type in itself": (NODE, b"\x02" * 200_000 + b"\0"),
    "items without bytes": ({"type": "array", "items": "null"}, long(10**12) + b"\0"),
    "items without bytes, in blocks": ({"type": "array", "items": "null"}, long(-(10**12)) + b"\0\0"),
    "records without bytes": ({"type": "array", "items": NOTHING}, long(2**62) + b"\0"),
    "no bytes, doubled": (doubling(40), b""),
    "items of no bytes, doubled": ({"type": "array", "items": doubling(10)}, (long(1_000) + b"\0") * 1),
    "fixed of no bytes": ({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}, long(10**12) + b"\0"),
    "a chain": (chained(5_000), long(5_000)),
    "arrays in arrays": (
        {"type": "record", "name": "A", "fields": [field("a", {"type": "array", "items": "A"})]},
        long(1) * 300_000 + b"\0" * 300_000,
    ),
    "maps in maps": (
        {"type": "record", "name": "M", "fields": [field("m", {"type": "map", "values": "M"})]},
        (long(1) + b"\0") * 300_000,
    ),
}


def test_a_record_beyond_the_bounds_is_an_invalid_value() -> None:
    """In a process of its own: some of these would end it."""
    code = "from tests.outside.test_avro import HOSTILE, read_one; [print(one, read_one(one)) for one in HOSTILE]"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


def read_one(name: str) -> None:
    kind, payload = HOSTILE[name]
    with serving() as registry:
        registry.register("orders-value", record(field("id", "long")))
        number = registry.register("others", json.dumps({**json.loads(record(field("id", "long"), field("x", kind)))}))
        good = of(1, long(7))
        begun = time.process_time()
        bad = of(number, long(8) + payload)
        assert column(values_of(registry, valueSchema=record(field("id", "long")), invalidValue="null"), bad, good) == [
            None,
            {"id": 7},
        ]
        with pytest.raises(MalformedDataError, match=r"(?s)is not Avro.*invalidValue"):
            column(values_of(registry, valueSchema=record(field("id", "long"))), bad)
        assert time.process_time() - begun < 10


def test_a_type_in_itself_within_the_bounds_is_read(registry: Registry) -> None:
    registry.register("orders-value", record(field("id", "long")))
    number = registry.register("others", record(field("id", "long"), field("x", NODE)))
    values = values_of(registry, valueSchema=record(field("id", "long")))
    assert column(values, of(number, long(8) + b"\x02" * 30 + b"\0")) == [{"id": 8}]


@pytest.mark.parametrize("kind", [doubling(40), chained(300)], ids=["doubled", "a chain"])
def test_a_readers_schema_beyond_the_bounds_is_refused(registry: Registry, kind: Any) -> None:
    registry.register("orders-value", record(field("id", "long"), field("x", kind)))
    with pytest.raises(OptionError, match="valueSchema"):
        values_of(registry)


def test_a_writers_schema_that_is_none_is_an_invalid_value(registry: Registry) -> None:
    registry.register("orders-value", record(field("id", "long")))
    number = registry.register("others", "[" * 5_000)
    assert column(values_of(registry, invalidValue="null"), of(number, long(1)), of(1, long(7))) == [None, {"id": 7}]


@pytest.mark.parametrize("kind", ["[]", '{"type": []}', record(field("x", []))])
def test_a_union_of_nothing_is_refused_or_has_no_value(registry: Registry, kind: str) -> None:
    registry.register("orders-value", kind)
    with pytest.raises(OptionError):
        column(values_of(registry))


def test_most_schemas_are_not_walked_through() -> None:
    kinds: list[Any] = ["null", "long", "string", {"type": "array", "items": "int"}, {"type": "map", "values": "null"}]
    kinds += [["null", "string"], {"type": "enum", "name": "E", "symbols": ["A"]}, doubling(3)]
    schema = fastavro.parse_schema(json.loads(record(*(field(f"f{n}", kind) for n, kind in enumerate(kinds)))))
    assert bounds_of(schema) is None


def test_a_walk_passes_over_every_kind_of_value() -> None:
    schema = fastavro.parse_schema(
        json.loads(
            record(
                field("node", NODE),
                field("many", {"type": "array", "items": "string"}),
                field("by", {"type": "map", "values": ["null", "double", "bytes"]}),
                field("fix", {"type": "fixed", "name": "Six", "size": 6}),
                field("kind", {"type": "enum", "name": "K", "symbols": ["A", "B"]}),
                field("at", {"type": "long", "logicalType": "timestamp-micros"}),
                field("few", ["null", "boolean", "float"]),
            )
        )
    )
    row = {"node": {"next": {"next": None}}, "many": ["a", "bc"], "by": {"x": 1.5, "y": b"yy", "z": None}}
    row |= {"fix": b"123456", "kind": "B", "at": -(2**60), "few": True}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, row)
    check = bounds_of(schema)
    assert check is not None
    check(out.getvalue())
    for stop in range(len(out.getvalue())):
        with pytest.raises(ValueError, match="end within"):
            check(out.getvalue()[:stop])
