"""Avro values of other versions: defaults, promotions and units, beside fastavro's writer and Avro's Java library."""

from __future__ import annotations

import io
import json
import string
import struct
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from streaming_source.connectors.kafka import KafkaSource
from streaming_source.connectors.kafka import registry as schema_registry
from streaming_source.connectors.kafka.subscription import Partition
from streaming_source.exceptions import MalformedDataError, OptionError
from tests.examples import examples
from tests.kafka.registry import Registry, serving

pytest.importorskip("fastavro", reason="needs the extra kafka-schema")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
US = timedelta(microseconds=1)


class Kind(NamedTuple):
    """A type of Avro: as JSON, its values as they are stored, and what a column has of one."""

    schema: Any
    stored: st.SearchStrategy[Any]
    read: Any = staticmethod(lambda value: value)

    def default(self, value: Any) -> Any:
        """The JSON of a stored value, by the table of Avro's specification."""
        return value.decode("latin-1") if isinstance(value, bytes) else value


def whole(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def logical(base: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": base, "logicalType": name, **more}


def fixed(size: int, name: str, **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size, **more}


def to_decimal(scale: int) -> Any:
    return lambda value: Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-scale)


def to_time(per_us: int, times_us: int, zone: Any) -> Any:
    return lambda value: (EPOCH + (value * times_us // per_us) * US).replace(tzinfo=zone)


def within_years(unit_us: float) -> st.SearchStrategy[int]:
    """Times from 1677 to 2262, which nanoseconds hold, before 1970 too."""
    most = int(9.2e15 / unit_us)
    return st.integers(-most, most)


_NUMBER = st.integers(-(10**9) + 1, 10**9 - 1).map(lambda n: n.to_bytes(5, "big", signed=True))

KINDS = {
    "boolean": Kind("boolean", st.booleans()),
    "int": Kind("int", whole(32)),
    "long": Kind("long", whole(64)),
    "float": Kind("float", st.floats(width=32, allow_nan=False, allow_infinity=False)),
    "double": Kind("double", st.floats(allow_nan=False, allow_infinity=False)),
    "bytes": Kind("bytes", st.binary(max_size=5)),
    "string": Kind("string", st.text(max_size=5)),
    "fixed": Kind(fixed(3, "Three"), st.binary(min_size=3, max_size=3)),
    "enum": Kind({"type": "enum", "name": "E", "symbols": ["A", "B"]}, st.sampled_from("AB")),
    "date": Kind(logical("int", "date"), st.integers(-200_000, 900_000), lambda n: date(1970, 1, 1) + timedelta(n)),
    "timestamp-millis": Kind(logical("long", "timestamp-millis"), within_years(1000), to_time(1, 1000, UTC)),
    "timestamp-micros": Kind(logical("long", "timestamp-micros"), within_years(1), to_time(1, 1, UTC)),
    "timestamp-nanos": Kind(logical("long", "timestamp-nanos"), within_years(1e-3), to_time(1000, 1, UTC)),
    "local-timestamp-millis": Kind(
        logical("long", "local-timestamp-millis"), within_years(1e3), to_time(1, 1000, None)
    ),
    "local-timestamp-micros": Kind(logical("long", "local-timestamp-micros"), within_years(1), to_time(1, 1, None)),
    "local-timestamp-nanos": Kind(logical("long", "local-timestamp-nanos"), within_years(1e-3), to_time(1000, 1, None)),
    "decimal": Kind(logical("bytes", "decimal", precision=9, scale=2), _NUMBER, to_decimal(2)),
    "decimal-of-fixed": Kind(fixed(5, "Five", logicalType="decimal", precision=9, scale=4), _NUMBER, to_decimal(4)),
    "uuid": Kind(logical("string", "uuid"), st.uuids().map(str)),
    "uuid-of-fixed": Kind(
        fixed(16, "Sixteen", logicalType="uuid"), st.uuids().map(lambda u: u.bytes), lambda b: str(UUID(bytes=b))
    ),
    # Of another type than its own: Avro ignores it.
    "misplaced": Kind(logical("string", "timestamp-millis"), st.text(max_size=3)),
    "unknown": Kind(logical("long", "moon-phase"), whole(64)),
}

_names = iter(range(10**9))


def renamed(schema: Any) -> Any:
    """Each use of a named type has a name of its own."""
    if isinstance(schema, dict) and "name" in schema:
        return {**schema, "name": f"{schema['name']}{next(_names)}"}
    return schema


class Case(NamedTuple):
    """A field: its schema, a value as it is stored, its JSON as a default, and what a column has of it."""

    schema: Any
    stored: Any
    default: Any
    read: Any


@st.composite
def leaves(draw: st.DrawFn) -> Case:
    kind = KINDS[draw(st.sampled_from(sorted(KINDS)))]
    value = draw(kind.stored)
    return Case(renamed(kind.schema), value, kind.default(value), kind.read(value))


def wrapped(inner: st.SearchStrategy[Case]) -> st.SearchStrategy[Case]:
    def array(case: Case) -> Case:
        return Case({"type": "array", "items": case.schema}, [case.stored] * 2, [case.default] * 2, [case.read] * 2)

    def mapped(case: Case) -> Case:
        one = {"ä": case.stored}
        return Case({"type": "map", "values": case.schema}, one, {"ä": case.default}, [("ä", case.read)])

    def optional(case: Case) -> Case:
        return Case([case.schema, "null"], case.stored, case.default, case.read)

    def null(case: Case) -> Case:
        return Case(["null", case.schema], None, None, None)

    def record(pair: tuple[Case, Case, bool]) -> Case:
        a, b, leaves_out = pair
        schema = {
            "type": "record",
            "name": f"R{next(_names)}",
            "fields": [
                {"name": "a", "type": a.schema, "default": a.default},
                {"name": "b", "type": b.schema},
            ],
        }
        default = {"b": b.default} if leaves_out else {"a": a.default, "b": b.default}
        return Case(schema, {"a": a.stored, "b": b.stored}, default, {"a": a.read, "b": b.read})

    # A union in a union is none, so these are the outermost.
    plain = inner.filter(lambda case: not isinstance(case.schema, list))
    return st.one_of(
        inner.map(array),
        inner.map(mapped),
        plain.map(optional),
        plain.map(null),
        st.tuples(inner, inner, st.booleans()).map(record),
    )


CASES = st.recursive(leaves(), wrapped, max_leaves=4)


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    schema_registry._by_id.cache_clear()
    with serving() as served:
        yield served


def record(*fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "Order", "fields": list(fields)}


def unadorned(schema: Any) -> Any:
    """Without logical types, so that fastavro writes what is stored."""
    if isinstance(schema, list):
        return [unadorned(one) for one in schema]
    if isinstance(schema, dict):
        return {name: unadorned(value) for name, value in schema.items() if name not in ("logicalType", "default")}
    return schema


def written(registry: Registry, schema: Any, value: Any) -> bytes:
    """A value as fastavro writes it, in the registry's framing."""
    number = registry.register("orders-value", json.dumps(schema))
    return struct.pack(">bI", 0, number) + stored_bytes(schema, value)


def stored_bytes(schema: Any, value: Any) -> bytes:
    content = io.BytesIO()
    plain = json.loads(json.dumps(schema), object_hook=unadorned)
    fastavro.schemaless_writer(content, fastavro.parse_schema(plain), value)
    return content.getvalue()


def read(registry: Registry, reader: Any, *values: bytes | None) -> list[Any]:
    found = column(registry, reader, *values).to_pylist()
    return list(found)


def column(registry: Registry, reader: Any, *values: bytes | None, **options: str) -> pa.Array:
    source = KafkaSource.of(
        "host:9092",
        "orders",
        valueFormat="avro",
        schemaRegistryUrl=registry.url,
        valueSchema=json.dumps(reader),
        **options,
    )
    made = source.values.column([*values], Partition("orders", 0), np.arange(len(values)))
    assert made.type == source.schema().field("value").type
    made.validate(full=True)
    return made


ID = {"name": "id", "type": "long"}


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(CASES, min_size=1, max_size=3))
def test_a_default_is_read_as_the_same_value_that_was_written(registry: Registry, cases: list[Case]) -> None:
    # A registry of its own for each would be slow: schemas are forgotten instead.
    registry.schemas.clear()
    registry.subjects.clear()
    schema_registry._by_id.cache_clear()
    fields = [{"name": f"f{i}", "type": case.schema, "default": case.default} for i, case in enumerate(cases)]
    reader = record(ID, *fields)
    old = written(registry, record(ID), {"id": 1})
    new = written(registry, reader, {"id": 2, **{f"f{i}": case.stored for i, case in enumerate(cases)}})
    other = written(
        registry, record(*reversed(fields), ID), {"id": 3, **{f"f{i}": c.stored for i, c in enumerate(cases)}}
    )
    expected = {f"f{i}": case.read for i, case in enumerate(cases)}
    rows = read(registry, reader, old, None, new, other)
    assert rows == [{"id": 1, **expected}, None, {"id": 2, **expected}, {"id": 3, **expected}]


def test_blocks_without_a_value_have_the_type_of_the_column(registry: Registry) -> None:
    kinds = [renamed(kind.schema) for kind in KINDS.values()]
    kinds += [{"type": "array", "items": renamed(kind.schema)} for kind in KINDS.values()]
    kinds += [{"type": "map", "values": renamed(kind.schema)} for kind in KINDS.values()]
    schema = record(*({"name": f"f{i}", "type": ["null", kind], "default": None} for i, kind in enumerate(kinds)))
    nothing = written(registry, record(), {})
    empty = {f"f{i}": [] if kind["type"] == "array" else {} for i, kind in enumerate(kinds) if i >= len(KINDS)}
    assert column(registry, schema).to_pylist() == []
    assert read(registry, schema, None, None) == [None, None]
    assert [set(row.values()) for row in read(registry, schema, nothing)] == [{None}]
    (row,) = read(registry, schema, written(registry, schema, empty))
    assert [value for value in row.values() if value is not None] == [[]] * 2 * len(KINDS)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_each_logical_type_is_that_of_the_reader(registry: Registry, kind: str) -> None:
    schema = KINDS[kind].schema
    plain = unadorned(schema)
    value = {"fixed": b"\xff\x80\x01", "decimal-of-fixed": b"\0\0\0\x30\x39", "uuid-of-fixed": b"\x80" * 16}.get(kind)
    if value is None:
        base = schema["type"] if isinstance(schema, dict) else schema
        value = {"boolean": True, "string": str(UUID(int=2**100)), "enum": "B", "bytes": b"\x30\x39"}.get(base, 12345)
    for writer, reader, expected in (
        (plain, schema, KINDS[kind].read(value)),
        (schema, plain, value),
        (schema, schema, KINDS[kind].read(value)),
    ):
        content = written(registry, record({"name": "v", "type": writer}), {"v": value})
        for kind_of_reader in (reader, ["null", reader]):
            assert read(registry, record({"name": "v", "type": kind_of_reader}), content) == [{"v": expected}]


MOMENT = datetime(1969, 12, 31, 23, 59, 59, 123456, UTC)


@pytest.mark.parametrize("to", ["millis", "micros", "nanos"])
@pytest.mark.parametrize("of", ["millis", "micros", "nanos"])
def test_a_timestamp_that_was_written_in_another_unit_is_the_same_time(registry: Registry, of: str, to: str) -> None:
    per_second = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}
    stored = -876_544_000 * per_second[of] // 10**9 if of != "millis" else -877
    writer, reader = logical("long", f"timestamp-{of}"), logical("long", f"local-timestamp-{to}")
    content = written(
        registry,
        record({"name": "v", "type": ["null", writer]}, {"name": "many", "type": {"type": "array", "items": writer}}),
        {"v": stored, "many": [stored]},
    )
    schema = record({"name": "v", "type": reader}, {"name": "many", "type": {"type": "array", "items": reader}})
    digits = 3 if "millis" in (of, to) else 6
    expected = MOMENT.replace(tzinfo=None, microsecond=123456 // 10 ** (6 - digits) * 10 ** (6 - digits))
    assert read(registry, schema, content) == [{"v": expected, "many": [expected]}]


def test_a_decimal_that_was_written_with_another_scale_is_the_same_number_or_no_value(registry: Registry) -> None:
    def decimal(scale: int) -> Any:
        return record({"name": "v", "type": logical("bytes", "decimal", precision=9, scale=scale)})

    exact, finer = (written(registry, decimal(3), {"v": number.to_bytes(3, "big")}) for number in (12_340, 12_345))
    assert read(registry, decimal(5), exact, finer) == [{"v": Decimal("12.34")}, {"v": Decimal("12.345")}]
    assert column(registry, decimal(2), exact, finer, invalidValue="null").to_pylist() == [
        {"v": Decimal("12.34")},
        None,
    ]
    with pytest.raises(MalformedDataError, match=r"offset 1: .* more than 2 digits after the point"):
        read(registry, decimal(2), exact, finer)
    large = written(registry, decimal(2), {"v": (10**9).to_bytes(5, "big")})
    assert column(registry, decimal(2), large, exact, invalidValue="null").to_pylist() == [
        None,
        {"v": Decimal("12.34")},
    ]


def test_a_time_beyond_those_that_a_column_holds_is_an_invalid_value(registry: Registry) -> None:
    schema = record({"name": "v", "type": logical("long", "timestamp-millis")})
    content = written(registry, schema, {"v": 2**62})
    assert column(registry, schema, content, invalidValue="null").to_pylist() == [None]
    with pytest.raises(MalformedDataError, match="beyond what a timestamp holds"):
        read(registry, schema, content)


@pytest.mark.parametrize(
    ("base", "name", "plain", "value"),
    [
        ("int", "time-millis", "int", 5),
        ("long", "time-micros", "long", 5),
        (fixed(12, "Length"), "duration", fixed(12, "Length"), b"\xff" * 12),
    ],
)
def test_what_has_no_column_can_be_read_as_what_is_stored(
    registry: Registry, base: Any, name: str, plain: Any, value: Any
) -> None:
    schema = {**base, "logicalType": name} if isinstance(base, dict) else logical(base, name)
    content = written(registry, record({"name": "v", "type": schema}), {"v": value})
    with pytest.raises(OptionError, match=rf"value\.v has no type of Spark: .*{name}; give option valueSchema.* plain"):
        read(registry, record({"name": "v", "type": schema}), content)
    assert read(registry, record({"name": "v", "type": plain}), content) == [{"v": value}]


def test_a_default_that_is_none_of_its_type_is_refused_when_the_query_starts(registry: Registry) -> None:
    inner = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}]}
    for kind, default in ((inner, {}), ({"type": "enum", "name": "E", "symbols": ["A"]}, "B"), ("bytes", "\u0100")):
        with pytest.raises(OptionError, match=r"field 'f.*' of the reader's schema has the default .* not of its type"):
            read(registry, record(ID, {"name": "f", "type": kind, "default": default}))


