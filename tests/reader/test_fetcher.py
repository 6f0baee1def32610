from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from streaming_source.api import RecordBlock, RecordsBySplits, RecordsWithSplitIds, SplitReader, SplitsChange
from streaming_source.reader import ElementQueue, SingleThreadFetcherManager, SplitFetcher
from streaming_source.reader.fetcher import Handover
from tests.reader.numbers import (
    WAIT_S,
    BlockingSplitReader,
    FailingSplitReader,
    NumberSplitReader,
    Readers,
    Split,
    fetcher_threads,
)

Queue = ElementQueue[Handover[RecordBlock]]


def fetcher_of(split_reader: SplitReader[Split], queue: Queue | None = None) -> SplitFetcher[Split, RecordBlock]:
    """A fetcher whose rounds the test itself runs."""

    def fail(_: object, error: BaseException) -> None:
        raise error

    return SplitFetcher(0, split_reader, ElementQueue() if queue is None else queue, fail)


def numbers_of(records: RecordsWithSplitIds[RecordBlock]) -> list[tuple[str, int]]:
    numbers = []
    while (split_id := records.next_split()) is not None:
        while (element := records.next_record_from_split()) is not None:
            assert element.next_position is not None
            numbers += [(split_id, n) for n in range(element.positions, element.next_position)]
    return numbers


def take(queue: Queue) -> Handover[RecordBlock]:
    while (handover := queue.poll()) is None:
        queue.available.result(WAIT_S)
    return handover


# ---- one round after another, on the test's thread ---------------------------------------------------------------


def test_a_new_fetcher_is_idle_until_it_is_given_splits() -> None:
    fetcher = fetcher_of(NumberSplitReader())
    assert fetcher.is_idle
    fetcher.add_splits([Split("a", 0, 2)])
    assert not fetcher.is_idle


def test_ft_02_after_its_last_split_a_fetcher_is_idle_and_says_so() -> None:
    queue: Queue = ElementQueue()
    fetcher = fetcher_of(NumberSplitReader(), queue)
    fetcher.add_splits([Split("a", 0, 2)])
    before = queue.available
    fetcher.run_once()
    assert fetcher.split_ids == ["a"]
    fetcher.run_once()
    assert fetcher.split_ids == []
    assert fetcher.is_idle
    assert before.done()
    assert queue.available.done()
    assert take(queue).finished == {"a"}


def test_a_fetcher_that_turns_idle_after_its_last_records_were_taken_says_so() -> None:
    queue: Queue = ElementQueue()
    fetcher = fetcher_of(NumberSplitReader(), queue)
    fetcher.add_splits([Split("a", 0, 2)])
    fetcher.run_once()
    taken: list[tuple[int, bool]] = []
    available = queue.available
    put = queue.put

    def put_and_be_polled(producer: int, element: Handover[RecordBlock]) -> bool:
        done = put(producer, element)
        assert queue.poll() is element
        taken.append((producer, fetcher.is_idle))
        return done

    queue.put = put_and_be_polled  # type: ignore[method-assign]
    fetcher.run_once()
    assert taken == [(0, False)]
    assert available.done()
    assert queue.available.done(), "nobody tells the reader that the fetcher is idle now"


def test_ft_06_a_fetcher_that_does_not_fetch_ends_when_it_is_shut_down() -> None:
    fetcher = fetcher_of(NumberSplitReader())
    fetcher.add_splits([Split("a", 0, 100)])
    fetcher.remove_splits(["a"])
    fetcher.run_once()
    fetcher.run_once()
    fetcher.shutdown()
    assert fetcher.run_once() is False


def test_changes_of_splits_go_in_their_order_and_before_the_next_fetch() -> None:
    queue: Queue = ElementQueue()
    split_reader = NumberSplitReader()
    fetcher = fetcher_of(split_reader, queue)
    fetcher.add_splits([Split("a", 0, 100), Split("b", 0, 100)])
    fetcher.remove_splits(["a"])
    for _ in range(3):
        fetcher.run_once()
    assert split_reader.log == [("add", ["a", "b"]), ("remove", ["a"])]
    assert take(queue).removed == {"a"}
    fetcher.run_once()
    assert numbers_of(take(queue).records) == [("b", 0), ("b", 1)]


