"""`streaming-source complete`: up to when a table is complete, and why not further."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from streaming_source import complete_until
from streaming_source.checkpoint.offset_log import LoggedBatch, OffsetLog
from streaming_source.exceptions import ClaimError, OptionError
from streaming_source.tools.cli.main import app
from streaming_source.tools.completeness import Completeness, WatchedTable
from tests.checkpoint.written import SECOND, WrittenCheckpoint, ours
from tests.monitoring.situations import silent_split
from tests.tables.claimed_table import DeltaWriter

T0 = 1_767_225_600 * SECOND
"""2026-01-01T00:00:00Z."""


def sink(path: Path, *batches: int) -> Path:
    """A directory with the log of Spark's file sink."""
    (path / "_spark_metadata").mkdir(parents=True)
    for batch in batches:
        (path / f"_spark_metadata/{batch}").write_text("v1\n")
    return path


def complete(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["complete", *map(str, arguments)])


@pytest.fixture
def table(tmp_path: Path) -> tuple[Path, WrittenCheckpoint]:
    written = WrittenCheckpoint(tmp_path / "cp", window_s=60)
    for batch in range(3):
        written.plan(batch, T0 + batch * 3600 * SECOND)
        written.commit(batch, T0 + (batch + 1) * 3600 * SECOND)
    return sink(tmp_path / "table", 0, 1, 2), written


def test_the_exit_code_says_whether_all_rows_before_a_time_are_there(table: tuple[Path, WrittenCheckpoint]) -> None:
    for until, code in (("2026-01-01T02:00", 0), ("2026-01-01T03:00:00+01:00", 0), ("2026-01-01T02:00:00.000002", 1)):
        assert complete(table[0], "--from", table[1], "--until", until).exit_code == code, until
    assert complete(table[0], "--from", table[1]).exit_code == 0
    assert complete(table[0], "--from", table[1], "--until", "noon").exit_code == 2


def test_json_is_as_the_contract_has_it(table: tuple[Path, WrittenCheckpoint]) -> None:
    found = json.loads(complete(table[0], "--from", table[1], "--json").stdout)
    (writer,) = found.pop("writers")
    assert found == {"complete_until": "2026-01-01T02:00:00.000000Z", "column": "window.end", "version": 2}
    assert (writer["id"], writer["batch"], writer["complete_until"]) == ("5f1c", 2, "2026-01-01T02:00:00.000000Z")
    assert json.loads(complete(table[0], "--from", table[1], "--column", "window.end", "--json").stdout)["version"] == 2


def test_a_micro_batch_without_data_that_does_not_come_is_named(table: tuple[Path, WrittenCheckpoint]) -> None:
    said = complete(table[0], "--from", table[1]).stdout
    assert "is complete until 2026-01-01 02:00:00 UTC by window.end, since" in said
    assert "its next micro-batch claims 2026-01-01 03:00:00 UTC" in said
    assert "noDataMicroBatches" in said


def test_a_further_look_reads_no_more_than_is_new_of_a_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, table = WrittenCheckpoint(tmp_path / "cp"), sink(tmp_path / "table", *range(10))
    for batch in range(10):
        written.plan(batch, 0, ours(T0 + batch * SECOND))
        written.commit(batch)
    watched, read, whole = WatchedTable(str(table), str(written)), list[int](), OffsetLog.read

    def counted(log: OffsetLog, batch: int) -> LoggedBatch:
        read.append(batch)
        return whole(log, batch)

    watched.look()
    written.plan(10, 0, ours(T0 + 10 * SECOND))
    written.commit(10)
    (table / "_spark_metadata/10").write_text("v1\n")
    first = complete_until(str(table), str(written))
    monkeypatch.setattr(OffsetLog, "read", counted)
    assert watched.look() == first
    assert first.until_us == T0 + 10 * SECOND
    # Micro-batch 9 tells since when the claim stands.
    assert {*read} == {9, 10}