# ---- as Java ---------------------------------------------------------------------------------------------------------


def by_java(spark: SparkSession, writer: Any, reader: Any, content: bytes) -> Any:
    """The stored value, as Avro's Java library resolves and writes it, and fastavro reads that without resolution."""
    java = spark._jvm
    assert java is not None
    avro = java.org.apache.avro
    schemas = [avro.Schema.Parser().parse(json.dumps(schema)) for schema in (writer, reader)]
    decoder = avro.io.DecoderFactory.get().binaryDecoder(bytearray(content), None)
    found = avro.generic.GenericDatumReader(*schemas).read(None, decoder)
    out = java.java.io.ByteArrayOutputStream()
    encoder = avro.io.EncoderFactory.get().directBinaryEncoder(out, None)
    avro.generic.GenericDatumWriter(schemas[1]).write(found, encoder)
    encoder.flush()
    return struct.pack(">bI", 0, 1) + bytes(out.toByteArray())


@pytest.mark.spark
def test_defaults_and_promotions_are_those_of_avros_java_library(spark: SparkSession, registry: Registry) -> None:
    registry.schemas.clear()
    registry.subjects.clear()
    schema_registry._by_id.cache_clear()
    samples: list[tuple[Any, Any]] = [("int", 7), ("string", "ä"), ("bytes", "\xff\x00é"), ("double", 1)]
    for kind in KINDS.values():
        base = kind.schema["type"] if isinstance(kind.schema, dict) else kind.schema
        size = kind.schema.get("size", 2) if isinstance(kind.schema, dict) else 2
        default = {"boolean": True, "string": str(UUID(int=5)), "enum": "B", "float": 1.5, "double": 2}.get(base, 12345)
        samples.append((kind.schema, "\xff" * (size - 1) + "\x80" if base in ("bytes", "fixed") else default))
    fields: list[dict[str, Any]] = []
    for kind, default in samples:
        nested = {
            "type": "record",
            "name": f"N{len(fields)}",
            "fields": [
                {"name": "x", "type": renamed(kind), "default": default},
                {"name": "y", "type": ["null", renamed(kind)], "default": None},
            ],
        }
        for schema, value in (
            (renamed(kind), default),
            ([renamed(kind), "null"], default),
            ({"type": "array", "items": renamed(kind)}, [default, default]),
            ({"type": "map", "values": renamed(kind)}, {"k": default}),
            (nested, {}),
        ):
            fields.append({"name": f"f{len(fields)}", "type": schema, "default": value})
    promoted = [("p", "int", "long"), ("q", "int", "double"), ("r", "long", "float"), ("s", "string", "bytes")]
    writer = record(*({"name": name, "type": kind} for name, kind, _ in promoted))
    reader = record(*fields, *({"name": name, "type": kind} for name, _, kind in promoted))
    assert registry.register("orders-value", json.dumps(reader)) == 1
    value = {"p": -1, "q": 2**31 - 1, "r": 2**40, "s": "ä" + string.printable}
    content = stored_bytes(writer, value)
    java = by_java(spark, writer, reader, content)
    ours = written(registry, writer, value)
    assert read(registry, reader, ours) == read(registry, reader, java)
