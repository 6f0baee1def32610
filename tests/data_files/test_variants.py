"""Variants in Parquet: put together from the parts in which a file has them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal, localcontext
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import VariantVal

from streaming_source.data_files.formats.variants import VARIANT, has_variant, may_be_variant, with_variants

METADATA = b"\1\3\0\1\2\3abc"
"""The names a, b and c."""


def group(typed: pa.DataType | None = None) -> pa.DataType:
    return pa.struct([("value", pa.binary()), *([("typed_value", typed)] if typed else [])])


def column(rows: list[Any], typed: pa.DataType | None) -> pa.Array:
    kind = pa.struct([("metadata", pa.binary()), *group(typed)])
    assert may_be_variant(kind)
    return pa.array([None if row is None else {"metadata": METADATA, **row} for row in rows], kind)


def read(rows: list[Any], typed: pa.DataType | None = None) -> list[Any]:
    made = with_variants(column(rows, typed), VARIANT)
    made.validate(full=True)
    assert made.type.equals(VARIANT, check_metadata=True)
    with localcontext(prec=40):
        return [row and VariantVal(row["value"], row["metadata"]).toPython() for row in made.to_pylist()]


def test_a_variant_of_one_part_is_as_it_is_written() -> None:
    assert read([{"value": b"\x0c\x05"}, None, {"value": b"\0"}]) == [5, None, None]


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        (pa.bool_(), True),
        (pa.bool_(), False),
        (pa.int8(), -128),
        *((pa.int64(), number) for number in (0, 127, 128, -(2**15), 2**31 - 1, 2**31, -(2**63))),
        (pa.float32(), 1.5),
        (pa.float64(), -0.1),
        (pa.decimal128(9, 2), Decimal("-1234567.89")),
        (pa.decimal128(18, 3), Decimal("123456789012345.678")),
        (pa.decimal128(38, 10), Decimal("-1234567890123456789012345678.0123456789")),
        (pa.date32(), dt.date(1600, 2, 29)),
        (pa.timestamp("us", "UTC"), dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)),
        (pa.timestamp("ms"), dt.datetime(2024, 1, 1, 12)),
        (pa.string(), ""),
        (pa.string(), "é" * 31 + "x"),
        (pa.string(), "x" * 64),
        (pa.string(), "x" * 70_000),
        (pa.binary(), b"\0\xff"),
    ],
)
def test_a_part_of_a_type_of_its_own_is_the_same_value(typed: pa.DataType, value: Any) -> None:
    rows = [{"typed_value": value}, {"value": b"\x05a"}, None, {}]
    assert read(rows, typed) == [value, "a", None, None]


def test_objects_and_arrays_have_all_their_parts() -> None:
    inner = pa.struct([("b", group(pa.string())), ("a", group(pa.list_(group(pa.int64()))))])
    typed = pa.struct([("a", group(pa.int64())), ("b", group(inner))])
    # An object {"c": 7, "b": 1}, whose values stand in another order than its fields.
    others = bytes([2, 2, 1, 2, 2, 0, 4]) + b"\x0c\x07\x0c\x01"
    rows = [
        {"typed_value": {"a": {"typed_value": 1}, "b": {}}},
        {"typed_value": {"a": {}, "b": {"value": b"\0"}}, "value": None},
        {"typed_value": {"a": {"typed_value": 1}, "b": {}}, "value": others},
        {
            "typed_value": {
                "a": {"value": b"\x05x"},
                "b": {"typed_value": {"b": {}, "a": {"typed_value": [{"typed_value": 300}, {"value": b"\x04"}]}}},
            }
        },
        {"value": b"\x0c\x05"},
    ]
    expected = [{"a": 1}, {"b": None}, {"a": 1, "b": 1, "c": 7}, {"a": "x", "b": {"a": [300, True]}}, 5]
    assert read(rows, typed) == expected
    # Of a slice the same.
    assert (
        with_variants(column(rows, typed).slice(3), VARIANT).to_pylist()
        == (with_variants(column(rows, typed), VARIANT).to_pylist()[3:])
    )


def test_many_elements_have_longer_numbers() -> None:
    many = [{"typed_value": number} for number in range(300)]
    (found,) = read([{"typed_value": many}], pa.list_(group(pa.int64())))
    assert found == [*range(300)]


def test_variants_are_read_in_structs_lists_and_maps() -> None:
    variant = column([{"value": b"\x0c\x05"}], None)
    stored = pa.struct([("l", pa.list_(variant.type)), ("m", pa.map_(pa.string(), variant.type)), ("n", pa.int32())])
    one = variant.to_pylist()[0]
    rows = [{"l": [one, None], "m": [("a", one)], "n": 1}, {"l": None, "m": [], "n": 2}, None, {"l": [], "n": 3}]
    wanted = pa.struct([("l", pa.list_(VARIANT)), ("m", pa.map_(pa.string(), VARIANT)), ("n", pa.int32())])
    assert has_variant(wanted)
    assert not has_variant(stored)
    made = with_variants(pa.array(rows, stored).slice(0), wanted)
    made.validate(full=True)
    assert made.to_pylist() == pa.array(rows, stored).to_pylist()
    assert with_variants(pa.array(rows, stored).slice(1), wanted).to_pylist() == made.to_pylist()[1:]


def test_a_variant_that_contradicts_itself_is_an_error() -> None:
    typed = pa.struct([("z", group(pa.int64()))])
    with pytest.raises(pa.ArrowInvalid, match="a variant contradicts itself"):
        read([{"typed_value": {"z": {"typed_value": 1}}}], typed)
    with pytest.raises(pa.ArrowInvalid, match="beside a value that is no object"):
        read([{"typed_value": {"z": {}}, "value": b"\x0c\x05"}], typed)
    for others in (b"\x42\xff\xff\xff\xff", b"\2\xff", b""):
        with pytest.raises(pa.ArrowInvalid, match="a variant contradicts itself"):
            read([{"typed_value": {"z": {}}, "value": others}], typed)
    for names in (b"\xc1\xff\xff\xff\xff", b""):
        with pytest.raises(pa.ArrowInvalid, match="a variant contradicts itself"):
            read([{"typed_value": {"z": {}}, "metadata": names}], typed)
    with pytest.raises(pa.ArrowNotImplementedError, match="Spark has no variants of"):
        read([{"typed_value": 1}], pa.timestamp("ns"))
