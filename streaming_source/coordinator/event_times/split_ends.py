"""Which splits have ended: what only their readers know, where no split has a stop."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Set
from contextlib import closing
from functools import partial
from typing import Any, Final, Generic, TypeAlias

from alignment.shown import log_of
from streaming_source.api import Source
from streaming_source.api.split import SplitT
from streaming_source.coordinator.enumerator_host import EnumeratorHost
from streaming_source.coordinator.event_times.ahead_reader import AheadReader

_log = log_of(__name__)

EndProbed: TypeAlias = Callable[[SplitT, int, int | None], None]
"""`(split, processing time in microseconds at which the probe began, position at which it has ended or None)`."""

_FIRST_WAIT_US: Final = 200_000
_LAST_WAIT_US: Final = 10_000_000
"""Microseconds after a probe that found no end before the next may be: twice as long each time."""

_PATIENCE_S: Final = 0.5
"""Seconds that a probe may block."""

_FETCHES: Final = 4
"""Fetches of one probe: a reader may return the last record, and then nothing, before it finishes its split."""

_AT_ONCE: Final = 4


class SplitEnds(Generic[SplitT]):
    """Fetches, in the planner, from the last known record of splits without a stop: what finishes there has ended.

    A task cannot report it: it reads a range that has a stop, where a `SplitReader` may finish any split. And what it
    reported would be lost with a planner that dies before its next offset is written; a probe is made again.
    `on_probed` is called on the coordinator's thread after each probe, and so are all methods here. What a reader
    raises is logged: whether a split has ended is not known then, and the tasks raise it too if it matters.
    """

    def __init__(
        self, source: Source[SplitT, Any], host: EnumeratorHost[SplitT, Any], on_probed: EndProbed[SplitT]
    ) -> None:
        self._new_reader: Callable[[], AheadReader[SplitT]] = partial(
            AheadReader, source, host.schema, host.timestamp_assigner, host.enumerator
        )
        self._calls = host.calls
        self._on_probed = on_probed
        # By split: from when on it may be probed again, and how long the wait after that probe will be.
        self._due: dict[str, tuple[int, int]] = {}
        self._waiting: deque[tuple[SplitT, int]] = deque()
        self._under_way: set[str] = set()

    def probe(self, split: SplitT, end: int, *, at_once: bool = False) -> None:
        """Find out whether a split ends at `end`, the position after its last known record, or its first position.

        At once, or if the wait since the last probe is over.
        """
        now_us, (due_us, wait_us) = self._calls.now_us(), self._due.get(split.split_id, (0, _FIRST_WAIT_US))
        if not at_once and (now_us < due_us or split.split_id in self._under_way):
            return
        self._due[split.split_id] = now_us + wait_us, min(2 * wait_us, _LAST_WAIT_US)
        self._waiting.append((split, end))
        self._begin()

    def split_ids(self) -> Set[str]:
        """Ids of the splits whose next probe is known."""
        return self._due.keys()

    def forget(self, split_id: str) -> None:
        self._due.pop(split_id, None)

    def _begin(self) -> None:
        while self._waiting and len(self._under_way) < _AT_ONCE:
            split, end = self._waiting.popleft()
            self._under_way.add(split.split_id)
            self._calls.workers.submit(partial(self._fetch, split, end))

    def _fetch(self, split: SplitT, end: int) -> None:
        """On a worker."""
        began_us, woken, ended_at = self._calls.now_us(), threading.Event(), None
        reader = self._new_reader()
        self._calls.workers.submit(partial(self._wake, reader, woken), _PATIENCE_S)
        try:
            with closing(reader):
                # With its last record: some readers finish a split with that, and not when they begin after it.
                ended_at = _end_of(reader, split.at(max(end - 1, split.position)), end, woken)
        except Exception:
            _log.warning("whether split %r has ended could not be found out", split.split_id, exc_info=True)
        woken.set()
        self._calls.post(partial(self._take, split, began_us, ended_at))

    def _wake(self, reader: AheadReader[SplitT], woken: threading.Event) -> None:
        if woken.is_set():
            return
        woken.set()
        try:
            reader.wake_up()
        except Exception:  # its fetch goes on, on a thread of its own
            _log.warning("a reader could not be woken that probes the end of its split", exc_info=True)

    def _take(self, split: SplitT, began_us: int, ended_at: int | None) -> None:
        self._under_way.discard(split.split_id)
        self._on_probed(split, began_us, ended_at)
        self._begin()


def _end_of(reader: AheadReader[SplitT], split: SplitT, end: int, woken: threading.Event) -> int | None:
    """Position at which a split ends that was known up to `end`; None if it goes on."""
    split_id, ahead = split.split_id, reader.take_over(split)
    for _ in range(_FETCHES):
        fetched = reader.fetch({split_id: ahead})[split_id]
        read_to = max((block.end for block in fetched.blocks), default=end)
        if fetched.finished:
            return max(read_to, end)
        if read_to > end or woken.is_set():
            break
    return None
