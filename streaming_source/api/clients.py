"""Clients of a source: kept from one micro-batch to the next, and called again where the source is away for a while."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from alignment.shown import log_of

_log = log_of(__name__)

ClientT = TypeVar("ClientT")
T = TypeVar("T")

_MAX_KEPT: Final = 64
_IDLE_SECONDS: Final = 60.0
_FIRST_BACKOFF_S: Final = 0.1
_LAST_BACKOFF_S: Final = 5.0


class KeptClients:
    """Clients that are expensive to make (connections, consumers), kept from one reader to the next.

    A reader lives for one micro-batch; Spark keeps its Python worker for the next ones. A client is in use by one
    `SplitReader` at a time: it is taken out by its key, typically the split's id and all that the client was made with,
    and is kept again when that reader closes. Clients that were not taken for `idle_seconds`, and those above
    `max_kept`, the oldest first, are closed when another one is taken or kept. No thread is needed for that: Spark ends
    workers that have nothing to do.

    Examples
    --------
    >>> clients = KeptClients()
    >>> connection = clients.take("orders", lambda: open("/dev/null"))
    >>> clients.keep("orders", connection, close=connection.close)
    >>> clients.take("orders", lambda: open("/dev/null")) is connection
    True
    >>> connection.close()
    """

    def __init__(
        self,
        max_kept: int = _MAX_KEPT,
        idle_seconds: float = _IDLE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_kept = max_kept
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._lock = threading.Lock()
        # In the order in which they were kept; few enough to be searched.
        self._kept: list[_Kept] = []

    def __len__(self) -> int:
        """Clients kept, and not in use."""
        return len(self._kept)

    def take(self, key: Hashable, create: Callable[[], ClientT]) -> ClientT:
        """The client of that key that was kept last, or a new one. It is the caller's until it is kept again."""
        with self._lock:
            unused = self._take_out_unused()
            kept = next((kept for kept in reversed(self._kept) if kept.key == key), None)
            if kept is not None:
                self._kept.remove(kept)
        _close_all(unused)
        client: ClientT = create() if kept is None else kept.client
        return client

    def keep(self, key: Hashable, client: object, close: Callable[[], object]) -> None:
        """Give a client back that is in order; one that is not is closed by its user instead.

        `close` is called when the client is not kept any longer.
        """
        with self._lock:
            self._kept.append(_Kept(key, client, close, self._clock()))
            unused = self._take_out_unused()
        _close_all(unused)

    def close(self) -> None:
        """Close all that are kept."""
        with self._lock:
            unused, self._kept = self._kept, []
        _close_all(unused)

    def _take_out_unused(self) -> list[_Kept]:
        """Take out what is too old or too much."""
        until = self._clock() - self._idle_seconds
        old = sum(kept.since <= until for kept in self._kept)
        dropped = max(old, len(self._kept) - self._max_kept)
        unused, self._kept = self._kept[:dropped], self._kept[dropped:]
        return unused


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    key: Hashable
    client: Any
    close: Callable[[], object]
    since: float


def _close_all(unused: list[_Kept]) -> None:
    for kept in unused:
        try:
            kept.close()
        except Exception:  # the client is not used again
            _log.exception("closing the kept client of %r failed", kept.key)


KEPT_CLIENTS: Final = KeptClients()
"""Those of this process: what a `SourceReaderContext` has unless it is given others."""


class RetryPolicy:
    """Tries again what fails for reasons that pass, with growing pauses, until its time is over.

    It belongs to what calls: an enumerator, a `SplitReader`. It is not picklable, as a `Source` must be.

    Parameters
    ----------
    seconds, first_s
        How long; and how long as long as no call has succeeded: what was never there is an error of the configuration,
        sooner than a source that is away for a while.
    retries, pause_s
        At most so many, None for as many as fit into the time; the same pause each time, None for growing ones.
    passing
        Errors that may pass; all others are raised at once.

    Examples
    --------
    >>> answers = iter([ConnectionError("away"), "here"])
    >>> def request():
    ...     answer = next(answers)
    ...     if isinstance(answer, Exception):
    ...         raise answer
    ...     return answer
    >>> RetryPolicy(30).run(request)
    'here'
    """

    def __init__(
        self,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        first_s: float = math.inf,
        retries: int | None = None,
        pause_s: float | None = None,
        passing: type[Exception] | tuple[type[Exception], ...] = (ConnectionError, TimeoutError),
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._first_s = min(first_s, seconds)
        self._retries = math.inf if retries is None else retries
        self._pause_s = pause_s
        self._passing = passing
        self._ended = threading.Event()
        self.has_succeeded = False

    @property
    def seconds(self) -> float:
        """Return how long, for now."""
        return self._seconds if self.has_succeeded else self._first_s

    def passes(self, error: Exception) -> bool:
        """Return whether it is worth trying again."""
        return isinstance(error, self._passing)

    def run(self, call: Callable[[], T]) -> T:
        """Return what the call returns when it succeeds; else the error of the last trial is raised.

        It is raised at once where trying again is in vain, or after `end`.
        """
        until, backoff_s = self._clock() + self.seconds, self._pause_s or _FIRST_BACKOFF_S
        trials = 0
        while True:
            try:
                result = call()
                self.has_succeeded = True
                return result
            except Exception as error:
                left_s = until - self._clock()
                is_repeated = left_s > 0 and trials < self._retries and self.passes(error)
                if is_repeated:
                    _log.warning("a call failed, and is tried again for %.0f s: %s", left_s, error)
                if not is_repeated or self._ended.wait(min(backoff_s, left_s)):
                    if (raised := self._raised_for(error)) is error:
                        raise
                    raise raised from None
            trials += 1
            backoff_s = self._pause_s or min(2 * backoff_s, _LAST_BACKOFF_S)

    def _raised_for(self, error: Exception) -> Exception:
        """Return what the error of the last trial is raised as."""
        return error

    def end(self) -> None:
        """Try nothing again any more. From any thread."""
        self._ended.set()
