"""One thread, one `SplitReader`: what it does task by task, and what it hands over to the reader."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from streaming_source.api import (
    RecordsBySplits,
    RecordsWithSplitIds,
    SourceSplit,
    SplitReader,
    SplitsAddition,
    SplitsRemoval,
)
from streaming_source.reader.queue import ElementQueue

__all__ = ["Handover", "SplitFetcher", "SplitFetcherTask"]

SplitT = TypeVar("SplitT", bound=SourceSplit)
ElementT = TypeVar("ElementT")

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Handover(Generic[ElementT]):
    """What one fetch brought, and from whom.

    Attributes
    ----------
    fetcher
        Whose fetch it was.
    records
        What it brought.
    finished
        Splits of this fetcher that are read to their end with these records.
    removed
        Splits that this fetcher has let go of, and of which nothing comes after these records.
    seconds
        How long the fetch took.
    """

    fetcher: SplitFetcher[Any, ElementT]
    records: RecordsWithSplitIds[ElementT]
    finished: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()
    seconds: float = 0.0

    def recycle(self) -> None:
        """Every element is out: give back the buffers, and tell the fetcher."""
        try:
            self.records.recycle()
        finally:
            self.fetcher.notify_recycled()


class SplitFetcherTask(ABC):
    """A step of a fetcher. Runs on its thread, outside of its lock."""

    @abstractmethod
    def run(self) -> bool:
        """Do it; False to be called once more before any other task."""

    def wake_up(self) -> None:  # noqa: B027 (most tasks do not block)
        """Make `run` return soon, if it can block. Called from other threads, also when it is not running."""


class SplitFetcher(Generic[SplitT, ElementT]):
    """Fetches the splits of one `SplitReader` on a thread of its own.

    The thread runs tasks: first what others enqueued, in their order; else, while a split is assigned, a
    fetch; else it waits. It is *idle* when nothing is assigned, enqueued, running or yet to be put.

    Parameters
    ----------
    fetcher_id
        Its number, as a producer of the queue too.
    split_reader
        Used by nobody else.
    queue
        Takes what was fetched.
    on_error
        Told of the first error of the thread, and of one in closing the reader; called on that thread.
    predecessor
        A fetcher that may still be closing its reader: this one begins when that is done.
    """

    def __init__(
        self,
        fetcher_id: int,
        split_reader: SplitReader[SplitT],
        queue: ElementQueue[Handover[ElementT]],
        on_error: Callable[[SplitFetcher[SplitT, ElementT], BaseException], None],
        predecessor: SplitFetcher[SplitT, ElementT] | None = None,
    ) -> None:
        self.fetcher_id = fetcher_id
        self.split_reader = split_reader
        self.closed = threading.Event()
        self._queue = queue
        self._on_error = on_error
        self._predecessor = predecessor
        self._fetch = _FetchTask(self, queue)
        self._thread = threading.Thread(target=self._run, name=f"split-fetcher-{fetcher_id}", daemon=True)
        # All below is guarded by the lock, which is held for moments only and under which nothing else is called.
        self._changed = threading.Condition()
        self._tasks: deque[SplitFetcherTask] = deque()
        self._running: SplitFetcherTask | None = None
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
        """Take over splits, before the next fetch."""
        self._enqueue(_Step(lambda: self._add(splits)), wake=True)

    def remove_splits(self, split_ids: Sequence[str]) -> None:
        """Let go of splits, before the next fetch; a hand-over then says so."""
        self._enqueue(_Step(lambda: self._remove(split_ids)), wake=True)

    def enqueue(self, task: SplitFetcherTask) -> None:
        """Run a task before the next fetch. It does not interrupt a fetch that blocks."""
        self._enqueue(task, wake=False)

    def wake_up(self) -> None:
        """Make what is running return soon; what it has fetched is kept."""
        with self._changed:
            running = self._running
            self._changed.notify_all()
        if running is not None:
            running.wake_up()

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do, nor anything under way."""
        with self._changed:
            return self._is_idle()

    @property
    def split_ids(self) -> list[str]:
        """Assigned splits, in the order of their assignment."""
        with self._changed:
            return list(self._assigned)

    def shutdown(self, *, after_records_processed: bool = False) -> None:
        """End the thread and close the reader, now or when all that was handed over is recycled.

        The first way may follow the second.
        """
        with self._changed:
            self._waits_for_reader = after_records_processed and (not self._shut_down or self._waits_for_reader)
            self._shut_down = True
        self.wake_up()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end; False if it did not."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def notify_recycled(self) -> None:
        """All elements of one hand-over are out."""
        self.count_handed_over(-1)

    # ---- for its fetches -----------------------------------------------------------------------------------------

    def take_left(self) -> frozenset[str]:
        """Splits that were let go of since the last call."""
        with self._changed:
            left, self._left = self._left, frozenset()
            return left

    def finish(self, split_ids: Collection[str]) -> frozenset[str]:
        """Splits are read to their end; those that were this fetcher's."""
        if not split_ids:
            return frozenset()
        with self._changed:
            return self._unassign(split_ids)

    def count_handed_over(self, change: int) -> None:
        """Keep count of what is handed over and not yet recycled."""
        with self._changed:
            self._handed_over += change
            if not self._handed_over:
                self._changed.notify_all()

    # ---- the thread ----------------------------------------------------------------------------------------------

    def run_once(self, *, wait: bool = True) -> bool:
        """Wait for a task and run it; False once the fetcher was shut down, or where there is none to wait for."""
        task = self._next_task(wait)
        if task is None:
            return False
        done = task.run()
        with self._changed:
            self._running = None
            if not done:
                self._tasks.appendleft(task)
            idle = self._is_idle()
        if idle:
            # The reader may be waiting for records that will not come.
            self._queue.notify_available()
        return True

    def _next_task(self, wait: bool) -> SplitFetcherTask | None:
        with self._changed:
            while not self._shut_down:
                if self._tasks:
                    self._running = self._tasks.popleft()
                elif self._fetch.holds_records or self._left or self._assigned:
                    self._running = self._fetch
                elif wait:
                    self._changed.wait()
                    continue
                else:
                    return None
                return self._running
            return None

    def _run(self) -> None:
        try:
            if self._predecessor is not None:
                self._predecessor.closed.wait()
                self._predecessor = None
            while self.run_once():
                pass
        except BaseException as error:  # whatever it is, the reader must hear of it
            self._on_error(self, error)
        # After an error it goes on existing until it is told to end: a reader that sees no fetcher left would take
        # that for the end of input.
        with self._changed:
            self._changed.wait_for(lambda: self._shut_down and not (self._waits_for_reader and self._handed_over))
        try:
            self.split_reader.close()
        except BaseException as error:  # see above
            self._on_error(self, error)
        finally:
            self.closed.set()
            _log.debug("%r has ended", self)

    # ---- steps of the thread: splits that have finished meanwhile are left out -----------------------------------

    def _add(self, splits: Sequence[SplitT]) -> None:
        with self._changed:
            self._assigned.update((split.split_id, split) for split in splits)
        self.split_reader.handle_splits_changes(SplitsAddition(splits))

    def _remove(self, split_ids: Sequence[str]) -> None:
        splits = self._assigned_of(split_ids)
        if splits:
            self.split_reader.handle_splits_changes(SplitsRemoval(splits))
            with self._changed:
                self._left |= self._unassign([split.split_id for split in splits])

    # ---- inside --------------------------------------------------------------------------------------------------

    def _assigned_of(self, split_ids: Sequence[str]) -> list[SplitT]:
        with self._changed:
            return [self._assigned[split_id] for split_id in split_ids if split_id in self._assigned]

    def _enqueue(self, task: SplitFetcherTask, *, wake: bool) -> None:
        with self._changed:
            self._tasks.append(task)
            self._changed.notify_all()
            running: Any = self._running if wake else None
        if running is not None:
            running.wake_up()

    def _is_idle(self) -> bool:
        busy = self._tasks or self._running or self._assigned or self._left or self._fetch.holds_records
        return not busy

    def _unassign(self, split_ids: Collection[str]) -> frozenset[str]:
        gone = frozenset(split_id for split_id in split_ids if split_id in self._assigned)
        for split_id in gone:
            del self._assigned[split_id]
        return gone


