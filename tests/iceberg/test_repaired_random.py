"""Repairs of random workloads over an Iceberg table, whatever dies; and of one whose snapshots have expired."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from streaming_source.exceptions import DataLossError
from tests.iceberg.commits import compact, expire_as_java
from tests.iceberg.tables import catalog_in, catalog_options
from tests.spark.repaired import WINDOWS, RepairQuery, check_seed, with_late_records
from tests.tables.repaired import RepairedTable

SCHEMA = pa.schema({"t": pa.timestamp("us", "UTC"), "k": pa.string(), "v": pa.int64()})


def table_in(folder: Path) -> tuple[Table, RepairedTable]:
    table = catalog_in(folder).create_table("db.t", SCHEMA)

    def append(rows: pa.Table) -> int:
        table.refresh().append(rows)
        return int(table.current_snapshot().snapshot_id)

    options = {f"catalog.{name}": value for name, value in catalog_options(folder).items()}
    return table, RepairedTable("aligned_iceberg", {"table": "db.t", "catalog.name": "tests", **options}, append)


@pytest.mark.parametrize("seed", [pytest.param(n, marks=pytest.mark.soak) for n in range(20)])
def test_once_quiet_the_target_is_the_batch_over_all_records(tmp_path: Path, seed: int) -> None:
    _, data = table_in(tmp_path / "table")
    windows, repairs = check_seed(seed, data, tmp_path, WINDOWS[seed % 4], lateness="bounded")
    print(f"seed {seed}: {len(data.written)} records in {windows} windows, {repairs.repairs} repairs")


def fails(repairs: RepairQuery, why: str) -> None:
    before = dict(repairs.target.rows)
    with pytest.raises(DataLossError, match=why):
        repairs.run()
    assert repairs.target.rows == before


def test_a_snapshot_that_has_expired_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    table, data = table_in(tmp_path / "table")
    repairs = with_late_records(tmp_path, data, lateness="bounded")
    read = [snapshot.snapshot_id for snapshot in table.refresh().snapshots()]
    compact(table)
    expire_as_java(table, read)
    fails(repairs, rf"db.t has no snapshot {read[-1]} any more, up to which .*: it has expired. Give the repairs a new")


def test_files_that_are_gone_are_named_and_nothing_is_written(tmp_path: Path) -> None:
    _, data = table_in(tmp_path / "table")
    repairs = with_late_records(tmp_path, data, lateness="bounded")
    for path in (tmp_path / "table").glob("warehouse/db/t/data/*.parquet"):
        path.unlink()
    fails(repairs, r"parquet of Iceberg table db.t, snapshot \d+ .*(deleted|gone)")
