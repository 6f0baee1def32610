"""What is said of a query that has ended: what ended it, and whether its checkpoint still goes on."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from alignment.combine import SplitStatus
from alignment.explain import Bounds, Cause, Explanation, QueryEnd, SplitExplanation, WaitsFor
from streaming_source.monitoring.causes.answer import advice_on, cause_of, sentence
from streaming_source.monitoring.explained import _with_error
from streaming_source.monitoring.micro_batch import MicroBatch
from streaming_source.monitoring.planner_note import PlannerNote, Writer, error_of_task, leave_error, notes_of
from streaming_source.monitoring.query_state import QueryState, end_by_notes, with_cause
from streaming_source.monitoring.report import WatermarkReport
from streaming_source.tools.cli.main import app
from streaming_source.tools.pages.watch import CheckpointWatch
from tests.monitoring.pages import data_of
from tests.monitoring.situations import Situation, _Wrapped, at, records, sink_hangs

CONCURRENT = "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple streaming jobs detected for 3."


def said(query: Situation) -> str:
    text = " ".join(str(query.explain()).split())
    query.close()
    return text


def test_a_checkpoint_that_is_there_is_gone_on_with(tmp_path: Path) -> None:
    assert "same checkpointLocation: it goes on after the last" in said(sink_hangs(tmp_path).fail("no space left"))


def test_a_checkpoint_that_is_gone_is_not(tmp_path: Path) -> None:
    query = sink_hangs(tmp_path).fail("File file:/cp/offsets does not exist")
    shutil.rmtree(tmp_path / "checkpoint")
    text = said(query)
    assert "The checkpoint is gone: its directory offsets/ is not there any more." in text
    assert "loses nothing" not in text


def test_where_the_checkpoint_cannot_be_seen_nothing_is_promised_of_it(tmp_path: Path) -> None:
    query = sink_hangs(tmp_path).fail("no space left")
    del query._jsq
    assert "same checkpointLocation, if its directory offsets/ is still there: it goes on" in said(query)


def test_of_two_queries_with_one_checkpoint_the_one_that_failed_is_not_to_be_started_again(tmp_path: Path) -> None:
    text = said(sink_hangs(tmp_path).fail(CONCURRENT))
    assert "Do not start this one again: another query goes on with the same checkpoint" in text
    assert "loses nothing" not in text


@pytest.mark.parametrize("error", [" SQLSTATE: XXKST (no cause message)\n=== Streaming Query ===", ""])
def test_an_error_without_a_message_is_of_a_planner_that_is_gone(tmp_path: Path, error: str) -> None:
    wrapped = f"[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: {error}"
    text = said(sink_hangs(tmp_path).fail(wrapped))
    assert "an error without a message: the process of its planner was killed, or crashed." in text
    assert "Advice (query): Start the query again" in text


def test_an_error_of_something_else_that_was_killed_is_to_be_mended_first(tmp_path: Path) -> None:
    text = said(sink_hangs(tmp_path).fail("the session of the sink's database was killed by its administrator"))
    assert "Advice (query): Mend what the error names, and start the query again" in text


RESET = "java.net.SocketException: Connection reset"
KILLED = "its planner, process 7, was killed or has crashed, as where memory runs out"


@pytest.mark.parametrize(
    ("left", "said"),
    [
        ({}, f"{KILLED}. Spark's error is: {RESET}"),
        ({"was_closed": True}, RESET),
        ({"runs": True}, RESET),
        ({"error": "ValueError: a damaged file"}, RESET),
    ],
    ids=["killed", "closed", "runs", "failed"],
)
def test_a_planner_that_was_killed_is_named_before_the_connection_that_broke(
    left: dict[str, object], said: str
) -> None:
    # Of two sources; Spark ends the planner of the other one.
    other = PlannerNote("m", 6, 3, "r", runs=False, was_closed=True)
    note = PlannerNote("n", 7, 2, "r", **{"runs": False, **left})  # type: ignore[arg-type]
    end = QueryState(None, QueryEnd(RESET, None), False, None).end_with([other, note])
    assert end is not None
    assert end.error == said


def test_a_query_that_was_stopped_has_not_failed_though_its_planner_was_killed_then() -> None:
    end = QueryState(None, QueryEnd(None, None), False, None).end_with([PlannerNote("n", 7, 2, "r", runs=False)])
    assert end is not None
    assert end.error is None


def noted_run(tmp_path: Path, *, to_its_end: bool) -> tuple[WatermarkReport, QueryEnd | None]:
    """The last report of a run (AvailableNow) whose planner is gone, and how it ended by its note."""
    folder = tmp_path / "streaming-source-0"
    folder.mkdir(mode=0o700)
    writer = Writer(None, folder=folder)
    report = WatermarkReport("aligned_files", 1, Explanation(at(1), at(2), at(2), is_draining=True))
    writer.report(report, report.to_json())
    if to_its_end:
        writer.end_run()
    writer.close()
    return report, end_by_notes(notes_of(writer.name))


def test_an_available_now_run_that_was_killed_has_not_ended(tmp_path: Path) -> None:
    report, end = noted_run(tmp_path, to_its_end=False)
    assert end is not None
    left = SplitExplanation("a", SplitStatus.ACTIVE, at(0), at(0), 3, 7_929, WaitsFor.NOTHING)
    killed = replace(report.explanation, splits=(left,), end=end)
    text = " ".join([sentence(killed), *(one.text for one in advice_on([killed]))])
    assert cause_of(killed) is Cause.STOPPED
    assert "before it had read all that it was to read" in text
    assert "Start the query again with the same checkpointLocation" in text
    assert "The run has ended" not in text
    assert "maxDrift" not in text


@pytest.mark.parametrize("surface", ["explain", "report", "watch", "query"])
def test_a_run_whose_driver_was_killed_is_said_to_be_that_wherever_one_looks(tmp_path: Path, surface: str) -> None:
    """The out-of-memory killer leaves the checkpoint, and a note that neither its planner nor Spark has closed."""
    (tmp_path / "streaming-source-0").mkdir(mode=0o700)
    note = Writer(None, folder=tmp_path / "streaming-source-0")
    query = Situation(tmp_path, {"a": records(range(20))}, available_now=True, idle=None, max_rows=5, note=note.name)
    query.run(2)
    report = WatermarkReport.of_progress(query.recentProgress[-1])[0]
    assert report is not None
    note.report(report, report.to_json())
    os.close(note._locked)
    checkpoint = str(tmp_path / "checkpoint")
    if surface == "explain":
        said = CliRunner().invoke(app, ["explain", checkpoint]).stdout
    elif surface == "report":
        drawn = CliRunner().invoke(app, ["report", checkpoint, "-o", str(tmp_path / "report.html")])
        assert drawn.exit_code == 0, drawn.output
        (source,) = data_of((tmp_path / "report.html").read_text(encoding="utf-8"))["sources"]
        said = " ".join([source["why"], *(text for _, text in source["advice"])])
    elif surface == "watch":
        (source,) = CheckpointWatch(checkpoint).latest.data["sources"]
        said = " ".join([source["why"], *(text for _, text in source["advice"])])
    else:
        query.isActive, query._jsq = False, _Wrapped(tmp_path / "checkpoint", None)
        said = str(query.explain())
    said = " ".join(said.split())
    query.close()
    assert "was killed" in said
    assert "start the query again with the same checkpointLocation" in said.replace("Start", "start")
    assert "10 known records unread" in said
    assert "The run has ended" not in said
    assert "maxDrift" not in said
    assert "exact watermark" not in said


def test_an_available_now_run_that_came_to_its_end_has_ended(tmp_path: Path) -> None:
    report, end = noted_run(tmp_path, to_its_end=True)
    left = SplitExplanation("a", SplitStatus.ACTIVE, at(0), at(0), 3, 7, WaitsFor.DRIFT)
    ended = replace(report.explanation, splits=(left,), end=end, bounds=Bounds(3_600_000_000))
    assert cause_of(ended) is Cause.UNREAD
    text = " ".join(one.text for one in advice_on([ended]))
    # That is maxOutOfOrderness.
    assert "raise maxDrift, leave out" in text


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            "streaming_source.exceptions.OffsetError: the offset is of another source; use a new checkpointLocation",
            "Do what the error names: started again as it was, the query fails in the same way.",
        ),
        (
            "streaming_source.exceptions.MalformedDataError: a/0.parquet appeared after a/1.parquet. Let later files "
            "have later names, or read with splitBy = file",
            "Do what the error names",
        ),
        (
            "[FAILED_READ_FILE.FILE_NOT_EXIST] /out/_spark_metadata/1 does not exist",
            "The sink was removed, or its log",
        ),
        (
            "java.lang.IllegalStateException: /out/_spark_metadata/0 doesn't exist when compacting",
            "The sink was removed",
        ),
    ],
)
def test_a_start_with_the_same_checkpoint_is_advised_only_where_it_cures(tmp_path: Path, error: str, says: str) -> None:
    text = said(sink_hangs(tmp_path).fail(error))
    assert says in text
    assert "loses nothing" not in text


class Thrown:
    """A Throwable of the JVM, as Py4J shows it."""

    def __init__(self, kind: str, message: str | None, cause: Thrown | None = None) -> None:
        self._kind, self._message, self._cause = kind, message, cause

    def getCause(self) -> Thrown | None:
        return self._cause

    def getMessage(self) -> str | None:
        return self._message

    def getClass(self) -> Thrown:
        return self

    def getSimpleName(self) -> str:
        return self._kind


def test_the_cause_of_an_error_is_said_however_deep_it_is() -> None:
    full = Thrown("IOException", "No space left on device")
    thrown = Thrown("A", "Job aborted", Thrown("B", "Task failed", Thrown("C", "while writing rows", full)))
    assert with_cause("Job aborted.", thrown) == "Job aborted; caused by IOException: No space left on device"
    assert with_cause("No space left on device", thrown) == "No space left on device"
    assert with_cause("Job aborted", Thrown("A", "Job aborted")) == "Job aborted"


def test_what_a_task_fails_with_is_beside_the_note_of_its_planner(tmp_path: Path) -> None:
    folder = tmp_path / "streaming-source-0"
    folder.mkdir(mode=0o700)
    name = Writer(None, folder=folder).name
    leave_error(name, ValueError("a.csv: record 7 has 3 fields"))
    found = error_of_task(name, 0)
    assert found is not None
    error, at_us = found
    assert error == "ValueError: a.csv: record 7 has 3 fields"
    assert error_of_task(name, at_us + 1) is None
    assert [note.error for note in notes_of(name)] == [None]


def test_the_checkpoint_of_a_query_whose_task_failed_says_why(tmp_path: Path) -> None:
    folder = tmp_path / "streaming-source-0"
    folder.mkdir(mode=0o700)
    writer = Writer(None, folder=folder)
    note_of_query = PlannerNote(writer.name, 7, 2, "r", runs=False, was_closed=True)
    leave_error(writer.name, ValueError("a.csv: record 7 has 3 fields"))
    batch = MicroBatch(3, 1, 0, False, ())
    with_error = _with_error(note_of_query, batch)
    assert with_error.error == "ValueError: a.csv: record 7 has 3 fields"
    assert _with_error(note_of_query, replace(batch, is_committed=True)) is note_of_query
    end = end_by_notes([with_error])
    assert end is not None
    assert end.error == with_error.error
