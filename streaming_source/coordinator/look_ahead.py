"""Event times of sources that have no index of them: the planner reads ahead of the readers to learn them.

Each split in work has a `SplitReader` of its own in the planner, whose fetches are made on worker threads. Of what they
bring only positions and event times are kept, until a plan hands the records out; the readers then read exactly these
again. So every source is cut exactly and read exactly once, whatever it knows ahead of reading. The price is that every
record is read twice, once of it in one process; only the columns that event times are made of are read there.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from alignment.watermarks import MIN_WATERMARK
from streaming_source.api import CaughtUp, Source, SourceSplit, SplitRange, SupportsEventTimeIndex
from streaming_source.coordinator.ahead_reader import AheadReader, Fetched, columns_for_times
from streaming_source.coordinator.calls import AsyncCalls
from streaming_source.coordinator.context import CoordinatorContext
from streaming_source.coordinator.seen import SeenRecords
from streaming_source.coordinator.workers import WORKERS, Workers

__all__ = ["LOOK_AHEAD_ROWS", "LookAhead"]

_log = logging.getLogger(__name__)

SplitT = TypeVar("SplitT", bound=SourceSplit)

LOOK_AHEAD_ROWS: Final = 4_000_000
"""Records seen and not handed out, over all splits: 8 bytes each, 16 where positions have gaps."""

_AT_ONCE: Final = WORKERS - 2
"""Fetches under way at once: one worker is left for discovery, and one to wake those that block."""

_MAX_OPEN: Final = 64
"""With more splits than this a `SplitReader` is closed after each fetch: connections and files are not without end."""

_FIRST_RETRY_S: Final = 0.02
_LAST_RETRY_S: Final = 0.5
"""How soon to fetch again what brought nothing: later from time to time."""

_FIRST_PATIENCE_S: Final = 0.5
_LAST_PATIENCE_S: Final = 4.0
"""How long a fetch may block before it is woken. When the longest was in vain, there was nothing to fetch."""


class _Look(Generic[SplitT]):
    """One split. What workers change is guarded by the lock of the `LookAhead`; `seen` is the coordinator's alone."""

    def __init__(self, split: SplitT, reader: AheadReader[SplitT]) -> None:
        self.split = split
        self.reader = reader
        self.seen = SeenRecords(split.position)
        # Of what the coordinator took over: when a fetch began that found nothing; whether any was, whether the last.
        self.observed_us = MIN_WATERMARK
        self.is_known = self.is_done = False
        # Guarded by the lock.
        self.untaken = 0
        self.is_fetching = self.is_full = self.is_gone = self.is_woken = False
        self.fetches = 0
        self.retry_s = _FIRST_RETRY_S
        self.patience_s = _FIRST_PATIENCE_S
        self.last_arrival: _Arrival[SplitT] | None = None


@dataclass(slots=True, eq=False)
class _Arrival(Generic[SplitT]):
    """What a fetch brought, on its way to the coordinator."""

    look: _Look[SplitT]
    began_us: int
    fetched: Fetched | None
    error: BaseException | None
    found_nothing: bool = False
    is_last: bool = False

    def is_like(self, other: _Arrival[SplitT]) -> bool:
        """Whether both found nothing, and know the same of it."""
        if not (self.found_nothing and other.found_nothing) or self.fetched is None or other.fetched is None:
            return False
        return self.fetched.caught_up is other.fetched.caught_up


