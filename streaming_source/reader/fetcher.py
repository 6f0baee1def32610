"""From a `SplitReader` to the reader: a thread that fetches in steps, and the queue that it puts records into."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from alignment.shown import log_of
from streaming_source.api import (
    RecordsBySplits,
    RecordsWithSplitIds,
    SplitReader,
    SplitsAddition,
    SplitsRemoval,
)
from streaming_source.api.split import SplitT
from streaming_source.exceptions import SourceError

T = TypeVar("T")
ElementT = TypeVar("ElementT")

_log = log_of(__name__)

DEFAULT_CAPACITY: Final = 2
"""Fetched batches that the queue holds before fetchers wait for room."""


class ElementQueue(Generic[T]):
    """A bounded queue of many producers and one consumer, which never polls in vain.

    A *producer* is identified by its number, so that it can be woken while it waits for room. The consumer never
    blocks: it polls the elements that are there, and has a future that completes when there are more.

    Every waiting producer has a condition of its own, all over one lock. A producer waits only if there is no room, and
    each poll signals the one that has waited longest: so no room stays free while a producer waits. A producer that
    is woken for another reason checks for room first, so that a signal it received is never lost (FLINK-37663).
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

    # ---- producers -----------------------------------------------------------------------------------------------

    def put(self, producer: int, element: T) -> bool:
        """Append an element, waiting for room; False if `wake_up` came instead, and nothing was appended.

        A wake-up counts only for a put that would wait: with room the element is appended, and the wake-up stays for
        the next time. O(1).
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
        """Remove and return the first element; None if there is none. O(1)."""
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
        """Return a future that completes, as all earlier ones do, with an element or after `notify_available`."""
        with self._lock:
            return self._available

    def notify_available(self) -> None:
        """Complete the consumer's future, whether or not there is an element."""
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
            # Removed at once, so that the next free room goes to the next producer.
            self._waiting.pop(producer).notify()

    def _take_future(self) -> Future[None] | None:
        """Return the future, to be completed outside of the lock: its callbacks may use the queue."""
        if self._is_available:
            return None
        self._is_available = True
        return self._available


def _running_future() -> Future[None]:
    future: Future[None] = Future()
    # Running: it cannot be cancelled, and completing it cannot fail.
    future.set_running_or_notify_cancel()
    return future


def _complete(future: Future[None] | None) -> None:
    if future is not None:
        future.set_result(None)


@dataclass(slots=True, eq=False)
class Handover(Generic[ElementT]):
    """The records of one fetch, and the fetcher that fetched them.

    With these records some of the fetcher's splits are `finished`, read to their end; others are `removed`, and no
    records of them follow.
    """

    fetcher: SplitFetcher[Any, ElementT]
    records: RecordsWithSplitIds[ElementT]
    finished: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()

    def recycle(self) -> None:
        """Return the buffers, and count the hand-over as processed, after every element is emitted."""
        try:
            self.records.recycle()
        finally:
            self.fetcher.count_handed_over(-1)


