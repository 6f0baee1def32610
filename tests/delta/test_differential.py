"""Random tables, read while they change, killed and restarted: against a batch read of the same rows."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from alignment.timestamps import NO_TIMESTAMP
from streaming_source.connectors.delta import DeltaSource
from streaming_source.testing import SourceHarness
from tests.delta.deletion_vectors import delete_rows
from tests.delta.tables import SECOND, STRATEGY, read_all, rows
from tests.examples import examples
from tests.tables.changing import read_with_kills


class RandomTable:
    """A table to which rows are appended out of order; compacted, grown, and before a stream starts deleted from.

    `expected` are the rows of the version with which a stream begins, and those that were added since: by `id`, event
    time. Each row has an `id` of its own.
    """

    def __init__(self, path: Path, seed: int) -> None:
        self.path = str(path)
        self.random = random.Random(seed)
        self.partitioned = self.random.random() < 0.4
        self.mapped = self.random.random() < 0.3
        self.has_statistics = self.random.random() < 0.8
        self.expected: dict[int, int | None] = {}
        self.columns = ["ts", "id", "part"]
        self._next = 0
        self.started = False
        self.vectors: dict[str, set[int]] = {}
        for _ in range(self.random.randint(1, 6)):
            self.append()

    def append(self) -> None:
        count = self.random.choice([1, 3, 20, 60])
        first = self.random.randint(0, 400) * SECOND
        step = self.random.choice([0, SECOND // 7, 3 * SECOND])
        times: list[int | None] = [first + i * step + self.random.randint(0, 4 * SECOND) for i in range(count)]
        if self.random.random() < 0.1:
            times[0] = None
        ids = range(self._next, self._next + count)
        self._next += count
        columns: dict[str, Any] = {"id": list(ids), "part": [self.random.randint(0, 2) for _ in ids]}
        columns |= dict.fromkeys(self.columns[3:], 1)
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
        self.expected |= dict(zip(ids, times, strict=True))

    def change(self) -> None:
        """One commit."""
        kind = self.random.choice(["append", "append", "append", "compact", "grow", "delete", "vector", "checkpoint"])
        table = deltalake.DeltaTable(self.path)
        if kind == "compact" and not self.mapped:
            table.optimize.compact()
        elif kind == "grow" and not self.mapped and len(self.columns) < 6:
            self.columns.append(f"more{len(self.columns)}")
            self.append()
        elif kind == "delete" and not self.started and not self.mapped:
            # Before a stream begins: after that it would be an error.
            below = self.random.randint(0, max(self._next // 3, 1))
            table.delete(f"id < {below}")
            self.expected = {key: time for key, time in self.expected.items() if key >= below}
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


def _times(done: SourceHarness) -> Counter[int | None]:
    return Counter(time for records in done.records().values() for _, time in records)


@pytest.mark.parametrize("seed", range(examples(24)))
def test_a_stream_with_kills_brings_what_a_batch_has(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = RandomTable(Path(folder), seed)
        chance = table.random
        for _ in range(chance.randint(0, 4)):
            table.change()
        table.started = True
        done = SourceHarness(
            DeltaSource(table.path), STRATEGY, max_rows=chance.choice([None, 7, 40]), readers=chance.choice([1, 3])
        )
        read_with_kills(done, chance, table.change, changes=8)

        expected = Counter(NO_TIMESTAMP if time is None else time for time in table.expected.values())
        assert _times(done) == expected, f"seed {seed}"
        assert done.state.checkpoint.progress.steps == (), f"seed {seed}"
        # A batch of the table now has the same rows: nothing was removed after the start.
        batch = read_all(DeltaSource(table.path))
        assert Counter(batch["id"].to_pylist()) == Counter(table.expected.keys()), f"seed {seed}"
        if not table.mapped and not table.vectors:
            # deltalake itself gives null for columns under other names, and refuses deletion vectors here.
            theirs = deltalake.DeltaTable(table.path).to_pyarrow_table()
            assert isinstance(theirs, pa.Table)
            assert Counter(theirs["id"].to_pylist()) == Counter(table.expected.keys()), f"seed {seed}"
        done.close()
