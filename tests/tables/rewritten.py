"""Tables that were written in the order of event time, and then rewritten: their files have rows in any order."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import deltalake
from pyiceberg.table import Table

from tests.iceberg.tables import create
from tests.tables.reading import SECOND, rows

__all__ = ["COMMITS", "REWRITES", "iceberg_in_order", "in_order", "key_of", "overwritten"]

COMMITS = 40


def key_of(second: int) -> int:
    """A column by which the table is not sorted."""
    return (7 * second) % 100


def _parts(each: int) -> list[list[int]]:
    return [[n * SECOND for n in range(first, first + each)] for first in range(0, COMMITS * each, each)]


def in_order(path: Path, each: int) -> deltalake.DeltaTable:
    """Write a Delta table in the order of event time, disorder 0: a row a second, `each` of a commit."""
    for part in _parts(each):
        key = [key_of(time // SECOND) for time in part]
        deltalake.write_deltalake(str(path), rows(part, key=key), mode="append")
    return deltalake.DeltaTable(str(path))


def _merged(table: deltalake.DeltaTable) -> None:
    every_third = table.to_pyarrow_table(columns=["ts"])["ts"].cast("int64").to_pylist()[::3]
    changed = rows(every_third, key=[1] * len(every_third))
    merge = table.merge(changed, "s.ts = t.ts", source_alias="s", target_alias="t")
    merge.when_matched_update_all().execute()


REWRITES: dict[str, Callable[[deltalake.DeltaTable], object]] = {
    "compacted": lambda table: table.optimize.compact(),
    "z-ordered by another column": lambda table: table.optimize.z_order(["key"]),
    "z-ordered, in small files": lambda table: table.optimize.z_order(["key"], target_size=4_000),
    "merged into": _merged,
}


def iceberg_in_order(folder: Path, each: int) -> Table:
    """Write the same as an Iceberg table."""
    table = create(folder, rows([0], key=1).schema)
    for part in _parts(each):
        table.append(rows(part, key=[key_of(time // SECOND) for time in part]))
    return table


def overwritten(table: Table, chance: random.Random) -> None:
    """What a rewrite leaves: one file, its row groups and rows in any order."""
    found = table.scan().to_arrow()
    order = list(range(len(found)))
    chance.shuffle(order)
    with table.transaction() as change:
        change.set_properties({"write.parquet.row-group-limit": str(max(len(found) // 10, 1))})
    table.overwrite(found.take(order))
