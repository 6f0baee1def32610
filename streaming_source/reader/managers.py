"""Which fetcher reads which split: the fetchers of one reader, from their start to their end."""

from __future__ import annotations

import threading
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeAlias, TypeVar

from alignment.shown import log_of
from streaming_source.api import SplitReader
from streaming_source.api.split import SplitT
from streaming_source.exceptions import SourceError
from streaming_source.reader.fetcher import DEFAULT_CAPACITY, ElementQueue, Handover, SplitFetcher

ElementT = TypeVar("ElementT")
SplitReaderSupplier: TypeAlias = Callable[[], SplitReader[SplitT]]

_log = log_of(__name__)


class SplitFetcherManager(ABC, Generic[SplitT, ElementT]):
    """Starts fetchers, gives them splits, and ends them; a subclass decides which fetcher reads a split.

    All calls come from the reader's thread. The supplier makes a new `SplitReader` for each fetcher: an old one may not
    be closed yet when the next is made, so they share nothing. `queue` leads from the fetchers to the reader, and holds
    `queue_capacity` fetches.
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
        # Guards `_error`, the only field that fetchers' threads write.
        self._errors_lock = threading.Lock()
        self._error: BaseException | None = None

    @abstractmethod
    def key_of(self, split_id: str) -> Hashable:
        """Return the key of a split, called once: one fetcher reads all splits of a key."""

    # ---- splits --------------------------------------------------------------------------------------------------

    def add_splits(self, splits: Sequence[SplitT]) -> None:
        """Assign splits to fetchers, starting one for each new key; raises an error if a split is still read."""
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
        """Stop reading splits; unknown ones are ignored. A hand-over has their ids after their last records."""
        own: dict[SplitFetcher[SplitT, ElementT], list[str]] = {}
        for split_id in split_ids:
            if split_id in self._fetcher_of:
                own.setdefault(self._fetcher_of[split_id], []).append(split_id)
        for fetcher, ids in own.items():
            fetcher.remove_splits(ids)

    def forget_split(self, split_id: str) -> None:
        """Forget a split that was read to its end or removed, after the reader has released it."""
        self._fetcher_of.pop(split_id, None)

    def is_read_by(self, split_id: str, fetcher: SplitFetcher[SplitT, ElementT]) -> bool:
        """Return whether this fetcher reads the split."""
        return self._fetcher_of.get(split_id) is fetcher

    # ---- what was fetched ----------------------------------------------------------------------------------------

    def poll(self) -> Handover[ElementT] | None:
        """Return the next hand-over, None if there is none yet. Raises as `check_errors` does."""
        self.check_errors()
        return self.queue.poll()

    def maybe_shutdown_finished_fetchers(self) -> bool:
        """End idle fetchers after their records are processed; return whether no fetcher is left."""
        for key, fetcher in list(self._live.items()):
            if fetcher.is_idle:
                fetcher.shutdown(after_records_processed=True)
                del self._live[key]
        return not self._live

    def check_errors(self) -> None:
        """Raise the first error of any fetcher; its notes have later errors."""
        if self._error is not None:
            raise self._error

    # ---- the end -------------------------------------------------------------------------------------------------

    def close(self, timeout_s: float) -> None:
        """End all fetchers, and wait for their threads. A warning names each thread that does not end in time.

        `check_errors` raises errors in closing a `SplitReader`.
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
        """Keep an error; called on a fetcher's thread."""
        if not isinstance(error, Exception):
            # SystemExit and similar errors would end the process.
            wrapped = SourceError(f"{fetcher!r} was ended by {error!r}")
            wrapped.__cause__ = error
            error = wrapped
        with self._errors_lock:
            if self._error is None:
                ids = ", ".join(map(repr, fetcher.split_ids)) or "no split"
                error.add_note(f"(in {fetcher!r}, which read {ids})")
                self._error = error
            elif self._error is not error:
                self._error.add_note(f"(after it {fetcher!r} failed as well: {error!r})")
        self.queue.notify_available()

    def _recycle_queued(self) -> None:
        while (handover := self.queue.poll()) is not None:
            handover.recycle()


class SingleThreadFetcherManager(SplitFetcherManager[SplitT, ElementT]):
    """One fetcher for all splits."""

    def key_of(self, split_id: str) -> Hashable:
        return 0


class FixedSizeSplitFetcherManager(SplitFetcherManager[SplitT, ElementT]):
    """A fixed maximum of fetchers; the CRC-32 of a split's id selects its fetcher, the same in every process."""

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
