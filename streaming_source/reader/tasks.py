"""What a fetcher's thread does, task by task."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from streaming_source.api import RecordsBySplits, SourceSplit, SplitsAddition, SplitsRemoval
from streaming_source.reader.handover import Handover
from streaming_source.reader.queue import ElementQueue

if TYPE_CHECKING:
    from streaming_source.reader.fetcher import SplitFetcher

__all__ = ["AddSplitsTask", "FetchTask", "PauseOrResumeSplitsTask", "RemoveSplitsTask", "SplitFetcherTask"]

SplitT = TypeVar("SplitT", bound=SourceSplit)
ElementT = TypeVar("ElementT")


class SplitFetcherTask(ABC):
    """A step of a fetcher. Runs on its thread, outside of its lock."""

    @abstractmethod
    def run(self) -> bool:
        """Do it; False to be called once more before any other task."""

    def wake_up(self) -> None:  # noqa: B027 (most tasks do not block)
        """Make `run` return soon, if it can block. Called from other threads, also when it is not running."""


class AddSplitsTask(SplitFetcherTask, Generic[SplitT]):
    """Takes over splits."""

    def __init__(self, fetcher: SplitFetcher[SplitT, Any], splits: Sequence[SplitT]) -> None:
        self._fetcher = fetcher
        self._splits = splits

    def run(self) -> bool:
        """See `SplitFetcherTask`."""
        self._fetcher.assign(self._splits)
        self._fetcher.split_reader.handle_splits_changes(SplitsAddition(self._splits))
        return True


class RemoveSplitsTask(SplitFetcherTask, Generic[SplitT]):
    """Lets go of splits; those that have finished meanwhile are left out."""

    def __init__(self, fetcher: SplitFetcher[SplitT, Any], split_ids: Sequence[str]) -> None:
        self._fetcher = fetcher
        self._split_ids = split_ids

    def run(self) -> bool:
        """See `SplitFetcherTask`."""
        splits = self._fetcher.assigned(self._split_ids)
        if splits:
            self._fetcher.split_reader.handle_splits_changes(SplitsRemoval(splits))
            self._fetcher.leave([split.split_id for split in splits])
        return True


class PauseOrResumeSplitsTask(SplitFetcherTask, Generic[SplitT]):
    """Pauses and resumes splits; those that have finished meanwhile are left out."""

    def __init__(self, fetcher: SplitFetcher[SplitT, Any], to_pause: Sequence[str], to_resume: Sequence[str]) -> None:
        self._fetcher = fetcher
        self._to_pause = to_pause
        self._to_resume = to_resume

    def run(self) -> bool:
        """See `SplitFetcherTask`."""
        reader = self._fetcher.split_reader
        to_pause, to_resume = self._fetcher.assigned(self._to_pause), self._fetcher.assigned(self._to_resume)
        if reader.supports_pausing and (to_pause or to_resume):
            reader.pause_or_resume_splits(to_pause, to_resume)
        self._fetcher.mark_paused(self._to_pause, self._to_resume)
        return True


class FetchTask(SplitFetcherTask, Generic[SplitT, ElementT]):
    """Fetches once, and puts what it brought into the queue.

    A wake-up can come at any moment. What was fetched and could not be put is kept for the next run, so that nothing is
    lost and nothing fetched twice.
    """

    def __init__(self, fetcher: SplitFetcher[SplitT, ElementT], queue: ElementQueue[Handover[ElementT]]) -> None:
        self._fetcher = fetcher
        self._queue = queue
        self._fetched: Handover[ElementT] | None = None
        self._woken = False

    @property
    def holds_records(self) -> bool:
        """Whether something was fetched and is not in the queue yet."""
        return self._fetched is not None

    def run(self) -> bool:
        """See `SplitFetcherTask`."""
        try:
            if self._fetched is None and not self._woken:
                self._fetched = self._next()
            # Asked again, after `_fetched` was set: from here on `wake_up` wakes the put.
            if self._fetched is not None and not self._woken:
                self._put(self._fetched)
        finally:
            self._woken = False
        return True

    def wake_up(self) -> None:
        """See `SplitFetcherTask`."""
        self._woken = True
        if self._fetched is None:
            self._fetcher.split_reader.wake_up()
        else:
            self._queue.wake_up(self._fetcher.fetcher_id)

    def _next(self) -> Handover[ElementT]:
        left = self._fetcher.take_left()
        if left:
            return Handover(self._fetcher, RecordsBySplits(), removed=left)
        began = time.perf_counter()
        records = self._fetcher.split_reader.fetch()
        seconds = time.perf_counter() - began
        finished = self._fetcher.finish(records.finished_splits)
        return Handover(self._fetcher, records, finished, seconds=seconds)

    def _put(self, fetched: Handover[ElementT]) -> None:
        # Counted before the reader can see it: it may be recycled before put returns.
        self._fetcher.count_handed_over(1)
        if self._queue.put(self._fetcher.fetcher_id, fetched):
            self._fetched = None
        else:
            self._fetcher.count_handed_over(-1)
