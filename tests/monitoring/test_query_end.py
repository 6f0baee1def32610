"""What is said of a query that has ended: what ended it, and whether its checkpoint still goes on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from alignment.explain import QueryEnd
from streaming_source.monitoring.planner_note import PlannerNote
from streaming_source.monitoring.query_state import QueryState
from tests.monitoring.situations import Situation, sink_hangs

CONCURRENT = "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple streaming jobs detected for 3."


def said(query: Situation) -> str:
    text = " ".join(str(query.explain()).split())
    query.close()
    return text


def test_a_checkpoint_that_is_there_is_gone_on_with(tmp_path: Path) -> None:
    assert "same checkpointLocation: it goes on behind the last" in said(sink_hangs(tmp_path).fail("no space left"))


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
