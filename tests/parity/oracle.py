"""Spark's own reader beside ours, on the same files in the same session: `differences` has what is not the same.

A difference is right only if docs/parity.md has it as a rule with a test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tests.spark.reading import read_all, read_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ROW", "differences"]

ROW: Final = "row"
"""A column of whole numbers that tells the rows of a file apart; it is the event time too."""

_READERS: Final[Mapping[str, Callable[..., pa.Table]]] = {"stream": read_all, "batch": read_batch}


def differences(
    spark: SparkSession, path: Path, file_format: str, schema: str | None = None, **options: str
) -> list[str]:
    """Return a line for each reader of ours that gives other columns, types or values than Spark's.

    `options` are those that both know. Where Spark's reader fails ours may do as it likes, and has to fail where its
    result is not that of Spark.
    """
    reader = spark.read.options(**options)
    try:
        expected = (reader.schema(schema) if schema else reader).format(file_format).load(str(path)).toArrow()
    except Exception:
        return []
    given = {"fileFormat": file_format, "eventTimeColumn": ROW, "timestampUnit": "s", "timeZone": "UTC", **options}
    if schema:
        given["dataSchema"] = schema
    found = []
    for name, read in _READERS.items():
        table = read(path, **given)
        # The event time is a column of our own.
        table = table.drop_columns(["event_time"])
        for what, ours, sparks in (
            ("columns", table.schema.names, expected.schema.names),
            ("types", _types(table), _types(expected)),
            ("rows", _rows(table), _rows(expected)),
        ):
            if ours != sparks:
                found.append(f"{name}: {what} are {ours}, by Spark {sparks}")
                break
    return found


def _types(table: pa.Table) -> list[str]:
    """The types without what Arrow alone has: names of the values in lists and maps, and which may be null."""
    return [_type(kind) for kind in table.schema.types]


def _type(kind: pa.DataType) -> str:
    if pa.types.is_map(kind):
        return f"map<{_type(kind.key_type)}, {_type(kind.item_type)}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"list<{_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{field.name}: {_type(field.type)}' for field in kind)}>"
    return str(kind).removeprefix("large_")


def _rows(table: pa.Table) -> list[Any]:
    return sorted((_comparable(row) for row in table.to_pylist()), key=lambda row: row[ROW])


def _comparable(value: Any) -> Any:
    """Return a value that is equal to itself: NaN is not."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, dict):
        return {name: _comparable(inner) for name, inner in value.items()}
    return [_comparable(inner) for inner in value] if isinstance(value, list | tuple) else value
