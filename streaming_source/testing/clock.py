"""Time that stands still until a test moves it, and work that is done in it on one thread."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Final, TypeVar

from alignment.durations import parse_duration_us
from streaming_source.coordinator import Workers
from streaming_source.exceptions import SourceError

__all__ = ["FakeClock", "InlineWorkers"]

T = TypeVar("T")
U = TypeVar("U")

_ENOUGH_STEPS: Final = 100_000


class FakeClock:
    """Microseconds since it was made.

    Examples
    --------
    >>> clock = FakeClock()
    >>> clock.advance("2 seconds")
    >>> clock.now_us()
    2000000
    """

    def __init__(self) -> None:
        self._now_us = 0

    def now_us(self) -> int:
        """What it shows."""
        return self._now_us

    def advance(self, duration: timedelta | str) -> None:
        """Move it on."""
        self.advance_to(self._now_us + parse_duration_us(duration, name="duration"))

    def advance_to(self, now_us: int) -> None:
        """Move it on to a time; not back."""
        self._now_us = max(now_us, self._now_us)


class InlineWorkers(Workers):
    """Does work on the caller's thread, in the order in which it is due by a fake clock.

    Work that is due is done when the coordinator looks; where it waits, the clock jumps to what is due next.

    Parameters
    ----------
    clock
        By which work is due.
    """

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._work: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._steps_ahead = 0
        self._closed = False

    def submit(self, work: Callable[[], None], delay_s: float = 0.0) -> None:
        if not self._closed:
            due_us = self._clock.now_us() + round(delay_s * 1e6)
            heapq.heappush(self._work, (due_us, next(self._order), work))

    def map(self, function: Callable[[T], U], items: Iterable[T]) -> list[U]:
        """See `Workers`. One after another."""
        return [function(item) for item in items]

    def do_one(self, *, due: bool) -> bool:
        """See `Workers`.

        Raises
        ------
        SourceError
            If it is waited for what will never come.
        """
        if due and not (self._work and self._work[0][0] <= self._clock.now_us()):
            return False
        if not self._work or self._steps_ahead > _ENOUGH_STEPS:
            raise SourceError("the planner waits for something that will not happen, however far the clock is advanced")
        due_us, _, work = heapq.heappop(self._work)
        self._steps_ahead = 0 if due else self._steps_ahead + 1
        self._clock.advance_to(due_us)
        work()
        return True

    def close(self) -> None:
        self._closed = True
        self._work.clear()