class _Step(SplitFetcherTask):
    """A task that does not block."""

    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step

    def run(self) -> bool:
        """See `SplitFetcherTask`."""
        self._step()
        return True


class _FetchTask(SplitFetcherTask, Generic[SplitT, ElementT]):
    """Fetches once, and puts what it brought into the queue.

    A wake-up can come at any moment. What was fetched and could not be put is kept for the next run, so that nothing is
    lost and nothing fetched twice.
    """

    def __init__(self, fetcher: SplitFetcher[SplitT, ElementT], queue: ElementQueue[Handover[ElementT]]) -> None:
        self._fetcher = fetcher
        self._queue = queue
        self._fetched: Handover[ElementT] | None = None
        self._woken = False

    @property
    def holds_records(self) -> bool:
        """Whether something was fetched and is not in the queue yet."""
        return self._fetched is not None

    def run(self) -> bool:
        """See `SplitFetcherTask`."""
        try:
            if self._fetched is None and not self._woken:
                self._fetched = self._next()
            # Asked again, after `_fetched` was set: from here on `wake_up` wakes the put.
            if self._fetched is not None and not self._woken:
                self._put(self._fetched)
        finally:
            self._woken = False
        return True

    def wake_up(self) -> None:
        """See `SplitFetcherTask`."""
        self._woken = True
        if self._fetched is None:
            self._fetcher.split_reader.wake_up()
        else:
            self._queue.wake_up(self._fetcher.fetcher_id)

    def _next(self) -> Handover[ElementT]:
        left = self._fetcher.take_left()
        if left:
            return Handover(self._fetcher, RecordsBySplits(), removed=left)
        began = time.perf_counter()
        records = self._fetcher.split_reader.fetch()
        seconds = time.perf_counter() - began
        finished = self._fetcher.finish(records.finished_splits)
        return Handover(self._fetcher, records, finished, seconds=seconds)

    def _put(self, fetched: Handover[ElementT]) -> None:
        # Counted before the reader can see it: it may be recycled before put returns.
        self._fetcher.count_handed_over(1)
        if self._queue.put(self._fetcher.fetcher_id, fetched):
            self._fetched = None
        else:
            self._fetcher.count_handed_over(-1)