def test_it_waits_while_the_writer_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming_source.tools.cli.complete._LOOKS_S", 0.01)
    writer = DeltaWriter.of(tmp_path, "a")
    writer.commit(T0, [T0 + SECOND])
    looked, looks = threading.Event(), list[int | None]()

    def look(self: WatchedTable) -> Completeness:
        found = whole(self)
        looks.append(found.until_us)
        looked.set()
        return found

    def write() -> None:
        for hour in (1, 2, 3):
            looked.clear()
            assert looked.wait(20)
            writer.commit(T0 + hour * 3600 * SECOND, [T0 + hour * 3600 * SECOND + 1])

    whole = WatchedTable.look
    monkeypatch.setattr(WatchedTable, "look", look)
    writing = threading.Thread(target=write)
    writing.start()
    result = complete(writer.table, "--from", writer.checkpoint, "--until", "2026-01-01T03:00", "--wait", "1 minute")
    writing.join()
    assert (result.exit_code, looks[0], looks[-1]) == (0, T0, T0 + 3 * 3600 * SECOND)
    assert "is complete until 2026-01-01 03:00:00 UTC by ts" in result.stdout
    result = complete(writer.table, "--from", writer.checkpoint, "--until", "2026-01-01T04:00", "--wait", "100 ms")
    assert result.exit_code == 1
    assert "is complete until 2026-01-01 03:00:00 UTC" in result.stdout


def test_a_table_without_a_claim_yet_is_not_complete(tmp_path: Path) -> None:
    written = WrittenCheckpoint(tmp_path / "cp", window_s=60)
    written.plan(0)
    result = complete(sink(tmp_path / "table", 0), "--from", written, "--json")
    assert (result.exit_code, json.loads(result.stdout)["complete_until"]) == (1, None)


def test_what_cannot_be_told_is_an_error_with_the_fix(table: tuple[Path, WrittenCheckpoint], tmp_path: Path) -> None:
    stock = WrittenCheckpoint(tmp_path / "stock")
    stock.plan(2)
    result = complete(table[0], "--from", stock)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Spark filters no row" in result.stderr
    assert "read that source with this library (read_stream)" in result.stderr
    assert complete(tmp_path, "--from", table[1]).exit_code == 2
    other = WrittenCheckpoint(tmp_path / "b", id="b", window_s=60)
    with pytest.raises(OptionError, match="whose log is of one query, and 2 checkpoints"):
        complete_until(str(table[0]), [str(table[1]), str(other)])


def test_the_split_that_holds_the_writer_is_the_reason(tmp_path: Path) -> None:
    """The writer is a query over a source of this library, one of whose splits is silent."""
    query = silent_split(tmp_path / "query")
    query.close()
    checkpoint = tmp_path / "query" / "checkpoint"
    (checkpoint / "metadata").write_text('{"id":"7e3f"}')
    last = max(int(file.name) for file in (checkpoint / "offsets").iterdir())
    found = complete_until(str(sink(tmp_path / "table", last)), str(checkpoint))
    (writer,) = found.writers
    assert writer.held_by
    assert writer.why is not None
    assert repr(writer.held_by[0]) in writer.why
    assert writer.held_by[0] in str(found)
    assert found.column == "event_time"


def test_the_end_of_a_bounded_writer_is_the_end_of_all_times(tmp_path: Path) -> None:
    written = WrittenCheckpoint(tmp_path / "cp")
    written.plan(0, 0, ours(2**63 - 1))
    table = sink(tmp_path / "table", 0)
    assert complete(table, "--from", written, "--until", "3999-12-31").exit_code == 0
    assert "all rows of its writers have come" in complete(table, "--from", written).stdout
    with pytest.raises(ClaimError, match="its event times are 'ts'"):
        complete_until(str(table), str(written), column="other")
    assert complete_until(str(table), str(written), column="other", delay="1 second").until_us == 2**63 - 1


def test_options_are_taken_in_any_case_and_the_home_is_known_in_each_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    writer = DeltaWriter.of(tmp_path, "a")
    writer.commit(T0, [T0 + SECOND])
    assert complete_until("~/table", "~/cp-a").until_us == T0
    assert complete("~/table", "--from", "~/cp-a").exit_code == 0
    written = WrittenCheckpoint(tmp_path / "cp", window_s=60)
    written.plan(0, T0)
    sink(tmp_path / "directory", 0)
    for name in ("Storage.Access_Key", "STORAGE.access_key"):
        options = {name: "key"}
        assert WatchedTable("t", "c", options=options)._storage.values == ((name.partition(".")[2], "key"),)
        assert complete_until("~/directory", "~/cp", options=options).until_us == T0, "local paths take none"
