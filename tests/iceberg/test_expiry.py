"""Snapshots that expire, branches that move and files that go while a stream reads."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from streaming_source.data_files import queued
from streaming_source.exceptions import DataLossError, FileGoneError, OptionError
from tests.iceberg.by_spark import call_by_spark
from tests.iceberg.commits import compact, edit_metadata, expire_as_java
from tests.iceberg.tables import SECOND, append, batch_times, create, harness, later, times


def test_a_fresh_stream_has_the_rows_of_snapshots_that_have_expired(tmp_path: Path) -> None:
    table = create(tmp_path)
    first = append(table, [1 * SECOND])
    append(table, [2 * SECOND])
    table.maintenance.expire_snapshots().by_id(first).commit()

    assert times(later(harness(tmp_path))) == [1 * SECOND, 2 * SECOND]


def test_a_snapshot_that_has_expired_and_is_a_parent_is_gone_on_from(tmp_path: Path) -> None:
    table = create(tmp_path)
    read = append(table, [1 * SECOND])
    done = harness(tmp_path)
    done.run()
    append(table, [2 * SECOND])
    expire_as_java(table, [read])
    done.restart()

    assert times(later(done)) == [1 * SECOND, 2 * SECOND]


def test_a_snapshot_whose_place_pyiceberg_forgets_is_named(tmp_path: Path) -> None:
    table = create(tmp_path)
    read = append(table, [1 * SECOND])
    done = harness(tmp_path)
    done.run()
    append(table, [2 * SECOND])
    table.maintenance.expire_snapshots().by_id(read).commit()

    with pytest.raises(DataLossError, match=rf"what came before .* has expired, and snapshot {read} was .* Start"):
        later(done)


def test_a_stream_that_began_on_an_empty_table_names_what_has_expired_since(tmp_path: Path) -> None:
    table = create(tmp_path)
    done, goes_on = harness(tmp_path), harness(tmp_path)
    for one in (done, goes_on):
        one.run()
    appends = [append(table, [second * SECOND]) for second in range(4)]
    assert times(later(goes_on)) == [second * SECOND for second in range(4)]
    table.maintenance.expire_snapshots().by_ids(appends[:2]).commit()

    with pytest.raises(
        DataLossError, match=rf"what came before snapshot {appends[2]} has expired, and nothing before it was read. St"
    ):
        later(done)
    with pytest.raises(
        OptionError, match=rf"stream-from-timestamp = 1970-01-01: the snapshots of .* before {appends[2]} .* expired"
    ):
        harness(tmp_path, {"stream_from_timestamp": "1970-01-01"}).run()


@pytest.mark.spark
@pytest.mark.soak
def test_what_the_procedure_of_spark_lets_expire_is_gone_on_from_or_named(tmp_path: Path) -> None:
    """It leaves what `expire_as_java` leaves."""
    table = create(tmp_path)
    nothing, two = harness(tmp_path), harness(tmp_path)
    nothing.run()
    appends = [append(table, [second * SECOND]) for second in range(2)]
    two.run()
    appends += [append(table, [second * SECOND]) for second in range(2, 5)]

    older = "older_than => TIMESTAMP '2100-01-01 00:00:00'"
    call_by_spark(tmp_path, f"expire_snapshots(table => 'db.t', {older}, retain_last => 3)")

    assert [one.snapshot_id for one in table.refresh().metadata.snapshots] == appends[2:]
    two.restart()
    assert times(later(two)) == [second * SECOND for second in range(5)]
    with pytest.raises(DataLossError, match=rf"snapshot {appends[1]} has expired, and nothing before it was read"):
        later(nothing)


def test_commits_on_another_branch_before_the_first_one_are_nothing_that_has_expired(tmp_path: Path) -> None:
    table = create(tmp_path)
    append(table, [70 * SECOND])

    def to_another_branch(metadata: dict[str, Any]) -> None:
        metadata["refs"] = {"other": metadata["refs"]["main"]}
        metadata["current-snapshot-id"] = None
        metadata["snapshot-log"] = []

    edit_metadata(table, to_another_branch)
    done = harness(tmp_path)
    done.run()
    assert append(table, [1 * SECOND])

    assert times(later(done)) == [1 * SECOND]
    assert times(later(harness(tmp_path, {"stream_from_timestamp": "1970-01-01"}))) == [1 * SECOND]


def test_a_table_from_before_commits_had_numbers_is_known_by_its_files(tmp_path: Path) -> None:
    table = create(tmp_path, properties={"format-version": "1"})
    done, late = harness(tmp_path), harness(tmp_path)
    for one in (done, late):
        one.run()
    first = append(table, [1 * SECOND])
    assert times(later(done)) == [1 * SECOND]
    with table.transaction() as change:
        change.upgrade_table_version(2)
    assert append(table, [2 * SECOND])
    table.refresh().maintenance.expire_snapshots().by_id(first).commit()

    with pytest.raises(DataLossError, match="has expired, and nothing before it was read"):
        later(late)


def test_a_snapshot_that_was_not_read_and_has_expired_is_named(tmp_path: Path) -> None:
    table = create(tmp_path)
    read = append(table, [1 * SECOND])
    done = harness(tmp_path)
    done.run()
    missed = append(table, [2 * SECOND])
    append(table, [3 * SECOND])
    expire_as_java(table, [read, missed])

    with pytest.raises(DataLossError, match=rf"snapshot {missed} has expired, and snapshot {read} was the last"):
        later(done)
    with pytest.raises(OptionError, match=r"stream-from-timestamp = 1970-01-01: the snapshots of .* have expired"):
        harness(tmp_path, {"stream_from_timestamp": "1970-01-01"}).run()


def test_a_snapshot_that_expires_in_its_middle_is_named_at_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queued, "FILES_OPEN", 2)
    table = create(tmp_path)
    for second in range(1, 8):
        first = append(table, [second * SECOND])
    done = harness(tmp_path, max_rows=1)
    done.run_batch()
    append(table, [200 * SECOND])
    expire_as_java(table, [first])
    done.restart()

    with pytest.raises(DataLossError, match=rf"snapshot {first} has expired before its files were all opened. Start"):
        later(done)


def test_a_rollback_is_named(tmp_path: Path) -> None:
    table = create(tmp_path)
    first = append(table, [1 * SECOND])
    second = append(table, [2 * SECOND])
    done = harness(tmp_path)
    done.run()
    table.refresh().manage_snapshots().rollback_to_snapshot(first).commit()
    with pytest.raises(DataLossError, match=rf"snapshot {second}, which was read, is no ancestor of snapshot {first}"):
        later(done)
    append(table, [3 * SECOND])
    done.restart()
    with pytest.raises(DataLossError, match=rf"snapshot {second}, which was read, is no ancestor of .* any more"):
        later(done)


def test_files_that_go_are_named_with_the_snapshot(tmp_path: Path) -> None:
    table = create(tmp_path)
    for second in (1, 500, 900):
        append(table, [second * SECOND])
    head = table.refresh().current_snapshot().snapshot_id
    done, goes_on = harness(tmp_path, max_rows=1), harness(tmp_path, {"ignore_missing_files": True})
    for path in tmp_path.glob("warehouse/db/t/data/*.parquet"):
        path.unlink()

    with pytest.raises(FileGoneError, match=rf"parquet of Iceberg table db.t, snapshot {head} was deleted .*expiry of"):
        done.run()
    assert times(later(goes_on)) == []


def test_files_that_wait_and_were_compacted_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queued, "FILES_OPEN", 2)
    table = create(tmp_path, properties={"history.expire.max-snapshot-age-ms": "3600000"})
    for second in range(8):
        append(table, [second * 1000 * SECOND])
    done = harness(tmp_path, max_rows=1)
    done.run_batch()
    compact(table)
    with caplog.at_level(logging.WARNING):
        done.clock.advance("2 seconds")
        done.run_batch()
    later(done)

    assert "files that wait to be read are not in the table any more, and stay until" in caplog.text
    assert times(done) == batch_times(table)