def test_a_split_that_was_removed_is_handed_over_as_such_after_its_records() -> None:
    queue: Queue = ElementQueue(1)
    split_reader = NumberSplitReader()
    fetcher = fetcher_of(split_reader, queue)
    fetcher.add_splits([Split("a", 0, 100)])
    fetcher.run_once()
    fetcher.run_once()
    # The queue is full: the second fetch is kept.
    queue.wake_up(0)
    fetcher.run_once()
    fetcher.remove_splits(["a"])
    fetcher.run_once()
    assert not fetcher.is_idle
    handed_over = []
    for _ in range(3):
        handover = take(queue)
        handed_over.append((numbers_of(handover.records), handover.removed))
        if len(handed_over) < 3:
            fetcher.run_once()
    assert handed_over == [([("a", 0), ("a", 1)], set()), ([("a", 2), ("a", 3)], set()), ([], {"a"})]
    assert fetcher.is_idle


def test_a_split_that_finished_before_it_could_be_removed_is_finished() -> None:
    queue: Queue = ElementQueue()
    split_reader = NumberSplitReader()
    fetcher = fetcher_of(split_reader, queue)
    fetcher.add_splits([Split("a", 0, 2)])
    fetcher.run_once()
    fetcher.run_once()
    fetcher.remove_splits(["a"])
    fetcher.run_once()
    assert ("remove", ["a"]) not in split_reader.log
    assert fetcher.is_idle
    handover = take(queue)
    assert (handover.finished, handover.removed) == ({"a"}, set())
    assert queue.poll() is None


def test_what_a_reader_says_of_a_split_that_it_has_let_go_of_is_not_heard() -> None:
    class Late(NumberSplitReader):
        def fetch(self) -> RecordsWithSplitIds[RecordBlock]:
            return RecordsBySplits(finished_splits={"a", "never added"})

    queue: Queue = ElementQueue()
    fetcher = fetcher_of(Late(), queue)
    fetcher.add_splits([Split("a"), Split("b")])
    fetcher.remove_splits(["a"])
    for _ in range(4):
        fetcher.run_once()
    assert take(queue).removed == {"a"}
    assert take(queue).finished == set()
    assert fetcher.split_ids == ["b"]


# ---- with its thread ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["add", "remove"])
def test_a_change_of_splits_interrupts_a_fetch_that_blocks(change: str) -> None:
    changed = threading.Event()

    class Noting(BlockingSplitReader):
        def handle_splits_changes(self, change: SplitsChange[Split]) -> None:
            super().handle_splits_changes(change)
            if len(self.log) == 2:
                changed.set()

    split_reader = Noting()
    fetcher = fetcher_of(split_reader)
    fetcher.add_splits([Split("a")])
    fetcher.start()
    assert split_reader.is_fetching.wait(WAIT_S)
    if change == "add":
        fetcher.add_splits([Split("b")])
    else:
        fetcher.remove_splits(["a"])
    assert changed.wait(WAIT_S)
    assert split_reader.wake_ups >= 1
    fetcher.shutdown()
    assert fetcher.join(WAIT_S)
    assert split_reader.closed.is_set()


def test_ft_04_wake_ups_lose_nothing_and_repeat_nothing() -> None:
    queue: Queue = ElementQueue(1)
    split_reader = NumberSplitReader(per_fetch=2)
    fetcher = fetcher_of(split_reader, queue)
    each, splits = 10_000, 3
    fetcher.add_splits([Split(str(n), n * each, (n + 1) * each) for n in range(splits)])
    fetcher.start()
    numbers: list[int] = []
    since_wake_up = wake_ups = 0
    while len(numbers) < splits * each:
        handover = take(queue)
        new = [number for _, number in numbers_of(handover.records)]
        handover.recycle()
        numbers += new
        since_wake_up += len(new)
        if since_wake_up >= 10:
            fetcher.wake_up()
            since_wake_up, wake_ups = 0, wake_ups + 1
    fetcher.shutdown()
    assert fetcher.join(WAIT_S)
    assert wake_ups > 1
    assert sorted(numbers) == list(range(splits * each))


