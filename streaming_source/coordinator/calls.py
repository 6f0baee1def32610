"""Threads that discover and read ahead, clocks, and calls whose results are handled on the coordinator's thread."""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from alignment.shown import log_of

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


_log = log_of(__name__)

TimedHandler: TypeAlias = Callable[[Any, BaseException | None, int], None]
"""`(result, error, processing time in microseconds at which the call began)`."""

_DEAR_S: Final = 0.02
_DEAR_IN_A_ROW: Final = 8
"""A call that so many times in a row took longer than that is left to its period."""

_SILENT_S: Final = 60.0
"""Seconds without anything that is waited for, before and between lines in the log."""

_REST: Final = 9
"""Times its own length that a call rests before it is made for a trigger again: Spark calls every 10 ms."""

_IDLE_REST: Final = 19
"""Times the thread's work for a trigger without records that the next one waits.

With many splits that is mostly their report, which Spark asks for at each trigger.
"""

_LONGEST_REST_S: Final = 0.5


class AsyncCalls:
    """Calls on workers, and handlers of what they bring on one thread, one after another.

    On Spark the coordinator's thread is the one on which Spark calls the planner: between two calls it does not run.
    """

    def __init__(self, workers: Workers, now_us: Callable[[], int]) -> None:
        self.workers = workers
        self.now_us = now_us
        self._arrived: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        # Not its number: that of a gateway's thread that has ended may be a worker's by now.
        self._thread = threading.current_thread()
        # What the thread had worked by then, and when: at the end of the last `refresh`.
        self._worked_s = self._refreshed_s = 0.0
        self._awaited: set[_Call] = set()
        self._refreshed: list[_Call] = []
        self._ended = False
        self._closed = False

    # ---- from any thread -----------------------------------------------------------------------------------------

    def call(
        self,
        call: Callable[[], Any],
        handler: TimedHandler,
        *,
        delay_s: float = 0.0,
        period_s: float | None = None,
        at_each_trigger: bool = False,
    ) -> None:
        """Make a call on a worker, once or a period after it has ended again; each time its handler runs here.

        While its results wait, because the coordinator's thread does not run, each further call is put off for twice
        as many periods as the one before: no call may be needed for hours. With `at_each_trigger` it is also made by
        `refresh`.
        """
        if self._ended:
            return
        made = _Call(call, handler)
        if not delay_s:
            self._awaited.add(made)
        if at_each_trigger:
            self._refreshed.append(made)

        def work() -> None:
            if self._ended:
                return
            if made.is_due():
                self._make(made)
            if period_s is not None:
                self.workers.submit(work, period_s)

        self.workers.submit(work, delay_s)

    def repeat(self, work: Callable[[], object], period_s: float) -> None:
        """Do something on a worker again and again, also while the coordinator's thread does not run for hours.

        What it raises is raised on the coordinator's thread, and ends it.
        """

        def again() -> None:
            if self._ended:
                return
            try:
                work()
            except BaseException as error:  # whatever it is, the query must know
                self.fail(error)
            else:
                self.workers.submit(again, period_s)

        self.workers.submit(again, period_s)

    def post(self, action: Callable[[], None]) -> None:
        self._arrived.put(action)

    def fail(self, error: BaseException) -> None:
        """Have an error raised on the coordinator's thread: the query must fail with it."""

        def failed() -> None:
            raise error

        self.post(failed)

    def on_thread(self, action: Callable[[], None]) -> None:
        """Do something now if this is the coordinator's thread, else have it done there."""
        if threading.current_thread() is self._thread:
            action()
        else:
            self.post(action)

    # ---- on the coordinator's thread -----------------------------------------------------------------------------

    @property
    def awaits_first(self) -> bool:
        """True if a call without a delay has not given a result yet."""
        return bool(self._awaited)

    def run(self) -> None:
        """Do what has arrived. Costs about a microsecond when nothing has. Errors of handlers are raised here."""
        self._thread = threading.current_thread()
        while not self._closed:
            if not self._arrived.empty():
                self._arrived.get()()
            elif not self.workers.do_one(due=True):
                return

    def refresh(self, timeout_s: float, *, rests: bool = False, is_due: Callable[[], bool] = bool) -> None:
        """Make the calls that are made at each trigger, and handle what they bring, as long as they are not dear.

        Each is made once it has rested, so that an idle query spends a tenth of its time on them at most. One that has
        not come back in time is not waited for again before it has. If nothing was planned since the last refresh this
        one `rests` for as long as the thread has worked since then many times over; what arrives and `is_due` ends it.
        """
        self._refresh(timeout_s, self._refreshed_s + self._rest_s() if rests else 0.0, is_due)
        self._worked_s, self._refreshed_s = time.thread_time(), time.monotonic()

    def _rest_s(self) -> float:
        return min(_IDLE_REST * (time.thread_time() - self._worked_s), _LONGEST_REST_S)

    def _refresh(self, timeout_s: float, rests_until: float, is_due: Callable[[], bool]) -> None:
        cheap = [call for call in self._refreshed if not (call.is_dear or call.is_refreshing)]
        rests_until = max((rests_until, *(call.rests_until for call in cheap)))
        while (left_s := rests_until - time.monotonic()) > 0 and not self._ended:
            self._handle_next(left_s)
            if is_due():
                return
        for call in cheap:
            call.is_refreshing = True
            self.workers.submit(partial(self._make, call, refreshes=True))
        self.run()
        until = time.monotonic() + timeout_s
        while any(call.is_refreshing for call in cheap) and not self._ended:
            left_s = until - time.monotonic()
            if left_s <= 0:
                return
            self.wait(left_s)

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until something arrives, and do it; or until the time is over."""
        self._thread = threading.current_thread()
        while self._arrived.empty() and self.workers.do_one(due=False):
            pass
        self._handle_next(timeout_s)

    def end(self) -> None:
        """Make no further calls, and take no notice of those under way. Posted actions are still done."""
        self._ended = True
        self._awaited.clear()

    def close(self) -> None:
        self.end()
        self._closed = True

    def _handle_next(self, timeout_s: float | None) -> None:
        began = time.monotonic()
        while True:
            try:
                action = self._arrived.get(timeout=_SILENT_S if timeout_s is None else timeout_s)
                break
            except queue.Empty:
                if timeout_s is not None:
                    return
                _log.warning(
                    "the query waits for its source, which has brought nothing for %.0f s: it is discovering splits or "
                    "reading ahead, and neither fails nor ends; see that its files or brokers can be reached",
                    time.monotonic() - began,
                )
        if not self._closed:
            action()

    def _make(self, call: _Call, *, refreshes: bool = False) -> None:
        """On a worker."""
        with call.lock:
            began_us, began = self.now_us(), time.monotonic()
            result, raised = None, None
            try:
                result = call.call()
            except BaseException as error:  # whatever it is, it is the handler's to judge
                raised = error
            call.note(self.now_us() - began_us, time.monotonic() - began)
            # In the order in which they were made.
            self._arrived.put(partial(self._handle, call, result, raised, began_us, refreshes=refreshes))

    def _handle(self, call: _Call, result: Any, error: BaseException | None, began_us: int, *, refreshes: bool) -> None:
        call.handled += 1
        call.is_refreshing = call.is_refreshing and not refreshes
        self._awaited.discard(call)
        if not self._ended:
            call.handler(result, error, began_us)


class _Call:
    """A call, how often it was made, and its result handled.

    `made` is changed under the lock, which is held while it is made; `handled` and `is_refreshing` on the coordinator's
    thread.
    """

    def __init__(self, call: Callable[[], Any], handler: TimedHandler) -> None:
        self.call = call
        self.handler = handler
        self.lock = threading.Lock()
        self.made = self.handled = 0
        self.rests_until = 0.0
        self.is_refreshing = False
        self._skipped = 0
        self._took_us: deque[int] = deque(maxlen=_DEAR_IN_A_ROW)

    @property
    def is_dear(self) -> bool:
        """True if it takes too long to be made whenever a micro-batch could be planned."""
        took_us = self._took_us.copy()
        return len(took_us) == _DEAR_IN_A_ROW and min(took_us) > _DEAR_S * 1e6

    def note(self, took_us: int, took_s: float) -> None:
        """It was made, and took so long by the coordinator's clock and by the machine's."""
        self.made += 1
        self._took_us.append(took_us)
        # One that was slow once, because a connection was made, must not keep a trigger waiting.
        self.rests_until = time.monotonic() + _REST * min(took_s, _DEAR_S)

    def is_due(self) -> bool:
        """Return whether to make the call, a period after it was made or this was called."""
        waiting = self.made - self.handled
        if waiting and self._skipped + 1 < 2**waiting:
            self._skipped += 1
            return False
        self._skipped = 0
        return True
