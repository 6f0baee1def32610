"""When generated records arrive, and what the index is told of them then.

The record at position `p` of a split arrives `p / rowsPerSecond` after the arrival epoch, which is when the query
started first; from `idleAfter` on, an idle split's records arrive `idleFor` later, or never. In a bounded source all
records have always been there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from alignment.timestamps import NO_TIMESTAMP, FieldTimestampAssigner, RecordTimestampAssigner, TimestampAssigner
from streaming_source.connectors.datagen.generator import Int64Array, RecordGenerator

__all__ = ["Arrival", "Arrivals", "EventTimeReader"]

_BLOCK_ROWS: Final = 65_536
_NS_PER_US: Final = 1000


@dataclass(frozen=True, slots=True)
class EventTimeReader:
    """Event times of generated records, as the application assigns them.

    Attributes
    ----------
    generator, assigner
        Where records, and where their event times, come from.
    schema
        Columns that the query reads: those that the assigner sees.
    """

    generator: RecordGenerator
    assigner: TimestampAssigner
    schema: pa.Schema

    def times(self, split: int, start: int, stop: int) -> Int64Array:
        """Event times of the records `[start, stop)`, `int64[stop - start]`."""
        if self._are_generated:
            return self.generator.times(split, np.arange(start, stop))
        return self.assigner.extract(*self.generator.batch(split, start, stop, self.schema)).values

    def bounds(self, split: int, first: Int64Array, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Of the blocks of `rows` records from `first` on, as `SplitEnumeratorContext.add_blocks` takes them.

        In closed form where the event times are the generated ones; otherwise each block is computed whole.
        """
        if self._are_generated:
            return self.generator.bounds(split, first, rows)
        low, high = np.empty_like(first), np.empty_like(first)
        for block, (start, count) in enumerate(zip(first.tolist(), rows.tolist(), strict=True)):
            times = self.times(split, start, start + count)
            # The mark of an invalid time is the smallest number: it is the minimum if there is one, as it should be.
            low[block], high[block] = times.min(), times.max(initial=NO_TIMESTAMP)
        return low, high

    @property
    def _are_generated(self) -> bool:
        assigner = self.assigner
        return isinstance(assigner, RecordTimestampAssigner) or (
            isinstance(assigner, FieldTimestampAssigner) and assigner.column == "ts"
        )


@dataclass(frozen=True, slots=True)
class Arrival:
    """New records of one split.

    Attributes
    ----------
    split
        Number of the split.
    rows, min_us, max_us
        `int64[k]`, its new blocks.
    complete
        These are its last ones.
    """

    split: int
    rows: Int64Array
    min_us: Int64Array
    max_us: Int64Array
    complete: bool


@dataclass(slots=True)
class Arrivals:
    """Tells what has arrived since it was last asked.

    Attributes
    ----------
    times
        For the bounds of blocks.
    rows_per_split
        Where each split ends; None for nowhere.
    elapsed_us
        Time since the arrival epoch, in microseconds; None of it is needed when all records have always been there.
    told
        By number of the split, the position up to which records were told of. Splits that are not in it are not asked
        for.
    """

    times: EventTimeReader
    rows_per_split: int | None
    elapsed_us: Callable[[], int] | None
    told: dict[int, int]
    _complete: set[int] = field(default_factory=set)

    def look(self) -> list[Arrival]:
        """What has arrived: every record once, splits in order of their numbers. O(splits), beside the new blocks."""
        elapsed_us = None if self.elapsed_us is None else self.elapsed_us()
        found = []
        for split in sorted(self.told.keys() - self._complete):
            begin, end = self.told[split], self.available(split, elapsed_us)
            complete = end == self.rows_per_split
            # The clock may have been set back: what was told stays told.
            if end > begin or complete:
                found.append(self._arrival(split, begin, end, complete))
                self.told[split] = end
            if complete:
                self._complete.add(split)
        return found

    def available(self, split: int, elapsed_us: int | None) -> int:
        """How many records of a split have arrived after `elapsed_us`; None: all of them."""
        if elapsed_us is None:
            assert self.rows_per_split is not None, "a source whose records are all there has an end"
            return self.rows_per_split
        generator = self.times.generator
        elapsed_ns = elapsed_us * _NS_PER_US
        count = _arrived(elapsed_ns, generator.interval_ns)
        if split in generator.idle_splits:
            count = min(count, generator.idle_after)
            if generator.idle_for_us is not None:
                resumed = elapsed_ns - generator.idle_for_us * _NS_PER_US
                count = max(count, _arrived(resumed, generator.interval_ns))
        return count if self.rows_per_split is None else min(count, self.rows_per_split)

    def _arrival(self, split: int, begin: int, end: int, complete: bool) -> Arrival:
        first: npt.NDArray[np.int64] = np.arange(begin, end, _BLOCK_ROWS)
        rows = np.minimum(_BLOCK_ROWS, end - first)
        return Arrival(split, rows, *self.times.bounds(split, first, rows), complete)


def _arrived(elapsed_ns: int, interval_ns: int) -> int:
    return elapsed_ns // interval_ns + 1 if elapsed_ns >= 0 else 0
