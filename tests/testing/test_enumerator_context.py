"""The context for tests of an enumerator notes what it is told, and makes calls when the test says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from alignment.timestamps import FieldTimestampAssigner, RecordTimestampAssigner
from streaming_source.api import RecordSplit, SourceEvent, SplitsAssignment
from streaming_source.exceptions import SourceError
from streaming_source.testing import TestingEnumeratorContext


@dataclass(frozen=True)
class Note(SourceEvent):
    text: str


def context() -> TestingEnumeratorContext[RecordSplit]:
    return TestingEnumeratorContext(3)


def test_it_has_what_it_was_made_with() -> None:
    schema, assigner = pa.schema([("t", pa.int64())]), FieldTimestampAssigner("t", "us")
    made = TestingEnumeratorContext[RecordSplit](3, schema, assigner)
    assert (made.current_parallelism(), made.schema, made.timestamp_assigner) == (3, schema, assigner)
    assert isinstance(context().timestamp_assigner, RecordTimestampAssigner)


def test_readers_are_registered_by_the_test() -> None:
    made = context()
    made.register_reader(1, ["a", "b"])
    assert made.registered_readers()[1].restored_splits == ("a", "b")
    assert list(made.registered_readers()) == [1]


def test_what_is_assigned_is_noted_by_reader_in_its_order() -> None:
    made = context()
    made.register_reader(0)
    made.register_reader(2)
    made.assign_split(RecordSplit("b"), 2)
    made.assign_splits(SplitsAssignment({2: [RecordSplit("a")], 0: [RecordSplit("c")]}))
    assert made.assigned == {2: [RecordSplit("b"), RecordSplit("a")], 0: [RecordSplit("c")]}


def test_nothing_is_assigned_if_one_of_the_readers_is_not_there() -> None:
    made = context()
    made.register_reader(0)
    with pytest.raises(SourceError, match="reader 1 is not registered; registered are \\[0\\]"):
        made.assign_splits(SplitsAssignment({0: [RecordSplit("a")], 1: [RecordSplit("b")]}))
    assert made.assigned == {}


def test_events_signals_blocks_and_ends_are_noted() -> None:
    made = context()
    made.register_reader(0)
    made.send_event_to_source_reader(0, Note("x"))
    made.signal_no_more_splits(1)
    made.add_blocks("a", [2, 3], [1, 5], [4, 9])
    made.add_blocks("a", 1, 10, 10)
    made.complete_split("a")
    made.abandon_split("b")
    assert made.events == [(0, Note("x"))]
    assert made.without_more == {1}
    assert made.blocks == {"a": [(2, 1, 4), (3, 5, 9), (1, 10, 10)]}
    assert made.complete == ["a"]
    assert made.abandoned == ["b"]
    with pytest.raises(SourceError, match="not registered"):
        made.send_event_to_source_reader(1, Note("x"))


def test_calls_are_made_when_the_test_says_so_and_again_if_they_have_a_period() -> None:
    made, heard = context(), []

    def handler(result: Any, error: BaseException | None) -> None:
        heard.append(result if error is None else type(error))

    made.call_async(lambda: "once", handler)
    made.call_async(lambda: 1 // 0, handler, period_seconds=2.0)
    assert heard == []
    made.run_calls()
    assert heard == ["once", ZeroDivisionError]
    made.run_calls()
    assert heard == ["once", ZeroDivisionError, ZeroDivisionError]
    assert made.periods == [None, 2.0]


def test_calls_that_a_handler_asks_for_are_made_at_once() -> None:
    made, heard = context(), []

    def ask_again(result: int | None, error: BaseException | None) -> None:
        assert result is not None
        heard.append(result)
        if result < 3:
            made.call_async(lambda: result + 1, ask_again)

    made.call_async(lambda: 1, ask_again)
    made.run_calls()
    assert heard == [1, 2, 3]
    made.run_calls()
    assert heard == [1, 2, 3]


def test_actions_and_items_are_done_at_once() -> None:
    made, done = context(), []
    made.run_in_coordinator_thread(lambda: done.append(1))
    assert done == [1]
    assert made.map_on_workers(abs, [-2, 1]) == [2, 1]
