"""An Iceberg table that Spark's own sink writes is read by what its writer claims."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from alignment import WatermarkStrategy
from alignment.watermarks import MIN_WATERMARK
from streaming_source import complete_until
from streaming_source.connectors.iceberg import IcebergSource
from streaming_source.exceptions import ClaimError
from streaming_source.testing import SourceHarness
from tests.checkpoint.written import WrittenCheckpoint, ours
from tests.faults.killed_process import KilledQueryLog
from tests.iceberg.by_spark import call_by_spark, run_by_spark
from tests.iceberg.tables import SECOND, append, catalog_in, catalog_options, create, properties_in, rows, times

MINUTE = 60 * SECOND


def write_rows(folder: Path, first: int, files: int) -> None:
    """Files of one micro-batch each: a minute further each, with rows up to two minutes behind, which Spark drops."""
    folder.mkdir(exist_ok=True)
    for number in range(first, first + files):
        seconds = [number * 60 + second for second in (50, 10, -100, 30)]
        times = pa.array([1_767_225_600 * SECOND + second * SECOND for second in seconds], pa.timestamp("us", "UTC"))
        pq.write_table(pa.table({"ts": times}), folder / f"{number:03}.parquet")


def _options(folder: Path) -> dict[str, str]:
    """As a user gives them for `db.t`."""
    return {"catalog.name": "tests", **{f"catalog.{name}": value for name, value in catalog_options(folder).items()}}


def commit(table: Table, written: WrittenCheckpoint, batch: int, watermark_us: int, *times_us: int) -> int:
    """Commit a micro-batch as Spark's sink does, and return its snapshot."""
    written.plan(batch, 0, ours(watermark_us))
    by = {"spark.sql.streaming.queryId": written.id, "spark.sql.streaming.epochId": str(batch)}
    table.refresh().append(rows(times_us), snapshot_properties=by)
    written.commit(batch)
    return table.refresh().metadata.current_snapshot_id or 0


def reading(folder: Path, written: WrittenCheckpoint) -> SourceHarness:
    source = IcebergSource("db.t", catalog=properties_in(folder), watermark_from=str(written))
    return SourceHarness(source, WatermarkStrategy.from_source_watermarks().with_timestamp_assigner("ts"))


def look(done: SourceHarness) -> int:
    done.clock.advance("2 seconds")
    done.run()
    return done.watermark


def complete(folder: Path, written: WrittenCheckpoint) -> int | None:
    return complete_until("db.t", str(written), options=_options(folder)).until_us


def test_a_snapshot_of_a_micro_batch_claims_and_another_writer_is_late_behind_it(tmp_path: Path) -> None:
    table, written = create(tmp_path), WrittenCheckpoint(tmp_path / "cp")
    commit(table, written, 0, 10 * SECOND, 30 * SECOND, 11 * SECOND)
    done = reading(tmp_path, written)
    assert look(done) == complete(tmp_path, written) == 10 * SECOND
    commit(table, written, 1, 40 * SECOND)
    assert look(done) == complete(tmp_path, written) == 40 * SECOND, "a snapshot without rows moves the watermark"
    append(table, [20 * SECOND, 70 * SECOND])
    assert look(done) == complete(tmp_path, written) == 40 * SECOND
    metrics = done.coordinator.host.enumerator.metrics()
    assert metrics["lateRecordsOf another writer"] == 1
    done.restart()
    commit(table, written, 2, 50 * SECOND, 60 * SECOND)
    assert look(done) == complete(tmp_path, written) == 50 * SECOND
    assert times(done) == [second * SECOND for second in (11, 20, 30, 60, 70)]
    done.close()


