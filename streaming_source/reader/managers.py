"""Which fetcher reads which split: the fetchers of one reader, from their start to their end."""

from __future__ import annotations

import logging
import threading
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Generic, TypeAlias, TypeVar

from streaming_source.api import SourceSplit, SplitReader
from streaming_source.exceptions import SourceError
from streaming_source.reader.fetcher import Handover, SplitFetcher
from streaming_source.reader.queue import DEFAULT_CAPACITY, ElementQueue

__all__ = [
    "FixedSizeSplitFetcherManager",
    "PerSplitFetcherManager",
    "SingleThreadFetcherManager",
    "SplitFetcherManager",
]

SplitT = TypeVar("SplitT", bound=SourceSplit)
ElementT = TypeVar("ElementT")
SplitReaderSupplier: TypeAlias = Callable[[], SplitReader[SplitT]]

_log = logging.getLogger(__name__)


class SplitFetcherManager(ABC, Generic[SplitT, ElementT]):
    """Starts fetchers, gives them splits, and ends them. What remains for a subclass is whose a split is.

    All calls come from the reader's thread.

    Parameters
    ----------
    split_reader_supplier
        Makes a new `SplitReader` for each fetcher. An old one may still be about to close when the next one is made:
        they share nothing.
    queue_capacity
        Fetches that wait for the reader before fetchers wait for it.

    Attributes
    ----------
    queue
        From the fetchers to the reader.
    """

    def __init__(
        self, split_reader_supplier: SplitReaderSupplier[SplitT], *, queue_capacity: int = DEFAULT_CAPACITY
    ) -> None:
        self.queue: ElementQueue[Handover[ElementT]] = ElementQueue(queue_capacity)
        self._supplier = split_reader_supplier
        self._live: dict[Hashable, SplitFetcher[SplitT, ElementT]] = {}
        self._ending: dict[Hashable, SplitFetcher[SplitT, ElementT]] = {}
        self._started: list[SplitFetcher[SplitT, ElementT]] = []
        self._next_id = 0
        self._fetcher_of: dict[str, SplitFetcher[SplitT, ElementT]] = {}
        self._is_closed = False
        # The one thing that fetchers' threads write.
        self._errors_lock = threading.Lock()
        self._error: BaseException | None = None

    @abstractmethod
    def key_of(self, split_id: str) -> Hashable:
        """Whose a split is: splits of one key are read by one fetcher. Asked once for each split that is added."""

    # ---- splits --------------------------------------------------------------------------------------------------

    def add_splits(self, splits: Sequence[SplitT]) -> None:
        """Give splits to fetchers, new ones where none of their key lives.

        Raises
        ------
        SourceError
            If the manager is closed, or a split of this id is still read.
        """
        if self._is_closed:
            raise SourceError("splits were added to a reader that is closed")
        by_key: dict[Hashable, list[SplitT]] = {}
        for split in splits:
            if split.split_id in self._fetcher_of:
                raise SourceError(f"split {split.split_id!r} was added, and is being read already")
            by_key.setdefault(self.key_of(split.split_id), []).append(split)
        for key, group in by_key.items():
            fetcher = self._live.get(key)
            is_new = fetcher is None
            if fetcher is None:
                fetcher = self._create_fetcher(key)
            self._fetcher_of.update((split.split_id, fetcher) for split in group)
            fetcher.add_splits(group)
            if is_new:
                fetcher.start()
                self._started.append(fetcher)

    def remove_splits(self, split_ids: Sequence[str]) -> None:
        """Stop reading splits; unknown ones are left out. A hand-over says when they are gone."""
        for fetcher, own in self._by_fetcher(split_ids).items():
            fetcher.remove_splits(own)

    def forget_split(self, split_id: str) -> None:
        """A split came to its end, or was removed, and the reader is done with it."""
        self._fetcher_of.pop(split_id, None)

    def is_read_by(self, split_id: str, fetcher: SplitFetcher[SplitT, ElementT]) -> bool:
        """Whether a split is this fetcher's."""
        return self._fetcher_of.get(split_id) is fetcher

    def is_moving(self, split_id: str) -> bool:
        """Whether a split was removed from its fetcher for another one to take over; `move_split` ends that."""
        return False

    def move_split(self, split: SplitT) -> None:
        """A split that was moving is out of its old fetcher: another one takes over from here."""
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
                self._ending[key] = self._live.pop(key)
        return not self._live

    def check_errors(self) -> None:
        """Raise the first error of any fetcher; what failed after it is in its notes."""
        with self._errors_lock:
            error = self._error
        if error is not None:
            raise error

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

    # ---- inside --------------------------------------------------------------------------------------------------

    def _create_fetcher(self, key: Hashable) -> SplitFetcher[SplitT, ElementT]:
        self._started = [fetcher for fetcher in self._started if not fetcher.closed.is_set()]
        self._ending = {key: fetcher for key, fetcher in self._ending.items() if not fetcher.closed.is_set()}
        fetcher = self._new_fetcher(self._next_id, self._supplier(), self._ending.pop(key, None))
        self._next_id += 1
        self._live[key] = fetcher
        return fetcher

    def _new_fetcher(
        self,
        fetcher_id: int,
        split_reader: SplitReader[SplitT],
        predecessor: SplitFetcher[SplitT, ElementT] | None,
    ) -> SplitFetcher[SplitT, ElementT]:
        return SplitFetcher(fetcher_id, split_reader, self.queue, self._note_error, predecessor)

    def _by_fetcher(self, split_ids: Collection[str]) -> dict[SplitFetcher[SplitT, ElementT], list[str]]:
        by_fetcher: dict[SplitFetcher[SplitT, ElementT], list[str]] = {}
        for split_id in split_ids:
            fetcher = self._fetcher_of.get(split_id)
            if fetcher is not None:
                by_fetcher.setdefault(fetcher, []).append(split_id)
        return by_fetcher

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
        """See `SplitFetcherManager`."""
        return 0


class FixedSizeSplitFetcherManager(SplitFetcherManager[SplitT, ElementT]):
    """At most so many fetchers; the CRC-32 of its id says whose a split is, the same in every process.

    Parameters
    ----------
    split_reader_supplier, queue_capacity
        See `SplitFetcherManager`.
    fetchers
        At least 1.

    Raises
    ------
    ValueError
        If `fetchers` is below 1.
    """

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
        """See `SplitFetcherManager`."""
        return zlib.crc32(split_id.encode()) % self._fetchers


class PerSplitFetcherManager(SplitFetcherManager[SplitT, ElementT]):
    """A fetcher for each split."""

    def key_of(self, split_id: str) -> Hashable:
        """See `SplitFetcherManager`."""
        return split_id
