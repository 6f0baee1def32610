"""Exact event times of blocks: loaded where a cut may fall, and kept one behind the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import ClassVar, Final, TypeAlias

import numpy as np

from alignment.exceptions import InvalidArgumentError
from alignment.index.blocks import BlockTable
from alignment.index.runs import ranges
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import BoolArray, Int64Array

__all__ = ["CACHED_TIMES", "EventTimeLoader", "TimedBlocks"]


EventTimeLoader: TypeAlias = Callable[[str, int, int], Int64Array]
"""`(split_id, start, stop) -> int64[stop - start]`: event times of one block; `NO_TIMESTAMP` where there is none."""

CACHED_TIMES: Final = 24 * 1024 * 1024
"""How many exact event times are kept by default."""


class TimedBlocks(BlockTable):
    """A table of blocks with the exact times of some.

    `load` is called for the times of one whole block; `cached_times` of these (16 bytes each) are kept at most, beside
    those that are worked on. `_exact` has the times as they were loaded, those of a block from its `at` on; `_latest`
    has the latest so far, from the record number `base` of a block on: it rises, so that a cut is found by halving.
    """

    _PORTION_TIMES: ClassVar[int] = 4 * 1024 * 1024
    """How many exact event times are copied at once."""

    def __init__(self, load: EventTimeLoader, *, cached_times: int = CACHED_TIMES) -> None:
        super().__init__()
        self._load = load
        self._cached_times = cached_times
        self._exact, self._latest = np.empty(0, np.int64), np.empty(0, np.int64)
        self._filled = self._turn = 0

    def _slices(
        self, blocks: Int64Array, begin: Int64Array, end: Int64Array
    ) -> Iterator[tuple[slice, Int64Array, Int64Array]]:
        """Exact event times of the records `[begin, end)` of each of `blocks`, laid end to end, in portions.

        Each is the slice of `blocks` that it covers, the times, and where those of each block start. `begin < end`
        throughout.
        """
        for part in self._portions(blocks, self._PORTION_TIMES):
            at, sizes = self._at(blocks[part]), end[part] - begin[part]
            times = self._exact[ranges(at + begin[part], at + end[part])]
            starts = np.cumsum(sizes) - sizes
            for i in np.flatnonzero(self._blocks.loose[blocks[part]]) + part.start:
                valid = self._times(int(blocks[i]))[begin[i] : end[i]]
                times[starts[i - part.start] :][: valid.size] = valid
            yield part, times, starts

    def _portions(self, blocks: Int64Array, most: int) -> Iterator[slice]:
        """Slices of `blocks` of about so many records, at least one block each."""
        portion = np.cumsum(self._blocks.rows(blocks)) // most
        borders = np.flatnonzero(np.diff(portion, prepend=-1, append=-1)).tolist()
        return (slice(i, j) for i, j in pairwise(borders))

    def _is_kept(self, blocks: Int64Array) -> BoolArray:
        """Whether the times of blocks are in `_exact` as they count."""
        kept: BoolArray = (self._blocks.at[blocks] >= 0) & (self._blocks.loose[blocks] == 0)
        return kept

    @property
    def _held_times(self) -> int:
        """How many exact event times may be there at once."""
        return max(self._cached_times, self._PORTION_TIMES)

    def _times(self, block: int) -> Int64Array:
        """Exact event times of one block under the limit, `int64[rows]`: not to be changed."""
        one = np.array([block])
        at = int(self._at(one)[0])
        times = self._exact[at : at + int(self._blocks.rows(one)[0])]
        if self._blocks.loose[block]:
            times = self.valid(times)
            times[: self._blocks.skip[block]] = NO_TIMESTAMP
        return times

    def _tighten(self, block: int) -> None:
        times = self._times(block)
        self._blocks.low[block], self._blocks.high[block] = times.min(), times.max()
        at = int(self._blocks.at[block])
        self._blocks.loose[block] = int((times != self._exact[at : at + times.size]).any())
        self._accumulate(block, 0)

    def _runs(self, blocks: Int64Array, skip: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Where `_latest` has the latest so far of each of `blocks` from its record `skip` on."""
        at, base = self._at(blocks), self._blocks.base[blocks]
        low = at + skip
        # A record that is later than all before it is the latest, whichever of them count.
        misled = (skip < base) | ((skip > base) & (self._latest[low - 1] >= self._latest[low]))
        for i in np.flatnonzero(misled).tolist():
            self._accumulate(int(blocks[i]), int(skip[i]))
        return low, at + self._blocks.rows(blocks)

    def _accumulate(self, block: int, base: int) -> None:
        """Let the latest so far of a block begin with one of its records."""
        times, at = self._times(block), int(self._blocks.at[block])
        np.maximum.accumulate(times[base:], out=self._latest[at + base : at + times.size])
        self._blocks.base[block] = base

    def _at(self, blocks: Int64Array) -> Int64Array:
        """Where the exact times of each of `blocks` begin; loads those that are not there. O(1) each where they are."""
        self._turn += 1
        self._blocks.used[blocks] = self._turn
        missing = blocks[self._blocks.at[blocks] < 0]
        if missing.size:
            self._make_room(int(self._blocks.rows(missing).sum()))
            for block in missing.tolist():
                self._take_in(block)
        return self._blocks.at[blocks]

    def _take_in(self, block: int) -> None:
        split_id = self._order[int(self._blocks.owner[block])]
        first, end = int(self._blocks.first[block]), int(self._blocks.end[block])
        times, rows = np.asarray(self._load(split_id, first, end), np.int64), end - first
        if times.size != rows:
            raise InvalidArgumentError(
                f"the loader gave {times.size} event times for {rows} records of split {split_id!r} from {first}"
            )
        self._exact[self._filled : self._filled + rows] = times
        self._blocks.at[block] = self._filled
        self._filled += rows
        self._accumulate(block, 0)

    def _make_room(self, rows: int) -> None:
        """Let there be room for so many more; what was used longest ago goes. O(1) amortised a time, and O(m)."""
        if self._filled + rows <= self._exact.size:
            return
        blocks = self._blocks
        kept = np.flatnonzero(blocks.at >= 0)
        kept = kept[np.argsort(-blocks.used[kept], kind="stable")]
        # Of some more than must be, or the next one would have to make room again.
        fits = np.cumsum(blocks.rows(kept)) + rows <= self._cached_times * 3 // 4
        stays = fits | (blocks.used[kept] == self._turn)
        blocks.at[kept[~stays]] = -1
        kept = np.sort(kept[stays])
        sizes = blocks.rows(kept)
        ends = np.cumsum(sizes)
        self._filled = int(ends[-1]) if ends.size else 0
        size = self._filled + rows
        moved = ranges(blocks.at[kept], blocks.at[kept] + sizes)
        for name in ("_exact", "_latest"):
            column = np.empty(max(size, min(2 * size, self._cached_times)), np.int64)
            column[: self._filled] = getattr(self, name)[moved]
            setattr(self, name, column)
        blocks.at[kept] = ends - sizes

    def check_kept_times(self) -> None:
        """Assert what always holds of the times that are kept; for tests. O(m)."""
        self._settle()
        blocks = self._blocks
        kept = np.flatnonzero(blocks.at >= 0)
        kept = kept[np.argsort(blocks.at[kept])]
        ends = blocks.at[kept] + blocks.rows(kept)
        assert (ends[:-1] <= blocks.at[kept][1:]).all(), (blocks.at[kept], ends)
        assert (ends <= self._filled).all(), (ends, self._filled)
        assert self._filled <= self._exact.size == self._latest.size, (self._filled, self._exact.size)
        for block, at, end in zip(kept.tolist(), blocks.at[kept].tolist(), ends.tolist(), strict=True):
            base = int(blocks.base[block])
            assert (self._latest[at + base : end] == np.maximum.accumulate(self._times(block)[base:])).all(), block
