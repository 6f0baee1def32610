"""A reader that fetches on its own thread: the same steps in the same order, every time."""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import Any, Final, TypeVar

from streaming_source.api import Source, SourceReaderContext, SourceSplit, SplitReader
from streaming_source.reader import SourceReaderBase, SplitFetcher, SplitFetcherManager
from streaming_source.reader.fetcher import Handover

__all__ = ["PATIENCE_S", "InlineFetcherManager", "create_inline_reader"]

SplitT = TypeVar("SplitT", bound=SourceSplit)
ElementT = TypeVar("ElementT")


PATIENCE_S: Final = 30.0


def create_inline_reader(
    source: Source[SplitT, Any], context: SourceReaderContext, patience_s: float = PATIENCE_S
) -> SourceReaderBase[SplitT, Any]:
    """The base reader of a source (`streaming_source.reader.create_base_reader`), without threads.

    Its `SplitReader` must not wait in `fetch` for records that are not there.

    Parameters
    ----------
    source, context
        See `create_base_reader`.
    patience_s
        How long may be fetched in vain, by the wall clock; then the reader has nothing available.
    """
    manager = InlineFetcherManager(source, context, patience_s)
    emitter = source.create_record_emitter(context)
    return SourceReaderBase(manager, emitter, context, end_of_stream=source.end_of_stream)


class _InlineFetcher(SplitFetcher[SplitT, ElementT]):
    """Takes a step whenever the reader has nothing to do."""

    _failed = False

    def start(self) -> None:
        """See `SplitFetcher`. No thread is needed."""

    def join(self, timeout_s: float) -> bool:
        """See `SplitFetcher`. Ends at once."""
        self.end()
        return True

    def step(self) -> bool:
        """Take a step if there is one."""
        try:
            return not self._failed and self.run_once(wait=False)
        except BaseException as error:  # as on a thread: the reader hears of it when it polls
            self._failed = True
            self._on_error(self, error)
            return False

    def end(self, *, once_processed: bool = False) -> None:
        """Close the `SplitReader`, if the fetcher was shut down; with `once_processed`, if all it brought is out."""
        if self.closed.is_set() or not self._shut_down:
            return
        if once_processed and self._handed_over:
            return
        self.closed.set()
        try:
            self.split_reader.close()
        except BaseException as error:  # as on a thread
            self._on_error(self, error)


class InlineFetcherManager(SplitFetcherManager[SplitT, Any]):
    """Fetches when the reader polls, and its queue is empty. Splits share fetchers as the source says.

    Parameters
    ----------
    source, context
        Where `SplitReader`s come from.
    patience_s
        How long may be fetched in vain.
    """

    def __init__(
        self, source: Source[SplitT, Any], context: SourceReaderContext, patience_s: float = PATIENCE_S
    ) -> None:
        super().__init__(lambda: source.create_split_reader(context), queue_capacity=1)
        self._fetching = source.fetching
        self._metrics = context.metrics
        self._patience_s = patience_s
        # How many records were out when there was news of them, and when that was.
        self._last_news: tuple[int, float] | None = None

    def key_of(self, split_id: str) -> Hashable:
        """See `SplitFetcherManager`."""
        return self._fetching.key_of(split_id)

    def poll(self) -> Handover[Any] | None:
        """See `SplitFetcherManager`. Lets the fetchers run, one after another, until one has brought something."""
        for fetcher in self._started:
            assert isinstance(fetcher, _InlineFetcher)
            fetcher.end(once_processed=True)
        progress = self._is_patient()
        while not len(self.queue) and progress:
            progress = False
            for fetcher in list(self._live.values()):
                assert isinstance(fetcher, _InlineFetcher)
                if not len(self.queue):
                    progress |= fetcher.step()
        return super().poll()

    def _is_patient(self) -> bool:
        now = time.monotonic()
        if self._last_news is None or self._last_news[0] != self._metrics.records:
            self._last_news = (self._metrics.records, now)
        return now - self._last_news[1] <= self._patience_s

    def _new_fetcher(
        self,
        fetcher_id: int,
        split_reader: SplitReader[SplitT],
        predecessor: SplitFetcher[SplitT, Any] | None,
    ) -> SplitFetcher[SplitT, Any]:
        return _InlineFetcher(fetcher_id, split_reader, self.queue, self._note_error)
