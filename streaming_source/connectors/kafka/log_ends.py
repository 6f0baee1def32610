"""Where logs end, for the planner: asked for all partitions in one call, whoever wants to know of one."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from streaming_source.connectors.kafka.admin import KafkaAdmin, LogEnd, RetryPolicy
from streaming_source.connectors.kafka.client import ClientConfig
from streaming_source.connectors.kafka.subscription import Partition
from streaming_source.exceptions import SourceError

__all__ = ["LogEnds"]

_log = logging.getLogger(__name__)

_FRESH_S: Final = 0.2
_PATIENCE_S: Final = 2.0


class LogEnds:
    """Keeps ends for a moment, so that a thousand partitions are one question and not a thousand.

    It knows the splits that discovery has seen, and only those: before discovery has looked, a split of an offset may
    be one of a topic that was created again since. Used by many threads: one asks, the others wait for its answer.

    Parameters
    ----------
    ask
        Asks the brokers, see `KafkaAdmin.ends`.
    patience_s
        For how long failures are no error; `end` and `ask_again` raise `SourceError` after that.
    fresh_s
        How long an answer holds, and after a failure how long nobody asks.
    clock
        Seconds, monotonic.
    """

    def __init__(
        self,
        ask: Callable[[Sequence[Partition]], Mapping[Partition, LogEnd]],
        patience_s: float = math.inf,
        *,
        fresh_s: float = _FRESH_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._patience_s = patience_s
        self._fresh_s = fresh_s
        self._clock = clock
        self._lock = threading.Lock()
        self._there: Mapping[str, Partition] = {}
        self._gone: set[str] = set()
        self._known: Mapping[Partition, LogEnd] = {}
        self._fails_since: float | None = None
        self._asked_at: float | None = None

    @classmethod
    def of(cls, config: ClientConfig, patience_s: float) -> LogEnds:
        """Those that the brokers tell."""
        return cls(KafkaAdmin(config, RetryPolicy(min(_PATIENCE_S, patience_s))).ends, patience_s)

    def update(self, there: Mapping[str, Partition], gone: Iterable[str]) -> None:
        """Take what discovery has seen: partitions by split id, and ids of splits whose partitions are no more."""
        with self._lock:
            if there.keys() != self._there.keys():
                self._asked_at = None
            self._there = dict(there)
            self._gone.update(gone)

    def is_gone(self, split_id: str) -> bool:
        """Whether there will be nothing of a split any more."""
        return split_id in self._gone

    def end(self, split_id: str) -> LogEnd | None:
        """Of one split, not older than `fresh_s`; None if discovery has not seen it, or the brokers do not say.

        O(1), and O(n) where it asks.
        """
        with self._lock:
            part = self._there.get(split_id)
            if part is None:
                return None
            now = self._clock()
            if self._asked_at is None or now - self._asked_at >= self._fresh_s:
                self._look(now)
            return self._known.get(part)

    def ask_again(self) -> dict[str, LogEnd]:
        """Of all that are known, asked for now whatever is kept. O(n)."""
        with self._lock:
            if self._there:
                self._look(self._clock())
            return {split_id: self._known[part] for split_id, part in self._there.items() if part in self._known}

    def _look(self, now: float) -> None:
        try:
            self._known, self._fails_since = self._ask(sorted(self._there.values())), None
        except SourceError as error:
            if self._fails_since is None:
                self._fails_since = now
                _log.warning("nothing is idle until the brokers say where their logs end: %s", error)
            self._known = {}
            if self._clock() - self._fails_since >= self._patience_s:
                raise
        # When it was asked, not when the answer came: what was written since is not in it.
        self._asked_at = now if self._fails_since is None else self._clock()
