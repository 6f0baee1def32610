"""Exact event times of the blocks in which cuts fall: loaded when they are needed, and kept up to a bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import ClassVar, Final, TypeAlias

import numpy as np

from alignment.exceptions import InvalidArgumentError
from alignment.index.blocks import BlockTable, ranges
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, BoolArray, Int64Array

EventTimeLoader: TypeAlias = Callable[[str, int, int], Int64Array]
"""`(split_id, start, stop) -> int64[stop - start]`: event times of one block; `NO_TIMESTAMP` where there is none."""

FirstLater: TypeAlias = Callable[[Sequence[str], Int64Array, Int64Array, int], tuple[Int64Array, Int64Array]]
"""`(split_ids, starts, stops, bound_us) -> (positions, times)`: all questions of one step about opaque blocks at once.

Of each split the first record in `[start, stop)` whose event time is later than the bound: its position and event time;
`stop` and `NO_TIMESTAMP` where there is none."""

CACHED_TIMES: Final = 24 * 1024 * 1024
"""Exact event times that are kept by default."""


class ExactTimes:
    """The exact times of some blocks of a table.

    `load` is called for all times of one block; at most `cached_times` of these (16 bytes each) are kept, in addition
    to those in use. `exact` has the times as they were loaded, those of a block from its `at` on; `latest` has
    the latest so far, from the record number `base` of a block on: it rises, so that a cut is found by halving.
    """

    PORTION_TIMES: ClassVar[int] = 4 * 1024 * 1024
    """Exact event times that are copied at once."""
    LAST_TURN: ClassVar[int] = int(np.iinfo(np.int32).max)
    """Recount after this many queries."""

    def __init__(self, table: BlockTable, load: EventTimeLoader, cached_times: int) -> None:
        self._table, self._load = table, load
        self.cached_times = cached_times
        self.exact, self.latest = np.empty(0, np.int64), np.empty(0, np.int64)
        self.filled = self._turn = 0

    def slices(
        self, blocks: Int64Array, begin: Int64Array, end: Int64Array
    ) -> Iterator[tuple[slice, Int64Array, Int64Array]]:
        """Exact event times of the records `[begin, end)` of each of `blocks`, laid end to end, in portions.

        Each is the slice of `blocks` that it covers, the times, and where those of each block start. `begin < end`
        throughout.
        """
        for part in self.portions(blocks, self.PORTION_TIMES):
            at, sizes = self._at(blocks[part]), end[part] - begin[part]
            times = self.exact[ranges(at + begin[part], at + end[part])]
            starts = np.cumsum(sizes) - sizes
            for i in np.flatnonzero(self._table.blocks.loose[blocks[part]]) + part.start:
                valid = self.times(int(blocks[i]))[begin[i] : end[i]]
                times[starts[i - part.start] :][: valid.size] = valid
            yield part, times, starts

    def portions(self, blocks: Int64Array, most: int) -> Iterator[slice]:
        """Slices of `blocks` of about so many records, at least one block each."""
        portion = np.cumsum(self._table.blocks.rows(blocks)) // most
        borders = np.flatnonzero(np.diff(portion, prepend=-1, append=-1)).tolist()
        return (slice(i, j) for i, j in pairwise(borders))

    def is_kept(self, blocks: Int64Array) -> BoolArray:
        """Return whether the times of blocks are in `_exact` as they count."""
        kept: BoolArray = (self._table.blocks.at[blocks] >= 0) & (self._table.blocks.loose[blocks] == 0)
        return kept

    @property
    def held_times(self) -> int:
        """Return how many exact event times may be there at once."""
        return max(self.cached_times, self.PORTION_TIMES)

    def times(self, block: int) -> Int64Array:
        """Exact event times of one block under the limit, `int64[rows]`: not to be changed."""
        one = np.array([block])
        at = int(self._at(one)[0])
        times = self.exact[at : at + int(self._table.blocks.rows(one)[0])]
        if self._table.blocks.loose[block]:
            times = self._table.valid(times)
            times[: self._table.blocks.skip[block]] = NO_TIMESTAMP
        return times

    def tighten(self, block: int) -> None:
        """Replace the bounds of a block by those of its records that are valid under the limit."""
        times = self.times(block)
        self._table.blocks.low[block], self._table.blocks.high[block] = times.min(), times.max()
        self._table.blocks.earliest[block] = times.min(initial=MAX_WATERMARK, where=times != NO_TIMESTAMP)
        at = int(self._table.blocks.at[block])
        self._table.blocks.loose[block] = int((times != self.exact[at : at + times.size]).any())
        self._accumulate(block, 0)

    def runs(self, blocks: Int64Array, skip: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return where `_latest` has, for each of `blocks`, the latest times so far from its record `skip` on."""
        at, base = self._at(blocks), self._table.blocks.base[blocks]
        low = at + skip
        # A record that is later than all before it is the latest, whichever of them count.
        misled = (skip < base) | ((skip > base) & (self.latest[low - 1] >= self.latest[low]))
        for i in np.flatnonzero(misled).tolist():
            self._accumulate(int(blocks[i]), int(skip[i]))
        return low, at + self._table.blocks.rows(blocks)

    def _accumulate(self, block: int, base: int) -> None:
        """Let the latest so far of a block begin with one of its records."""
        times, at = self.times(block), int(self._table.blocks.at[block])
        np.maximum.accumulate(times[base:], out=self.latest[at + base : at + times.size])
        self._table.blocks.base[block] = base

    def _at(self, blocks: Int64Array) -> Int64Array:
        """Return where the exact times of each of `blocks` begin, and load missing ones.

        O(1) for each that is loaded.
        """
        if self._turn == self.LAST_TURN:
            self._table.blocks.used[:] = self._turn = 0
        self._turn += 1
        self._table.blocks.used[blocks] = self._turn
        missing = blocks[self._table.blocks.at[blocks] < 0]
        if missing.size:
            self._make_room(int(self._table.blocks.rows(missing).sum()))
            for block in missing.tolist():
                self._take_in(block)
        return self._table.blocks.at[blocks].astype(np.int64)

    def _take_in(self, block: int) -> None:
        split_id = self._table.order[int(self._table.blocks.owner[block])]
        first, end = int(self._table.blocks.first[block]), int(self._table.blocks.end[block])
        times, rows = np.asarray(self._load(split_id, first, end), np.int64), end - first
        if times.size != rows:
            raise InvalidArgumentError(
                f"the loader gave {times.size} event times for {rows} records of split {split_id!r} from {first}"
            )
        if self._table.wanted:
            times = self._table.wanted.without_earlier(times)
        self.exact[self.filled : self.filled + rows] = times
        self._table.blocks.at[block] = self.filled
        self.filled += rows
        self._accumulate(block, 0)

    def _make_room(self, rows: int) -> None:
        """Make space for so many more: those used longest ago are dropped. O(1) amortised a time, and O(m)."""
        if self.filled + rows <= self.exact.size:
            return
        blocks = self._table.blocks
        kept = np.flatnonzero(blocks.at >= 0)
        kept = kept[np.argsort(-blocks.used[kept], kind="stable")]
        # Of some more than must be, or the next one would have to make space again.
        fits = np.cumsum(blocks.rows(kept)) + rows <= self.cached_times * 3 // 4
        stays = fits | (blocks.used[kept] == self._turn)
        blocks.at[kept[~stays]] = -1
        kept = np.sort(kept[stays])
        sizes = blocks.rows(kept)
        ends = np.cumsum(sizes)
        self.filled = int(ends[-1]) if ends.size else 0
        size = self.filled + rows
        starts = blocks.at[kept].astype(np.int64)
        moved = ranges(starts, starts + sizes)
        has_room = size <= self.exact.size <= 4 * size
        for name in ("exact", "latest"):
            column = before = getattr(self, name)
            if not has_room:
                # Fresh memory takes as long as all else.
                column = np.empty(max(size, min(2 * size, self.cached_times)), np.int64)
            column[: self.filled] = before[moved]
            setattr(self, name, column)
        blocks.at[kept] = ends - sizes
