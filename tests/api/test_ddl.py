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
        ("", "the name of a column is expected instead of 'its end'"),
        ("t", "a type for column 't' is expected instead of 'its end'"),
        (
            "t timestmp, n int",
            r"a type for column 't' \(did you mean timestamp\?\) is expected instead of 'timestmp, n int'",
        ),
        ("t timestamp n int", "a comma or the end is expected instead of 'n int'"),
        ("t timestamp,", "the name of a column is expected instead of 'its end'"),
        ("t array<int", "'>' is expected instead of 'its end'"),
        ("t decimal(50, 2)", "a decimal of at most 38 digits"),
        ("t decimal(x)", "a whole number is expected instead of 'x\\)'"),
        ("t int; n int", "a name or a type is expected instead of '; n int'"),
        ("t int, t string", "more than one column of the name t"),
        ("t array int", "'<' is expected instead of 'int'"),
        ("t map<int>", "',' is expected instead of '>'"),
        ("t int not", "NULL is expected instead of 'its end'"),
        ("t int comment x", "the text of a comment is expected instead of 'x'"),
        ("t struct<x int", "'>' is expected instead of 'its end'"),
    ],
)
def test_types_that_are_not_understood_are_pointed_at(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=f"option dataSchema = .*{message}"):
        schema_of_ddl("dataSchema", text)


@pytest.mark.parametrize("comment", ["'when'", '"it\'s"', r"'it\'s, <so>'", "''"])
def test_columns_are_understood_as_to_ddl_of_spark_writes_them(comment: str) -> None:
    text = f"t TIMESTAMP NOT NULL COMMENT {comment},s STRUCT<a: INT NOT NULL COMMENT {comment}>,m MAP<STRING, BIGINT>"
    struct = pa.struct([("a", pa.int32())])
    moment = pa.timestamp("us", "UTC")
    wanted = pa.schema([("t", moment), ("s", struct), ("m", pa.map_(pa.string(), pa.int64()))])
    assert schema_of_ddl("dataSchema", text) == wanted


def test_the_words_of_a_constraint_may_be_names() -> None:
    assert schema_of_ddl("dataSchema", "not int, comment string comment 'x', null date").names == [
        "not",
        "comment",
        "null",
    ]
