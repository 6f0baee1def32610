"""Threads for what must not keep the planner waiting: discovery, reading ahead."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

__all__ = ["WORKERS", "WorkerPool", "Workers"]

_log = logging.getLogger(__name__)

T = TypeVar("T")
U = TypeVar("U")

WORKERS: Final = 8
"""Threads of one source's planner, at most: they wait for files, brokers and databases, not for the processor."""


class Workers(ABC):
    """Has work done, elsewhere or later."""

    @abstractmethod
    def submit(self, work: Callable[[], None], delay_s: float = 0.0) -> None:
        """Have `work` done, `delay_s` seconds from now or as soon as somebody is free. It raises nothing.

        From any thread. After `close` it is not done.
        """

    @abstractmethod
    def map(self, function: Callable[[T], U], items: Iterable[T]) -> list[U]:
        """Apply a function to each item, several at once; the results in order. The caller works as well.

        Raises
        ------
        BaseException
            What the function raised for the first item for which it failed.
        """

    @abstractmethod
    def do_one(self, *, due: bool) -> bool:
        """Do one piece of the work on this thread, where that is how work is done; whether one was done.

        Parameters
        ----------
        due
            Only work that is due now; else, if none is, the next that will be.
        """

    @abstractmethod
    def close(self) -> None:
        """Begin nothing more. Does not wait: what is under way may never end."""


class WorkerPool(Workers):
    """Up to so many threads, started as they are needed. They are daemons: one that hangs keeps no process alive.

    Parameters
    ----------
    threads
        At least 1.
    name
        Of the threads.
    """

    def __init__(self, threads: int = WORKERS, name: str = "source-worker") -> None:
        self._threads = threads
        self._name = name
        self._changed = threading.Condition()
        # (when it is due, order of submission, work), the next first.
        self._work: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._started = 0
        self._free = 0
        self._closed = False

    def submit(self, work: Callable[[], None], delay_s: float = 0.0) -> None:
        """See `Workers`. O(log n)."""
        with self._changed:
            if self._closed:
                return
            heapq.heappush(self._work, (time.monotonic() + delay_s, next(self._order), work))
            if self._free < len(self._work) and self._started < self._threads:
                self._started += 1
                self._free += 1
                threading.Thread(target=self._run, name=f"{self._name}-{self._started}", daemon=True).start()
            self._changed.notify()

    def map(self, function: Callable[[T], U], items: Iterable[T]) -> list[U]:
        """See `Workers`. Whoever is free helps; nobody is waited for who has not begun."""
        shared = _SharedItems(function, list(items))
        for _ in range(min(self._threads, len(shared)) - 1):
            self.submit(shared.work)
        shared.work()
        return shared.results()

    def do_one(self, *, due: bool) -> bool:
        """See `Workers`. Never: its threads do it."""
        return False

    def close(self) -> None:
        """See `Workers`."""
        with self._changed:
            self._closed = True
            self._work.clear()
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            work = self._next()
            if work is None:
                return
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
                    # Whoever waited for this alone now sees to the next: no deadline is without somebody who keeps it.
                    self._changed.notify()
                return work
            return None


class _SharedItems:
    """Items that several threads take one after another."""

    def __init__(self, function: Callable[[Any], Any], items: list[Any]) -> None:
        self._function = function
        self._items = items
        self._numbers = itertools.count()
        self._results: list[Any] = [None] * len(items)
        self._errors: dict[int, BaseException] = {}
        self._first_failed = len(items)
        self._done = 0
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._items)

    def work(self) -> None:
        """Work until no item is left. What comes after an item that failed is left out."""
        while (number := next(self._numbers)) < len(self._items):
            raised = None
            try:
                if number < self._first_failed:
                    self._results[number] = self._function(self._items[number])
            except BaseException as error:  # for the caller of map
                raised = error
            with self._changed:
                if raised is not None:
                    self._errors[number] = raised
                    self._first_failed = min(self._first_failed, number)
                self._done += 1
                self._changed.notify_all()

    def results(self) -> list[Any]:
        """All of them; waits for those under way."""
        with self._changed:
            self._changed.wait_for(lambda: self._done == len(self._items))
        if self._errors:
            raise self._errors[self._first_failed]
        return self._results
