"""What was seen of a split ahead of its readers: where its records are, and when they happened."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa

from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import Int64Array

__all__ = ["ScannedRecords", "SeenBlock"]


@dataclass(frozen=True, slots=True, eq=False)
class SeenBlock:
    """Consecutive records of a split: their positions, as in `RecordBlock`, and event times, `int64[n]`.

    `records` has the columns of them that a watermark generator needs; None if none does.
    """

    positions: int | Int64Array
    times: Int64Array
    records: pa.RecordBatch | None = None

    def __len__(self) -> int:
        return self.times.size

    def __getitem__(self, row: int) -> int:
        return self.positions + row if isinstance(self.positions, int) else int(self.positions[row])

    @property
    def end(self) -> int:
        return self[len(self) - 1] + 1

    def bounds(self) -> tuple[int, int]:
        """Smallest and largest event time, as `alignment.EventTimeIndex.append` takes them. O(n)."""
        # The mark of an invalid time is the smallest number: it is the minimum if there is one, as it should be.
        return int(self.times.min(initial=2**63 - 1)), int(self.times.max(initial=NO_TIMESTAMP))


class ScannedRecords:
    """The records of one split that were scanned and are in no state yet.

    Positions may have gaps, the index has none: in the index records are *numbered*. The number of the first record is
    the position at which the split was taken over; from then on every record counts one. So a read limit counts
    records, and a gap, however wide, costs nothing.
    """

    def __init__(self, position: int) -> None:
        self._blocks: list[SeenBlock] = []
        # Number after the last record of each block.
        self._ends: list[int] = []
        self.end = self.committed_to = position
        # (position, number) of where a range may begin or end: between blocks, and where states are.
        self._borders: list[tuple[int, int]] = [(position, position)]
        # (number, watermark, is_idle) of what the source itself said behind the record before that number; rising.
        self._said: list[tuple[int, int, bool]] = []

    @property
    def unread(self) -> int:
        """Records that were seen and not handed out."""
        return self.end - self.committed_to

    def append(self, block: SeenBlock) -> None:
        self.end += len(block)
        self._blocks.append(block)
        self._ends.append(self.end)
        self._borders.append((block.end, self.end))

    def position_at(self, number: int) -> int:
        """Position from which on the record of that number is the next: the one after the record before it. O(log n).

        So a range that stops there has its last record right before the stop.
        """
        i = bisect_left(self._ends, number)
        if i < len(self._ends):
            row = number - 1 - (self._ends[i] - len(self._blocks[i]))
            if row >= 0:
                return self._blocks[i][row] + 1
        return next(position for position, known in self._borders if known == number)

    def say(self, rows: int, watermark: int, is_idle: bool) -> None:
        """The source said this behind all records but the last `rows`; behind what it said before. O(1)."""
        self._said.append((self.end - rows, watermark, is_idle))

    def said_before(self, number: int) -> tuple[int, bool] | None:
        """What the source said last behind the records before `number`; None if nothing. O(log n)."""
        i = bisect_left(self._said, (number + 1,))
        return None if i == 0 else self._said[i - 1][1:]

    def blocks(self, first: int, stop: int) -> Iterator[SeenBlock]:
        """The records of these numbers, without their positions. O(blocks)."""
        for block, end in zip(self._blocks, self._ends, strict=True):
            begin = end - len(block)
            part = slice(max(first - begin, 0), max(stop - begin, 0))
            if len(times := block.times[part]):
                records = None if block.records is None else block.records.slice(part.start, len(times))
                yield SeenBlock(0, times, records)

    def times(self, first: int, stop: int) -> Int64Array:
        """Event times of the records of these numbers, which are of one block. O(log n)."""
        i = bisect_left(self._ends, stop)
        begin = self._ends[i] - len(self._blocks[i])
        return self._blocks[i].times[first - begin : stop - begin]

    def commit_plan(self, number: int) -> None:
        """The records before `number` are in a state that was handed out. O(blocks)."""
        last, self.committed_to = self.committed_to, number
        border = (self.position_at(number), number)
        done = bisect_left(self._ends, number + 1)
        del self._blocks[:done], self._ends[:done]
        del self._said[: max(bisect_left(self._said, (number + 1,)) - 1, 0)]
        # What lies between the last two states is still to be cut into ranges.
        self._borders = sorted({border, *(known for known in self._borders if known[1] >= last)})

    def cut(self, start: int, stop: int, rows_per_range: int) -> Sequence[tuple[int, int, int]]:
        """The records between two positions as `(start, stop, rows)` of ranges of at least so many rows each.

        As one range where it is not known what lies between, as after a restart: then rows are an estimate. O(blocks).
        """
        borders = [(position, number) for position, number in self._borders if start <= position <= stop]
        if not borders or borders[0][0] != start or borders[-1][0] != stop:
            return [(start, stop, stop - start)]
        chosen = [borders[0]]
        for position, number in borders[1:]:
            if number - chosen[-1][1] >= rows_per_range or position == stop:
                chosen.append((position, number))
        return [(a, b, n - m) for (a, m), (b, n) in pairwise(chosen)]
