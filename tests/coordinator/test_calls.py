from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from streaming_source.coordinator import WorkerPool
from streaming_source.coordinator.calls import AsyncCalls
from streaming_source.testing import FakeClock, InlineWorkers
from tests.coordinator.support import WAIT_S, HeldWorkers


class Timed:
    """Calls in time that stands still."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.workers = InlineWorkers(self.clock)
        self.calls = AsyncCalls(self.workers, self.clock.now_us)
        self.made_at_us: list[int] = []
        self.handled: list[tuple[Any, BaseException | None, int]] = []

    def call(self) -> int:
        self.made_at_us.append(self.clock.now_us())
        return len(self.made_at_us)

    def handle(self, result: Any, error: BaseException | None, began_us: int) -> None:
        self.handled.append((result, error, began_us))


# ---- when calls are made ---------------------------------------------------------------------------------------------


def test_a_call_is_made_once_and_its_handler_told_when_it_began() -> None:
    timed = Timed()
    timed.clock.advance("3 us")
    timed.calls.call(timed.call, timed.handle)
    assert timed.made_at_us == []
    timed.calls.run()
    timed.clock.advance("1 hour")
    timed.calls.run()
    assert timed.handled == [(1, None, 3)]


def test_with_a_period_each_call_begins_a_period_after_the_one_before_has_ended() -> None:
    timed = Timed()

    def slow() -> int:
        timed.call()
        timed.clock.advance("300 ms")
        return 0

    timed.calls.call(slow, timed.handle, period_s=1.0)
    for _ in range(40):
        timed.calls.run()
        timed.clock.advance("100 ms")
    assert timed.made_at_us == [0, 1_300_000, 2_600_000, 3_900_000]


def test_what_is_repeated_goes_on_while_nobody_looks_for_hours() -> None:
    timed = Timed()
    timed.calls.repeat(timed.call, 1.0)
    for _ in range(7200):
        timed.clock.advance("1 second")
        assert timed.workers.do_one(due=True)
    assert len(timed.made_at_us) == 7200
    timed.calls.end()
    timed.clock.advance("1 hour")
    timed.calls.run()
    assert len(timed.made_at_us) == 7200


def test_what_is_repeated_ends_with_its_first_error_which_reaches_the_coordinator() -> None:
    timed = Timed()

    def fail() -> None:
        timed.call()
        raise OSError("broken")

    timed.calls.repeat(fail, 1.0)
    timed.clock.advance("1 second")
    with pytest.raises(OSError, match="broken"):
        timed.calls.run()
    timed.clock.advance("1 hour")
    timed.calls.run()
    assert timed.made_at_us == [1_000_000]


def test_an_initial_delay_is_kept_and_nobody_waits_for_such_a_call() -> None:
    timed = Timed()
    timed.calls.call(timed.call, timed.handle, delay_s=2.0, period_s=1.0)
    assert not timed.calls.awaits_first
    for _ in range(4):
        timed.calls.run()
        timed.clock.advance("1 second")
    assert timed.made_at_us == [2_000_000, 3_000_000]


def test_the_first_result_of_each_call_without_delay_is_awaited() -> None:
    timed = Timed()
    held = HeldWorkers()
    calls = AsyncCalls(held, timed.clock.now_us)
    calls.call(timed.call, timed.handle, period_s=1.0)
    calls.call(timed.call, timed.handle)
    assert calls.awaits_first
    held.do("work")
    calls.run()
    assert calls.awaits_first
    held.do("work")
    assert calls.awaits_first
    calls.run()
    assert not calls.awaits_first


def test_a_period_goes_on_after_a_call_that_failed() -> None:
    timed = Timed()

    def fail() -> int:
        timed.call()
        raise OSError("not now")

    timed.calls.call(fail, timed.handle, period_s=1.0)
    for _ in range(3):
        timed.calls.run()
        timed.clock.advance("1 second")
    assert [str(error) for _, error, _ in timed.handled] == ["not now"] * 3


def test_results_that_nobody_takes_do_not_pile_up_and_the_period_is_kept_again_once_they_are_taken() -> None:
    timed = Timed()
    timed.calls.call(timed.call, timed.handle, period_s=1.0)

    def pass_seconds(seconds: int) -> None:
        for _ in range(seconds):
            timed.workers.do_one(due=True)
            timed.clock.advance("1 second")

    pass_seconds(3600)
    assert len(timed.made_at_us) == 11
    assert timed.made_at_us[-1] >= 1_800_000_000, "the last look is not older than half of the time"
    assert timed.handled == []
    timed.calls.run()
    assert len(timed.handled) == 12, "those that waited, and a fresh one"
    for _ in range(10):
        timed.clock.advance("1 second")
        timed.calls.run()
    assert len(timed.handled) == 22


# ---- at each trigger -------------------------------------------------------------------------------------------------


def test_a_refresh_makes_the_calls_that_are_made_at_each_trigger_and_no_others() -> None:
    timed = Timed()
    timed.calls.call(timed.call, timed.handle, period_s=1.0, at_each_trigger=True)
    timed.calls.call(lambda: 0, lambda *_: pytest.fail("made before its time"), delay_s=5.0, period_s=1.0)
    timed.calls.run()
    timed.clock.advance("10 ms")
    timed.calls.refresh(WAIT_S)
    assert timed.handled == [(1, None, 0), (2, None, 10_000)]
    timed.clock.advance("990 ms")
    timed.calls.run()
    assert timed.made_at_us == [0, 10_000, 1_000_000], "the period goes on"


def test_a_refresh_is_not_content_with_a_call_that_began_before_it() -> None:
    pool = WorkerPool(4)
    began, goes_on = threading.Semaphore(0), threading.Semaphore(0)
    written, seen = [0], []

    def look() -> int:
        found = written[0]
        began.release()
        assert goes_on.acquire(timeout=WAIT_S)
        return found

    calls = AsyncCalls(pool, lambda: 0)
    calls.call(look, lambda result, error, began_us: seen.append(result), period_s=100.0, at_each_trigger=True)
    assert began.acquire(timeout=WAIT_S)
    written[0] = 12
    goes_on.release(2)
    calls.refresh(WAIT_S)
    assert seen == [0, 12], "one after the other, and never at once"
    calls.close()
    pool.close()


def test_a_call_that_hangs_is_waited_for_once() -> None:
    pool = WorkerPool(4)
    hangs = threading.Event()
    seen: list[int] = []
    calls = AsyncCalls(pool, lambda: 0)
    calls.call(lambda: hangs.wait(WAIT_S), lambda *_: seen.append(1), delay_s=100.0, at_each_trigger=True)
    calls.refresh(0.001)
    began = time.monotonic()
    calls.refresh(WAIT_S)
    assert time.monotonic() - began < WAIT_S / 2
    hangs.set()
    while not seen:
        calls.wait(WAIT_S)
    calls.refresh(WAIT_S)
    assert len(seen) == 2
    calls.close()
    pool.close()


def test_a_call_rests_nine_times_as_long_as_it_took_before_a_refresh_makes_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timed, wall = Timed(), [100.0]
    monkeypatch.setattr("streaming_source.coordinator.calls._REST", 9)
    clock = SimpleNamespace(monotonic=lambda: wall[0], thread_time=time.thread_time)
    monkeypatch.setattr("streaming_source.coordinator.calls.time", clock)
    began: list[float] = []

    takes_s = [0.004, 0.004, 5.0, 0.004]

    def look() -> None:
        began.append(wall[0])
        wall[0] += takes_s.pop(0)

    def pass_by(timeout_s: float | None) -> None:
        assert timeout_s is not None
        wall[0] += timeout_s

    timed.calls.call(look, timed.handle, period_s=1.0, at_each_trigger=True)
    timed.calls.run()
    monkeypatch.setattr(timed.calls, "_handle_next", pass_by)
    timed.calls.refresh(WAIT_S)
    wall[0] += 1.0
    timed.calls.refresh(WAIT_S)
    timed.calls.refresh(WAIT_S)
    expected = [100.0, 100.040, 101.044, 106.044 + 0.180]
    assert began == pytest.approx(expected), "a slow one rests no longer than a dear one"


def test_a_trigger_in_vain_rests_nineteen_times_as_long_as_the_thread_has_worked_for_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timed, wall, worked = Timed(), [100.0], [3.0]
    calls = "streaming_source.coordinator.calls"
    monkeypatch.setattr(f"{calls}._IDLE_REST", 19)
    clock = SimpleNamespace(monotonic=lambda: wall[0], thread_time=lambda: worked[0])
    monkeypatch.setattr(f"{calls}.time", clock)
    arrives: list[float] = []

    def pass_by(timeout_s: float | None) -> None:
        assert timeout_s is not None
        wall[0] += min([timeout_s, *arrives])

    monkeypatch.setattr(timed.calls, "_handle_next", pass_by)
    waits = []
    for work_s, rests, until in ((0.2, False, []), (0.01, True, []), (0.2, True, []), (0.01, True, [0.02])):
        worked[0] += work_s
        arrives[:] = until
        began = wall[0]
        timed.calls.refresh(WAIT_S, rests=rests, is_due=lambda: bool(arrives))
        waits.append(round(wall[0] - began, 3))
    # What was planned meanwhile counts as no trigger in vain, no rest is long, and what arrives ends it.
    assert waits == [0.0, 0.19, 0.5, 0.02]


def test_a_call_that_is_always_dear_is_left_to_its_period_until_it_is_cheap_again() -> None:
    timed = Timed()
    takes = ["21 ms"]

    def slow() -> int:
        timed.call()
        timed.clock.advance(takes[0])
        return 0

    timed.calls.call(slow, timed.handle, period_s=1.0, at_each_trigger=True)
    timed.calls.run()
    for _ in range(20):
        timed.calls.refresh(WAIT_S)
    assert len(timed.made_at_us) == 8, "one that is dear now and then is none"
    takes[0] = "20 ms"
    timed.clock.advance("1 second")
    timed.calls.run()
    for _ in range(3):
        timed.calls.refresh(WAIT_S)
    assert len(timed.made_at_us) == 12


# ---- where handlers run ----------------------------------------------------------------------------------------------


def test_handlers_run_one_after_another_on_the_coordinator_s_thread_and_calls_elsewhere() -> None:
    pool = WorkerPool(4)
    calls = AsyncCalls(pool, lambda: 0)
    here = threading.get_ident()
    callers: set[int] = set()
    running = 0
    handled: list[int] = []

    def handle(result: Any, error: BaseException | None, began_us: int) -> None:
        nonlocal running
        running += 1
        assert (running, threading.get_ident()) == (1, here)
        handled.append(result)
        if result < 100:
            calls.call(lambda: result + 100, handle)
        calls.on_thread(lambda: None)
        running -= 1

    def call(number: int) -> int:
        callers.add(threading.get_ident())
        return number

    for number in range(50):
        calls.call(lambda n=number: call(n), handle)
    while len(handled) < 100:
        calls.wait(WAIT_S)
    assert sorted(handled) == [*range(50), *range(100, 150)]
    assert here not in callers
    calls.close()
    pool.close()


def test_actions_of_another_thread_are_done_here_in_their_order_and_own_ones_at_once() -> None:
    calls = AsyncCalls(HeldWorkers(), lambda: 0)
    done: list[tuple[int, int]] = []

    def post(number: int) -> None:
        calls.on_thread(lambda: done.append((number, threading.get_ident())))

    thread = threading.Thread(target=lambda: [post(number) for number in range(100)])
    thread.start()
    thread.join()
    post(-1)
    assert done == [(-1, threading.get_ident())]
    calls.run()
    assert done[1:] == [(number, threading.get_ident()) for number in range(100)]


def test_the_coordinator_s_thread_is_the_one_that_runs_it() -> None:
    calls = AsyncCalls(HeldWorkers(), lambda: 0)
    done: list[str] = []

    def run_elsewhere() -> None:
        calls.run()
        calls.on_thread(lambda: done.append("at once"))

    thread = threading.Thread(target=run_elsewhere)
    thread.start()
    thread.join()
    assert done == ["at once"]
    calls.on_thread(lambda: done.append("later"))
    assert done == ["at once"]


def test_what_a_handler_raises_reaches_the_caller_and_what_else_arrived_is_not_lost() -> None:
    timed = Timed()

    def refuse(result: Any, error: BaseException | None, began_us: int) -> None:
        raise RuntimeError("refused")

    timed.calls.call(timed.call, refuse)
    timed.calls.call(timed.call, timed.handle)
    with pytest.raises(RuntimeError, match="refused"):
        timed.calls.run()
    timed.calls.run()
    assert [result for result, _, _ in timed.handled] == [2]


def test_waiting_wakes_up_for_what_arrives_and_ends_with_its_time() -> None:
    pool = WorkerPool(1)
    calls = AsyncCalls(pool, lambda: 0)
    handled: list[Any] = []
    calls.wait(0.001)
    calls.call(lambda: 1, lambda result, error, began_us: handled.append(result), delay_s=0.01)
    calls.wait(WAIT_S)
    assert handled == [1]
    calls.close()
    pool.close()


# ---- CD-18: interruption, and the end --------------------------------------------------------------------------------


@pytest.mark.parametrize("raised", [KeyboardInterrupt("stop"), SystemExit(3), OSError("broken")])
def test_cd_18_the_handler_sees_why_its_call_was_interrupted(raised: BaseException) -> None:
    timed = Timed()

    def interrupted() -> None:
        raise raised

    timed.calls.call(interrupted, timed.handle)
    timed.calls.run()
    assert timed.handled == [(None, raised, 0)]


def test_cd_18_what_is_interrupted_by_the_end_fails_nothing() -> None:
    held = HeldWorkers()
    calls = AsyncCalls(held, lambda: 0)

    def interrupted() -> None:
        calls.close()
        raise KeyboardInterrupt

    def rethrow(result: Any, error: BaseException | None, began_us: int) -> None:
        assert error is not None
        raise error

    calls.call(interrupted, rethrow, period_s=1.0)
    held.do("work")
    calls.run()
    held.do("work")
    assert held.held == []


def test_after_the_end_results_are_dropped_and_no_call_is_made_but_what_was_posted_is_done() -> None:
    timed = Timed()
    held = HeldWorkers()
    calls = AsyncCalls(held, timed.clock.now_us)
    calls.call(timed.call, timed.handle)
    calls.call(timed.call, timed.handle)
    held.do("work")
    calls.end()
    held.do("work")
    calls.call(timed.call, timed.handle)
    assert not calls.awaits_first
    assert held.held == []
    done: list[str] = []
    calls.post(lambda: done.append("posted"))
    calls.run()
    assert (len(timed.made_at_us), timed.handled, done) == (1, [], ["posted"])


def test_once_closed_nothing_is_done() -> None:
    calls = AsyncCalls(HeldWorkers(), lambda: 0)
    done: list[str] = []
    calls.post(lambda: done.append("posted"))
    calls.close()
    calls.run()
    calls.wait(0.001)
    assert done == []


def test_a_thread_with_the_number_of_one_that_has_ended_is_another_one() -> None:
    timed = Timed()
    before = threading.Thread(target=timed.calls.run)
    before.start()
    before.join(WAIT_S)
    done: list[str] = []
    # The system gives numbers again, as a rule at once.
    after = threading.Thread(target=lambda: timed.calls.on_thread(lambda: done.append("done")))
    after.start()
    after.join(WAIT_S)
    assert done == []
    timed.calls.run()
    assert done == ["done"]
