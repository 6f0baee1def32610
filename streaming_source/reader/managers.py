"""Which fetcher reads which split: the fetchers of one reader, from their start to their end."""

from __future__ import annotations

import logging
import threading
import time
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Final, Generic, TypeAlias, TypeVar

from streaming_source.api import SplitReader
from streaming_source.api.split import SplitT
from streaming_source.exceptions import SourceError
from streaming_source.reader.fetcher import DEFAULT_CAPACITY, ElementQueue, Handover, SplitFetcher

__all__ = [
    "AdaptiveFetcherManager",
    "FixedSizeSplitFetcherManager",
    "PerSplitFetcherManager",
    "SingleThreadFetcherManager",
    "SplitFetcherManager",
    "fetchers_needed",
]

ElementT = TypeVar("ElementT")
SplitReaderSupplier: TypeAlias = Callable[[], SplitReader[SplitT]]

_log = logging.getLogger(__name__)

_WARM_UP_FETCHES: Final = 2
"""The first fetches of a fetcher connect and open: they say nothing of its rate."""

_WEIGHT_OF_NEW: Final = 0.3


class SplitFetcherManager(ABC, Generic[SplitT, ElementT]):
    """Starts fetchers, gives them splits, and ends them. What remains for a subclass is whose a split is.

    All calls come from the reader's thread. Each fetcher has a new `SplitReader` of the supplier's: an old one may
    still be about to close when the next one is made, so they share nothing. `queue` leads from the fetchers to the
    reader, and holds `queue_capacity` fetches.
    """

    def __init__(
        self, split_reader_supplier: SplitReaderSupplier[SplitT], *, queue_capacity: int = DEFAULT_CAPACITY
    ) -> None:
        self.queue: ElementQueue[Handover[ElementT]] = ElementQueue(queue_capacity)
        self._supplier = split_reader_supplier
        self._live: dict[Hashable, SplitFetcher[SplitT, ElementT]] = {}
        self._started: list[SplitFetcher[SplitT, ElementT]] = []
        self._next_id = 0
        self._fetcher_of: dict[str, SplitFetcher[SplitT, ElementT]] = {}
        self._is_closed = False
        # For writing the one thing that fetchers' threads write.
        self._errors_lock = threading.Lock()
        self._error: BaseException | None = None

    @abstractmethod
    def key_of(self, split_id: str) -> Hashable:
        """Whose a split is: splits of one key are read by one fetcher. Asked once for each split that is added."""

    # ---- splits --------------------------------------------------------------------------------------------------

    def add_splits(self, splits: Sequence[SplitT]) -> None:
        """Give splits to fetchers, new ones where none of their key lives; an error if one of them is still read."""
        if self._is_closed:
            raise SourceError("splits were added to a reader that is closed")
        by_key: dict[Hashable, list[SplitT]] = {}
        for split in splits:
            if split.split_id in self._fetcher_of:
                raise SourceError(f"split {split.split_id!r} was added, and is being read already")
            by_key.setdefault(self.key_of(split.split_id), []).append(split)
        for key, group in by_key.items():
            is_new = key not in self._live
            fetcher = self._create_fetcher(key) if is_new else self._live[key]
            self._fetcher_of.update((split.split_id, fetcher) for split in group)
            fetcher.add_splits(group)
            if is_new:
                fetcher.start()
                self._started.append(fetcher)

    def remove_splits(self, split_ids: Sequence[str]) -> None:
        """Let go of splits, to move or to drop them; unknown ones are left out. A hand-over says when they are gone."""
        own: dict[SplitFetcher[SplitT, ElementT], list[str]] = {}
        for split_id in split_ids:
            if split_id in self._fetcher_of:
                own.setdefault(self._fetcher_of[split_id], []).append(split_id)
        for fetcher, ids in own.items():
            fetcher.remove_splits(ids)

    def forget_split(self, split_id: str) -> None:
        """A split came to its end, or was dropped, and the reader is done with it."""
        self._fetcher_of.pop(split_id, None)

    def is_read_by(self, split_id: str, fetcher: SplitFetcher[SplitT, ElementT]) -> bool:
        """Whether a split is this fetcher's."""
        return self._fetcher_of.get(split_id) is fetcher

    def move_split(self, split: SplitT) -> None:
        """A split is out of its fetcher, and was not dropped: the one whose it is now takes over from here."""
        del self._fetcher_of[split.split_id]
        self.add_splits([split])

    # ---- what was fetched ----------------------------------------------------------------------------------------

    def poll(self) -> Handover[ElementT] | None:
        """The next hand-over, None if there is none yet. Raises what `check_errors` raises."""
        self.check_errors()
        return self.queue.poll()

    def maybe_shutdown_finished_fetchers(self) -> bool:
        """End fetchers that are idle, once what they fetched is processed; whether none is left."""
        for key, fetcher in list(self._live.items()):
            if fetcher.is_idle:
                fetcher.shutdown(after_records_processed=True)
                del self._live[key]
        return not self._live

    def check_errors(self) -> None:
        """Raise the first error of any fetcher; what failed after it is in its notes."""
        if self._error is not None:
            raise self._error

    # ---- the end -------------------------------------------------------------------------------------------------

    def close(self, timeout_s: float) -> None:
        """End all fetchers, and wait for their threads. One that does not end in time is named in a warning.

        Errors in closing a `SplitReader` are for `check_errors` to raise.
        """
        self._is_closed = True
        for fetcher in self._started:
            fetcher.shutdown()
        self._recycle_queued()
        deadline = time.monotonic() + timeout_s
        late = [fetcher for fetcher in self._started if not fetcher.join(max(deadline - time.monotonic(), 0))]
        if late:
            _log.warning("not ended within %s s, left behind: %s", timeout_s, ", ".join(map(repr, late)))
        self._recycle_queued()

    def _create_fetcher(self, key: Hashable) -> SplitFetcher[SplitT, ElementT]:
        self._started = [fetcher for fetcher in self._started if not fetcher.closed.is_set()]
        fetcher = self._live[key] = self._new_fetcher(self._next_id, self._supplier())
        self._next_id += 1
        return fetcher

    def _new_fetcher(self, fetcher_id: int, split_reader: SplitReader[SplitT]) -> SplitFetcher[SplitT, ElementT]:
        return SplitFetcher(fetcher_id, split_reader, self.queue, self._note_error)

    def _note_error(self, fetcher: SplitFetcher[SplitT, ElementT], error: BaseException) -> None:
        """Called on a fetcher's thread."""
        if not isinstance(error, Exception):
            # SystemExit and the like would end more than this read.
            wrapped = SourceError(f"{fetcher!r} was ended by {error!r}")
            wrapped.__cause__ = error
            error = wrapped
        with self._errors_lock:
            if self._error is None:
                ids = ", ".join(map(repr, fetcher.split_ids)) or "no split"
                error.add_note(f"in {fetcher!r}, which read {ids}")
                self._error = error
            elif self._error is not error:
                self._error.add_note(f"after it {fetcher!r} failed as well: {error!r}")
        self.queue.notify_available()

    def _recycle_queued(self) -> None:
        while (handover := self.queue.poll()) is not None:
            handover.recycle()