class SplitFetcher(Generic[SplitT, ElementT]):
    """Fetches the splits of one `SplitReader` on a thread of its own.

    The thread takes steps: first the changes of splits that others enqueued, in their order; else, while a split is
    assigned, a fetch; else it waits. It is *idle* when nothing is assigned, enqueued, under way or yet to be put.

    A wake-up can come at any moment. Records that were fetched and not put into the queue are kept for the next
    step, so that none is lost or fetched twice.

    `fetcher_id` is also its number as a producer of the queue. `on_error` is called on the thread with the thread's
    first error, and with an error in closing the `SplitReader`.
    """

    def __init__(
        self,
        fetcher_id: int,
        split_reader: SplitReader[SplitT],
        queue: ElementQueue[Handover[ElementT]],
        on_error: Callable[[SplitFetcher[SplitT, ElementT], BaseException], None],
    ) -> None:
        self.fetcher_id = fetcher_id
        self.split_reader = split_reader
        self.closed = threading.Event()
        self._queue = queue
        self._on_error = on_error
        self._thread = threading.Thread(target=self._run, name=f"split-fetcher-{fetcher_id}", daemon=True)
        # Fetched and not in the queue yet; then, whether the current or next fetch is to return soon.
        self._fetched: Handover[ElementT] | None = None
        self._woken = False
        # The lock guards all fields below. It is held briefly, and no other code is called under it.
        self._changed = threading.Condition()
        self._changes: deque[Callable[[], None]] = deque()
        self._step: Callable[[], None] | None = None
        self._assigned: dict[str, SplitT] = {}
        self._left: frozenset[str] = frozenset()
        self._handed_over = 0
        self._shut_down = False
        self._waits_for_reader = False

    def __repr__(self) -> str:
        return f"split fetcher {self.fetcher_id}"

    # ---- from any thread -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread; called once."""
        self._thread.start()

    def add_splits(self, splits: Sequence[SplitT]) -> None:
        """Enqueue splits, to be assigned before the next fetch."""
        self._enqueue(lambda: self._add(splits))

    def remove_splits(self, split_ids: Sequence[str]) -> None:
        """Enqueue the removal of splits before the next fetch; a hand-over then has their ids."""
        self._enqueue(lambda: self._remove(split_ids))

    def wake_up(self) -> None:
        """Make the current fetch return soon; the records that it has fetched are kept."""
        with self._changed:
            is_fetching = self._step == self._fetch
            self._changed.notify_all()
        if is_fetching:
            self._woken = True
            if self._fetched is None:
                self.split_reader.wake_up()
            else:
                self._queue.wake_up(self.fetcher_id)

    @property
    def is_idle(self) -> bool:
        """True if no split is assigned, no change is enqueued and no step is under way."""
        with self._changed:
            return self._is_idle()

    @property
    def split_ids(self) -> list[str]:
        """Assigned splits, in the order of their assignment."""
        with self._changed:
            return list(self._assigned)

    def shutdown(self, *, after_records_processed: bool = False) -> None:
        """End the thread and close the reader, now or after all hand-overs are recycled.

        A shutdown `after_records_processed` may be followed by an immediate one.
        """
        with self._changed:
            self._waits_for_reader = after_records_processed and (not self._shut_down or self._waits_for_reader)
            self._shut_down = True
        self.wake_up()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end; False if it did not."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def count_handed_over(self, change: int) -> None:
        """Change the number of hand-overs that are not yet recycled."""
        with self._changed:
            self._handed_over += change
            if not self._handed_over:
                self._changed.notify_all()

    # ---- the thread ----------------------------------------------------------------------------------------------

    def run_once(self, *, wait: bool = True) -> bool:
        """Wait for a step and run it; False after the shutdown, or if `wait` is False and there is no step."""
        step = self._next_step(wait)
        if step is None:
            return False
        step()
        with self._changed:
            self._step = None
            idle = self._is_idle()
        if idle:
            # Wakes the reader, which may wait for records of a fetcher that is now idle.
            self._queue.notify_available()
        return True

    def _next_step(self, wait: bool) -> Callable[[], None] | None:
        with self._changed:
            while not self._shut_down:
                if self._changes:
                    self._step = self._changes.popleft()
                elif self._fetched is not None or self._left or self._assigned:
                    self._step = self._fetch
                elif wait:
                    self._changed.wait()
                    continue
                else:
                    return None
                return self._step
            return None

    def _run(self) -> None:
        try:
            while self.run_once():
                pass
        except BaseException as error:  # the reader must raise any error
            self._on_error(self, error)
        # After an error the fetcher stays until it is shut down: a reader without fetchers would assume the end of
        # input.
        with self._changed:
            self._changed.wait_for(lambda: self._shut_down and not (self._waits_for_reader and self._handed_over))
        try:
            self.split_reader.close()
        except BaseException as error:  # see above
            self._on_error(self, error)
        finally:
            self.closed.set()
            _log.debug("%r has ended", self)

    # ---- steps of the thread: splits that finished meanwhile are left out ---------------------------------------

    def _add(self, splits: Sequence[SplitT]) -> None:
        with self._changed:
            self._assigned.update((split.split_id, split) for split in splits)
        self.split_reader.handle_splits_changes(SplitsAddition(splits))

    def _remove(self, split_ids: Sequence[str]) -> None:
        with self._changed:
            splits = [self._assigned[split_id] for split_id in split_ids if split_id in self._assigned]
        if splits:
            self.split_reader.handle_splits_changes(SplitsRemoval(splits))
            with self._changed:
                self._left |= self._unassign([split.split_id for split in splits])

    def _fetch(self) -> None:
        """Fetch once, and put the records into the queue."""
        try:
            if self._fetched is None and not self._woken:
                self._fetched = self._next_handover()
            # `_woken` is read again after `_fetched` was set: from here on `wake_up` wakes the put.
            if self._fetched is not None and not self._woken:
                # Counted before the reader can poll it: the reader may recycle it before `put` returns.
                self.count_handed_over(1)
                if self._queue.put(self.fetcher_id, self._fetched):
                    self._fetched = None
                else:
                    self.count_handed_over(-1)
        finally:
            self._woken = False

    def _next_handover(self) -> Handover[ElementT]:
        with self._changed:
            left, self._left = self._left, frozenset()
        if left:
            return Handover(self, RecordsBySplits(), removed=left)
        records = fetched_by(self.split_reader)
        with self._changed:
            finished = self._unassign(records.finished_splits)
        return Handover(self, records, finished)

    def _enqueue(self, change: Callable[[], None]) -> None:
        with self._changed:
            self._changes.append(change)
        self.wake_up()

    def _is_idle(self) -> bool:
        return not (self._changes or self._step or self._assigned or self._left or self._fetched)

    def _unassign(self, split_ids: Collection[str]) -> frozenset[str]:
        ended = frozenset(split_id for split_id in split_ids if split_id in self._assigned)
        for split_id in ended:
            del self._assigned[split_id]
        return ended


def fetched_by(split_reader: SplitReader[Any]) -> RecordsWithSplitIds[Any]:
    """Fetch once; raises a `SourceError` if that returns nothing that is fetched."""
    records = split_reader.fetch()
    if not isinstance(records, RecordsWithSplitIds):
        raise SourceError(
            f"{type(split_reader).__name__}.fetch returned {records!r}: it returns RecordsWithSplitIds; where nothing "
            "came return RecordsBySplits()"
        )
    return records
