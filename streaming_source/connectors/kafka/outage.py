"""Since when no broker has answered."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

__all__ = ["Outage"]

_log = logging.getLogger(__name__)

_SILENT_S: Final = 2.0
"""A call that waits for less is no outage."""


class Outage:
    """Measures for how long a cluster has been silent: since the first call that no broker has answered.

    `brokers` are the addresses that the user gave; after `patience_s` the query fails. Used by all clients of one
    planner, from any thread.
    """

    def __init__(
        self,
        brokers: str,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._brokers = brokers
        self._patience_s = patience_s
        self._clock, self._wall_clock = clock, wall_clock
        self._lock = threading.Lock()
        # The time of that call by both clocks.
        self._since: tuple[float, float] | None = None
        self._why = ""
        self._is_logged = False

    def begin(self) -> None:
        """Record that a call is made."""
        with self._lock:
            self._since = self._since or (self._clock(), self._wall_clock())

    def fail(self, why: str) -> None:
        """Record that no broker has answered."""
        with self._lock:
            self._why = f" ({why})"

    def end(self) -> None:
        """Record that a broker has answered."""
        with self._lock:
            was_logged, self._since, self._why, self._is_logged = self._is_logged, None, "", False
        if was_logged:
            _log.warning("the Kafka brokers at %s answer again", self._brokers)

    def description(self) -> str | None:
        """Describe the outage, with what follows from it; None while brokers answer. Logs it once."""
        with self._lock:
            if self._since is None or self._clock() - self._since[0] < _SILENT_S:
                return None
            since, until = (_time_of_day(at) for at in (self._since[1], self._since[1] + self._patience_s))
            text = (
                f"no Kafka broker at {self._brokers} has answered since {since}{self._why}; if none does, the query "
                f"fails at {until} (brokerTimeout), and goes on from its checkpoint when it is started again"
            )
            is_new, self._is_logged = not self._is_logged, True
        if is_new:
            _log.warning("%s. See that they run, and can be reached from the driver", text)
        return text


def _time_of_day(seconds: float) -> str:
    return time.strftime("%H:%M:%S UTC", time.gmtime(seconds))
