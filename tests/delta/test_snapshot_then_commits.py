"""A stream over a Delta table: its snapshot, then its commits, by event time."""

from __future__ import annotations

import re
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from alignment.watermarks import MAX_WATERMARK
from streaming_source.connectors.delta import DeltaSource
from streaming_source.data_files import queued
from streaming_source.exceptions import MalformedDataError, OffsetError
from streaming_source.monitoring.report import WatermarkReport, report_of_offset
from streaming_source.spark.offsets import OffsetCodec
from tests.delta.tables import SECOND, STRATEGY, append, harness, rows, times
from tests.tables.changing import read_with_restarts


def test_devices_that_were_exported_one_after_another_are_read_side_by_side(tmp_path: Path) -> None:
    written = []
    for device in range(4):
        for part in range(3):
            one = [(device + 10 * i) * SECOND for i in range(100 * part, 100 * part + 100)]
            append(tmp_path, one, device=device)
            written += one
    done = harness(tmp_path, max_rows=150)

    done.run()

    assert times(done) == sorted(written)
    assert len(done.batches) >= 8
    bounds = [batch.bound_us for batch in done.batches]
    assert bounds == sorted(bounds)


def test_what_is_committed_later_is_read_and_compaction_is_not(tmp_path: Path) -> None:
    append(tmp_path, [1 * SECOND, 2 * SECOND])
    append(tmp_path, [3 * SECOND])
    done = harness(tmp_path)
    done.run()
    deltalake.DeltaTable(str(tmp_path)).optimize.compact()
    append(tmp_path, [4 * SECOND, 5 * SECOND])
    done.clock.advance("2 seconds")

    done.run()

    assert times(done) == [n * SECOND for n in range(1, 6)]
    assert deltalake.DeltaTable(str(tmp_path)).version() == 3


@pytest.mark.parametrize("loses_plan", [pytest.param(False, marks=pytest.mark.soak), True])
def test_a_restart_in_the_middle_of_the_snapshot_goes_on_there(
    tmp_path: Path, loses_plan: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queued, "FILES_OPEN", 6)
    written = []
    for part in range(20):
        one = [(7 * part + i) * SECOND for i in range(10)]
        append(tmp_path, one)
        written += one
    done = harness(tmp_path, max_rows=25)

    def change() -> None:
        assert done.state.checkpoint.progress.in_snapshot
        # The snapshot is read as it was, whatever became of its files in the table.
        deltalake.DeltaTable(str(tmp_path)).optimize.compact()
        append(tmp_path, [900 * SECOND])

    read_with_restarts(done, change, loses_plan=loses_plan)

    assert times(done) == sorted([*written, 900 * SECOND])
    assert done.state.checkpoint.progress.steps == ()


def test_a_bounded_source_ends_with_the_version_of_its_start(tmp_path: Path) -> None:
    append(tmp_path, [1 * SECOND, 20 * SECOND])
    done = harness(tmp_path, {"bounded": True}, max_rows=1)
    done.run_batch()
    append(tmp_path, [30 * SECOND])
    done.restart()

    done.run()

    assert times(done) == [1 * SECOND, 20 * SECOND]
    assert done.watermark == MAX_WATERMARK


def test_a_stream_that_begins_with_a_version_reads_no_snapshot(tmp_path: Path) -> None:
    for second in range(1, 5):
        append(tmp_path, [second * SECOND])
    first, last = (harness(tmp_path, {"starting_version": version}) for version in (2, "latest"))

    first.run()
    last.run()
    append(tmp_path, [9 * SECOND])
    for done in (first, last):
        done.clock.advance("2 seconds")
        done.run()

    assert times(first) == [3 * SECOND, 4 * SECOND, 9 * SECOND]
    assert times(last) == [9 * SECOND]


def test_a_late_file_of_a_commit_is_read_and_marked(tmp_path: Path) -> None:
    append(tmp_path, [100 * SECOND])
    done = harness(tmp_path)
    done.run()
    append(tmp_path, [10 * SECOND])
    done.clock.advance("2 seconds")

    done.run()

    assert times(done) == [10 * SECOND, 100 * SECOND]


def test_a_table_that_was_made_anew_is_another_one(tmp_path: Path) -> None:
    append(tmp_path / "t", [1 * SECOND])
    done = harness(tmp_path / "t")
    done.run()
    (tmp_path / "t").rename(tmp_path / "old")
    append(tmp_path / "t", [1 * SECOND])

    done.restart()

    with pytest.raises(OffsetError, match=r"was dropped and made anew.*; use a new checkpointLocation"):
        done.run()


