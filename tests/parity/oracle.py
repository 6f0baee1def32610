"""Spark's own reader beside ours, on the same files in the same session: `differences` has what is not the same.

A difference is right only if docs/parity.md has it as a rule with a test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import eq
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from alignment.exceptions import AlignmentError
from tests.spark.reading import read_all, read_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["FILE", "Case", "differences", "plain", "rows_by_file"]

FILE: Final = "file"
"""The number of a file, which the name of its directory has; it is the event time too."""

_READERS: Final[Mapping[str, Callable[..., pa.Table]]] = {"stream": read_all, "batch": read_batch}


@dataclass(frozen=True)
class Case:
    """Files of one format: their contents, the columns by which they are read, and options that both readers know.

    `ending` is that of their names. Without `files` they are there already. Where rows of a file are not `in_order`,
    readers may give them in any. A row of ours is the same as that of Spark where `alike` says so: by a rule of
    docs/parity.md.
    """

    file_format: str
    ending: str
    files: tuple[bytes, ...] = ()
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    in_order: bool = True
    alike: Callable[[Any, Any], bool] = eq

    def write(self, root: Path) -> None:
        """Write each file into a directory of its own below `root`."""
        for number, content in enumerate(self.files):
            folder = root / f"{FILE}={number}"
            folder.mkdir(parents=True)
            (folder / f"f.{self.ending}").write_bytes(content)

    def by_spark(self, spark: SparkSession, root: Path) -> pa.Table:
        """Return what Spark reads."""
        reader = spark.read.options(**self.options)
        return (
            (reader.schema(self.schema) if self.schema else reader).format(self.file_format).load(str(root)).toArrow()
        )

    def here(self, root: Path, kind: str) -> pa.Table:
        """Return what is read here as `kind`, stream or batch, without the column that is the event time alone."""
        given = {"fileFormat": self.file_format, "eventTimeColumn": FILE, "timestampUnit": "s", "timeZone": "UTC"}
        schema = {"dataSchema": self.schema} if self.schema else {}
        return _READERS[kind](root, **given, **schema, **self.options).drop_columns(["event_time"])


def differences(spark: SparkSession, root: Path, case: Case) -> list[str]:
    """Write the files, and return a line for each reader of ours that gives other columns, types or values.

    Where Spark's reader fails ours may do as it likes.
    """
    case.write(root)
    try:
        expected = case.by_spark(spark, root)
    except Exception:
        return []
    found = []
    for kind in _READERS:
        try:
            table = case.here(root, kind)
        except AlignmentError as error:
            found.append(f"{kind}: {error}")
            continue
        for what, ours, sparks in (
            ("columns", table.schema.names, expected.schema.names),
            ("types", [*map(_type, table.schema.types)], [*map(_type, expected.schema.types)]),
        ):
            if ours != sparks:
                found.append(f"{kind}: {what} are {ours}, by Spark {sparks}")
                break
        else:
            rows = [rows_by_file(one) for one in (table, expected)]
            if not case.in_order:
                rows = [{number: sorted(of_file, key=repr) for number, of_file in one.items()} for one in rows]
            found += [f"{kind}: {line}" for line in _other_rows(*rows, case.alike)]
    return found


def _other_rows(
    ours: dict[int, list[Any]], sparks: dict[int, list[Any]], alike: Callable[[Any, Any], bool]
) -> list[str]:
    found = []
    for number in sorted({*ours, *sparks}):
        here, there = ours.get(number, []), sparks.get(number, [])
        if len(here) != len(there):
            found.append(f"file {number} has {len(here)} rows, by Spark {len(there)}")
        found += [
            f"file {number}, row {row}: {a}, by Spark {b}"
            for row, (a, b) in enumerate(zip(here, there, strict=False))
            if not alike(a, b)
        ][:1]
    return found


def _type(kind: pa.DataType) -> str:
    """Return the type without what Arrow alone has: names of the values in lists and maps, and which may be null."""
    if pa.types.is_map(kind):
        return f"map<{_type(kind.key_type)}, {_type(kind.item_type)}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"list<{_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{field.name}: {_type(field.type)}' for field in kind)}>"
    return str(kind).removeprefix("large_")


def rows_by_file(table: pa.Table) -> dict[int, list[Any]]:
    """Return the rows of each file, in their order in it, as values that are equal where the readers agree."""
    found: dict[int, list[Any]] = {}
    columns = {name: [plain(value) for value in table[name]] for name in table.schema.names}
    for row in zip(*columns.values(), strict=True):
        values = dict(zip(columns, row, strict=True))
        found.setdefault(values.pop(FILE), []).append(values)
    return found


def plain(value: pa.Scalar) -> Any:
    """Return a scalar in Python: times as numbers, which may be beyond Python's, and fractions with their sign.

    The entries of a map have no order: Spark's reader of ORC by rows sorts them, and that by columns does not.
    """
    kind = value.type
    if not value.is_valid:
        return None
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return value.value
    if pa.types.is_struct(kind):
        return {part.name: plain(value[number]) for number, part in enumerate(kind)}
    if pa.types.is_map(kind):
        return sorted((plain(one) for one in value.values), key=lambda entry: repr(entry["key"]))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [plain(one) for one in value.values]
    number = value.as_py()
    return str(number) if isinstance(number, float) else number
