"""Clients that are kept from one micro-batch to the next: connections, consumers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

__all__ = ["KEPT_CLIENTS", "KeptClients"]

_log = logging.getLogger(__name__)

ClientT = TypeVar("ClientT")

_MAX_KEPT: Final = 64
_IDLE_SECONDS: Final = 60.0


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
        # In the order in which they were kept; few enough to be looked through.
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
        gone = max(old, len(self._kept) - self._max_kept)
        unused, self._kept = self._kept[:gone], self._kept[gone:]
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
