"""An Iceberg table that Spark's own sink writes is read by what its writer claims."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from alignment import WatermarkStrategy
from alignment.watermarks import MIN_WATERMARK
from streaming_source import complete_until
from streaming_source.connectors.iceberg import IcebergSource
from streaming_source.exceptions import ClaimError
from streaming_source.testing import SourceHarness
from tests.checkpoint.written import WrittenCheckpoint, ours
from tests.faults.killed_process import KilledQueryLog
from tests.iceberg.by_spark import run_by_spark
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


def test_a_snapshot_of_a_micro_batch_claims_and_another_writer_is_late_behind_it(tmp_path: Path) -> None:
    table, written = create(tmp_path), WrittenCheckpoint(tmp_path / "cp")
    options = _options(tmp_path)

    def commit(batch: int, watermark_us: int, *times_us: int) -> None:
        written.plan(batch, 0, ours(watermark_us))
        by = {"spark.sql.streaming.queryId": written.id, "spark.sql.streaming.epochId": str(batch)}
        table.append(rows(times_us), snapshot_properties=by)
        written.commit(batch)

    commit(0, 10 * SECOND, 30 * SECOND, 11 * SECOND)
    source = IcebergSource("db.t", catalog=properties_in(tmp_path), watermark_from=str(written))
    done = SourceHarness(source, WatermarkStrategy.from_source_watermarks().with_timestamp_assigner("ts"))

    def look() -> int:
        done.clock.advance("2 seconds")
        done.run()
        assert complete_until("db.t", str(written), options=options).until_us == done.watermark
        return done.watermark

    assert look() == 10 * SECOND
    commit(1, 40 * SECOND)
    assert look() == 40 * SECOND, "a snapshot without rows moves the watermark"
    append(table, [20 * SECOND, 70 * SECOND])
    assert look() == 40 * SECOND
    metrics = done.coordinator.host.enumerator.metrics()
    assert metrics["lateRecordsOf another writer"] == 1
    done.restart()
    commit(2, 50 * SECOND, 60 * SECOND)
    assert look() == 50 * SECOND
    assert times(done) == [second * SECOND for second in (11, 20, 30, 60, 70)]
    done.close()


def test_micro_batches_that_a_rollback_removed_are_an_error_unless_they_were_written_again(tmp_path: Path) -> None:
    table, written = create(tmp_path), WrittenCheckpoint(tmp_path / "cp")

    def commit(batch: int) -> int:
        written.plan(batch, 0, ours((batch + 1) * 10 * SECOND))
        by = {"spark.sql.streaming.queryId": written.id, "spark.sql.streaming.epochId": str(batch)}
        table.append(rows([(batch + 2) * 10 * SECOND]), snapshot_properties=by)
        return table.refresh().metadata.current_snapshot_id or 0

    def complete() -> int | None:
        return complete_until("db.t", str(written), options=_options(tmp_path)).until_us

    first, second = commit(0), commit(1)
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    commit(2)
    with pytest.raises(ClaimError, match=rf"snapshot {second}, is no part of it any more: rows of the writer"):
        complete()
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    commit(1)
    commit(2)
    assert complete() == 30 * SECOND


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
