"""Opaque blocks: where they are cut is found out by queries of the time index of their owner.

Of an *opaque* block one event time is known ahead, its latest, and one query can be made: which is the first record
later than a bound? A broker, say, answers it. An answer divides the block there. What lies before it is not later than
the bound, and of what follows the first record is known with its event time; so no query is made twice, and what is
remembered grows with the answers and not with the records.

What was read of a block that was divided is known by a bound alone. That is enough for a watermark: let the record at
which a split was cut be later than `T`, and `B` the bound on out-of-orderness. A record after the cut is on time if it
is at most `B` earlier than the latest before it, which is at least `T + 1`: so it is later than `T - B - 1`, and that
can be announced as if a record at `T` had been read.

The positions of an opaque block may have gaps. A question for the first record with any event time shows the one in
front of it: the part before the answer is a block of its own, and none of its positions counts as a record.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from alignment.exceptions import InvalidArgumentError
from alignment.index.blocks import TO_A_BOUND, TO_ITS_LATEST, BlockTable
from alignment.index.row_limit import FirstLater
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import Int64Array


class _Answer(NamedTuple):
    """The result of a query about the records of a block from `start` on.

    `position` is the block's end if there is none.
    """

    block: int
    start: int
    position: int
    time: int
    bound: int


class OpaqueBlocks:
    """The opaque blocks of a table; `locate` answers where they are cut."""

    def __init__(self, table: BlockTable, locate: FirstLater) -> None:
        self._table, self._locate = table, locate
        self.answers: list[_Answer] = []

    def append(self, split_id: str, rows: int, max_us: int) -> None:
        """Add one block after the last known one of a split, which is never loaded. O(1) amortised.

        It covers `rows` positions, at least 1: where these have gaps, it has fewer records. One of these has the event
        time `max_us`, and none is later.
        """
        if rows < 1 or max_us == NO_TIMESTAMP:
            raise InvalidArgumentError(
                f"append_opaque({split_id!r}, rows={rows}, max_us={max_us}): an opaque block needs at least one record "
                "with an event time"
            )
        one = np.ones(1, np.int64)
        self._table.add(split_id, one * rows, one * NO_TIMESTAMP, one * max_us, one * NO_TIMESTAMP, TO_ITS_LATEST)

    def next_times(self, positions: Int64Array) -> Int64Array:
        """Event times of the records at `positions` as far as answers gave them, `int64[n]`. O(n log m).

        `NO_TIMESTAMP` where nothing is unread, in loaded blocks, and where no question was about them.
        """
        result = np.full(len(self._table.order), NO_TIMESTAMP, np.int64)
        if self._table.blocks.opaque.any():
            block, unread = self._table.current_block(positions)
            block = block[unread]
            known = self._table.blocks.first[block] == positions[unread]
            result[unread] = np.where(known, self._table.blocks.head[block], NO_TIMESTAMP)
        return result

    def divided_at(self) -> list[int]:
        """Bounds at which blocks are divided already, rising: to cut there costs no question. O(m log m)."""
        bounds: list[int] = np.unique(self._table.blocks.high[self._table.blocks.opaque == TO_A_BOUND]).tolist()
        return bounds

    def records(self, positions: Int64Array, ends: Int64Array) -> Int64Array:
        """Count the records of `[positions, ends)` at most, `int64[n]`: positions, less those of known gaps. O(m)."""
        gaps = self._gaps()
        owner = self._table.blocks.owner[gaps]
        begin = np.maximum(self._table.blocks.first[gaps], positions[owner])
        missing = np.minimum(self._table.blocks.end[gaps], ends[owner]) - begin
        result = ends - positions
        np.subtract.at(result, owner, np.maximum(missing, 0))
        return result

    def positions_after(self, positions: Int64Array, records: Int64Array) -> Int64Array:
        """The position after so many records of each split, `int64[n]`: known gaps between them do not count. O(m)."""
        result = positions + records
        for gap in self._gaps().tolist():
            # Those of a split stand in order, so each moves on what follows it.
            owner, first, end = (int(column[gap]) for column in self._table.blocks[:3])
            if first < result[owner]:
                result[owner] += max(end - max(first, int(positions[owner])), 0)
        return result

    def _gaps(self) -> Int64Array:
        """Blocks of which an answer has shown that they have no record with an event time."""
        divided = np.flatnonzero(self._table.blocks.opaque == TO_A_BOUND)
        gaps: Int64Array = divided[self._table.blocks.high[divided] == NO_TIMESTAMP]
        return gaps

    def locate_later(self, blocks: Int64Array, skip: Int64Array, bound_us: int) -> Int64Array:
        """Return, for each opaque block, how many records from `skip` on precede the first later one, or -1.

        One query for all. The results divide the blocks when `divide` is called: until then these have their
        numbers.
        """
        if not blocks.size:
            return np.empty(0, np.int64)
        split_ids = [self._table.order[owner] for owner in self._table.blocks.owner[blocks].tolist()]
        starts = self._table.blocks.first[blocks] + skip
        stops = self._table.blocks.end[blocks]
        positions, times = self._locate(split_ids, starts, stops, bound_us)
        if ((positions < starts) | (positions > stops) | ((positions < stops) & (times <= bound_us))).any():
            raise InvalidArgumentError(
                f"locate must return the first record in [start, stop) later than {bound_us}, and gave another"
            )
        columns = (blocks.tolist(), starts.tolist(), positions.tolist(), times.tolist())
        self.answers += [_Answer(*answer, bound_us) for answer in zip(*columns, strict=True)]
        return np.where(positions < stops, positions - starts, -1)

    def divide(self) -> None:
        """Take in the answers since the last time. O(m + answers)."""
        if not self.answers:
            return
        answers = {answer.block: answer for answer in self.answers}
        assert len(answers) == len(self.answers), "a block is queried once between two divisions"
        self.answers.clear()
        parts = {number: self._parts(answer) for number, answer in answers.items()}
        counts = np.ones(self._table.blocks.first.size, np.int64)
        counts[list(parts)] = [len(several) for several in parts.values()]
        begins = np.cumsum(counts) - counts
        blocks = self._table.blocks.where(np.repeat(np.arange(counts.size), counts))
        for number, several in parts.items():
            begin = int(begins[number])
            for i, part in enumerate(several, begin):
                blocks.first[i], blocks.end[i], blocks.high[i], blocks.opaque[i], blocks.head[i] = part
        self._table.blocks = blocks
        self._table.is_stale = True

    def _parts(self, answer: _Answer) -> list[tuple[int, int, int, int, int]]:
        """Return what becomes of a block: first, end, high, opaque and head of each of its parts."""
        blocks, block, start, position = self._table.blocks, answer.block, answer.start, answer.position
        columns = (blocks.first, blocks.end, blocks.high, blocks.opaque, blocks.head)
        first, end, high, opaque, head = (int(column[block]) for column in columns)
        parts = []
        if first < start:
            # These were not queried. They were read before: the latest of the block may be among them.
            parts.append((first, start, high, TO_A_BOUND, head))
            head = NO_TIMESTAMP
        if start < position:
            parts.append((start, position, min(high, answer.bound), TO_A_BOUND, head))
        if position < end:
            parts.append((position, end, high, opaque, answer.time))
        return parts