def test_deletes_and_updates_after_the_snapshot_are_named(tmp_path: Path) -> None:
    append(tmp_path, [1 * SECOND], part=1, options={"partition_by": "part"})
    append(tmp_path, [2 * SECOND, 3 * SECOND], part=2)
    started = {
        name: harness(tmp_path, {name: True} if name else {}) for name in ("", "ignore_deletes", "skip_change_commits")
    }
    for done in started.values():
        done.run()
    deltalake.DeltaTable(str(tmp_path)).delete("part = 1")
    for done in started.values():
        done.clock.advance("2 seconds")
    with pytest.raises(MalformedDataError, match=r"version 2 \(DELETE\), deletes rows .* Set ignoreDeletes = true"):
        started[""].run()
    append(tmp_path, [4 * SECOND], part=1)
    for name in ("ignore_deletes", "skip_change_commits"):
        started[name].run()
        assert times(started[name]) == [n * SECOND for n in range(1, 5)]

    deltalake.DeltaTable(str(tmp_path)).update(updates={"part": "7"}, predicate="part = 2")
    append(tmp_path, [5 * SECOND], part=1)
    for done in started.values():
        done.clock.advance("2 seconds")
    with pytest.raises(MalformedDataError, match=r"version 4 \(UPDATE\), changes rows .* Set skipChangeCommits = true"):
        started["ignore_deletes"].run()
    started["skip_change_commits"].run()
    assert times(started["skip_change_commits"]) == [n * SECOND for n in range(1, 6)]


def test_a_bound_that_lies_is_found_when_its_file_is_begun(tmp_path: Path) -> None:
    append(tmp_path, [1_700_000_000 * SECOND])
    log = tmp_path / "_delta_log" / f"{0:020}.json"
    log.write_text(log.read_text().replace("2023-11-14T22:13:20", "2023-11-14T22:13:21"))
    done = harness(tmp_path)

    with pytest.raises(MalformedDataError, match=r"@v0: .*: the table's statistics are wrong"):
        done.run()


def test_a_bound_is_cut_to_milliseconds_and_holds_all_the_same(tmp_path: Path) -> None:
    append(tmp_path, [1_111_111, 2_222_999])
    done = harness(tmp_path)

    done.run()

    assert times(done) == [1_111_111, 2_222_999]


def test_statistics_with_the_offset_of_a_zone_are_bounds(tmp_path: Path) -> None:
    """Spark writes moments as they are in the zone of its session."""
    for second in (1_700_000_000, 1_700_000_001):
        append(tmp_path, [second * SECOND])
    for log in (tmp_path / "_delta_log").glob("*.json"):
        text = re.sub(r"2023-11-14T22:13:(2\d)(\.\d+)?Z", r"2023-11-14T14:13:\1.000-08:00", log.read_text())
        assert "-08:00" in text
        log.write_text(text)
    source = DeltaSource(str(tmp_path))
    lister = source.open_lister(source.schema(), STRATEGY.timestamp_assigner)

    added = pa.concat_tables(commit.files() for commit in lister.commits(-1).whole())

    for listed in (added, lister.snapshot(1)):
        assert sorted(listed["low_us"].to_pylist()) == [1_700_000_000 * SECOND, 1_700_000_001 * SECOND]
        assert sorted(listed["high_us"].to_pylist()) == [1_700_000_000 * SECOND + 999, 1_700_000_001 * SECOND + 999]


def test_statistics_that_lack_are_taken_from_the_file(tmp_path: Path) -> None:
    for second in (30, 10, 20):
        append(tmp_path, [second * SECOND], options={"configuration": {"delta.dataSkippingNumIndexedCols": "0"}})
    done = harness(tmp_path, max_rows=1)

    done.run()

    assert [batch.all_records[0].time_us for batch in done.batches if batch.all_records] == [
        10 * SECOND,
        20 * SECOND,
        30 * SECOND,
    ]


def test_the_schema_is_that_of_the_table(tmp_path: Path) -> None:
    append(tmp_path, [1], part=1, options={"partition_by": "part"})
    assert DeltaSource(str(tmp_path)).schema() == pa.schema([("ts", pa.timestamp("us", "UTC")), ("part", pa.int64())])
    assert DeltaSource(str(tmp_path), columns=("part",)).schema().names == ["part"]
    assert rows([1]).schema.names == ["ts"]


def test_files_that_wait_are_counted_and_an_offset_repeats_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queued, "FILES_OPEN", 2)
    for part in range(5):
        append(tmp_path, [1_000 * part * SECOND])
    done = harness(tmp_path, max_rows=1)
    done.run_batch()
    for part in range(5, 8):
        append(tmp_path, [1_000 * part * SECOND])
    done.clock.advance("2 seconds")
    done.plan()

    codec = OffsetCodec(done.source)
    offset = codec.encode(done.state, done.coordinator.explain())
    report = report_of_offset(offset)

    metrics = dict(report.explanation.metrics)
    sizes = sum(path.stat().st_size for path in tmp_path.glob("*.parquet"))
    waiting, size, versions = (metrics[f"num{name}Outstanding"] for name in ("Files", "Bytes", "Versions"))
    assert (waiting, versions) in [(6, 4), (5, 4)]
    assert sizes * 4 // 8 < size < sizes * 7 // 8
    assert WatermarkReport.from_json(report.to_json()).explanation.metrics == report.explanation.metrics
    assert "places" not in offset["why"]
