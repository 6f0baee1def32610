"""Calls that fail for a moment are tried again, with growing pauses."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

__all__ = ["RetryPolicy"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_BACKOFF_S: Final = 0.1
_LAST_BACKOFF_S: Final = 5.0


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
        """How long, for now."""
        return self._seconds if self.has_succeeded else self._first_s

    def passes(self, error: Exception) -> bool:
        """Whether it is worth trying again."""
        return isinstance(error, self._passing)

    def run(self, call: Callable[[], T]) -> T:
        """What the call returns when it succeeds; else the error of the last trial is raised.

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
                if left_s <= 0 or trials >= self._retries or not self.passes(error):
                    raise
                _log.warning("a call failed, and is tried again for %.0f s: %s", left_s, error)
                if self._ended.wait(min(backoff_s, left_s)):
                    raise
            trials += 1
            backoff_s = self._pause_s or min(2 * backoff_s, _LAST_BACKOFF_S)

    def end(self) -> None:
        """Try nothing again any more. From any thread."""
        self._ended.set()
