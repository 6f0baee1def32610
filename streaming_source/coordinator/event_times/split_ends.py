"""Whether splits have ended, where event times are learnt from reports and only a `SplitReader` knows of the end."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any, Final, Generic, TypeAlias, TypeVar

from streaming_source.api import Source, SourceReaderContext, SourceSplit
from streaming_source.coordinator.calls import AsyncCalls
from streaming_source.coordinator.context import CoordinatorContext
from streaming_source.coordinator.event_times.ahead_reader import AheadReader, columns_for_times
from streaming_source.coordinator.workers import WORKERS, Workers

__all__ = ["EndLookedFor", "SplitEnds"]

SplitT = TypeVar("SplitT", bound=SourceSplit)

EndLookedFor: TypeAlias = Callable[[SplitT, int, int | None], None]
"""`(split, processing time in microseconds at which the look began, position at which it has ended or None)`."""

_log = logging.getLogger(__name__)

_FIRST_WAIT_US: Final = 200_000
_LAST_WAIT_US: Final = 10_000_000
"""How long after a look that found no end the next may be: twice as long each time."""

_PATIENCE_S: Final = 0.5
"""How long a look may block."""

_FETCHES: Final = 3
"""Of one look: a reader may bring nothing before it finishes its split."""

_AT_ONCE: Final = WORKERS // 2


class SplitEnds(Generic[SplitT]):
    """Fetches, in the planner, behind the last known record of splits without a stop: what finishes there has ended.

    A task cannot report it: it reads a range that has a stop, where a `SplitReader` may finish any split. And what it
    reported would be lost with a planner that dies before its next offset is written; a look is made again.

    Parameters
    ----------
    source
        Makes the readers.
    context
        Says what they read.
    calls, workers, now_us
        Where and when work is done.
    on_looked
        Called on the coordinator's thread after each look.

    Notes
    -----
    All methods are called on the coordinator's thread. What a reader raises is logged: whether a split has ended is not
    known then, and the tasks raise it too if it matters.
    """

    def __init__(
        self,
        source: Source[SplitT, Any],
        context: CoordinatorContext[SplitT],
        calls: AsyncCalls,
        workers: Workers,
        now_us: Callable[[], int],
        on_looked: EndLookedFor[SplitT],
    ) -> None:
        self._source = source
        self._assigner = context.timestamp_assigner
        schema = columns_for_times(context.schema, context.timestamp_assigner)
        self._reader_context = SourceReaderContext(schema, enumerator=context.enumerator)
        self._calls = calls
        self._workers = workers
        self._now_us = now_us
        self._on_looked = on_looked
        # By split: from when on it may be looked at again, and how long the wait after that look will be.
        self._due: dict[str, tuple[int, int]] = {}
        self._waiting: deque[SplitT] = deque()
        self._under_way: set[str] = set()
        self._closed = False

    def look(self, split: SplitT, *, at_once: bool = False) -> None:
        """Look whether a split ends at its position: if the wait since the last look is over, or at once."""
        now_us, (due_us, wait_us) = self._now_us(), self._due.get(split.split_id, (0, _FIRST_WAIT_US))
        if not at_once and (now_us < due_us or split.split_id in self._under_way):
            return
        self._due[split.split_id] = now_us + wait_us, min(2 * wait_us, _LAST_WAIT_US)
        self._waiting.append(split)
        self._begin()

    def forget(self, split_id: str) -> None:
        """The split has left."""
        self._due.pop(split_id, None)

    def close(self) -> None:
        """Begin no further look."""
        self._closed = True
        self._waiting.clear()

    def _begin(self) -> None:
        while self._waiting and len(self._under_way) < _AT_ONCE and not self._closed:
            split = self._waiting.popleft()
            self._under_way.add(split.split_id)
            self._workers.submit(partial(self._fetch, split))

    def _fetch(self, split: SplitT) -> None:
        """On a worker."""
        began_us, woken, ended_at = self._now_us(), threading.Event(), None
        reader = AheadReader(self._source, split, self._reader_context, self._assigner)
        self._workers.submit(partial(self._wake, reader, woken), _PATIENCE_S)
        try:
            with closing(reader):
                ended_at = _end_of(reader, split.position, woken)
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
            _log.warning("a reader could not be woken that looks for the end of its split", exc_info=True)

    def _take(self, split: SplitT, began_us: int, ended_at: int | None) -> None:
        self._under_way.discard(split.split_id)
        self._on_looked(split, began_us, ended_at)
        self._begin()


def _end_of(reader: AheadReader[Any], position: int, woken: threading.Event) -> int | None:
    """Position at which the split ends that is read from `position` on; None if it goes on."""
    for _ in range(_FETCHES):
        fetched = reader.fetch()
        if fetched.finished:
            return fetched.blocks[-1].end if fetched.blocks else position
        if fetched.blocks or woken.is_set():
            break
    return None
