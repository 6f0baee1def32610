"""What one reader does in one micro-batch; and a reader that fetches on its own thread, always in the same order."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from alignment.events import RangeReport
from alignment.timestamps import NO_TIMESTAMP
from streaming_source.api import (
    InputStatus,
    ReaderOutput,
    Source,
    SourceEvent,
    SourceReader,
    SourceReaderContext,
    SourceSplit,
    SplitReader,
)
from streaming_source.api.split import SplitT
from streaming_source.reader import SourceReaderBase, SplitFetcher, SplitFetcherManager
from streaming_source.reader.fetcher import Handover
from streaming_source.testing.output import EmittedRecord

__all__ = ["PATIENCE_S", "InlineFetcherManager", "ReadTask", "ReaderHook", "create_inline_reader", "reports_of"]

ElementT = TypeVar("ElementT")

PATIENCE_S: Final = 30.0
ReaderHook: TypeAlias = Callable[[SourceReader[Any], int], None]
"""`(reader, number of the poll)`, called before each poll of a reader."""

_ENOUGH_POLLS: Final = 100_000


@dataclass(frozen=True, slots=True)
class ReadTask:
    """What one reader is given, its ranges pickled as they travel to executors: the same when the task is repeated."""

    subtask_id: int
    splits: bytes
    events: tuple[SourceEvent, ...]

    @classmethod
    def of(cls, subtask_id: int, splits: Sequence[SourceSplit], events: Sequence[SourceEvent]) -> ReadTask:
        return cls(subtask_id, pickle.dumps(list(splits)), tuple(events))

    def ranges(self) -> list[SourceSplit]:
        ranges: list[SourceSplit] = pickle.loads(self.splits)
        return ranges

    def run(
        self,
        create_reader: Callable[[], SourceReader[Any]],
        output: ReaderOutput,
        hook: ReaderHook | None,
        wait_s: float,
    ) -> None:
        """Read the ranges, with a reader of its own for each further range of a split: readers know splits by ids.

        A reader may have nothing for `wait_s`; records that were planned and do not come are an error.
        """
        events, remaining = self.events, self.ranges()
        while remaining:
            now: dict[str, SourceSplit] = {}
            for split in remaining:
                now.setdefault(split.split_id, split)
            reader = create_reader()
            try:
                reader.add_splits(list(now.values()))
                reader.notify_no_more_splits()
                reader.start()
                for event in events:
                    reader.handle_source_events(event)
                _poll_to_the_end(reader, output, hook, wait_s)
            finally:
                reader.close()
            remaining, events = [split for split in remaining if split is not now[split.split_id]], ()


def reports_of(ranges: Sequence[SourceSplit], records: Sequence[EmittedRecord]) -> list[RangeReport]:
    """What a reader of these ranges reports of the records that it emitted, found record by record."""
    reports = []
    for split in ranges:
        stop = split.position if split.stop is None else split.stop
        read = [r.time_us for r in records if r.split_id == split.split_id and split.position <= r.position < stop]
        timed = [time_us for time_us in read if time_us != NO_TIMESTAMP]
        earliest, latest = min(timed, default=NO_TIMESTAMP), max(timed, default=NO_TIMESTAMP)
        reports.append(RangeReport(split.split_id, split.position, stop, earliest, latest))
    return reports


def _poll_to_the_end(reader: SourceReader[Any], output: ReaderOutput, hook: ReaderHook | None, wait_s: float) -> None:
    for poll in range(_ENOUGH_POLLS):
        if hook is not None:
            hook(reader, poll)
        status = reader.poll_next(output)
        if status is InputStatus.END_OF_INPUT:
            return
        if status is InputStatus.NOTHING_AVAILABLE:
            _wait_for(reader, wait_s)
    raise AssertionError(f"after {_ENOUGH_POLLS} polls the splits {_left(reader)} have not come to their end")


def _wait_for(reader: SourceReader[Any], wait_s: float) -> None:
    available = reader.is_available()
    try:
        available.result(wait_s)
    except TimeoutError:
        raise AssertionError(
            f"the reader waits for records of {_left(reader)} that were planned and do not come"
        ) from None


def _left(reader: SourceReader[Any]) -> list[str]:
    return [split.split_id for split in reader.snapshot_state()]


def create_inline_reader(
    source: Source[SplitT, Any], context: SourceReaderContext, patience_s: float = PATIENCE_S
) -> SourceReaderBase[SplitT, Any]:
    """The base reader of a source (`streaming_source.reader.create_base_reader`), without threads.

    Its `SplitReader` must not wait in `fetch` for records that are not there. After `patience_s` of fetching in vain,
    by the wall clock, the reader has nothing available.
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
        self.end()
        return True

    def step(self) -> bool:
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
    """Fetches when the reader polls, and its queue is empty. Splits share fetchers as the source says."""

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

    def _new_fetcher(self, fetcher_id: int, split_reader: SplitReader[SplitT]) -> SplitFetcher[SplitT, Any]:
        return _InlineFetcher(fetcher_id, split_reader, self.queue, self._note_error)
