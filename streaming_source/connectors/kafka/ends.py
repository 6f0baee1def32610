"""Where logs end, for the planner: asked for all partitions in one call, whoever wants to know of one."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from streaming_source.connectors.kafka.admin import KafkaAdmin, Patience
from streaming_source.connectors.kafka.config import ClientConfig
from streaming_source.connectors.kafka.starting import LATEST
from streaming_source.connectors.kafka.subscription import Partition
from streaming_source.exceptions import SourceError

__all__ = ["LogEnd", "LogEnds"]

_log = logging.getLogger(__name__)

_FRESH_S: Final = 0.2
_WANTED_S: Final = 60.0
_PATIENCE_S: Final = 2.0


class LogEnd(NamedTuple):
    """The end of a partition's log.

    Attributes
    ----------
    readable
        Offset before which all that is there can be read, under the isolation level of the consumer.
    written
        Offset before which there is something: beyond `readable` by what a transaction that is open holds back.
    """

    readable: int
    written: int


Ask: TypeAlias = Callable[[Sequence[Partition]], Mapping[Partition, LogEnd]]
"""The ends of partitions, as far as they are there. Raises `SourceError` if the brokers do not say."""


class LogEnds:
    """Keeps ends for a moment, so that a thousand partitions are one question and not a thousand.

    May be used by many threads: one asks, the others wait for its answer.

    Parameters
    ----------
    ask
        Asks the brokers.
    fresh_s
        How long an answer holds, and after a failure how long nobody asks.
    clock
        Seconds, monotonic.
    """

    def __init__(self, ask: Ask, fresh_s: float = _FRESH_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._fresh_s = fresh_s
        self._clock = clock
        self._lock = threading.Lock()
        self._wanted: dict[Partition, float] = {}
        self._known: Mapping[Partition, LogEnd] = {}
        self._fails = False
        self._asked_at: float | None = None

    def end(self, part: Partition) -> LogEnd | None:
        """Of one partition, not older than `fresh_s`; None if it was not asked for, or the brokers do not say.

        O(1), and O(n) where it asks.
        """
        with self._lock:
            now = self._clock()
            self._wanted[part] = now
            if self._asked_at is None or now - self._asked_at >= self._fresh_s:
                self._look(now)
            return self._known.get(part)

    def want(self, parts: Iterable[Partition]) -> None:
        """Ask for these as well the next time, and for a minute. O(n)."""
        with self._lock:
            self._wanted.update(dict.fromkeys(parts, self._clock()))

    def _look(self, now: float) -> None:
        self._wanted = {part: at for part, at in self._wanted.items() if now - at < _WANTED_S}
        try:
            self._known, self._fails = self._ask(sorted(self._wanted)), False
        except SourceError as error:
            if not self._fails:
                _log.warning("nothing is idle until the brokers say where their logs end: %s", error)
            self._known, self._fails = {}, True
        # When it was asked, not when the answer came: what was written since is not in it.
        self._asked_at = self._clock() if self._fails else now

    @staticmethod
    def shared(config: ClientConfig) -> LogEnds:
        """Those that all readers of this process share which have the same settings."""
        with _SHARED_LOCK:
            if config not in _SHARED:
                _SHARED[config] = LogEnds(_Asking(KafkaAdmin(config, Patience(_PATIENCE_S))))
            return _SHARED[config]


_SHARED_LOCK: Final = threading.Lock()
_SHARED: Final[dict[ClientConfig, LogEnds]] = {}


class _Asking:
    """Asks twice where transactions may be open: where all ends first, then what can be read."""

    def __init__(self, admin: KafkaAdmin) -> None:
        self._admin = admin

    def __call__(self, parts: Sequence[Partition]) -> dict[Partition, LogEnd]:
        latest = dict.fromkeys(parts, LATEST)
        written = self._admin.offsets(latest, committed=False)
        readable = self._admin.offsets(latest) if self._admin.reads_committed else written
        return {
            part: LogEnd(until, max(until, written.get(part) or 0))
            for part, until in readable.items()
            if until is not None
        }
