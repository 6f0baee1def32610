"""A stream over an Iceberg table: its snapshot, then its commits, by event time."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from alignment.watermarks import MAX_WATERMARK
from streaming_source.connectors.iceberg import IcebergSource
from streaming_source.data_files import queued
from streaming_source.exceptions import DataLossError, MalformedDataError, OffsetError, OptionError, PathNotFoundError
from tests.iceberg.commits import edit_metadata
from tests.iceberg.tables import (
    SECOND,
    append,
    batch_times,
    catalog_in,
    create,
    harness,
    later,
    properties_in,
    rows,
    times,
)
from tests.tables.changing import read_with_restarts


def test_devices_that_were_exported_one_after_another_are_read_side_by_side(tmp_path: Path) -> None:
    table = create(tmp_path, rows([0], device=0).schema)
    for device in range(4):
        for part in range(2):
            append(table, [(device + 10 * i) * SECOND for i in range(100 * part, 100 * part + 100)], device=device)
    done = harness(tmp_path, max_rows=150)

    done.run()

    assert times(done) == batch_times(table)
    assert len(done.batches) >= 5
    bounds = [batch.bound_us for batch in done.batches]
    assert bounds == sorted(bounds)


@pytest.mark.parametrize("loses_plan", [pytest.param(False, marks=pytest.mark.soak), True])
def test_a_restart_in_the_middle_of_the_snapshot_goes_on_there(
    tmp_path: Path, loses_plan: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queued, "FILES_OPEN", 3)
    table = create(tmp_path)
    for part in range(12):
        append(table, [(7 * part + i) * SECOND for i in range(10)])
    done = harness(tmp_path, max_rows=15)

    def change() -> None:
        assert done.state.checkpoint.progress.in_snapshot
        append(table, [900 * SECOND])
        append(table, [3 * SECOND])

    read_with_restarts(done, change, loses_plan=loses_plan)

    assert times(done) == batch_times(table)
    assert done.state.checkpoint.progress.steps == ()


def test_files_without_bounds_leave_the_order_of_other_files_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files whose first records are microseconds apart wait, and after a restart they are listed with another one."""
    monkeypatch.setattr(queued, "FILES_OPEN", 2)
    table = create(tmp_path)
    append(table, [0])
    done = harness(tmp_path, max_rows=2)
    done.run()
    for part in range(8):
        append(table, [100 * (8 - part), 900 * SECOND])
    done.clock.advance("2 seconds")
    done.run_batch()
    with table.refresh().transaction() as change:
        change.set_properties({"write.metadata.metrics.default": "none"})
    append(table, [500 * SECOND])
    done.clock.advance("2 seconds")
    done.run_batch()
    assert len(done.state.checkpoint.progress.steps) == 1

    done.restart()
    done.run()

    assert times(done) == batch_times(table)


def test_an_empty_table_is_followed_from_its_first_commit(tmp_path: Path) -> None:
    table = create(tmp_path)
    done = harness(tmp_path)
    done.run()
    done.restart()

    append(table, [1 * SECOND])
    append(table, [2 * SECOND])

    assert times(later(done)) == batch_times(table) == [1 * SECOND, 2 * SECOND]


def test_a_bounded_source_ends_with_the_snapshot_of_its_start(tmp_path: Path) -> None:
    table = create(tmp_path)
    append(table, [1 * SECOND, 20 * SECOND])
    done = harness(tmp_path, {"bounded": True}, max_rows=1)
    done.run_batch()
    append(table, [30 * SECOND])
    done.restart()

    done.run()

    assert times(done) == [1 * SECOND, 20 * SECOND]
    assert done.watermark == MAX_WATERMARK


def test_a_stream_from_a_time_reads_no_snapshot(tmp_path: Path) -> None:
    table = create(tmp_path)
    for second in range(1, 5):
        append(table, [second * SECOND])
    made = [snapshot.timestamp_ms for snapshot in table.refresh().snapshots()]
    first, none, all_of_them = (
        harness(tmp_path, {"stream_from_timestamp": at}) for at in (made[1], made[-1] + 1, "1970-01-01")
    )

    for done in (first, none, all_of_them):
        done.run()
    append(table, [9 * SECOND])
    for done in (first, none, all_of_them):
        later(done)

    assert times(first) == [2 * SECOND, 3 * SECOND, 4 * SECOND, 9 * SECOND]
    assert times(none) == [9 * SECOND]
    assert times(all_of_them) == batch_times(table)


def test_what_is_committed_before_a_time_that_is_still_to_come_is_passed_over(tmp_path: Path) -> None:
    """Through restarts that name another time: the first start decides."""
    table = create(tmp_path)
    append(table, [1 * SECOND])
    now_ms = table.refresh().current_snapshot().timestamp_ms
    done = harness(tmp_path, {"stream_from_timestamp": now_ms + 60_000})
    done.run()
    done.state = done.coordinator.keep_start()
    append(table, [2 * SECOND])
    later(done)
    done.source = replace(done.source, stream_from_timestamp=now_ms + 3_600_000)
    done.restart()
    append(table, [3 * SECOND])
    later(done)

    def made_in_a_minute(metadata: dict[str, Any]) -> None:
        for snapshot, at_ms in zip(metadata["snapshots"][-2:], (now_ms + 60_000, now_ms), strict=True):
            snapshot["timestamp-ms"] = at_ms
        metadata["last-updated-ms"] = now_ms + 60_000

    assert times(done) == []
    append(table, [4 * SECOND])
    append(table, [5 * SECOND])
    edit_metadata(table, made_in_a_minute)
    done.plan()
    later(done)
    done.restart()
    done.run()
    # The clock of the second one went back, behind one that counts.
    assert times(done) == [4 * SECOND, 5 * SECOND]


