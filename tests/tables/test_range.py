"""A range of event times over a table: files that are wholly before it are not opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from streaming_source.spark.datasource import AlignedDataSource
from tests.delta import tables as delta
from tests.iceberg import tables as iceberg
from tests.tables.reading import SECOND


def _delta(folder: Path, parts: list[list[int | None]]) -> AlignedDataSource:
    for part in parts:
        delta.append(folder, part)
    return AlignedDataSource.of_format("aligned_delta", {"path": str(folder), **OPTIONS})


def _iceberg(folder: Path, parts: list[list[int | None]]) -> AlignedDataSource:
    table = iceberg.create(folder)
    for part in parts:
        iceberg.append(table, part)
    catalog = {f"catalog.{name}": value for name, value in iceberg.catalog_options(folder).items()}
    return AlignedDataSource.of_format(
        "aligned_iceberg", {"path": "db.t", "catalog.name": "tests", **catalog, **OPTIONS}
    )


OPTIONS = {
    "eventTimeColumn": "ts",
    "eventTimeFrom": "1970-01-01T00:00:50Z",
    "eventTimeUntil": "1970-01-01T00:01:35Z",
    "invalidTimestamp": "null",
    "timeZone": "UTC",
}


@pytest.mark.parametrize("written", [_delta, _iceberg])
def test_files_before_the_range_are_not_opened_where_each_record_has_a_time(
    written: Callable[[Path, list[list[int | None]]], AlignedDataSource], tmp_path: Path
) -> None:
    before, with_null, across, behind = [1, 2], [3, None], [4, 60], [90, 95]
    parts = [[None if at is None else at * SECOND for at in part] for part in (before, with_null, across, behind)]
    source = written(tmp_path, parts)
    oldest = min(tmp_path.rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    # Whether a file is opened shows where it is gone.
    oldest.unlink()

    reader = source.times_reader()

    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    read = [time for batch in batches for time in batch.column(2).cast(pa.int64()).to_pylist()]
    assert sorted(read, key=str) == [60 * SECOND, 90 * SECOND, None]