class SingleThreadFetcherManager(SplitFetcherManager[SplitT, ElementT]):
    """One fetcher for all splits."""

    def key_of(self, split_id: str) -> Hashable:
        return 0


class FixedSizeSplitFetcherManager(SplitFetcherManager[SplitT, ElementT]):
    """At most so many fetchers; the CRC-32 of its id says whose a split is, the same in every process."""

    def __init__(
        self,
        split_reader_supplier: SplitReaderSupplier[SplitT],
        fetchers: int,
        *,
        queue_capacity: int = DEFAULT_CAPACITY,
    ) -> None:
        super().__init__(split_reader_supplier, queue_capacity=queue_capacity)
        if fetchers < 1:
            raise ValueError(f"fetchers = {fetchers}: must be at least 1")
        self._fetchers = fetchers

    def key_of(self, split_id: str) -> Hashable:
        return zlib.crc32(split_id.encode()) % self._fetchers


class PerSplitFetcherManager(SplitFetcherManager[SplitT, ElementT]):
    """A fetcher for each split."""

    def key_of(self, split_id: str) -> Hashable:
        return split_id


def fetchers_needed(fetch_s: float, process_s: float, active_splits: int, max_fetchers: int) -> int:
    """How many fetchers bring a fetch, of `fetch_s`, as often as the reader can process one, in `process_s`.

    That is `fetch_s / process_s` rounded up, and neither below 1 nor above the splits or the maximum.
    """
    most = max(min(active_splits, max_fetchers), 1)
    return most if fetch_s >= most * process_s else max(-int(-fetch_s // process_s), 1)


class AdaptiveFetcherManager(SplitFetcherManager[SplitT, ElementT]):
    """Begins with one fetcher, and spreads its splits over more where fetching is slower than processing.

    The rule, `fetchers_needed`: as many as the time of a fetch is times the time the reader takes over what it brings,
    both smoothed over the latest; at most one for each split. The number grows at once and does not shrink: fetchers
    without splits end by themselves. To reach it, splits are taken from the fetchers that have more than their share:
    removed, and when all that was fetched of them is out, added to another fetcher from where they are. So the
    `SplitReader` must let go of splits (`SplitsRemoval`), and go on with a split in the state that `SplitState` gives.
    """

    def __init__(
        self,
        split_reader_supplier: SplitReaderSupplier[SplitT],
        *,
        max_fetchers: int = 8,
        queue_capacity: int = DEFAULT_CAPACITY,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(split_reader_supplier, queue_capacity=queue_capacity)
        if max_fetchers < 1:
            raise ValueError(f"max_fetchers = {max_fetchers}: must be at least 1")
        self._max_fetchers = max_fetchers
        self._clock = clock
        self._slots: dict[str, int] = {}
        self._fetchers = 1
        self._fetches = 0
        self._fetch_s = 0.0
        self._process_s = 0.0
        self._polled_at: float | None = None

    def key_of(self, split_id: str) -> Hashable:
        """The fetcher that has the fewest splits."""
        self._slots.pop(split_id, None)
        loads = Counter(self._slots.values())
        self._slots[split_id] = slot = min(range(self._fetchers), key=loads.__getitem__)
        return slot

    def forget_split(self, split_id: str) -> None:
        super().forget_split(split_id)
        self._slots.pop(split_id, None)

    def poll(self) -> Handover[ElementT] | None:
        """See `SplitFetcherManager`; measures, and spreads the splits."""
        if self._polled_at is not None:
            self._process_s = self._smooth(self._process_s, self._clock() - self._polled_at)
        handover = super().poll()
        if handover is None or handover.removed:
            self._polled_at = None
            return handover
        self._fetches += 1
        self._fetch_s = self._smooth(self._fetch_s, handover.seconds)
        if self._fetches > _WARM_UP_FETCHES:
            self._spread()
        self._polled_at = self._clock()
        return handover

    def _smooth(self, mean: float, new: float) -> float:
        return new if self._fetches <= _WARM_UP_FETCHES else mean + _WEIGHT_OF_NEW * (new - mean)

    def _spread(self) -> None:
        active = len(self._slots)
        needed = fetchers_needed(self._fetch_s, self._process_s, active, self._max_fetchers)
        if needed <= self._fetchers:
            return
        self._fetchers = needed
        share = -(-active // needed)
        kept = Counter[int]()
        surplus = []
        for split_id, slot in self._slots.items():
            kept[slot] += 1
            if kept[slot] > share:
                surplus.append(split_id)
        self.remove_splits(surplus)
