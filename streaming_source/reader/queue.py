"""The hand-over queue: from many fetcher threads to one reader thread."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from typing import Final, Generic, TypeVar

__all__ = ["DEFAULT_CAPACITY", "ElementQueue"]

T = TypeVar("T")

DEFAULT_CAPACITY: Final = 2
"""Batches that wait for the reader before fetchers wait for it."""


class ElementQueue(Generic[T]):
    """A bounded queue of many producers and one consumer, which nobody has to ask twice.

    A *producer* is known by its number, so that it can be woken while it waits for room. The consumer never waits in
    here: it takes what there is, and has a future for when there is more.

    Parameters
    ----------
    capacity
        Elements that it holds, at least 1.

    Raises
    ------
    ValueError
        If the capacity is below 1.

    Notes
    -----
    Every waiting producer has a condition of its own, all over one lock. A producer waits only if there is no room, and
    each poll signals the one that has waited longest: so no room is left without somebody on his way to it. One that is
    woken for another reason looks for room first, and never lets a signal that reached it go to waste (FLINK-37663).
    """

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        if capacity < 1:
            raise ValueError(f"capacity = {capacity}: the queue must hold at least 1 element")
        self._capacity = capacity
        self._lock = threading.Lock()
        self._elements: deque[T] = deque()
        self._waiting: dict[int, threading.Condition] = {}
        self._woken: set[int] = set()
        self._available = _running_future()
        self._is_available = False

    def __len__(self) -> int:
        return len(self._elements)

    @property
    def remaining_capacity(self) -> int:
        """Elements that can be put without waiting."""
        return self._capacity - len(self._elements)

    # ---- producers -----------------------------------------------------------------------------------------------

    def put(self, producer: int, element: T) -> bool:
        """Append an element, waiting for room; False if `wake_up` came instead, and nothing was appended.

        A wake-up counts only for a put that would wait: with room the element is appended, and the wake-up stays for
        the next time. O(1).

        Raises
        ------
        ValueError
            If the element is None, which `poll` returns for an empty queue.
        """
        if element is None:
            raise ValueError("element is None: None is what an empty queue returns")
        with self._lock:
            while len(self._elements) >= self._capacity:
                if producer in self._woken:
                    self._woken.discard(producer)
                    return False
                self._wait(producer)
            self._elements.append(element)
            future = self._take_future()
        _complete(future)
        return True

    def wake_up(self, producer: int) -> None:
        """Make the put of a producer that waits for room, now or the next time, return without appending. O(1)."""
        with self._lock:
            self._woken.add(producer)
            condition = self._waiting.get(producer)
            if condition is not None:
                condition.notify()

    # ---- the consumer --------------------------------------------------------------------------------------------

    def poll(self) -> T | None:
        """The first element, None if there is none. O(1)."""
        with self._lock:
            element = self._elements.popleft() if self._elements else None
            if not self._elements and self._is_available:
                self._is_available = False
                self._available = _running_future()
            if element is not None:
                self._signal_longest_waiting()
            return element

    @property
    def available(self) -> Future[None]:
        """Completes when there is an element, or after `notify_available`; so do all that were returned before."""
        with self._lock:
            return self._available

    def notify_available(self) -> None:
        """Let the consumer look, whether or not there is an element."""
        with self._lock:
            future = self._take_future()
        _complete(future)

    # ---- inside: all under the lock ------------------------------------------------------------------------------

    def _wait(self, producer: int) -> None:
        condition = threading.Condition(self._lock)
        self._waiting[producer] = condition
        condition.wait()
        self._waiting.pop(producer, None)

    def _signal_longest_waiting(self) -> None:
        producer = next(iter(self._waiting), None)
        if producer is not None:
            # Out of the line at once: the next room is for the next one.
            self._waiting.pop(producer).notify()

    def _take_future(self) -> Future[None] | None:
        """The future to complete, outside of the lock: what is called back may use the queue."""
        if self._is_available:
            return None
        self._is_available = True
        return self._available


def _running_future() -> Future[None]:
    future: Future[None] = Future()
    # Running: nobody can cancel it, and completing it cannot fail.
    future.set_running_or_notify_cancel()
    return future


def _complete(future: Future[None] | None) -> None:
    if future is not None:
        future.set_result(None)
