"""Reading no faster than allowed, without asking again and again."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

__all__ = ["RateLimiter", "RecordsPerSecond"]

Schedule = Callable[[float, Callable[[], None]], Any]


class RateLimiter(ABC):
    """Says when a reader may go on (FLIP-535)."""

    @abstractmethod
    def acquire(self, records: int) -> Future[None]:
        """So many records were emitted: the future completes when more may be."""

    def close(self) -> None:  # noqa: B027 (a limiter without timers has nothing to end)
        """The reader is closed; futures need not complete any more."""


class RecordsPerSecond(RateLimiter):
    """At most so many records a second on average. A block is never cut: a long one has to be waited for longer.

    Parameters
    ----------
    rate
        Records a second, above 0.
    clock
        Seconds, monotonic.
    schedule
        `(seconds, call)`: has the call made so much later; returns what has a method `cancel`. By default a timer
        thread, alive only while the reader waits.

    Raises
    ------
    ValueError
        If the rate is not above 0.
    """

    def __init__(
        self, rate: float, *, clock: Callable[[], float] = time.monotonic, schedule: Schedule | None = None
    ) -> None:
        if not rate > 0:
            raise ValueError(f"rate = {rate}: must be above 0 records a second")
        self._seconds_per_record = 1.0 / rate
        self._clock = clock
        self._schedule = schedule or _on_timer
        self._free_at = clock()
        self._timer: Any = None

    def acquire(self, records: int) -> Future[None]:
        """See `RateLimiter`. O(1)."""
        now = self._clock()
        # What was not used in time is not saved up.
        self._free_at = max(self._free_at + records * self._seconds_per_record, now)
        permit: Future[None] = Future()
        permit.set_running_or_notify_cancel()
        if self._free_at <= now:
            permit.set_result(None)
        else:
            self._timer = self._schedule(self._free_at - now, lambda: permit.set_result(None))
        return permit

    def close(self) -> None:
        """See `RateLimiter`."""
        if self._timer is not None:
            self._timer.cancel()


def _on_timer(seconds: float, call: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()
    return timer
