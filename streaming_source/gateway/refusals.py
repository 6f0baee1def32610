"""Why a gateway refuses a message, and how often it did."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import Final

__all__ = ["Refusal", "RefusalCounts", "RefusedError"]

_log = logging.getLogger(__name__)

_LOG_EVERY_S: Final = 60.0


class Refusal(Enum):
    """What is wrong with a message."""

    NO_TOKEN = "no token"
    WRONG_TOKEN = "wrong token"
    OTHER_QUERY = "token or message of another query"
    REPLAYED = "replayed"
    STALE = "of an old micro-batch"
    OVERSIZED = "oversized"
    MALFORMED = "malformed"
    UNKNOWN_ACTION = "unknown action"
    CROWDED = "too many at once"


class RefusedError(Exception):
    """A message is refused; says why, and nothing of what it holds."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.value)
        self.refusal = refusal


class RefusalCounts:
    """Counts refusals by reason, and logs now and then that there were some. From any thread.

    Parameters
    ----------
    clock
        Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Counter[Refusal] = Counter()
        self._logged_at: float | None = None

    def add(self, refusal: Refusal) -> None:
        """Count one; log at most once a minute, without a word of the message."""
        with self._lock:
            self._counts[refusal] += 1
            now = self._clock()
            if self._logged_at is not None and now - self._logged_at < _LOG_EVERY_S:
                return
            self._logged_at = now
            counts = dict(self._counts)
        _log.warning(
            "the gateway refused a message: %s; refused so far: %s",
            refusal.value,
            ", ".join(f"{count} {reason.value}" for reason, count in counts.items()),
        )

    def snapshot(self) -> dict[Refusal, int]:
        """How many there were of each; without those of which there were none."""
        with self._lock:
            return dict(self._counts)
