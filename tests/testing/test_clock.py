"""Time that stands still, and work that is done in it."""

from __future__ import annotations

import pytest

from streaming_source.exceptions import SourceError
from streaming_source.testing import FakeClock, InlineWorkers


def test_the_clock_moves_when_it_is_moved_and_never_back() -> None:
    clock = FakeClock()
    clock.advance("3 seconds")
    clock.advance_to(1)
    assert clock.now_us() == 3_000_000
    clock.advance_to(4_000_000)
    assert clock.now_us() == 4_000_000


class Diary:
    """Notes what was done when."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.workers = InlineWorkers(self.clock)
        self.done: list[tuple[int, str]] = []

    def submit(self, name: str, delay_s: float = 0.0) -> None:
        self.workers.submit(lambda: self.done.append((self.clock.now_us(), name)), delay_s)

    def do_due(self) -> None:
        while self.workers.do_one(due=True):
            pass


def test_work_is_done_in_the_order_in_which_it_is_due() -> None:
    diary = Diary()
    diary.submit("last", 2.0)
    diary.submit("first")
    diary.submit("second")
    diary.do_due()
    assert diary.done == [(0, "first"), (0, "second")]
    diary.clock.advance("1999999 us")
    assert not diary.workers.do_one(due=True)
    diary.clock.advance("1 us")
    diary.do_due()
    assert diary.done[2:] == [(2_000_000, "last")]


def test_where_work_is_waited_for_the_clock_jumps_to_it() -> None:
    diary = Diary()
    diary.submit("later", 5.0)
    diary.submit("sooner", 1.0)
    assert diary.workers.do_one(due=False)
    assert diary.done == [(1_000_000, "sooner")]
    assert diary.workers.do_one(due=False)
    assert diary.done[1:] == [(5_000_000, "later")]


def test_waiting_for_nothing_is_an_error_and_not_a_test_that_hangs() -> None:
    diary = Diary()
    with pytest.raises(SourceError, match="waits for something that will not happen"):
        diary.workers.do_one(due=False)


def test_waiting_for_what_never_comes_is_an_error_as_well() -> None:
    diary = Diary()

    def again() -> None:
        diary.workers.submit(again, 1.0)

    def wait() -> None:
        while diary.workers.do_one(due=False):
            pass

    again()
    with pytest.raises(SourceError, match="however far the clock is advanced"):
        wait()


def test_after_close_nothing_is_done() -> None:
    diary = Diary()
    diary.submit("before")
    diary.workers.close()
    diary.submit("after")
    diary.do_due()
    assert diary.done == []


def test_items_are_mapped_in_their_order_and_errors_are_raised() -> None:
    workers = InlineWorkers(FakeClock())
    assert workers.map(str, [3, 1, 2]) == ["3", "1", "2"]
    with pytest.raises(ZeroDivisionError):
        workers.map(lambda n: 1 // n, [1, 0])
