"""Schemas as Spark's users write them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from streaming_source.api.ddl import schema_of_ddl
from streaming_source.exceptions import OptionError


def test_types_are_written_as_in_spark() -> None:
    text = "a decimal, b decimal(5), c NUMERIC( 7 , 2 ), d array<struct<x: int, `y``z` double>>, e date, f boolean"
    inner = pa.struct([("x", pa.int32()), ("y`z", pa.float64())])
    assert schema_of_ddl("dataSchema", text) == pa.schema(
        [
            ("a", pa.decimal128(10, 0)),
            ("b", pa.decimal128(5, 0)),
            ("c", pa.decimal128(7, 2)),
            ("d", pa.list_(inner)),
            ("e", pa.date32()),
            ("f", pa.bool_()),
        ]
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the name of a column is expected where 'its end' stands"),
        ("t", "a type is expected where 'its end' stands"),
        ("t timestmp, n int", r"a type \(did you mean timestamp\?\) is expected where 'timestmp, n int' stands"),
        ("t timestamp n int", "a comma or the end is expected where 'n int' stands"),
        ("t timestamp,", "the name of a column is expected where 'its end' stands"),
        ("t array<int", "'>' is expected where 'its end' stands"),
        ("t decimal(50, 2)", "a decimal of at most 38 digits"),
        ("t decimal(x)", "a whole number is expected where 'x\\)' stands"),
        ("t int; n int", "a name or a type is expected where '; n int' stands"),
        ("t int, t string", "more than one column of the name t"),
        ("t array int", "'<' is expected where 'int' stands"),
        ("t map<int, string>", "a type is expected where 'map<int, string>' stands"),
        ("t struct<x int", "'>' is expected where 'its end' stands"),
    ],
)
def test_types_that_are_not_understood_are_pointed_at(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=f"option dataSchema = .*{message}"):
        schema_of_ddl("dataSchema", text)
