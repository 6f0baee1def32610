"""Records outside of the range of event times that is wanted: how many a plan passes, and whether there are any."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from alignment.event_time_range import INSIDE, WHOLLY, EventTimeRange
from alignment.index.blocks import BlockTable
from alignment.index.exact_times import EventTimeLoader, ExactTimes
from alignment.watermarks import Int64Array


class OutsideBlock(NamedTuple):
    """The records of the positions `[start, stop)` of a split, all outside: their event times lie within two bounds."""

    split_id: str
    start: int
    stop: int
    low_us: int
    high_us: int


class OutsideRecords:
    """The records of a table of blocks outside of its range; of opaque blocks nothing is known, so none counts."""

    MOST_LOADED: ClassVar[int] = 4 * 1024 * 1024
    """Of how many records event times are loaded for one count alone: a fifth of a second."""

    def __init__(self, table: BlockTable, loaded: ExactTimes, load: EventTimeLoader, wanted: EventTimeRange) -> None:
        self._table, self._loaded, self._load, self._wanted = table, loaded, load, wanted

    def count(self, read: Int64Array, positions: Int64Array, ends: Int64Array) -> int:
        """Count the records of the blocks `read` outside, within the `[positions, ends)` of each split. O(read).

        Of blocks that lie partly outside, and of which no times are kept, about `MOST_LOADED` records are loaded; what
        is outside of the others is not counted.
        """
        columns, wanted = self._table.blocks, self._wanted
        read = read[columns.outside[read] > INSIDE]
        owner, first, rows = columns.owner[read], columns.first[read], columns.rows(read)
        begin, end = np.clip(positions[owner] - first, 0, rows), np.clip(ends[owner] - first, 0, rows)
        is_whole = columns.outside[read] == WHOLLY
        count = int((end - begin)[is_whole].sum())
        partly = ~is_whole & (begin < end)
        read, begin, end = read[partly], begin[partly], end[partly]
        # The times that are kept lack those that count as none: before the range, and beyond a limit.
        as_loaded = self._loaded.is_kept(read) & (wanted.from_us is None or wanted.overlap != "drop")
        for _, times, _ in self._loaded.slices(read[as_loaded], begin[as_loaded], end[as_loaded]):
            count += int(np.count_nonzero(wanted.outside(times)))
        loaded = np.cumsum(np.where(as_loaded, 0, columns.rows(read)))
        for i in np.flatnonzero(~as_loaded & (loaded - columns.rows(read) < self.MOST_LOADED)).tolist():
            block = int(read[i])
            split_id = self._table.order[columns.owner[block]]
            times = np.asarray(self._load(split_id, int(columns.first[block]), int(columns.end[block])), np.int64)
            count += int(np.count_nonzero(wanted.outside(times[begin[i] : end[i]])))
        return count

    def first(self) -> OutsideBlock | None:
        """Return the first block that lies outside as a whole; None if there is none. O(m)."""
        columns = self._table.blocks
        for block in np.flatnonzero(columns.outside == WHOLLY)[:1].tolist():
            place = (int(column[block]) for column in (columns.first, columns.end, columns.low, columns.high))
            return OutsideBlock(self._table.order[columns.owner[block]], *place)
        return None
