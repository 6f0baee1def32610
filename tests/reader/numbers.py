"""A source of numbers for tests of readers: splits, readers that misbehave on demand, an output that remembers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from streaming_source.api import (
    BlockEmitter,
    InputStatus,
    ReaderOutput,
    RecordBlock,
    RecordsBySplits,
    RecordsWithSplitIds,
    SourceOutput,
    SourceReader,
    SourceReaderContext,
    SourceSplit,
    SplitReader,
    SplitsAddition,
    SplitsChange,
)
from streaming_source.reader import ElementQueue, SingleThreadFetcherManager, SourceReaderBase, SplitFetcherManager
from streaming_source.reader.fetcher import Handover

SCHEMA = pa.schema([("n", pa.int64())])
NUMBERS = pa.record_batch([pa.array(range(100_000))], schema=SCHEMA)
WAIT_S = 20.0


@dataclass(frozen=True, slots=True)
class Split(SourceSplit):
    """Numbers `[position, stop)`; without a stop, the numbers that there are for ever."""

    split_id: str
    position: int = 0
    stop: int | None = None

    def origin(self) -> Split:
        return Split(self.split_id, 0, self.stop)


def block(start: int, stop: int) -> RecordBlock:
    return RecordBlock(NUMBERS.slice(start, stop - start), start)


class NumberSplitReader(SplitReader[Split]):
    """Brings `per_fetch` numbers of each of its splits a fetch.

    A finished split ends with its last numbers, or with a fetch of its own where it had none left.
    """

    def __init__(self, per_fetch: int = 2) -> None:
        self.per_fetch = per_fetch
        self.splits: dict[str, Split] = {}
        self.log: list[tuple[str, Any]] = []
        self.closed = threading.Event()

    def handle_splits_changes(self, change: SplitsChange[Split]) -> None:
        kind = "add" if isinstance(change, SplitsAddition) else "remove"
        self.log.append((kind, [split.split_id for split in change.splits]))
        for split in change.splits:
            if kind == "add":
                self.splits[split.split_id] = split
            else:
                del self.splits[split.split_id]

    def fetch(self) -> RecordsWithSplitIds[RecordBlock]:
        elements, finished = {}, set()
        for split_id, split in list(self.splits.items()):
            stop = split.position + self.per_fetch
            stop = stop if split.stop is None else min(stop, split.stop)
            if stop > split.position:
                elements[split_id] = [block(split.position, stop)]
            self.splits[split_id] = Split(split_id, stop, split.stop)
            if stop == split.stop:
                finished.add(split_id)
                del self.splits[split_id]
        return RecordsBySplits(elements, finished)

    def close(self) -> None:
        assert not self.closed.is_set(), "closed twice"
        self.closed.set()


class BlockingSplitReader(NumberSplitReader):
    """A fetch waits until `release` was called once more, or for a wake-up."""

    def __init__(self, per_fetch: int = 2) -> None:
        super().__init__(per_fetch)
        self._permits = threading.Semaphore(0)
        self._woken = False
        self.is_fetching = threading.Event()
        self.wake_ups = 0

    def release(self, fetches: int = 1) -> None:
        self._permits.release(fetches)

    def fetch(self) -> RecordsWithSplitIds[RecordBlock]:
        self.is_fetching.set()
        assert self._permits.acquire(timeout=WAIT_S), "nobody released or woke the fetch"
        self.is_fetching.clear()
        if self._woken:
            self._woken = False
            return RecordsBySplits()
        return super().fetch()

    def wake_up(self) -> None:
        self.wake_ups += 1
        self._woken = True
        self._permits.release()


class FailingSplitReader(NumberSplitReader):
    """Fails after some good fetches."""

    def __init__(self, good_fetches: int, error: BaseException, per_fetch: int = 2) -> None:
        super().__init__(per_fetch)
        self.good_fetches = good_fetches
        self.error = error

    def fetch(self) -> RecordsWithSplitIds[RecordBlock]:
        if not self.good_fetches:
            raise self.error
        self.good_fetches -= 1
        return super().fetch()


class Output(ReaderOutput):
    """Remembers what was emitted, in its order, and by split."""

    def __init__(self) -> None:
        self.emitted: list[tuple[str, int]] = []
        self.created: list[str] = []
        self.released: list[str] = []

    def of(self, split_id: str) -> list[int]:
        return [number for other, number in self.emitted if other == split_id]

    def create_output_for_split(self, split_id: str) -> SourceOutput:
        self.created.append(split_id)
        return _SplitOutput(self, split_id)

    def release_output_for_split(self, split_id: str) -> None:
        self.released.append(split_id)


class _SplitOutput(Output):
    def __init__(self, whole: Output, split_id: str) -> None:
        self._whole = whole
        self._split_id = split_id

    def collect(self, batch: pa.RecordBatch, source_timestamps: Any = None, *, positions: Any) -> None:
        assert self._split_id not in self._whole.released, "emitted after its output was released"
        assert batch.column(0)[0].as_py() == positions
        self._whole.emitted += [(self._split_id, number) for number in range(positions, positions + batch.num_rows)]


@dataclass
class Readers:
    """Makes `SplitReader`s, and keeps them."""

    make: Callable[[], NumberSplitReader] = NumberSplitReader
    made: list[Any] = field(default_factory=list)

    def __call__(self) -> SplitReader[Split]:
        self.made.append(self.make())
        return self.made[-1]

    def all_closed(self) -> bool:
        return all(reader.closed.is_set() for reader in self.made)


class TellingQueue(ElementQueue[Handover[RecordBlock]]):
    """Tells when a fetcher has nothing more to do."""

    def __init__(self, capacity: int = 2) -> None:
        super().__init__(capacity)
        self.has_idle_fetcher = threading.Event()

    def notify_available(self) -> None:
        super().notify_available()
        self.has_idle_fetcher.set()


def base_reader(
    manager: SplitFetcherManager[Split, RecordBlock] | Callable[[], SplitReader[Split]], **options: Any
) -> SourceReaderBase[Split, RecordBlock]:
    """A base reader; of a supplier, with one thread."""
    if not isinstance(manager, SplitFetcherManager):
        manager = SingleThreadFetcherManager(manager)
    context = options.pop("context", None) or SourceReaderContext(SCHEMA)
    return SourceReaderBase(manager, BlockEmitter(), context, close_timeout_s=WAIT_S, **options)


def poll_until_emitted(reader: SourceReader[Split], output: Output, count: int) -> None:
    """Poll until `count` numbers are out, waiting where there is nothing."""
    while len(output.emitted) < count:
        status = reader.poll_next(output)
        assert status is not InputStatus.END_OF_INPUT, output.emitted
        if status is InputStatus.NOTHING_AVAILABLE:
            reader.is_available().result(WAIT_S)


def read_to_end(reader: SourceReader[Split], output: Output) -> None:
    """Poll until the end of input, waiting where there is nothing."""
    while (status := reader.poll_next(output)) is not InputStatus.END_OF_INPUT:
        if status is InputStatus.NOTHING_AVAILABLE:
            reader.is_available().result(WAIT_S)


def fetcher_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("split-fetcher-")]
