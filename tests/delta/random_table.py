"""Random Delta tables: rows appended out of order by two writers, compacted, grown, renamed, and deleted from."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq

from tests.delta.deletion_vectors import delete_rows
from tests.delta.spark_delta import SparkDelta
from tests.delta.tables import SECOND, rows

__all__ = ["RandomTable"]


class RandomTable:
    """A table to which rows are appended out of order; compacted, grown, and before a stream starts deleted from.

    `expected` are the rows of the version with which a stream begins, and those that were added since: by `id`, event
    time. Each row has an `id` of its own. With `spark` there are two writers, which rename columns as well.
    """

    def __init__(self, path: Path, seed: int, *, appends: int | None = None, spark: SparkDelta | None = None) -> None:
        self.path = str(path)
        self.random = random.Random(seed)
        self.partitioned = self.random.random() < 0.4
        self.mapped = self.random.random() < 0.3
        self.has_statistics = self.random.random() < 0.8
        self.expected: dict[int, int | None] = {}
        self.columns = ["ts", "id", "part"]
        self.started = False
        self.vectors: dict[str, set[int]] = {}
        self.spark = spark
        self._next = 0
        # deltalake writes to columns under other names only as it has named them.
        self._is_sparks = False
        for _ in range(self.random.randint(1, 6) if appends is None else appends):
            self.append()

    def append(self) -> None:
        """Add rows, by one of the writers."""
        count = self.random.choice([1, 3, 20, 60])
        first = self.random.randint(0, 400) * SECOND
        step = self.random.choice([0, SECOND // 7, 3 * SECOND])
        times: list[int | None] = [first + i * step + self.random.randint(0, 4 * SECOND) for i in range(count)]
        if self.random.random() < 0.1:
            times[0] = None
        ids = range(self._next, self._next + count)
        self._next += count
        columns: dict[str, Any] = {"id": list(ids), self.columns[2]: [self.random.randint(0, 2) for _ in ids]}
        columns |= dict.fromkeys(self.columns[3:], 1)
        by_spark = self.random.random() < 0.2 or self._is_sparks
        if self.spark is not None and self.expected and by_spark:
            self._append_by_spark(times, columns)
        else:
            self._append_by_deltalake(times, columns)
        self.expected |= dict(zip(ids, times, strict=True))

    def _append_by_deltalake(self, times: list[int | None], columns: dict[str, Any]) -> None:
        configuration = {"delta.columnMapping.mode": "name"} if self.mapped else {}
        if not self.has_statistics:
            configuration["delta.dataSkippingNumIndexedCols"] = "0"
        options: dict[str, Any] = {"configuration": configuration or None, "schema_mode": "merge"}
        if self.partitioned:
            options["partition_by"] = ["part"]
        if self.expected and self.mapped:
            del options["schema_mode"]
        deltalake.write_deltalake(
            self.path,
            rows(times, **columns),
            mode="append",
            target_file_size=self.random.choice([None, 400]),
            **options,
        )

    def _append_by_spark(self, times: list[int | None], columns: dict[str, Any]) -> None:
        assert self.spark is not None
        lists = [times, columns["id"], columns[self.columns[2]]]
        values = ", ".join(
            f"({'null' if time is None else f'timestamp_micros({time})'}, {number}L, {part}L)"
            for time, number, part in zip(*lists, strict=True)
        )
        self.spark.sql(f"INSERT INTO {{table}} (ts, id, {self.columns[2]}) VALUES {values}", self.path)

    def change(self) -> None:
        """One commit."""
        kinds = ["append", "append", "append", "compact", "grow", "delete", "vector", "checkpoint"]
        if self.spark is not None:
            kinds += ["rename", "vector"]
        kind = self.random.choice(kinds)
        table = deltalake.DeltaTable(self.path)
        if kind == "compact" and not self.mapped:
            table.optimize.compact()
        elif kind == "compact" and self.spark is not None:
            self.spark.sql("OPTIMIZE {table}", self.path)
        elif kind == "grow" and not self.mapped and len(self.columns) < 6:
            self.columns.append(f"more{len(self.columns)}")
            self.append()
        elif kind == "grow" and self.spark is not None:
            self.spark.sql(f"ALTER TABLE {{table}} ADD COLUMNS (later{table.version()} int)", self.path)
            self._is_sparks = True
        elif kind == "rename" and self.may_rename:
            self.rename()
        elif kind == "delete" and not self.started and not self.mapped:
            # Before a stream begins: after that it would be an error.
            below = self.random.randint(0, max(self._next // 3, 1))
            table.delete(f"id < {below}")
            self.expected = {key: time for key, time in self.expected.items() if key >= below}
        elif kind == "vector" and not self.started and self.spark is not None:
            self._delete_by_spark()
        elif kind == "vector" and not self.started and not self.mapped and self.has_statistics:
            self._delete_by_vector()
        elif kind == "checkpoint":
            table.create_checkpoint()
        else:
            self.append()

    def _delete_by_vector(self) -> None:
        """Delete some rows of one file, which stays where it is."""
        files = pa.table(deltalake.DeltaTable(self.path).get_add_actions())["path"].to_pylist()
        if not files:
            return
        file = self.random.choice(sorted(files))
        ids = pq.ParquetFile(Path(self.path) / unquote(file)).read(["id"])["id"].to_pylist()
        rows_of = self.vectors.setdefault(file, set())
        rows_of.update(range(0, len(ids), self.random.choice([1, 2, 5])))
        delete_rows(Path(self.path), rows_of, file=file)
        for row in rows_of:
            self.expected.pop(ids[row], None)

    def _delete_by_spark(self) -> None:
        assert self.spark is not None
        divisor = self.random.randint(5, 9)
        self.spark.sql("ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = true)", self.path)
        self.spark.sql(f"DELETE FROM {{table}} WHERE id % {divisor} = 1", self.path)
        self.vectors["by Spark"] = set()
        self.expected = {key: time for key, time in self.expected.items() if key % divisor != 1}

    @property
    def may_rename(self) -> bool:
        """Whether a column can be renamed under a stream; where it partitions, that ends the stream."""
        return self.mapped and not self.partitioned and self.spark is not None

    def rename(self) -> None:
        """Rename a column, as Spark does it."""
        assert self.spark is not None
        name = f"part{deltalake.DeltaTable(self.path).version()}"
        self.spark.sql(f"ALTER TABLE {{table}} RENAME COLUMN {self.columns[2]} TO {name}", self.path)
        self.columns[2] = name
        self._is_sparks = True

    # ---- what a batch has --------------------------------------------------------------------------------------------

    def by_deltalake(self) -> Counter[int] | None:
        """Ids of the rows by `deltalake`; None where it gives null for renamed columns, or refuses deletion vectors."""
        if self.mapped or self.vectors:
            return None
        found = deltalake.DeltaTable(self.path).to_pyarrow_table()
        assert isinstance(found, pa.Table)
        return Counter(found["id"].to_pylist())

    def by_spark(self) -> Counter[tuple[int, int | None]] | None:
        """Ids and event times of the rows by Spark's Delta, where that is there."""
        if self.spark is None:
            return None
        found = self.spark.sql("SELECT id, unix_micros(ts) us FROM {table}", self.path)
        return Counter((row["id"], row["us"]) for row in found)
