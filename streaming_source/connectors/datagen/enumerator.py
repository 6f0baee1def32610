"""Every record of every split as a function of seed, split and position; and when it arrives.

Nothing is drawn one after another, so any range can be computed by itself, anywhere, and gives the same records.

For split `s` of `n` and position `p`, in microseconds of event time, with whole-number division rounding down:

    speed(s)   = 1 + (skew - 1) * s / (n - 1)
    step(s)    = speed(s) / rowsPerSecond, to the nanosecond
    gap(s, p)  = speed(s) * idleFor   if s is an idle split and p >= idleAfter, else 0
    base(s, p) = startTime + p * step(s) + gap(s, p)

Without disorder that is the event time. With a disorder of `D`, of every 64 records

    p % 64 = 0    the leader            time = base(s, p)
    p % 64 = 1    the straggler         time = base(s, p) - step(s) - D
    otherwise                           time = base(s, p) - hash(seed, s, p) % (D + 1)

A record's time is never later than its base, nor earlier than the base of the record before it minus `D`. So a record
is never more than `D` behind the latest one before it; and the straggler, right after its leader, is exactly that
(unless the gap lies between the two): the bound `D` on out-of-orderness holds and no smaller one does.

The record at position `p` of a split arrives `p / rowsPerSecond` after the arrival epoch, which is when the query
started first; from `idleAfter` on, an idle split's records arrive `idleFor` later, or never. In a bounded source all
records have always been there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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

UInt64Array: TypeAlias = npt.NDArray[np.uint64]

PERIOD: Final = 64
"""Leaders, and stragglers, are this many records apart."""

SCHEMA: Final = pa.schema([("key", pa.int64()), ("value", pa.float64()), ("ts", pa.timestamp("us", tz="UTC"))])
"""Columns of the records: a key below `numKeys`, a value in [0, 1), and the event time."""

_NS_PER_S: Final = 1_000_000_000
_NS_PER_US: Final = 1000
_TIME, _KEY, _VALUE = range(3)
_MASK: Final = 2**64 - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class RecordGenerator:
    """The records of all splits, by the attributes of `DataGeneratorSource`.

    An `idle_for_us` of None is for ever, which leaves no trace in event time. `interval_ns` is the time from one record
    to the next, as they arrive and in the event time of the slowest split.
    """

    splits: int
    rows_per_second: float
    skew: float
    disorder_us: int
    start_us: int
    idle_splits: tuple[int, ...]
    idle_after: int
    idle_for_us: int | None
    seed: int
    num_keys: int
    interval_ns: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "interval_ns", round(_NS_PER_S / self.rows_per_second))

    # ---- event times ---------------------------------------------------------------------------------------------

    def speed(self, split: int) -> float:
        """Return how fast the event time of a split passes, that of the first being 1."""
        return 1.0 if self.splits == 1 else 1.0 + (self.skew - 1.0) * split / (self.splits - 1)

    def step_ns(self, split: int) -> int:
        """Event time from one record of a split to the next, in nanoseconds."""
        return round(self.interval_ns * self.speed(split))

    def gap_us(self, split: int) -> int:
        """Event time that a split skips while it is idle."""
        return round((self.idle_for_us or 0) * self.speed(split)) if split in self.idle_splits else 0

    def base(self, split: int, position: int) -> int:
        """Event time of one record if it were not displaced, in microseconds; of unlimited range."""
        gap_us = self.gap_us(split) if position >= self.idle_after else 0
        return self.start_us + position * self.step_ns(split) // _NS_PER_US + gap_us

    def times(self, split: int, positions: Int64Array) -> Int64Array:
        """Event times of the records at `positions`, any shape, in microseconds."""
        step_ns, gap_us = self.step_ns(split), self.gap_us(split)
        start_us = self.start_us + np.where(positions >= self.idle_after, gap_us, 0) if gap_us else self.start_us
        if not self.disorder_us:
            return start_us + _passed_us(positions, step_ns)
        step = positions % PERIOD
        straggler = step == 1
        back = (self._hash(split, _TIME, positions) % np.uint64(self.disorder_us + 1)).astype(np.int64)
        back = np.where(step == 0, 0, np.where(straggler, self.disorder_us, back))
        times: Int64Array = start_us + _passed_us(positions - straggler, step_ns) - back
        return times

    def bounds(self, split: int, first: Int64Array, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Smallest and largest event time of blocks, exactly, from at most 128 records of each.

        Nothing after a straggler is earlier than it, and nothing before a leader is later: the first records, up to a
        straggler, hold the minimum, and the last ones, from a leader on, the maximum. A block has `rows` records from
        `first` on, at least one; all are `int64[k]`.
        """
        window = np.arange(PERIOD)
        last = first + rows - 1
        head = np.minimum(first[:, None] + window, last[:, None])
        tail = np.maximum(last[:, None] - window, first[:, None])
        return self.times(split, head).min(axis=1), self.times(split, tail).max(axis=1)

    # ---- records -------------------------------------------------------------------------------------------------

    def batch(self, split: int, start: int, stop: int, schema: pa.Schema) -> tuple[pa.RecordBatch, Int64Array]:
        """The records `[start, stop)` with those columns that `schema` names, and their event times, `int64[n]`."""
        positions = np.arange(start, stop)
        times = self.times(split, positions)
        columns = [self._column(name, split, positions, times) for name in schema.names]
        # By way of a struct: a batch without columns has records, too.
        records = pa.StructArray.from_buffers(pa.struct([]), stop - start, [None])
        if columns:
            records = pa.StructArray.from_arrays(columns, fields=list(schema))
        return pa.RecordBatch.from_struct_array(records), times

    def _column(self, name: str, split: int, positions: Int64Array, times: Int64Array) -> pa.Array:
        if name == "ts":
            return pa.array(times).cast(SCHEMA.field("ts").type)
        if name == "key":
            keys = self._hash(split, _KEY, positions) % np.uint64(self.num_keys)
            return pa.array(keys.astype(np.int64))
        # The upper 53 bits: as many as a double holds.
        return pa.array((self._hash(split, _VALUE, positions) >> np.uint64(11)) * 2.0**-53)

    def _hash(self, split: int, purpose: int, positions: Int64Array) -> UInt64Array:
        """64 bits for each position: the SplitMix64 sequence of one split and purpose, at any position of it."""
        origin = _mix(_mix(_mix(self.seed & _MASK) + split) + purpose)
        bits = positions.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(origin)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return bits ^ (bits >> np.uint64(31))


def _mix(number: int) -> int:
    """One step of SplitMix64 in Python's integers."""
    bits = (number + _GOLDEN) & _MASK
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB & _MASK
    return bits ^ (bits >> 31)


def _passed_us(positions: Int64Array, step_ns: int) -> Int64Array:
    """`positions * step_ns // 1000` without leaving int64, for as long as the result is in it."""
    whole_us, rest_ns = divmod(step_ns, _NS_PER_US)
    thousands, rest = np.divmod(positions, _NS_PER_US)
    passed: Int64Array = positions * whole_us + thousands * rest_ns + rest * rest_ns // _NS_PER_US
    return passed


_BLOCK_ROWS: Final = 65_536
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
            self.context.assign_splits(SplitsAssignment({subtask_id: [GeneratedSplit(number) for number in share]}))
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
