"""The share of a planner in its machine: threads that discover and read ahead, and clocks."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from typing import Final, TypeVar

from alignment.shown import log_of

_log = log_of(__name__)

T = TypeVar("T")
U = TypeVar("U")

WORKERS: Final = 16
"""Threads of one source's planner, at most: they wait for files, brokers and databases, not for the processor."""


class Workers(ABC):
    """Has work done, elsewhere or later."""

    @abstractmethod
    def submit(self, work: Callable[[], None], delay_s: float = 0.0) -> None:
        """Have `work` done, `delay_s` seconds from now or when a worker is free. `work` must not raise.

        From any thread. After `close` it is not done.
        """

    @abstractmethod
    def map(self, function: Callable[[T], U], items: Iterable[T]) -> list[U]:
        """Apply a function to each item, several at once; the results in order. The caller works as well.

        What the function raised for the first item for which it failed is raised.
        """

    def do_one(self, *, due: bool) -> bool:
        """Do one unit of work on this thread, if that is how work is done; return whether there was one.

        With `due` only work that is due now; else, if none is, the next that will be.
        """
        return False

    @abstractmethod
    def close(self) -> None:
        """Begin nothing more. Does not wait: what is under way may never end."""


class WorkerPool(Workers):
    """Up to so many threads, started as they are needed. They are daemons: one that hangs keeps no process alive."""

    def __init__(self, threads: int = WORKERS) -> None:
        self._threads = threads
        self._changed = threading.Condition()
        # (when it is due, order of submission, work), the next first.
        self._work: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._started = 0
        self._free = 0
        self._closed = False

    def submit(self, work: Callable[[], None], delay_s: float = 0.0) -> None:
        with self._changed:
            if self._closed:
                return
            heapq.heappush(self._work, (time.monotonic() + delay_s, next(self._order), work))
            if self._free < len(self._work) and self._started < self._threads:
                self._started += 1
                self._free += 1
                threading.Thread(target=self._run, name=f"source-worker-{self._started}", daemon=True).start()
            self._changed.notify()

    def map(self, function: Callable[[T], U], items: Iterable[T]) -> list[U]:
        """See `Workers`. Idle workers take items; the caller runs those that no worker has started."""
        tasks = [(Future[U](), item) for item in items]
        left = iter(tasks)

        def work() -> None:
            for future, item in left:
                try:
                    future.set_result(function(item))
                except BaseException as error:  # for the caller of map
                    future.set_exception(error)
                    # What comes after an item that failed is left out.
                    for skipped, _ in left:
                        skipped.cancel()
                        skipped.set_running_or_notify_cancel()

        for _ in range(min(self._threads, len(tasks)) - 1):
            self.submit(work)
        work()
        wait([future for future, _ in tasks])
        return [future.result() for future, _ in tasks]

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._work.clear()
            self._changed.notify_all()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            try:
                work()
            except BaseException:  # a thread that died would be missed
                _log.exception("work in the background failed")
            with self._changed:
                self._free += 1

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._closed:
                wait_s = self._work[0][0] - time.monotonic() if self._work else None
                if wait_s is None or wait_s > 0:
                    self._changed.wait(wait_s)
                    continue
                self._free -= 1
                work = heapq.heappop(self._work)[2]
                if self._work:
                    # The worker that waited for this work now waits for the next: each deadline has a worker.
                    self._changed.notify()
                return work
            return None


# ---- clocks ----------------------------------------------------------------------------------------------------------


def monotonic_us() -> int:
    """Return a monotonic time in microseconds, for durations."""
    return time.monotonic_ns() // 1000


_BEGAN_US: Final = (time.time_ns() - time.monotonic_ns()) // 1000


def processing_time_us() -> int:
    """Return processing time in microseconds since the epoch: monotonic, from the wall clock at the process's start.

    It can be compared with times that an earlier process stored.
    """
    return _BEGAN_US + monotonic_us()


def wall_clock_us() -> int:
    """Return the wall clock, in microseconds since the epoch; never less than `processing_time_us`."""
    return max(time.time_ns() // 1000, processing_time_us())
