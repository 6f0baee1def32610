"""Columns are found as Spark finds them: without regard to case, and never one of two at random."""

from __future__ import annotations

import pyarrow as pa
import pytest

from alignment.column_paths import exact_path
from alignment.exceptions import InvalidArgumentError

_NESTED = pa.struct([("At", pa.struct([("t", pa.int64()), ("T", pa.int64())]))])
SCHEMA = pa.schema(
    [("Ts", pa.int64()), ("e.at", pa.int64()), ("E", _NESTED), ("N", _NESTED), ("k", pa.int64()), ("K", pa.int64())]
)


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("Ts", "Ts"),
        ("tS", "Ts"),
        ("k", "k"),
        ("K", "K"),
        ("n.AT.t", "N.At.t"),
        ("E.At.t", "E.At.t"),
        ("E.AT", "e.at"),
        ("e.at.nope", "e.at.nope"),
        ("nope", "nope"),
        ("ts.x", "ts.x"),
    ],
)
def test_a_path_is_found_in_any_case_and_as_it_is_written_first(written: str, found: str) -> None:
    assert exact_path(SCHEMA, written) == found


def test_two_names_that_differ_in_case_alone_are_ambiguous() -> None:
    schema = pa.schema([("aB", pa.int64()), ("Ab", pa.int64())])
    with pytest.raises(
        InvalidArgumentError, match="column 'ab' is ambiguous: the data has 'Ab' and 'aB'; write one as"
    ):
        exact_path(schema, "ab")