class LookAhead(SupportsEventTimeIndex[SplitT]):
    """Fills the index from the source's own `SplitReader`s, a bounded number of records ahead.

    Every split may be ahead by an equal share of the bound, and by one fetch more. Positions in the index are numbers
    of records, see `SeenRecords`.

    A split has been caught up with when a fetch brings nothing, by itself or after it was woken from a long wait; that
    is when its idleness begins, and where an AvailableNow run ends.

    Parameters
    ----------
    source
        What to read.
    context
        Takes the blocks.
    calls, workers, now_us
        Where and when work is done.
    max_rows
        Records seen and not handed out, over all splits.
    """

    def __init__(
        self,
        source: Source[SplitT, Any],
        context: CoordinatorContext[SplitT],
        calls: AsyncCalls,
        workers: Workers,
        now_us: Callable[[], int],
        max_rows: int,
    ) -> None:
        self._source = source
        self._context = context
        self._calls = calls
        self._workers = workers
        self._now_us = now_us
        self._max_rows = max_rows
        self._schema = columns_for_times(context.schema, context.timestamp_assigner)
        self._looks: dict[str, _Look[SplitT]] = {}
        self._drains_from_us: int | None = None
        # All below is guarded by the lock, which is held for moments only.
        self._lock = threading.Lock()
        self._ready: deque[_Look[SplitT]] = deque()
        self._under_way = 0
        self._share = max_rows
        self._arrived: list[_Arrival[SplitT]] = []

    # ---- splits --------------------------------------------------------------------------------------------------

    def restore_splits(self, splits: Sequence[SplitT]) -> None:
        """See `SupportsEventTimeIndex`. Those that were looked at before are looked at no more."""
        self._let_go(list(self._looks))
        self.add_splits(splits)

    def add_splits(self, splits: Sequence[SplitT]) -> None:
        """Look ahead in these, too."""
        assigner = self._context.timestamp_assigner
        new = [_Look(split, AheadReader(self._source, split, self._schema, assigner)) for split in splits]
        self._looks.update((look.split.split_id, look) for look in new)
        with self._lock:
            self._share = self._fair_share()
            self._ready.extend(new)
            self._begin_ready()

    def finish_split(self, split_id: str) -> None:
        """See `SupportsEventTimeIndex`."""
        self._let_go([split_id])

    def hand_out(self, split_ids: Sequence[str], numbers: Sequence[int]) -> None:
        """The records before these numbers are in a state that was handed out."""
        for split_id, number in zip(split_ids, numbers, strict=True):
            look = self._looks[split_id]
            if number > look.seen.handed_out:
                look.seen.hand_out(number)
                with self._lock:
                    if look.is_full and not self._fills(look):
                        look.is_full = False
                        self._ready.append(look)
        with self._lock:
            self._begin_ready()

    def drain(self) -> None:
        """From now on look no further once a split has been caught up with."""
        self._drains_from_us = self._now_us()

    def close(self) -> None:
        """Look no further. Fetches that block are woken, and not waited for."""
        self._let_go(list(self._looks))

    # ---- what the planner asks -----------------------------------------------------------------------------------

    def has_looked_at_all(self) -> bool:
        """Whether every split was fetched from. O(n)."""
        return all(look.is_known for look in self._looks.values())

    @property
    def is_settled(self) -> bool:
        """While draining: whether of every split something unread was seen, or everything. O(n)."""
        return all(look.is_done or look.seen.unread for look in self._looks.values())

    @property
    def is_at_rest(self) -> bool:
        """While draining: whether nothing more will be seen before more is handed out. O(n)."""
        with self._lock:
            return all(look.is_done or (look.is_full and not look.untaken) for look in self._looks.values())

    def position_at(self, split_id: str, number: int) -> int:
        """The position that stands for a number of records. O(log n)."""
        return self._looks[split_id].seen.position_at(number)

    def observed_us(self, split_ids: Sequence[str]) -> npt.NDArray[np.int64]:
        """`int64[n]`: when a fetch began that found nothing, and none has found anything since. O(n)."""
        return np.array([self._looks[split_id].observed_us for split_id in split_ids], np.int64)

    def event_times(self, split_id: str, start: int, stop: int) -> npt.NDArray[np.int64]:
        """See `SupportsEventTimeIndex`."""
        return self._looks[split_id].seen.times(start, stop)

    def split_at(self, split_id: str, position: int) -> SplitT:
        """See `SupportsEventTimeIndex`; `position` is a number of records."""
        look = self._looks[split_id]
        return look.split.at(look.seen.position_at(position))

    def ranges(self, start: SplitT, end: SplitT, rows_per_range: int) -> Sequence[SplitRange[SplitT]]:
        """See `SupportsEventTimeIndex`. Cut between what single fetches brought."""
        look = self._looks.get(end.split_id)
        seen = look.seen if look is not None else SeenRecords(end.position)
        parts = seen.cut(start.position, end.position, rows_per_range)
        return [SplitRange(start.at(begin).until(stop), rows) for begin, stop, rows in parts]

    # ---- fetching: on workers ------------------------------------------------------------------------------------

    def _begin_ready(self) -> None:
        """Under the lock."""
        while self._ready and self._under_way < _AT_ONCE:
            look = self._ready.popleft()
            if not look.is_gone:
                self._under_way += 1
                look.is_fetching = True
                self._workers.submit(partial(self._fetch, look))

    def _fetch(self, look: _Look[SplitT]) -> None:
        with self._lock:
            look.is_woken = look.is_gone
            number = look.fetches = look.fetches + 1
        self._workers.submit(partial(self._wake, look, number), look.patience_s)
        arrival = _Arrival(look, self._now_us(), None, None)
        try:
            if not look.is_gone:
                arrival.fetched = look.reader.fetch()
            if look.is_gone or len(self._looks) > _MAX_OPEN:
                look.reader.close()
        except BaseException as error:  # whatever it is, the query must hear of it
            error.add_note(f"while the planner read split {look.split.split_id!r} ahead")
            arrival.error = error
        with self._lock:
            self._under_way -= 1
            look.is_fetching = False
            if not look.is_gone:
                self._judge(arrival)
            self._begin_ready()

    def _wake(self, look: _Look[SplitT], number: int) -> None:
        with self._lock:
            if not look.is_fetching or look.fetches != number:
                return
            look.is_woken = True
        look.reader.wake_up()

    def _judge(self, arrival: _Arrival[SplitT]) -> None:
        """Under the lock: pass on what a fetch brought, and decide when to fetch again."""
        look, fetched = arrival.look, arrival.fetched
        if fetched is None:
            self._pass_on(arrival)
            return
        look.untaken += fetched.rows
        waited_enough = not look.is_woken or look.patience_s >= _LAST_PATIENCE_S
        has_all = waited_enough if fetched.caught_up is None else fetched.caught_up is not CaughtUp.NO
        arrival.found_nothing = not fetched.blocks and has_all
        drains = self._drains_from_us is not None and arrival.began_us >= self._drains_from_us
        arrival.is_last = fetched.finished or (drains and arrival.found_nothing)
        if look.is_woken and not fetched.blocks:
            look.patience_s = min(2 * look.patience_s, _LAST_PATIENCE_S)
        self._pass_on(arrival)
        if arrival.is_last:
            return
        if fetched.blocks:
            look.retry_s = _FIRST_RETRY_S
            look.is_full = self._fills(look)
            if not look.is_full:
                self._ready.append(look)
        else:
            self._workers.submit(partial(self._retry, look), look.retry_s)
            look.retry_s = min(2 * look.retry_s, _LAST_RETRY_S)

    def _retry(self, look: _Look[SplitT]) -> None:
        with self._lock:
            self._ready.append(look)
            self._begin_ready()

    def _fair_share(self) -> int:
        return max(self._max_rows // max(len(self._looks), 1), 1)

    def _fills(self, look: _Look[SplitT]) -> bool:
        return look.untaken + look.seen.unread >= self._share

    def _pass_on(self, arrival: _Arrival[SplitT]) -> None:
        last = arrival.look.last_arrival
        if last is not None and last.is_like(arrival) and not arrival.is_last:
            # As long as nobody takes them they do not pile up.
            last.began_us = arrival.began_us
            return
        arrival.look.last_arrival = arrival
        if not self._arrived:
            self._calls.post(self._take)
        self._arrived.append(arrival)

    # ---- on the coordinator's thread -----------------------------------------------------------------------------

    def _take(self) -> None:
        with self._lock:
            arrived, self._arrived = self._arrived, []
            for arrival in arrived:
                arrival.look.last_arrival = None
        for arrival in arrived:
            if arrival.error is not None:
                raise arrival.error
            if not arrival.look.is_gone:
                self._take_over(arrival)

    def _take_over(self, arrival: _Arrival[SplitT]) -> None:
        look, fetched = arrival.look, arrival.fetched
        assert fetched is not None
        split_id = look.split.split_id
        for block in fetched.blocks:
            low, high = block.bounds()
            self._context.add_blocks(split_id, len(block), low, high)
            with self._lock:
                look.seen.append(block)
                look.untaken -= len(block)
        if fetched.finished:
            self._context.complete_split(split_id)
        look.is_known = True
        look.is_done |= arrival.is_last
        if fetched.blocks or fetched.caught_up is CaughtUp.HELD_BACK:
            look.observed_us = MIN_WATERMARK
        elif arrival.found_nothing:
            look.observed_us = arrival.began_us
            self._context.observed_us = max(arrival.began_us, self._context.observed_us or 0)

    def _let_go(self, split_ids: Sequence[str]) -> None:
        looks = [look for split_id in split_ids if (look := self._looks.pop(split_id, None)) is not None]
        with self._lock:
            self._share = self._fair_share()
            for look in looks:
                look.is_gone = True
            fetching = {look for look in looks if look.is_fetching}
        for look in looks:
            try:
                if look in fetching:
                    look.reader.wake_up()
                else:
                    look.reader.close()
            except Exception:  # it is not needed any more
                _log.exception("closing the reader of split %r failed", look.split.split_id)
