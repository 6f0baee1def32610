from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from streaming_source.reader import ElementQueue
from tests.reader.numbers import WAIT_S


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


class ObservedQueue(ElementQueue[int]):
    """Tells when a producer begins to wait for room: it holds the lock from then until it waits."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._waits = threading.Semaphore(0)

    def _wait(self, producer: int) -> None:
        self._waits.release()
        super()._wait(producer)

    def await_waiting_producer(self) -> None:
        assert self._waits.acquire(timeout=WAIT_S)


def test_qt_02_what_was_put_is_polled_once_and_then_nothing() -> None:
    queue: ElementQueue[str] = ElementQueue()
    assert queue.put(0, "value")
    assert [queue.poll(), queue.poll(), queue.poll()] == ["value", None, None]


def test_qt_04_waking_one_producer_does_not_strand_another(pool: ThreadPoolExecutor) -> None:
    queue = ObservedQueue(1)
    queue.put(9, 0)
    first = pool.submit(queue.put, 0, 1)
    queue.await_waiting_producer()
    second = pool.submit(queue.put, 1, 2)
    queue.await_waiting_producer()
    queue.wake_up(0)
    assert first.result(WAIT_S) is False
    assert queue.poll() == 0
    assert second.result(WAIT_S) is True
    assert [queue.poll(), queue.poll()] == [2, None]


def test_qt_06_the_capacity_is_as_given_and_two_by_default() -> None:
    assert ElementQueue[int](8000)._capacity == 8000
    assert ElementQueue[int]()._capacity == 2


def test_elements_keep_their_order() -> None:
    queue: ElementQueue[int] = ElementQueue(5)
    for number in range(5):
        queue.put(number % 2, number)
    assert [queue.poll() for _ in range(5)] == [0, 1, 2, 3, 4]


def test_none_is_no_element() -> None:
    with pytest.raises(ValueError, match="element is None"):
        ElementQueue[int | None]().put(0, None)


def test_a_queue_holds_at_least_one_element() -> None:
    with pytest.raises(ValueError, match="capacity = 0"):
        ElementQueue[int](0)


def test_a_woken_producer_that_has_room_puts_and_is_woken_the_next_time() -> None:
    queue: ElementQueue[int] = ElementQueue(1)
    queue.wake_up(0)
    assert queue.put(0, 1) is True
    assert queue.put(0, 2) is False
    assert [queue.poll(), queue.poll()] == [1, None]


def test_a_wake_up_is_used_up_by_the_put_that_it_ended(pool: ThreadPoolExecutor) -> None:
    queue = ObservedQueue(1)
    queue.put(0, 1)
    queue.wake_up(0)
    assert queue.put(0, 2) is False
    put = pool.submit(queue.put, 0, 2)
    queue.await_waiting_producer()
    assert queue.poll() == 1
    assert put.result(WAIT_S) is True


def test_a_wake_up_is_for_its_producer_only() -> None:
    queue: ElementQueue[int] = ElementQueue(1)
    queue.put(0, 1)
    queue.wake_up(0)
    queue.wake_up(1)
    assert queue.put(0, 2) is False
    assert queue.put(1, 2) is False


def test_the_queue_is_available_while_it_has_elements() -> None:
    queue: ElementQueue[int] = ElementQueue(2)
    before = queue.available
    assert not before.done()
    queue.put(0, 1)
    queue.put(0, 2)
    assert before.done()
    assert queue.available.done()
    queue.poll()
    assert queue.available.done()
    queue.poll()
    assert not queue.available.done()


def test_a_notice_makes_it_available_until_somebody_looked() -> None:
    queue: ElementQueue[int] = ElementQueue()
    before = queue.available
    queue.notify_available()
    queue.notify_available()
    assert before.done()
    assert queue.available.done()
    assert queue.poll() is None
    assert not queue.available.done()


def test_nobody_can_cancel_the_availability_of_others() -> None:
    queue: ElementQueue[int] = ElementQueue()
    assert not queue.available.cancel()
    queue.put(0, 1)
    assert queue.available.done()


def test_what_is_called_back_may_use_the_queue() -> None:
    queue: ElementQueue[int] = ElementQueue()
    seen: list[int | None] = []
    queue.available.add_done_callback(lambda _: seen.append(queue.poll()))
    queue.put(0, 7)
    assert seen == [7]


def test_room_is_given_to_the_one_that_has_waited_longest(pool: ThreadPoolExecutor) -> None:
    queue = ObservedQueue(1)
    queue.put(9, 0)
    puts = []
    for producer in range(4):
        puts.append(pool.submit(queue.put, producer, producer + 1))
        queue.await_waiting_producer()
    polled = []
    for put in puts:
        polled.append(queue.poll())
        assert put.result(WAIT_S)
    assert [*polled, queue.poll()] == [0, 1, 2, 3, 4]


def test_many_producers_lose_and_repeat_nothing_whoever_is_woken(pool: ThreadPoolExecutor) -> None:
    seed = random.randrange(2**32)
    queue: ElementQueue[tuple[int, int]] = ElementQueue(random.Random(seed).randint(1, 3))
    producers, each = 4, 500

    def produce(producer: int) -> None:
        for number in range(each):
            while not queue.put(producer, (producer, number)):
                pass

    def disturb(done: Callable[[], bool]) -> None:
        chance = random.Random(seed)
        while not done():
            queue.wake_up(chance.randrange(producers))

    puts: list[Future[None]] = [pool.submit(produce, producer) for producer in range(producers)]
    disturbance = pool.submit(disturb, lambda: all(put.done() for put in puts))
    taken: list[tuple[int, int]] = []
    while len(taken) < producers * each:
        element = queue.poll()
        if element is None:
            queue.available.result(WAIT_S)
        else:
            taken.append(element)
    disturbance.result(WAIT_S)
    assert queue.poll() is None
    for producer in range(producers):
        assert [number for other, number in taken if other == producer] == list(range(each)), f"seed {seed}"
