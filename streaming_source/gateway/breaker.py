"""When to try again what failed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

__all__ = ["CircuitBreaker"]

_FIRST_WAIT_S: Final = 2.0
_LONGEST_WAIT_S: Final = 64.0
_MOST_DOUBLINGS: Final = 5


class CircuitBreaker:
    """Lets nobody try for a while after a failure: 2 seconds, then twice as long each time, up to 64. From any thread.

    When the wait is over one caller may try; the others wait on until it says how that went.

    Parameters
    ----------
    clock
        Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._closed_until = 0.0

    @property
    def is_tripped(self) -> bool:
        """Whether the last try failed."""
        return self._failures > 0

    def allows(self) -> bool:
        """Whether the caller may try; if so it says afterwards how that went."""
        with self._lock:
            if not self._failures:
                return True
            now = self._clock()
            if now < self._closed_until:
                return False
            # Whoever comes while this one tries.
            self._closed_until = now + self._wait_s
            return True

    def succeeded(self) -> None:
        """It worked: everybody may try."""
        with self._lock:
            self._failures = 0

    def failed(self) -> None:
        """It did not work, after all tries that the caller had."""
        with self._lock:
            self._closed_until = self._clock() + self._wait_s
            self._failures += 1

    @property
    def _wait_s(self) -> float:
        return min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(self._failures, _MOST_DOUBLINGS))
