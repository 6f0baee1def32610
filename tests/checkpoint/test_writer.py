"""What a checkpoint shows of the writer of a table: its id, its claims, and what makes them impossible."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from streaming_source.checkpoint.writer import Writer
from streaming_source.exceptions import CheckpointError, ClaimError, OptionError
from tests.auditing.naive import Query, write_state
from tests.checkpoint.written import SECOND, WrittenCheckpoint, ours


@pytest.mark.parametrize("offset_log", ["v1", "v2"])
@pytest.mark.parametrize("commit_log", ["v1", "v2", "v3"])
def test_claims_are_read_from_each_version_of_the_logs(tmp_path: Path, offset_log: str, commit_log: str) -> None:
    written = WrittenCheckpoint(tmp_path / "cp", window_s=60, offset_log=offset_log, commit_log=commit_log)
    written.plan(0)
    written.commit(0, 90 * SECOND)
    writer = Writer(str(written))
    assert (writer.id, writer.rule.column) == ("5f1c", "window.end")
    assert (writer.claimed_us(0), writer.next_us(0)) == (MIN_WATERMARK, 90 * SECOND)
    written.plan(1, 90 * SECOND)
    written.commit(1, 90 * SECOND)
    assert (writer.claimed_us(1), writer.next_us(1)) == (90 * SECOND, None)


def test_the_watermark_of_a_source_of_ours_is_claimed_to_the_microsecond(tmp_path: Path) -> None:
    written = WrittenCheckpoint(tmp_path / "cp")
    written.plan(0, 0, ours(None))
    assert Writer(str(written), "ts").claimed_us(0) == MIN_WATERMARK
    written.plan(1, 0, ours(1_234_567))
    assert Writer(str(written), "TS").claimed_us(1) == 1_234_567
    written.plan(2, 0, ours(MAX_WATERMARK))
    assert Writer(str(written)).claimed_us(2) == MAX_WATERMARK
    with pytest.raises(ClaimError, match="its event times are 'ts'"):
        Writer(str(written), "other").claimed_us(2)
    assert Writer(str(written), "other", 0).claimed_us(1) == 1_234_567


def test_times_without_a_zone_are_claimed_in_the_zone_in_which_the_writer_reads_them(tmp_path: Path) -> None:
    """Noon in Berlin is an hour before noon in UTC: rows on time would be behind a claim, or before it."""
    offset = json.loads(ours(5 * SECOND))
    offset["fixed"]["timeZone"] = "Europe/Berlin"
    written = WrittenCheckpoint(tmp_path / "cp")
    written.plan(0, 0, json.dumps(offset))
    with pytest.raises(OptionError, match=r"option timeZone = 'UTC': times in ts .* give timeZone = Europe/Berlin"):
        Writer(str(written), "ts", zone="UTC").claimed_us(0)
    assert Writer(str(written), "ts", zone="Europe/Berlin").claimed_us(0) == 5 * SECOND
    assert Writer(str(written), "ts").claimed_us(0) == 5 * SECOND, "times with a zone"


@pytest.mark.parametrize(
    ("offset", "column"),
    [
        (ours(5, None, "aligned_kafka"), "timestamp"),
        (ours(5, None, "aligned_datagen"), "event_time"),
        (ours(5, "a.b"), "event_time"),
        (ours(5, "a.b"), "a.b"),
    ],
)
def test_the_event_time_has_the_name_that_the_frame_gives_it(tmp_path: Path, offset: str, column: str) -> None:
    written = WrittenCheckpoint(tmp_path / "cp")
    written.plan(0, 0, offset)
    assert Writer(str(written), column).claimed_us(0) == 5


def test_offsets_that_spark_has_removed_claim_nothing_and_are_no_error(tmp_path: Path) -> None:
    written = WrittenCheckpoint(tmp_path / "cp", window_s=60, keeps=2)
    for batch in range(4):
        written.plan(batch, batch * SECOND)
        written.commit(batch)
    writer = Writer(str(written))
    assert [writer.claimed_us(batch) for batch in range(4)] == [None, None, 2 * SECOND, 3 * SECOND]


def test_data_before_its_offsets_is_refused(tmp_path: Path) -> None:
    written = WrittenCheckpoint(tmp_path / "cp", window_s=60)
    written.plan(0)
    with pytest.raises(ClaimError) as error:
        Writer(str(written)).claimed_us(1)
    said = " ".join(str(error.value).split())
    assert "writer 5f1c" in said
    assert "real-time mode" in said
    assert "asyncProgressTrackingEnabled" in said
    assert "Run it without these" in said


def test_a_checkpoint_that_is_gone_is_named(tmp_path: Path) -> None:
    written = WrittenCheckpoint(tmp_path / "cp", window_s=60)
    written.plan(0)
    writer = Writer(str(written))
    assert writer.is_there
    shutil.rmtree(written.path)
    assert not writer.is_there
    with pytest.raises(ClaimError, match=r"there is no checkpoint of a streaming query at .*/cp"):
        writer.claimed_us(0)


def test_state_without_its_metadata_is_refused(tmp_path: Path) -> None:
    written = WrittenCheckpoint(tmp_path / "cp", window_s=60)
    written.plan(0)
    (written.path / "state/0/_metadata/metadata").unlink()
    with pytest.raises(CheckpointError, match="no metadata of its operator"):
        Writer(str(written)).claimed_us(0)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("symmetricHashJoin", "condition"),
        ("sessionWindowStateStoreSaveExec", "session windows"),
        ("transformWithStateExec", "transformWithStateExec"),
        ("flatMapGroupsWithState", "flatMapGroupsWithState"),
        ("globalLimit", "globalLimit"),
    ],
)
def test_operators_of_which_nothing_follows_are_named(tmp_path: Path, name: str, reason: str) -> None:
    written = WrittenCheckpoint(tmp_path / "cp")
    write_state(written.path, Query(0, 60 * SECOND, 60 * SECOND, name=name))
    written.plan(0, 90 * SECOND)
    with pytest.raises(ClaimError, match=reason):
        Writer(str(written), "ts").claimed_us(0)
    assert Writer(str(written), "ts", 10 * SECOND).claimed_us(0) == 80 * SECOND


def test_deduplication_claims_by_its_source(tmp_path: Path) -> None:
    written = WrittenCheckpoint(tmp_path / "cp")
    write_state(written.path, Query(0, name="dedupe"))
    written.plan(0, 5 * SECOND, ours(7 * SECOND))
    assert Writer(str(written), "ts").claimed_us(0) == 7 * SECOND


def test_metadata_that_is_no_json_is_named(tmp_path: Path) -> None:
    written = WrittenCheckpoint(tmp_path / "cp")
    (written.path / "metadata").write_text(json.dumps({"identity": 1}))
    with pytest.raises(CheckpointError, match="metadata is damaged"):
        _ = Writer(str(written)).id


def test_the_start_of_windows_is_behind_by_the_longest_that_the_state_has(tmp_path: Path) -> None:
    """The length was changed between two runs, and windows of the old one have not come out yet."""
    written = WrittenCheckpoint(tmp_path / "cp", window_s=60)
    written.plan(0)
    written.keep(0, (0, 3600))
    written.keep(0, partition=1)
    written.plan(1, 1800 * SECOND)
    written.keep(1, (1800, 1860), partition=1)
    assert Writer(str(written), "window.start").claimed_us(1) == -1800 * SECOND
    assert Writer(str(written), "window.end").claimed_us(1) == 1800 * SECOND
    written.keep(1, (1800, 1860), kind="snapshot", partition=1)
    assert Writer(str(written), "window.start").claimed_us(1) == -1800 * SECOND, "in another file of the state"


def test_a_window_that_becomes_longer_while_claims_are_read_is_taken_off_from_then_on(tmp_path: Path) -> None:
    written = WrittenCheckpoint(tmp_path / "cp", window_s=60)
    written.plan(0, 600 * SECOND)
    written.keep(0, (600, 660))
    writer = Writer(str(written), "window.start")
    assert writer.claimed_us(0) == 540 * SECOND
    written.plan(1, 900 * SECOND)
    written.keep(1, (600, 1200))
    assert writer.claimed_us(1) == 300 * SECOND
    written.keep(1, (600, 4200))
    assert writer.claimed_us(1) == -2700 * SECOND, "the micro-batch ran again, by a query that was started anew"
    written.keep(2)
    for old in ("1.delta", "2.delta"):
        (written.path / "state/0/0" / old).unlink()
    written.keep(2, kind="snapshot")
    written.plan(2, 5000 * SECOND)
    assert writer.claimed_us(2) == 1400 * SECOND, "no window is open: the next one may be as long as the last ones"


@pytest.mark.parametrize("lacks", ["the first file", "what it can read", "all"])
def test_no_start_is_claimed_where_the_state_does_not_show_all_lengths(tmp_path: Path, lacks: str) -> None:
    written = WrittenCheckpoint(tmp_path / "cp", window_s=60)
    written.plan(0)
    written.plan(1, 1800 * SECOND)
    if lacks != "all":
        written.keep(0, (1800, 1860), partition=1)
        written.keep(1, (1800, 1860))
    if lacks == "what it can read":
        written.keep(0, (0, 3600))
        (written.path / "state/0/0/1.delta").write_bytes(b"by another codec")
    with pytest.raises(ClaimError, match="its state does not show how long its windows are"):
        Writer(str(written), "window.start").claimed_us(1)
    assert Writer(str(written), "window.start", 3600 * SECOND).claimed_us(1) == -1800 * SECOND


def test_a_checkpoint_is_found_in_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    WrittenCheckpoint(tmp_path / "cp", window_s=60).plan(0, 5 * SECOND)
    assert Writer("~/cp").claimed_us(0) == 5 * SECOND
