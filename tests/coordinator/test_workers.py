from __future__ import annotations

import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from streaming_source.coordinator import WorkerPool
from tests.coordinator.support import WAIT_S, await_end, worker_threads


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    made = WorkerPool(4)
    yield made
    made.close()


class Gate:
    """Work that blocks until the gate is opened, and tells that it has begun."""

    def __init__(self, count: int = 1) -> None:
        self.begun = threading.Semaphore(0)
        self.opened = threading.Event()
        self.count = count

    def pass_through(self) -> None:
        self.begun.release()
        assert self.opened.wait(WAIT_S)

    def wait_for_all(self) -> None:
        for _ in range(self.count):
            assert self.begun.acquire(timeout=WAIT_S)


def test_work_that_blocks_keeps_no_other_work_waiting_while_there_are_threads(pool: WorkerPool) -> None:
    gate = Gate(3)
    for _ in range(3):
        pool.submit(gate.pass_through)
    gate.wait_for_all()
    done = threading.Event()
    pool.submit(done.set)
    assert done.wait(WAIT_S)
    gate.opened.set()


def test_there_are_never_more_threads_than_allowed(pool: WorkerPool) -> None:
    before = len(worker_threads())
    gate = Gate(4)
    last = threading.Event()
    for _ in range(12):
        pool.submit(gate.pass_through)
    pool.submit(last.set)
    gate.wait_for_all()
    assert len(worker_threads()) - before <= 4
    assert not gate.begun.acquire(blocking=False)
    gate.opened.set()
    assert last.wait(WAIT_S)


def test_work_for_later_waits_and_work_for_now_overtakes_it(pool: WorkerPool) -> None:
    done: list[str] = []
    now, later = threading.Event(), threading.Event()

    def note(name: str, event: threading.Event) -> Callable[[], None]:
        return lambda: (done.append(name), event.set())[-1]

    pool.submit(note("later", later), 0.05)
    pool.submit(note("now", now))
    assert now.wait(WAIT_S)
    assert later.wait(WAIT_S)
    assert done == ["now", "later"]


def test_work_for_later_is_done_although_those_who_waited_for_it_are_busy_by_then() -> None:
    pool = WorkerPool(2)
    gate, later = Gate(1), threading.Event()
    both = threading.Barrier(3)
    for _ in range(2):
        pool.submit(lambda: both.wait(WAIT_S))
    both.wait(WAIT_S)
    pool.submit(later.set, 0.05)
    pool.submit(gate.pass_through)
    gate.wait_for_all()
    assert later.wait(WAIT_S)
    gate.opened.set()
    pool.close()


def test_work_that_fails_is_logged_and_its_thread_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    pool = WorkerPool(1)
    done = threading.Event()

    def fail() -> None:
        raise KeyboardInterrupt("in the background")

    with caplog.at_level(logging.ERROR, "streaming_source"):
        pool.submit(fail)
        pool.submit(done.set)
        assert done.wait(WAIT_S)
    assert "work in the background failed" in caplog.text
    pool.close()


@pytest.mark.parametrize("seed", range(3))
def test_under_stress_all_work_is_done_and_done_once(seed: int) -> None:
    rng = random.Random(seed)
    pool = WorkerPool(rng.randint(1, 8))
    submitters, each = 4, 300
    done: Counter[int] = Counter()
    left = threading.Semaphore(0)
    delays = [[rng.choice([0.0, 0.0, 0.0005, 0.002]) for _ in range(each)] for _ in range(submitters)]

    def work(number: int, again: bool) -> None:
        done[number] += 1
        if again:
            pool.submit(lambda: work(number, again=False), 0.001)
        left.release()

    def submit(number: int) -> None:
        for i, delay_s in enumerate(delays[number]):
            pool.submit(lambda n=number * each + i: work(n, again=n % 5 == 0), delay_s)

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(submitters)]
    for thread in threads:
        thread.start()
    total = submitters * each
    for _ in range(total + total // 5):
        assert left.acquire(timeout=WAIT_S), f"seed {seed}: {sum(done.values())} done"
    for thread in threads:
        thread.join()
    assert done == {n: 2 if n % 5 == 0 else 1 for n in range(total)}
    pool.close()


# ---- map -------------------------------------------------------------------------------------------------------------


def test_items_are_worked_on_at_once_and_results_come_in_their_order(pool: WorkerPool) -> None:
    together = threading.Barrier(4)

    def square(number: int) -> int:
        together.wait(WAIT_S)
        return number * number

    assert pool.map(square, range(8)) == [n * n for n in range(8)]
    assert pool.map(square, []) == []


def test_the_error_is_that_of_the_first_item_that_fails_whoever_fails_first(pool: WorkerPool) -> None:
    third_has_failed = threading.Event()
    begun: list[int] = []

    def fail(number: int) -> None:
        begun.append(number)
        if number == 2:
            third_has_failed.set()
            raise ValueError("2")
        if number == 1:
            assert third_has_failed.wait(WAIT_S)
            raise KeyboardInterrupt("1")

    with pytest.raises(KeyboardInterrupt, match="1"):
        pool.map(fail, range(100))
    assert {0, 1, 2} <= set(begun)
    assert len(begun) < 100


def test_who_maps_does_all_by_itself_where_nobody_is_free() -> None:
    pool = WorkerPool(2)
    gate = Gate(1)
    pool.submit(gate.pass_through)
    gate.wait_for_all()
    mapped = threading.Event()
    results: list[list[int]] = []

    def map_on_the_last_thread() -> None:
        results.append(pool.map(lambda n: n + 1, range(5)))
        mapped.set()

    pool.submit(map_on_the_last_thread)
    assert mapped.wait(WAIT_S)
    assert results == [[1, 2, 3, 4, 5]]
    gate.opened.set()
    pool.close()


def test_maps_within_maps_come_to_an_end(pool: WorkerPool) -> None:
    assert pool.map(lambda n: sum(pool.map(lambda m: m * n, range(5))), range(8)) == [10 * n for n in range(8)]


def test_after_close_the_caller_still_maps(pool: WorkerPool) -> None:
    pool.close()
    assert pool.map(str, range(3)) == ["0", "1", "2"]


# ---- close -----------------------------------------------------------------------------------------------------------


def test_close_does_not_wait_for_work_that_hangs_and_begins_no_other() -> None:
    pool = WorkerPool(1)
    before = worker_threads()
    gate = Gate(1)
    done: list[str] = []
    pool.submit(gate.pass_through)
    pool.submit(lambda: done.append("waiting"))
    pool.submit(lambda: done.append("later"), 0.001)
    gate.wait_for_all()
    started = worker_threads() - before
    pool.close()
    pool.close()
    pool.submit(lambda: done.append("after"))
    gate.opened.set()
    await_end(started)
    assert done == []


def test_threads_end_with_their_pool_also_those_that_wait() -> None:
    before = worker_threads()
    pool = WorkerPool(3)
    all_there = threading.Barrier(4)
    for _ in range(3):
        pool.submit(lambda: all_there.wait(WAIT_S))
    all_there.wait(WAIT_S)
    pool.submit(lambda: None, 3600)
    started = worker_threads() - before
    assert len(started) == 3
    assert all(thread.daemon for thread in started)
    pool.close()
    await_end(started)


def test_threads_are_started_as_they_are_needed() -> None:
    before = worker_threads()
    pool = WorkerPool(8)
    for _ in range(20):
        done = threading.Event()
        pool.submit(done.set)
        assert done.wait(WAIT_S)
    assert 1 <= len(worker_threads() - before) <= 8
    pool.close()
