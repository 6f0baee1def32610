"""The suite for connectors, over Delta tables: with a snapshot, and from a version on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from alignment import WatermarkStrategy
from streaming_source.connectors.delta import DeltaSource
from streaming_source.connectors.tables.files import TableFile
from streaming_source.connectors.tables.split import TableSplit
from streaming_source.testing.conformance import Expected, SourceConformance
from streaming_source.tools.testing.conformance.connector import ROWS

SCHEMA = pa.schema([("name", pa.string()), ("t", pa.timestamp("us", "UTC")), ("n", pa.int64())])


class Tables(SourceConformance):
    """Each file is finite, and written under a name that the suite chooses: its commit is written by hand."""

    strategy = WatermarkStrategy.for_bounded_out_of_orderness("3 seconds").with_timestamp_assigner("t")
    can_append = False

    @pytest.fixture(autouse=True)
    def _table(self, tmp_path: Path) -> None:
        self.path = tmp_path
        deltalake.DeltaTable.create(str(tmp_path), SCHEMA)
        self.versions: dict[int, int] = {}

    def version_of(self, split: int) -> int:
        return self.versions.setdefault(split, len(self.versions) + 1)

    def write(self, split: int, times_us: Sequence[int]) -> None:
        times = pa.array(times_us).cast(pa.timestamp("us", "UTC"))
        table = pa.table([["x"] * len(times), times, list(range(len(times)))], schema=SCHEMA)
        path = self.path / f"{split}.parquet"
        pq.write_table(table, path, row_group_size=4)
        bounds = [{"t": f"{time.isoformat()[:23]}Z"} for time in (min(times.to_pylist()), max(times.to_pylist()))]
        stats = {"numRecords": len(times), "minValues": bounds[0], "maxValues": bounds[1], "nullCount": {"t": 0}}
        add = {"path": path.name, "partitionValues": {}, "size": path.stat().st_size, "modificationTime": 1}
        add |= {"dataChange": True, "stats": json.dumps(stats)}
        log = self.path / "_delta_log" / f"{self.version_of(split):020}.json"
        log.write_text(json.dumps({"add": add}))

    def serialized_before(self) -> Iterable[tuple[int, bytes, Any]]:
        file = TableFile("a.parquet", 3, 17, 5, 6, (("x", "1"),))
        yield 1, b'["a.parquet@v3",12,17,5,6,"{\\"p\\":{\\"x\\":\\"1\\"}}"]', TableSplit(file, 12)


class TestCommits(Tables):
    def create_source(self, bounded: bool) -> DeltaSource:
        return DeltaSource(str(self.path), starting_version=1, bounded=bounded)

    def split_id(self, split: int) -> str:
        return f"{split}.parquet@v{self.version_of(split)}"


@pytest.mark.soak
class TestSnapshot(Tables):
    """What is written before the source is created is in the snapshot, under its version."""

    snapshot: int | None = None

    def create_source(self, bounded: bool) -> DeltaSource:
        if self.snapshot is None:
            self.snapshot = len(list((self.path / "_delta_log").glob("*.json"))) - 1
        return DeltaSource(str(self.path), bounded=bounded)

    def fill(self, splits: int, rows: int = ROWS) -> Expected:
        self.snapshot = len(self.versions) + splits
        return super().fill(splits, rows)

    def split_id(self, split: int) -> str:
        version = self.version_of(split)
        return f"{split}.parquet@v{version if self.snapshot is None else max(version, self.snapshot)}"