def test_a_folder_that_is_deleted_under_a_query_ends_it(tmp_path: Path) -> None:
    """The catalog has the table as before."""
    append(create(tmp_path), [1 * SECOND])
    done = harness(tmp_path)
    done.run()
    shutil.rmtree(tmp_path / "warehouse")

    def looks_for_a_minute() -> None:
        for _ in range(61):
            later(done)

    with pytest.raises(DataLossError, match=r"Iceberg table db.t: its metadata are not there any more, .*: its folder"):
        looks_for_a_minute()


def test_a_batch_reads_the_snapshot_that_it_is_given(tmp_path: Path) -> None:
    table = create(tmp_path)
    first = append(table, [1 * SECOND])
    made = table.current_snapshot().timestamp_ms
    with table.update_schema() as change:
        change.rename_column("ts", "time")
    table.append(rows([2 * SECOND]).rename_columns(["time"]))
    for given in ({"snapshot_id": first}, {"as_of_timestamp": made}):
        done = harness(tmp_path, {"bounded": True, **given})
        done.run()
        assert times(done) == [1 * SECOND]
        assert IcebergSource("db.t", catalog=properties_in(tmp_path), **given).schema().names == ["ts"]


def test_a_stream_that_ends_reads_the_snapshot_that_it_is_given_and_any_other_is_refused(tmp_path: Path) -> None:
    table = create(tmp_path)
    first, _ = (append(table, [number * SECOND]) for number in range(2))
    for given in ({"snapshot_id": first}, {"as_of_timestamp": "2100-01-01T00:00:00Z"}):
        with pytest.raises(OptionError, match=r"(snapshot-id|as-of-timestamp) = .* now: leave it out"):
            harness(tmp_path, given)
    done = harness(tmp_path, {"snapshot_id": first, "bounded": True})
    done.run()
    assert times(done) == [0]


def test_deletes_and_overwrites_after_the_snapshot_are_named(tmp_path: Path) -> None:
    table = create(tmp_path, rows([0], part=0).schema)
    with table.update_spec() as spec:
        spec.add_identity("part")
    append(table, [1 * SECOND], part=1)
    append(table, [2 * SECOND], part=2)
    option_names = ("", "skip_delete_snapshots", "skip_overwrite_snapshots")
    started = {name: harness(tmp_path, {name: True} if name else {}) for name in option_names}
    for done in started.values():
        done.run()

    table.refresh().delete("part = 1")
    gone = table.current_snapshot().snapshot_id
    with pytest.raises(MalformedDataError, match=rf"snapshot {gone} \(delete, .* Set streaming-skip-delete-snapshots"):
        later(started[""])
    append(table, [4 * SECOND], part=1)
    assert times(later(started["skip_delete_snapshots"])) == [n * SECOND for n in (1, 2, 4)]

    append(table, [5 * SECOND, 6 * SECOND], part=1)
    skips = later(harness(tmp_path, {"skip_overwrite_snapshots": True}))
    later(started["skip_delete_snapshots"])
    # A file of which some rows go is written again.
    table.refresh().delete("ts = '1970-01-01T00:00:05+00:00'")
    assert table.current_snapshot().summary.operation.value == "overwrite"
    append(table, [7 * SECOND], part=1)
    with pytest.raises(MalformedDataError, match=r"\(overwrite, .* Set streaming-skip-overwrite-snapshots = true"):
        later(started["skip_delete_snapshots"])
    assert times(later(skips)) == [n * SECOND for n in (2, 4, 5, 6, 7)]


def test_a_table_that_was_made_anew_is_another_one(tmp_path: Path) -> None:
    append(create(tmp_path), [1 * SECOND])
    running, restarted = harness(tmp_path), harness(tmp_path)
    for done in (running, restarted):
        done.run()
    catalog_in(tmp_path).drop_table("db.t")
    with pytest.raises(DataLossError, match=r"is not in its catalog any more"):
        later(running)
    append(create(tmp_path), [1 * SECOND])

    with pytest.raises(DataLossError, match=r"was dropped and made anew; use a new checkpointLocation"):
        later(restarted)
    restarted.restart()
    with pytest.raises(OffsetError, match=r"was dropped and made anew.*; use a new checkpointLocation"):
        restarted.run()


def test_the_schema_is_that_of_the_table(tmp_path: Path) -> None:
    create(tmp_path, rows([0], part=0).schema)
    source = IcebergSource("db.t", catalog=properties_in(tmp_path))
    assert source.schema() == pa.schema([("ts", pa.timestamp("us", "UTC")), ("part", pa.int64())])
    assert IcebergSource("db.t", catalog=properties_in(tmp_path), columns=("part",)).schema().names == ["part"]
    with pytest.raises(PathNotFoundError, match=r"has no Iceberg table 'db.other'; its tables in 'db' are 'db.t'"):
        IcebergSource("db.other", catalog=properties_in(tmp_path)).schema()


def test_an_explanation_names_table_snapshot_and_file(tmp_path: Path) -> None:
    table = create(tmp_path)
    head = append(table, [1 * SECOND, 2 * SECOND])
    done = harness(tmp_path, max_rows=1)
    done.run_batch()

    explained = done.coordinator.explain()

    assert explained.reads == "db.t"
    (split,) = explained.splits
    assert split.split_id.startswith(f"file://{tmp_path}/warehouse/db/t/data/")
    assert split.split_id.endswith(f".parquet@v{head}")
