"""Every record of every split as a function of seed, split and position.

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
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from alignment.watermarks import Int64Array

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
        records = pa.StructArray.from_arrays(columns, fields=list(schema)) if columns else _no_columns(stop - start)
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


def _no_columns(rows: int) -> pa.StructArray:
    return pa.StructArray.from_buffers(pa.struct([]), rows, [None])
