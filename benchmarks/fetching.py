"""A micro-batch of splits whose every fetch waits for an answer: one thread against several, as ratios."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.report import Report, in_turn, ratio
from streaming_source.api import (
    BlockEmitter,
    Fetching,
    InputStatus,
    ReaderOutput,
    RecordBlock,
    RecordsBySplits,
    SourceOutput,
    SourceReaderContext,
    SourceSplit,
    SplitReader,
    SplitsAddition,
    SplitsChange,
)
from streaming_source.reader import SourceReaderBase, create_fetcher_manager

SPLITS = 8
LATENCY_S = 0.020
ROWS = 1_000
BATCH = pa.record_batch({"n": pa.array(np.arange(ROWS))})
KINDS = {
    "one thread": Fetching.single_thread(),
    "fixed size, 4": Fetching.fixed_size(4),
    "one a split": Fetching.per_split(),
}


def run(report: Report, folder: Path, *, quick: bool) -> None:
    rounds = 3 if quick else 7
    seconds = measure(fetches=10 if quick else 25, rounds=rounds)
    rows = [
        [name, f"{statistics.median(taken) * 1e3:.0f} ms", ratio(seconds["one thread"], taken)]
        for name, taken in seconds.items()
    ]
    title = f"A micro-batch of {SPLITS} splits, {LATENCY_S * 1e3:.0f} ms a fetch ({rounds} rounds in turn)"
    report.table(title, ["fetchers", "median time", "times as fast as one thread"], rows)


def measure(*, fetches: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each kind of fetching, for splits of so many fetches each."""

    def contestant(fetching: Fetching) -> Callable[[], None]:
        return lambda: _micro_batch(fetching, fetches)

    return in_turn({name: contestant(fetching) for name, fetching in KINDS.items()}, rounds)


@dataclass(frozen=True, slots=True)
class _Split(SourceSplit):
    split_id: str
    position: int = 0
    stop: int = 0

    def origin(self) -> _Split:
        return replace(self, position=0)


class _RemoteSplitReader(SplitReader[_Split]):
    """Asks for one split after another, and waits for each answer."""

    def __init__(self) -> None:
        self._splits: dict[str, _Split] = {}
        self._woken = threading.Event()

    def handle_splits_changes(self, change: SplitsChange[_Split]) -> None:
        for split in change.splits:
            if isinstance(change, SplitsAddition):
                self._splits[split.split_id] = split
            else:
                del self._splits[split.split_id]

    def fetch(self) -> RecordsBySplits[RecordBlock]:
        if self._woken.wait(LATENCY_S):
            self._woken.clear()
            return RecordsBySplits()
        split_id, split = next(iter(self._splits.items()))
        # To the end of the line.
        del self._splits[split_id]
        after = replace(split, position=split.position + ROWS)
        if after.position < after.stop:
            self._splits[split_id] = after
        ended = {split_id} - self._splits.keys()
        return RecordsBySplits({split_id: [RecordBlock(BATCH, split.position)]}, finished_splits=ended)

    def wake_up(self) -> None:
        self._woken.set()


class _Counting(ReaderOutput):
    rows = 0

    def collect(
        self,
        batch: pa.RecordBatch,
        source_timestamps: npt.NDArray[np.int64] | None = None,
        *,
        positions: int | npt.NDArray[np.int64],
    ) -> None:
        self.rows += batch.num_rows

    def create_output_for_split(self, split_id: str) -> SourceOutput:
        return self

    def release_output_for_split(self, split_id: str) -> None: ...


def _micro_batch(fetching: Fetching, fetches: int) -> None:
    manager = create_fetcher_manager(fetching, _RemoteSplitReader)
    reader = SourceReaderBase(manager, BlockEmitter[_Split](), SourceReaderContext(BATCH.schema))
    output = _Counting()
    try:
        reader.start()
        reader.add_splits([_Split(f"split-{number}", 0, fetches * ROWS) for number in range(SPLITS)])
        reader.notify_no_more_splits()
        while (status := reader.poll_next(output)) is not InputStatus.END_OF_INPUT:
            if status is InputStatus.NOTHING_AVAILABLE:
                reader.is_available().result()
    finally:
        reader.close()
    if output.rows != SPLITS * fetches * ROWS:
        raise RuntimeError(f"read {output.rows} records of {SPLITS * fetches * ROWS}")
