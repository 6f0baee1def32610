"""Repairs of random workloads over a Delta table, whatever dies; and of one whose files were vacuumed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from streaming_source.exceptions import DataLossError
from streaming_source.spark.datasource import AlignedDataSource
from streaming_source.spark.offsets import OffsetCodec
from tests.spark.reading import rows_emitted
from tests.spark.repaired import WINDOWS, Record, check_seed, with_late_records


class Table:
    """A commit for each call of `put`, whichever split it is for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.written: list[Record] = []
        # By version: how many records there were.
        self._count: list[int] = []

    def source(self, **options: Any) -> AlignedDataSource:
        given = {"path": self._path, "eventTimeColumn": "t", **options}
        text = rows_emitted({name: str(value) for name, value in given.items()})
        return AlignedDataSource.of_format("aligned_delta", text)

    def put(self, split: str, records: list[Record]) -> None:
        times, keys, values = zip(*records, strict=True)
        rows = pa.table({"t": pa.array(times, pa.timestamp("us", "UTC")), "k": list(keys), "v": list(values)})
        deltalake.write_deltalake(str(self._path), rows, mode="append")
        self.written += records
        self._count.append(len(self.written))

    def records(self, batch: pa.RecordBatch) -> list[Record]:
        columns = [batch["t"].cast(pa.int64()), batch["k"], batch["v"]]
        # The watermark row has a time alone.
        return [row for row in zip(*(column.to_pylist() for column in columns), strict=True) if row[1] is not None]

    def known_at(self, offset: Mapping[str, Any], read: list[Record]) -> list[Record]:
        """All of the last version that was listed: compaction may have put together what was read and what was not."""
        progress = OffsetCodec(self.source().source).decode(offset).checkpoint.progress
        return self.written[: self._count[progress.last]]


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in range(1, 60))])
def test_once_quiet_the_target_is_the_batch_over_all_records(tmp_path: Path, seed: int) -> None:
    data = Table(tmp_path / "table")
    windows, repairs = check_seed(seed, data, tmp_path, WINDOWS[seed % 4], lateness="bounded")
    print(f"seed {seed}: {len(data.written)} records in {windows} windows, {repairs.repairs} repairs")


def test_a_version_that_was_vacuumed_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    data = Table(tmp_path / "table")
    repairs = with_late_records(tmp_path, data, lateness="bounded")
    before = dict(repairs.target.rows)
    # Compaction takes the files out of the table, which the version that the query has read still has.
    deltalake.DeltaTable(str(tmp_path / "table")).optimize.compact()
    gone = deltalake.DeltaTable(str(tmp_path / "table")).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert gone
    with pytest.raises(DataLossError, match=r"table.* (is gone|are gone|vacuum)"):
        repairs.run()
    assert repairs.target.rows == before