def test_micro_batches_that_a_rollback_removed_are_an_error_unless_they_were_written_again(tmp_path: Path) -> None:
    table, written = create(tmp_path), WrittenCheckpoint(tmp_path / "cp")

    def write(batch: int) -> int:
        return commit(table, written, batch, (batch + 1) * 10 * SECOND, (batch + 2) * 10 * SECOND)

    first, second = write(0), write(1)
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    write(2)
    with pytest.raises(ClaimError, match=rf"snapshot {second}, is no part of it any more: rows of the writer"):
        complete(tmp_path, written)
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    write(1)
    write(2)
    assert complete(tmp_path, written) == 30 * SECOND


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.parametrize(
    "call",
    ["rewrite_manifests('db.t')", "rewrite_data_files(table => 'db.t', options => map('rewrite-all', 'true'))"],
    ids=lambda call: call.partition("(")[0],
)
def test_what_spark_rewrites_claims_nothing_and_loses_no_claim(tmp_path: Path, call: str) -> None:
    table, written = create(tmp_path), WrittenCheckpoint(tmp_path / "cp")
    for batch in range(4):
        commit(table, written, batch, batch * 10 * SECOND, (batch * 10 + 1) * SECOND, (batch * 10 + 12) * SECOND)
    done, before = reading(tmp_path, written), table.refresh().metadata.current_snapshot_id
    assert look(done) == 30 * SECOND
    call_by_spark(tmp_path, call)
    rewritten = table.refresh().metadata.snapshot_by_id(table.metadata.current_snapshot_id or 0)
    assert rewritten is not None
    assert (rewritten.parent_snapshot_id, rewritten.summary.operation) == (before, Operation.REPLACE)  # type: ignore[union-attr]
    fresh = reading(tmp_path, written)
    assert look(done) == look(fresh) == complete(tmp_path, written) == 30 * SECOND
    commit(table, written, 4, 40 * SECOND, 41 * SECOND)
    done.restart()
    assert look(done) == look(fresh) == complete(tmp_path, written) == 40 * SECOND
    assert (
        times(done)
        == times(fresh)
        == sorted([s * SECOND for b in range(4) for s in (b * 10 + 1, b * 10 + 12)] + [41 * SECOND])
    )
    assert "lateRecordsOf another writer" not in done.coordinator.host.enumerator.metrics()
    for one in (done, fresh):
        one.close()


@pytest.mark.soak
def test_windows_that_sparks_sink_commits_are_complete_until_the_watermark_of_their_micro_batch(tmp_path: Path) -> None:
    catalog_in(tmp_path)
    write_rows(tmp_path / "rows", 0, 8)
    run_by_spark("windows_by_spark.py", str(tmp_path))

    checkpoint = tmp_path / "writer"
    options = _options(tmp_path)

    def claimed() -> int:
        found = complete_until("db.minutes", str(checkpoint), options=options)
        assert found.column == "window.end"
        assert found.until_us is not None
        return found.until_us

    def planned(batch: int) -> int:
        logged = (checkpoint / f"offsets/{batch}").read_text().splitlines()[1]
        return int(json.loads(logged)["batchWatermarkMs"]) * 1000

    assert claimed() == planned(KilledQueryLog(checkpoint).last("offsets")) > 1_767_225_600 * SECOND
    source = IcebergSource("db.minutes", catalog=properties_in(tmp_path), watermark_from=str(checkpoint))
    strategy = WatermarkStrategy.from_source_watermarks().with_timestamp_assigner("window.end")
    done = SourceHarness(source, strategy)
    done.run()
    assert done.watermark == claimed()
    read = {time for records in done.records().values() for _, time in records}
    assert len(read) >= 6
    assert max(read) <= done.watermark, "a window came before it had ended"

    before = done.watermark
    write_rows(tmp_path / "rows", 8, 5)
    run_by_spark("windows_by_spark.py", str(tmp_path))
    done.clock.advance("1 second")
    done.run()
    assert done.watermark == claimed() > before > MIN_WATERMARK
    new = {time for records in done.records().values() for _, time in records} - read
    assert len(new) >= 4
    assert min(new) > before, "no window that was claimed to be there came later"
    assert not done.coordinator.runtime.engine.late.any()
    done.close()
    snapshots = catalog_in(tmp_path).load_table("db.minutes").metadata.snapshots
    assert all("spark.sql.streaming.epochId" in one.summary.additional_properties for one in snapshots if one.summary)
