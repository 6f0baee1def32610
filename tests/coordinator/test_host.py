"""The life of an enumerator and its readers, as FLIP-27's source coordinator has it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from streaming_source.api import RecordSplit, SplitsAssignment
from streaming_source.api.discovery import DiscoveredSplits, DiscoveringSplitEnumerator
from streaming_source.coordinator import WorkerPool
from streaming_source.exceptions import SourceError
from streaming_source.testing import TestingSource
from tests.coordinator.support import WAIT_S, Note, Planner, coordinator, ids

SIX = "abcdef"


def assignment(by_reader: dict[int, str]) -> SplitsAssignment[RecordSplit]:
    return SplitsAssignment({reader: [RecordSplit(split) for split in splits] for reader, splits in by_reader.items()})


# ---- requests and assignment -----------------------------------------------------------------------------------------


def test_the_enumerator_starts_before_its_readers_are_there() -> None:
    planner = Planner(3)
    planner.host.start(["a", "b", "c", "d"])
    assert planner.enumerator.received == [
        ("start", []),
        ("reader", 0, ("a", "d")),
        ("reader", 1, ("b",)),
        ("reader", 2, ("c",)),
    ]


def test_readers_ask_in_turn_until_there_are_no_more_splits() -> None:
    planner = Planner(2, "abcde")
    planner.host.start()
    assert planner.assigned() == []
    planner.host.run()
    of = {reader: ids(splits) for reader, splits in planner.host.tracker.uncheckpointed.items()}
    assert of == {0: ["a", "c", "e"], 1: ["b", "d"]}
    assert planner.host.no_more_splits


def test_who_gets_no_more_splits_is_not_heard() -> None:
    planner = Planner(1, "a")
    planner.host.start()
    planner.host.run()
    planner.enumerator.unassigned.extend(planner.host.added)
    planner.host.request_split(0)
    planner.host.run()
    assert planner.assigned() == ["a"], "a second assignment would have been refused"


def test_a_request_that_is_repeated_before_it_is_heard_counts_once() -> None:
    planner = Planner(1)
    asked: list[int] = []
    planner.enumerator.handle_split_request = lambda reader, host=None: asked.append(reader)  # type: ignore[method-assign]
    planner.host.start()
    planner.host.request_split(0)
    planner.host.request_split(0)
    planner.host.run()
    assert asked == [0]


def test_cd_04_an_event_of_a_reader_is_delivered_once_and_is_the_same_object() -> None:
    planner = Planner(2)
    planner.host.start()
    event = Note("hello")
    planner.host.post_source_event(1, event)
    planner.host.run()
    ((_, reader, delivered),) = planner.enumerator.received_of("event")
    assert reader == 1
    assert delivered is event


# ---- earlier states --------------------------------------------------------------------------------------------------


def test_what_is_in_no_state_comes_back_to_the_enumerator() -> None:
    planner = Planner(1, SIX)
    planner.enumerator.unassigned.clear()
    planner.host.start()
    planner.host.assign_splits(assignment({0: "ab"}))
    planner.host.snapshot(1)
    planner.host.assign_splits(assignment({0: "c"}))
    planner.host.go_back(1)
    assert planner.enumerator.received_of("back") == [("back", 0, ["c"])]


def test_cd_08_what_is_committed_does_not_come_back() -> None:
    planner = Planner(1, SIX)
    planner.host.start()
    planner.host.enumerator.handle_split_request(0)
    planner.host.enumerator.handle_split_request(0)
    planner.host.snapshot(100)
    planner.host.complete(100)
    planner.host.go_back(100)
    assert planner.enumerator.received_of("complete") == [("complete", 100)]
    assert ids(planner.enumerator.unassigned) == ["c", "d", "e", "f"]
    assert planner.enumerator.received_of("back") == [("back", 0, [])]
    assert dict(planner.host.tracker.by_checkpoint) == {}
    assert dict(planner.host.tracker.uncheckpointed) == {}


def test_cd_12_a_reader_that_goes_on_from_before_its_splits_asks_and_gets_them_again() -> None:
    planner = Planner(1, "ab")
    planner.host.start()
    planner.host.run()
    assert planner.assigned() == ["a", "b"]
    planner.host.snapshot(100)
    assert planner.host.without_more == {0}
    planner.give_up_splits()
    planner.host.go_back(99)
    assert ids(planner.enumerator.unassigned) == ["a", "b"]
    assert planner.host.without_more == set()
    planner.host.run()
    assert planner.assigned() == ["a", "b"]
    assert planner.host.without_more == {0}


def test_a_reader_that_comes_back_gets_no_events_of_its_former_life() -> None:
    planner = Planner(1)
    planner.host.start()
    planner.host.send_event_to_source_reader(0, Note("before"))
    planner.host.go_back(0)
    planner.host.send_event_to_source_reader(0, Note("after"))
    assert planner.host.take_events(0) == [Note("after")]


def test_so_04_commits_and_states_that_are_discarded_are_reported() -> None:
    planner = Planner(2, "ab")
    planner.host.start()
    planner.host.run()
    for checkpoint in (99, 100, 101):
        planner.host.snapshot(checkpoint)
    planner.host.complete(99)
    planner.give_up_splits()
    planner.host.go_back(99)
    assert planner.enumerator.received_of("complete", "aborted") == [
        ("complete", 99),
        ("aborted", 100),
        ("aborted", 101),
    ]


def test_when_all_go_back_each_gives_back_its_own_and_is_registered_with_what_the_state_has() -> None:
    planner = Planner(2)
    planner.host.start()
    planner.host.assign_splits(assignment({0: "ab", 1: "c"}))
    planner.host.snapshot(1)
    planner.host.assign_splits(assignment({0: "d", 1: "e"}))
    planner.host.snapshot(2)
    planner.host.assign_splits(assignment({1: "f"}))
    planner.give_up_splits()
    del planner.enumerator.received[:]
    planner.host.go_back(1, ["a", "b", "c"])
    assert planner.enumerator.received == [
        ("back", 0, ["d"]),
        ("back", 1, ["e", "f"]),
        ("aborted", 2),
        ("reader", 0, ("a", "c")),
        ("reader", 1, ("b",)),
    ]
    assert list(planner.host.tracker.by_checkpoint) == [1]


def test_no_reader_is_there_while_splits_are_given_back() -> None:
    planner = Planner(2)
    planner.host.start()
    there: list[int] = []
    planner.enumerator.add_splits_back = lambda splits, reader: there.extend(  # type: ignore[method-assign]
        planner.host.registered_readers()
    )
    planner.host.go_back(0)
    assert there == []
    assert sorted(planner.host.registered_readers()) == [0, 1]


# ---- the end ---------------------------------------------------------------------------------------------------------


def test_cd_10_an_enumerator_is_closed_while_a_call_of_it_hangs() -> None:
    pool = WorkerPool(1)
    planner = Planner(1, workers=pool)
    begun, released = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        assert released.wait(WAIT_S)

    planner.host.start()
    planner.host.call_async(hang, lambda result, error: planner.enumerator.received.append(("handled",)))
    assert begun.wait(WAIT_S)
    planner.host.close()
    assert planner.enumerator.received[-1] == ("close",)
    released.set()
    pool.close()
    planner.host.run()
    assert planner.enumerator.received[-1] == ("close",)


def test_steps_are_made_until_something_is_so_or_the_time_is_over() -> None:
    pool = WorkerPool(1)
    planner = Planner(1, workers=pool)
    handled: list[int] = []
    planner.host.start()
    for number in range(3):
        planner.host.call_async(lambda n=number: n, lambda result, error: handled.append(result))
    planner.host.run_until(lambda: len(handled) == 3, WAIT_S)
    assert sorted(handled) == [0, 1, 2]
    planner.host.run_until(lambda: False, 0.001)
    planner.host.close()
    pool.close()


class _AssignsInItsSnapshot(DiscoveringSplitEnumerator[RecordSplit]):
    def snapshot_state(self, checkpoint_id: int) -> DiscoveredSplits[RecordSplit]:
        self._context.assign_split(RecordSplit("late"), 0)
        return super().snapshot_state(checkpoint_id)


def test_an_enumerator_that_assigns_splits_in_its_snapshot_is_refused() -> None:
    source: Any = TestingSource({"a": [1, 2]})
    source.create_enumerator = lambda context: _AssignsInItsSnapshot(context, source.discover, period_seconds=None)
    planning = coordinator(source)
    planning.restore(planning.state)
    with pytest.raises(SourceError, match=r"snapshot_state assigned splits 'late'.* handle_split_request"):
        planning.advance()
    planning.close()
