"""Random tables: all types of Spark, also inside of others, with their extremes, nulls, and names of any kind."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from hypothesis import strategies as st

from tests.parity.oracle import ROW

__all__ = ["tables"]

_NAMES: Final = ("a", "Val", "Ünï", "with blank", "x.y", "_metadata2", "select", "日本")

_TIMES: Final = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999))


def _whole(bits: int) -> st.SearchStrategy[int]:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    return st.sampled_from([low, -1, 0, 1, high]) | st.integers(low, high)


_DECIMAL: Final = st.integers(-(10**9), 10**9).map(lambda digits: Decimal(digits).scaleb(-3))
_PLAIN: Final[tuple[tuple[pa.DataType, st.SearchStrategy[Any]], ...]] = (
    (pa.bool_(), st.booleans()),
    *((kind, _whole(bits)) for bits, kind in ((8, pa.int8()), (16, pa.int16()), (32, pa.int32()), (64, pa.int64()))),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.decimal128(12, 3), _DECIMAL),
    (pa.decimal128(38, 3), _DECIMAL),
    (pa.string(), st.text(st.characters(codec="utf-8"), max_size=6)),
    (pa.binary(), st.binary(max_size=6)),
    (pa.date32(), st.dates(date(1, 1, 1), date(9999, 12, 31))),
    (pa.timestamp("us", "UTC"), _TIMES.map(lambda time: time.replace(tzinfo=UTC))),
    (pa.timestamp("us"), _TIMES),
)

_Column = tuple[pa.DataType, st.SearchStrategy[Any]]


def _columns(leaf: st.SearchStrategy[_Column]) -> st.SearchStrategy[_Column]:
    """Columns of lists, structs and maps of what `leaf` has."""

    def lists(of: _Column) -> _Column:
        return pa.list_(of[0]), st.lists(st.none() | of[1], max_size=3)

    def structs(of: list[_Column]) -> _Column:
        names = ["A", "b", "c d"][: len(of)]
        kind = pa.struct(list(zip(names, (kind for kind, _ in of), strict=True)))
        return kind, st.fixed_dictionaries(
            {name: st.none() | value for name, (_, value) in zip(names, of, strict=True)}
        )

    def maps(of: _Column) -> _Column:
        items = st.dictionaries(st.text("abü", max_size=2), st.none() | of[1], max_size=3).map(
            lambda d: list(d.items())
        )
        return pa.map_(pa.string(), of[0]), items

    return leaf.map(lists) | st.lists(leaf, min_size=1, max_size=3).map(structs) | leaf.map(maps)


@st.composite
def tables(draw: st.DrawFn, most_rows: int = 6) -> pa.Table:
    """A table with the column `ROW`, and one to five others."""
    rows = draw(st.integers(1, most_rows))
    kinds = st.recursive(st.sampled_from(_PLAIN), _columns, max_leaves=4)
    columns = {ROW: pa.array(range(rows), pa.int64())}
    for name in draw(st.lists(st.sampled_from(_NAMES), min_size=1, max_size=5, unique=True)):
        kind, values = draw(kinds)
        columns[name] = pa.array([draw(st.none() | values) for _ in range(rows)], kind)
    return pa.table(columns)
