"""Random Iceberg tables: two writers, compaction, new columns and partitions, deletes before a stream starts."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.types import IntegerType

from alignment.timestamps import NO_TIMESTAMP
from tests.iceberg.commits import compact, delete_rows, files_of_table
from tests.iceberg.tables import SECOND, catalog_in, create, rows

__all__ = ["RandomTable"]

KNOWN = {1: "ts", 2: "id", 3: "part"}
"""The columns of the beginning, by their ids."""


class RandomTable:
    """A table that two writers append to, out of order; it is compacted, renamed, grown, partitioned anew.

    Rows are deleted before a stream starts, and none after that: it has to bring what the table has. Each row has an
    `id` of its own.
    """

    def __init__(self, folder: Path, seed: int, *, appends: int | None = None) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        mode = self.random.choice(["truncate(16)", "truncate(16)", "counts", "none"])
        merges = self.random.choice(["true", "false"])
        properties = {
            "write.metadata.metrics.default": mode,
            "commit.manifest-merge.enabled": merges,
            "commit.manifest.min-count-to-merge": "3",
        }
        self.table = create(folder, rows([0], id=0, part=0).schema, properties=properties)
        self.other = catalog_in(folder).load_table("db.t")
        self.started = False
        self._next = 0
        for _ in range(self.random.randint(1, 4) if appends is None else appends):
            self.append()

    def append(self) -> None:
        count = self.random.choice([1, 3, 20, 60])
        first, step = self.random.randint(0, 400) * SECOND, self.random.choice([0, SECOND // 7, 3 * SECOND])
        times: list[int | None] = [first + i * step + self.random.randint(0, 4 * SECOND) for i in range(count)]
        if self.random.random() < 0.1:
            times[0] = None
        ids = list(range(self._next, self._next + count))
        self._next += count
        values: dict[str, Any] = {"id": ids, "part": [self.random.randint(0, 2) for _ in ids]}
        known = rows(times, **values)
        # Either writer may have an old state of the table: it then commits again by itself, but not to other columns.
        self.table.refresh()
        table = self.random.choice([self.table, self.other])
        if (table.schema(), table.spec()) != (self.table.schema(), self.table.spec()):
            table.refresh()
        fields = table.schema().fields
        nothing = pa.nulls(count, pa.int32())
        arrays = [known[KNOWN[one.field_id]] if one.field_id in KNOWN else nothing for one in fields]
        table.append(pa.table(arrays, names=[field.name for field in fields]))

    def change(self) -> None:
        """One commit, or a change of the table's columns or partitioning."""
        kinds = ["append", "append", "append", "compact", "rename", "grow", "partition", "delete", "positions"]
        kind = self.random.choice(kinds)
        table = self.table.refresh()
        if kind == "compact":
            compact(table)
        elif kind == "rename":
            with table.update_schema() as change:
                change.rename_column(table.schema().find_column_name(3), f"part{self._next}")
        elif kind == "grow":
            with table.update_schema() as change:
                change.add_column(f"more{self._next}_{len(table.schema().fields)}", IntegerType())
        elif kind == "partition":
            with table.update_spec() as spec:
                name = table.schema().find_column_name(3)
                if table.spec().fields:
                    spec.remove_field(table.spec().fields[0].name)
                else:
                    spec.add_identity(name)
        elif kind == "delete" and not self.started:
            table.delete(f"id < {self.random.randint(0, max(self._next // 3, 1))}")
        elif kind == "positions" and not self.started and (files := files_of_table(table)):
            file = self.random.choice(files)
            some = range(0, file.record_count, self.random.choice([1, 2, 5]))
            delete_rows(table, {file.file_path: some}, bounds=self.random.random() < 0.5)
        else:
            self.append()

    def expected(self) -> Counter[int]:
        times = self.table.refresh().scan().to_arrow()["ts"].cast(pa.int64()).to_pylist()
        return Counter(NO_TIMESTAMP if time is None else time for time in times)
