"""Repairs of random workloads over a Delta table, whatever dies; and of one whose files were vacuumed."""

from __future__ import annotations

from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from streaming_source.exceptions import DataLossError
from tests.examples import one_in
from tests.spark.reading import T0
from tests.spark.repaired import WINDOWS, check_seed, with_late_records
from tests.tables.repaired import RepairedTable


def table_in(path: Path) -> RepairedTable:
    def append(rows: pa.Table) -> int:
        deltalake.write_deltalake(str(path), rows, mode="append")
        return deltalake.DeltaTable(str(path)).version()

    return RepairedTable("aligned_delta", {"path": path}, append)


@pytest.mark.parametrize("seed", one_in(60, range(60)))
def test_once_quiet_the_target_is_the_batch_over_all_records(tmp_path: Path, seed: int) -> None:
    data = table_in(tmp_path / "table")
    windows, repairs = check_seed(seed, data, tmp_path, WINDOWS[seed % 4], lateness="bounded")
    print(f"seed {seed}: {len(data.written)} records in {windows} windows, {repairs.repairs} repairs")


def test_a_version_that_was_vacuumed_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    repairs = with_late_records(tmp_path, table_in(tmp_path / "table"), lateness="bounded")
    before = dict(repairs.target.rows)
    # Compaction takes the files out of the table, which the version that the query has read still has.
    deltalake.DeltaTable(str(tmp_path / "table")).optimize.compact()
    gone = deltalake.DeltaTable(str(tmp_path / "table")).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert gone
    with pytest.raises(DataLossError, match=r"table.* (is gone|are gone|vacuum)"):
        repairs.run()
    assert repairs.target.rows == before


def test_a_version_whose_log_was_cleaned_up_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    data = table_in(tmp_path / "table")
    repairs = with_late_records(tmp_path, data, lateness="bounded")
    before, read = dict(repairs.target.rows), deltalake.DeltaTable(str(tmp_path / "table")).version()
    data.put("a", [(T0, "x", 0)])
    deltalake.DeltaTable(str(tmp_path / "table")).create_checkpoint()
    for version in range(read + 1):
        (tmp_path / f"table/_delta_log/{version:020}.json").unlink()
    with pytest.raises(DataLossError, match=rf"has no version {read} any more, up to which .* its log was cleaned up"):
        repairs.run()
    assert repairs.target.rows == before
