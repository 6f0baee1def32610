"""The splits of a generator, and when their records arrive.

The record at position `p` of a split arrives `p / rowsPerSecond` after the arrival epoch, which is when the query
started first; from `idleAfter` on, an idle split's records arrive `idleFor` later, or never. In a bounded source all
records have always been there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from alignment.timestamps import NO_TIMESTAMP, FieldTimestampAssigner, RecordTimestampAssigner
from alignment.watermarks import Int64Array
from streaming_source.api import (
    SourceSplit,
    SplitEnumerator,
    SplitEnumeratorContext,
    SplitRange,
    SplitsAssignment,
    SupportsEventTimeIndex,
)
from streaming_source.connectors.datagen.generator import RecordGenerator

_BLOCK_ROWS: Final = 65_536
_NS_PER_US: Final = 1000
_PREFIX: Final = "split-"


@dataclass(frozen=True, slots=True)
class GeneratedSplit(SourceSplit):
    """One sequence of generated records, numbered from 0. A `ValueError` if there is none of these numbers."""

    number: int
    position: int = 0
    stop: int | None = None

    def __post_init__(self) -> None:
        if type(self.number) is not int or type(self.position) is not int or self.number < 0 or self.position < 0:
            raise ValueError("number and position are whole numbers from 0 on")

    @property
    def split_id(self) -> str:
        return f"{_PREFIX}{self.number}"

    def origin(self) -> GeneratedSplit:
        return GeneratedSplit(self.number)

    def until(self, stop: int) -> GeneratedSplit:
        return GeneratedSplit(self.number, self.position, stop)


@dataclass(frozen=True, slots=True)
class GeneratorCheckpoint:
    """When the query started first, in microseconds since 1970; None for a bounded source."""

    arrival_epoch_us: int | None


class Arrival(NamedTuple):
    """New blocks of one split, as `SplitEnumeratorContext.add_blocks` takes them, and whether they are its last."""

    split_id: str
    rows: Int64Array
    min_us: Int64Array
    max_us: Int64Array
    complete: bool


@dataclass(eq=False, repr=False)
class GeneratorSplitEnumerator(
    SupportsEventTimeIndex[GeneratedSplit], SplitEnumerator[GeneratedSplit, GeneratorCheckpoint]
):
    """Lets the records of a generator arrive. Each reader gets its share of the splits as it registers.

    All splits are there from the first state on: those that the state lacks at a restart are finished. Each ends after
    `rows_per_split`, None for never; records arrive every `period_s`, None where all have always been there. The clock
    is not a monotonic one: arrivals go on across restarts.
    """

    context: SplitEnumeratorContext[GeneratedSplit]
    checkpoint: GeneratorCheckpoint | None
    generator: RecordGenerator
    rows_per_split: int | None
    period_s: float | None
    clock_us: Callable[[], int] = lambda: time.time_ns() // 1000
    # Of a restart, by number of the split, the position from which its records arrive.
    _in_work: dict[int, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._arrival_epoch_us = self.checkpoint.arrival_epoch_us if self.checkpoint else None

    # ---- discovery -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self.period_s is not None and self._arrival_epoch_us is None:
            self._arrival_epoch_us = self.clock_us()
        arrived = dict(self._in_work if self.checkpoint else dict.fromkeys(range(self.generator.splits), 0))
        self.context.call_async(partial(self._look, arrived), self._on_arrivals, period_seconds=self.period_s)

    def add_reader(self, subtask_id: int) -> None:
        if self.checkpoint is None:
            share = range(subtask_id, self.generator.splits, self.context.current_parallelism())
            splits = [GeneratedSplit(number) for number in share]
            self.context.assign_splits(SplitsAssignment({subtask_id: splits}))
        self.context.signal_no_more_splits(subtask_id)

    def handle_split_request(self, subtask_id: int, requester_hostname: str | None = None) -> None:
        """Every reader has its splits already."""

    def restore_splits(self, splits: Sequence[GeneratedSplit]) -> None:
        self._in_work = {split.number: split.position for split in splits}

    def snapshot_state(self, checkpoint_id: int) -> GeneratorCheckpoint:
        return GeneratorCheckpoint(self._arrival_epoch_us)

    # ---- arrival: on a worker ------------------------------------------------------------------------------------

    def _look(self, arrived: dict[int, int]) -> list[Arrival]:
        """Return the records that have arrived, each once, in order of splits. O(splits and new blocks)."""
        elapsed_us = None
        if self.period_s is not None and self._arrival_epoch_us is not None:
            elapsed_us = self.clock_us() - self._arrival_epoch_us
        found = []
        for split, begin in sorted(arrived.items()):
            end = self._available(split, elapsed_us)
            complete = end == self.rows_per_split
            # The clock may have been set back: what has arrived stays there.
            if end > begin or complete:
                first = np.arange(begin, end, _BLOCK_ROWS, dtype=np.int64)
                rows = np.minimum(_BLOCK_ROWS, end - first)
                found.append(Arrival(f"{_PREFIX}{split}", rows, *self._bounds(split, first, rows), complete))
                arrived[split] = end
            if complete:
                del arrived[split]
        return found

    def _available(self, split: int, elapsed_us: int | None) -> int:
        """Return how many records of a split have arrived after so long; None: all of them."""
        if elapsed_us is None:
            assert self.rows_per_split is not None, "a source whose records are all there has an end"
            return self.rows_per_split
        generator = self.generator

        def arrived(elapsed_ns: int) -> int:
            return elapsed_ns // generator.interval_ns + 1 if elapsed_ns >= 0 else 0

        elapsed_ns = elapsed_us * _NS_PER_US
        count = arrived(elapsed_ns)
        if split in generator.idle_splits:
            count = min(count, generator.idle_after)
            if generator.idle_for_us is not None:
                count = max(count, arrived(elapsed_ns - generator.idle_for_us * _NS_PER_US))
        return count if self.rows_per_split is None else min(count, self.rows_per_split)

    def _bounds(self, split: int, first: Int64Array, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
        """In closed form where the event times are the generated ones; otherwise each block is computed whole."""
        if self._times_are_generated:
            return self.generator.bounds(split, first, rows)
        low, high = np.empty_like(first), np.empty_like(first)
        for block, (start, count) in enumerate(zip(first.tolist(), rows.tolist(), strict=True)):
            times = self._times(split, start, start + count)
            # The mark of an invalid time is the smallest number: it is the minimum if there is one, as it should be.
            low[block], high[block] = times.min(), times.max(initial=NO_TIMESTAMP)
        return low, high

    def _times(self, split: int, start: int, stop: int) -> Int64Array:
        """Event times of the records `[start, stop)`, as the application assigns them."""
        if self._times_are_generated:
            return self.generator.times(split, np.arange(start, stop))
        records = self.generator.batch(split, start, stop, self.context.schema)
        return self.context.timestamp_assigner.extract(*records).values

    @property
    def _times_are_generated(self) -> bool:
        assigner = self.context.timestamp_assigner
        return isinstance(assigner, RecordTimestampAssigner) or (
            isinstance(assigner, FieldTimestampAssigner) and assigner.column == "ts"
        )

    # ---- on the coordinator's thread -----------------------------------------------------------------------------

    def _on_arrivals(self, arrivals: list[Arrival] | None, error: BaseException | None) -> None:
        if error is not None:
            raise error
        assert arrivals is not None
        for split_id, rows, min_us, max_us, complete in arrivals:
            self.context.add_blocks(split_id, rows, min_us, max_us)
            if complete:
                self.context.complete_split(split_id)

    def event_times(self, split_id: str, start: int, stop: int) -> Int64Array:
        return self._times(_number_of(split_id), start, stop)

    def split_at(self, split_id: str, position: int) -> GeneratedSplit:
        return GeneratedSplit(_number_of(split_id), position)

    def ranges(
        self, start: GeneratedSplit, end: GeneratedSplit, rows_per_range: int
    ) -> Sequence[SplitRange[GeneratedSplit]]:
        return SplitRange.evenly(start, end.position, rows_per_range)

    def finish_split(self, split_id: str) -> None:
        self._in_work.pop(_number_of(split_id), None)


def _number_of(split_id: str) -> int:
    return int(split_id.removeprefix(_PREFIX))
