"""The suite for connectors, over Iceberg tables: with a snapshot, and from a time on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from alignment import WatermarkStrategy
from streaming_source.connectors.iceberg import IcebergSource
from streaming_source.connectors.tables.files import Deletes, TableFile
from streaming_source.connectors.tables.split import TableSplit
from streaming_source.testing.conformance import Expected, SourceConformance
from streaming_source.tools.testing.conformance.connector import ROWS
from tests.iceberg.commits import add_data_file
from tests.iceberg.tables import create, properties_in

SCHEMA = pa.schema(
    [
        pa.field(name, kind, metadata={"PARQUET:field_id": str(number + 1)})
        for number, (name, kind) in enumerate(
            [("name", pa.string()), ("t", pa.timestamp("us", "UTC")), ("n", pa.int64())]
        )
    ]
)


class Tables(SourceConformance):
    """Each file is finite, and written under a name that the suite chooses; its snapshot is known then."""

    strategy = WatermarkStrategy.for_bounded_out_of_orderness("3 seconds").with_timestamp_assigner("t")
    can_append = False

    @pytest.fixture(autouse=True)
    def _table(self, tmp_path: Path) -> None:
        self.path = tmp_path
        self.table = create(tmp_path, SCHEMA)
        self.in_snapshot = 0

    def location(self, split: int) -> str:
        return f"file://{self.path}/{split}.parquet"

    def snapshot_of(self, split: int) -> int:
        return 1000 + split

    def write(self, split: int, times_us: Sequence[int]) -> None:
        times = pa.array(times_us).cast(pa.timestamp("us", "UTC"))
        table = pa.table([["x"] * len(times), times, list(range(len(times)))], schema=SCHEMA)
        pq.write_table(table, self.path / f"{split}.parquet", row_group_size=4)
        low, high = ({2: int(time).to_bytes(8, "little", signed=True)} for time in (min(times_us), max(times_us)))
        number = self.snapshot_of(split)
        add_data_file(self.table, self.location(split), len(times), low=low, high=high, snapshot_id=number)

    def split_id(self, split: int) -> str:
        last = self.in_snapshot - 1
        return f"{self.location(split)}@v{self.snapshot_of(max(split, last))}"

    def serialized_before(self) -> Iterable[tuple[int, bytes, Any]]:
        file = TableFile("s3://a/a.parquet", 3, 17, 5, 6, (("3", "1"),), Deletes(4, "0:1f"))
        detail = b'"{\\"p\\":{\\"3\\":\\"1\\"},\\"d\\":[4,\\"0:1f\\"]}"'
        yield 1, b'["s3://a/a.parquet@v3",12,17,5,6,' + detail + b"]", TableSplit(file, 12)


@pytest.mark.soak
class TestCommits(Tables):
    def create_source(self, bounded: bool) -> IcebergSource:
        catalog = properties_in(self.path)
        return IcebergSource("db.t", catalog=catalog, stream_from_timestamp=0, bounded=bounded)


class TestSnapshot(Tables):
    """What is written before the source is created is in the snapshot, under its id."""

    def create_source(self, bounded: bool) -> IcebergSource:
        return IcebergSource("db.t", catalog=properties_in(self.path), bounded=bounded)

    def fill(self, splits: int, rows: int = ROWS) -> Expected:
        self.in_snapshot = splits
        return super().fill(splits, rows)