def test_a_wake_up_during_a_fetch_keeps_what_it_brought_from_being_waited_with() -> None:
    class WokenInside(NumberSplitReader):
        def fetch(self) -> RecordsWithSplitIds[RecordBlock]:
            fetcher.wake_up()
            return super().fetch()

    queue: Queue = ElementQueue(1)
    split_reader = WokenInside()
    fetcher = fetcher_of(split_reader, queue)
    queue.put(9, Handover(fetcher, RecordsBySplits()))
    fetcher.add_splits([Split("a")])
    fetcher.run_once()
    # Would wait for room, for ever, if it did not heed the wake-up.
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(fetcher.run_once).result(WAIT_S)
    assert len(queue) == 1
    assert not fetcher.is_idle
    take(queue)
    fetcher.run_once()
    assert numbers_of(take(queue).records) == [("a", 0), ("a", 1)]


def test_a_fetcher_that_waits_for_room_ends_when_it_is_shut_down() -> None:
    queue: Queue = ElementQueue(1)
    split_reader = NumberSplitReader()
    fetcher = fetcher_of(split_reader, queue)
    fetcher.add_splits([Split("a")])
    fetcher.start()
    queue.available.result(WAIT_S)
    fetcher.shutdown()
    assert fetcher.join(WAIT_S)
    assert split_reader.closed.is_set()


def test_ft_12_a_fetcher_shut_down_after_its_records_closes_when_the_last_is_recycled() -> None:
    readers = Readers(lambda: NumberSplitReader(per_fetch=2))
    manager: SingleThreadFetcherManager[Split, RecordBlock] = SingleThreadFetcherManager(readers)
    manager.add_splits([Split("a", 0, 4)])
    handovers = [take(manager.queue), take(manager.queue)]
    while not manager.maybe_shutdown_finished_fetchers():
        manager.queue.available.result(WAIT_S)
    (split_reader,) = readers.made
    handovers[0].recycle()
    assert len(fetcher_threads()) == 1
    assert not split_reader.closed.is_set()
    handovers[1].recycle()
    assert split_reader.closed.wait(WAIT_S)
    manager.close(WAIT_S)


def test_a_fetcher_that_still_waits_for_its_records_can_be_ended_at_once() -> None:
    readers = Readers()
    manager: SingleThreadFetcherManager[Split, RecordBlock] = SingleThreadFetcherManager(readers)
    manager.add_splits([Split("a", 0, 2)])
    take(manager.queue)
    while not manager.maybe_shutdown_finished_fetchers():
        manager.queue.available.result(WAIT_S)
    manager.close(WAIT_S)
    assert readers.all_closed()


def test_an_error_keeps_the_fetcher_from_looking_idle_and_closes_its_reader_at_shutdown() -> None:
    queue: Queue = ElementQueue()
    split_reader = FailingSplitReader(0, OSError("gone"))
    errors: list[BaseException] = []
    told = threading.Event()

    def note(_: object, error: BaseException) -> None:
        errors.append(error)
        told.set()

    fetcher: SplitFetcher[Split, RecordBlock] = SplitFetcher(3, split_reader, queue, note)
    fetcher.add_splits([Split("a")])
    fetcher.start()
    assert told.wait(WAIT_S)
    assert [str(error) for error in errors] == ["gone"]
    assert not fetcher.is_idle
    assert not split_reader.closed.is_set()
    fetcher.shutdown()
    assert fetcher.join(WAIT_S)
    assert split_reader.closed.is_set()
