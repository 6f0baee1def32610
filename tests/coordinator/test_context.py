"""What an enumerator may tell its planner, and from where."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from alignment.events import TimeLimitMoved
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK
from streaming_source.api import RecordSplit, SplitsAssignment
from streaming_source.exceptions import SourceError
from tests.coordinator.support import Note, Planner


def started(readers: int = 2) -> Planner:
    planner = Planner(readers)
    planner.host.start()
    planner.host.asking.clear()
    planner.settle()
    return planner


def elsewhere(action: Callable[[], None]) -> list[BaseException]:
    """Do something on another thread; what it raised."""
    raised: list[BaseException] = []

    def act() -> None:
        try:
            action()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=act)
    thread.start()
    thread.join()
    return raised


def splits(*names: str) -> list[RecordSplit]:
    return [RecordSplit(name) for name in names]


def nothing_was_assigned(planner: Planner) -> bool:
    context, engine = planner.host, planner.engine
    return not (context.added or engine.is_due or context.tracker.uncheckpointed or len(engine.index.split_ids))


# ---- assignment ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("from_elsewhere", [False, True])
def test_cd_16_to_an_unregistered_reader_nothing_is_assigned_from_whatever_thread(from_elsewhere: bool) -> None:
    planner = started()
    many = SplitsAssignment({0: splits("a"), 7: splits("b", "c")})
    if from_elsewhere:
        (error,) = elsewhere(lambda: planner.host.assign_splits(many))
    else:
        with pytest.raises(SourceError) as caught:
            planner.host.assign_splits(many)
        error = caught.value
    assert str(error) == "cannot assign splits ['b', 'c'] to reader 7: it is not registered; registered are 0, 1"
    planner.calls.run()
    assert nothing_was_assigned(planner)


def test_a_split_that_is_in_work_is_not_assigned_again_nor_what_comes_with_it() -> None:
    planner = started()
    planner.host.assign_split(RecordSplit("a"), 0)
    planner.host.added.clear()
    for again in ({0: splits("b"), 1: splits("a")}, {0: splits("c", "c")}, {0: splits("d"), 1: splits("d")}):
        with pytest.raises(SourceError, match="being read already"):
            planner.host.assign_splits(SplitsAssignment(again))
    assert planner.assigned() == []
    assert planner.index.split_ids == ("a",)


def test_what_is_told_from_another_thread_takes_effect_here_and_in_order() -> None:
    planner = started()

    def tell() -> None:
        for number in range(20):
            planner.host.assign_split(RecordSplit(f"{number:02d}"), 0)
            planner.host.add_blocks(f"{number:02d}", number + 1, 5, 6)
            planner.host.complete_split(f"{number:02d}")
        planner.host.signal_no_more_splits(0)

    assert not elsewhere(tell)
    assert nothing_was_assigned(planner)
    planner.calls.run()
    assert planner.assigned() == [f"{number:02d}" for number in range(20)]
    assert planner.index.ends().tolist() == list(range(1, 21))
    assert len(planner.engine.complete) == 20
    assert planner.host.without_more == {0}


def test_what_the_other_thread_does_to_its_arrays_and_lists_afterwards_changes_nothing() -> None:
    planner = started()
    names, rows, low, high = splits("a"), np.array([3]), np.array([1]), np.array([2])

    def tell() -> None:
        planner.host.assign_splits(SplitsAssignment({0: names}))
        planner.host.add_blocks("a", rows, low, high)
        names.append(RecordSplit("b"))
        for column in (rows, low, high):
            column[:] = -1

    assert not elsewhere(tell)
    planner.calls.run()
    assert planner.assigned() == ["a"]
    assert planner.index.ends().tolist() == [3]
    assert planner.index.latest_times(np.zeros(1, np.int64)).tolist() == [2]


def test_who_was_given_something_asks_again_and_who_was_given_nothing_does_not() -> None:
    planner = started()
    planner.host.assign_splits(SplitsAssignment({0: [], 1: splits("a", "b")}))
    assert list(planner.host.asking) == [1]


# ---- readers and events ----------------------------------------------------------------------------------------------


def test_the_end_of_assignment_is_known_when_all_readers_were_told_and_may_be_told_twice() -> None:
    planner = Planner(2)
    assert not planner.host.no_more_splits
    planner.host.start()
    planner.host.signal_no_more_splits(1)
    assert not planner.host.no_more_splits
    planner.settle()
    planner.host.signal_no_more_splits(1)
    assert not planner.engine.is_due
    planner.host.signal_no_more_splits(0)
    assert planner.host.no_more_splits
    assert planner.engine.is_due


def test_events_wait_for_their_reader_in_order_and_are_taken_once() -> None:
    planner = started()
    planner.host.send_event_to_source_reader(1, Note("first"))
    assert not elsewhere(lambda: planner.host.send_event_to_source_reader(1, Note("second")))
    planner.calls.run()
    assert planner.host.take_events(0) == []
    assert planner.host.take_events(1) == [Note("first"), Note("second")]
    assert planner.host.take_events(1) == []
    with pytest.raises(SourceError, match="cannot send a Note to reader 2: it is not registered"):
        planner.host.send_event_to_source_reader(2, Note("nobody"))


def test_the_readers_that_are_told_are_a_copy() -> None:
    planner = started()
    there = planner.host.registered_readers()
    planner.host.readers.pop(0)
    assert sorted(there) == [0, 1]
    assert planner.host.current_parallelism() == 2


# ---- event times -----------------------------------------------------------------------------------------------------


def test_an_empty_list_of_blocks_is_no_news() -> None:
    planner = started()
    planner.host.assign_split(RecordSplit("a"), 0)
    planner.settle()
    planner.host.add_blocks("a", [], [], [])
    assert not planner.engine.is_due
    planner.host.add_blocks("a", 2, 0, 1)
    assert planner.engine.is_due


def test_event_times_from_the_limit_on_bound_nothing() -> None:
    planner = started()
    planner.engine.apply(TimeLimitMoved(100))
    planner.index._loaded._load = lambda split_id, start, stop: np.array([5, NO_TIMESTAMP])[: stop - start]
    planner.host.assign_split(RecordSplit("a"), 0)
    planner.host.add_blocks("a", 2, 5, 100)
    assert planner.index.latest_times(np.zeros(1, np.int64)).tolist() == [5]


def test_the_horizon_is_news_when_it_moves() -> None:
    planner = started()
    planner.host.set_horizon(None)
    assert not planner.engine.is_due
    planner.host.set_horizon(50)
    assert (planner.engine.is_due, planner.engine.horizon_us) == (True, 50)
    planner.host.set_horizon(None)
    assert planner.engine.horizon_us == MAX_WATERMARK


# ---- what was observed -----------------------------------------------------------------------------------------------


def test_only_a_look_that_was_completed_is_one() -> None:
    planner = started()
    seen: list[BaseException | None] = []

    def look() -> None:
        if planner.clock.now_us() >= 2_000_000:
            raise OSError("cannot look")

    planner.host.call_async(look, lambda result, error: seen.append(error), period_seconds=1.0)
    observed = []
    for _ in range(4):
        planner.calls.run()
        observed.append(planner.engine.idle_clock.last_probe_us)
        planner.clock.advance("1 second")
    assert observed == [0, 1_000_000, 1_000_000, 1_000_000]
    assert len(seen) == 4


def test_a_look_that_took_longer_than_a_later_one_does_not_turn_the_time_back() -> None:
    planner = started()
    planner.clock.advance("10 us")

    def long_look() -> None:
        planner.clock.advance("1 us")
        planner.host.call_async(lambda: None, lambda result, error: None)
        planner.workers.do_one(due=True)

    planner.host.call_async(long_look, lambda result, error: None)
    planner.calls.run()
    assert planner.engine.idle_clock.last_probe_us == 11
