"""The inside of blocks: exact event times, loaded where a cut may fall and kept; or the time index of their owner.

Of an *opaque* block one event time is known ahead, its latest, and one question can be asked: which is the first record
later than a bound? A broker, say, answers it. An answer divides the block there. What lies before it is not later than
the bound, and of what follows the first record is known with its event time; so no question is asked twice, and what is
remembered grows with the answers and not with the records.

What was read of a block that was divided is known by a bound alone. That is enough for a watermark: let the record at
which a split was cut be later than `T`, and `B` the bound on out-of-orderness. A record behind the cut is on time if it
is at most `B` earlier than the latest before it, which is at least `T + 1`: so it is later than `T - B - 1`, and that
can be announced as if a record at `T` had been read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import ClassVar, Final, NamedTuple, TypeAlias

import numpy as np

from alignment.exceptions import InvalidArgumentError
from alignment.index.blocks import LOADED, TO_A_BOUND, TO_ITS_LATEST, BlockTable, ranges
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import BoolArray, Int64Array

__all__ = ["CACHED_TIMES", "EventTimeLoader", "FirstLater", "TimedBlocks"]


EventTimeLoader: TypeAlias = Callable[[str, int, int], Int64Array]
"""`(split_id, start, stop) -> int64[stop - start]`: event times of one block; `NO_TIMESTAMP` where there is none."""

FirstLater: TypeAlias = Callable[[Sequence[str], Int64Array, Int64Array, int], tuple[Int64Array, Int64Array]]
"""`(split_ids, starts, stops, bound_us) -> (positions, times)`: all questions of one step at once.

Of each split the first record in `[start, stop)` whose event time is later than the bound: its position and event time;
`stop` and `NO_TIMESTAMP` where there is none."""

CACHED_TIMES: Final = 24 * 1024 * 1024
"""How many exact event times are kept by default."""


class _Answer(NamedTuple):
    """To a question about the records of a block from `start` on; `position` is the end of the block where none is."""

    block: int
    start: int
    position: int
    time: int
    bound: int


class TimedBlocks(BlockTable):
    """A table of blocks with the exact times of some, and of which others may be opaque.

    `load` is called for the times of one whole block; `cached_times` of these (16 bytes each) are kept at most, beside
    those that are worked on. `_exact` has the times as they were loaded, those of a block from its `at` on; `_latest`
    has the latest so far, from the record number `base` of a block on: it rises, so that a cut is found by halving.
    `locate` answers the questions about opaque blocks.
    """

    _PORTION_TIMES: ClassVar[int] = 4 * 1024 * 1024
    """How many exact event times are copied at once."""

    def __init__(
        self, load: EventTimeLoader, *, cached_times: int = CACHED_TIMES, locate: FirstLater | None = None
    ) -> None:
        super().__init__()
        self._load, self._locate = load, locate
        self._cached_times = cached_times
        self._exact, self._latest = np.empty(0, np.int64), np.empty(0, np.int64)
        self._filled = self._turn = 0
        self._answers: list[_Answer] = []

    # ---- exact times ---------------------------------------------------------------------------------------------

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

    # ---- opaque blocks -------------------------------------------------------------------------------------------

    def append_opaque(self, split_id: str, rows: int, max_us: int) -> None:
        """Add one block behind the last known one of a split, which is never loaded. O(1) amortised.

        It covers `rows` positions, at least 1: where these have gaps, it has fewer records. One of them has the event
        time `max_us`, and none is later.
        """
        if rows < 1 or max_us == NO_TIMESTAMP:
            raise InvalidArgumentError(
                f"an asked block of split {split_id!r} has {rows} rows and max_us = {max_us}: must have at least one "
                "record with an event time"
            )
        if self._locate is None:
            raise InvalidArgumentError(f"an asked block of split {split_id!r}: the index was given no locate")
        one = np.ones(1, np.int64)
        self._add(split_id, one * rows, one * NO_TIMESTAMP, one * max_us, TO_ITS_LATEST)

    def next_times(self, positions: Int64Array) -> Int64Array:
        """Event times of the records at `positions` as far as answers told them, `int64[n]`. O(n log m).

        `NO_TIMESTAMP` where nothing is unread, in loaded blocks, and where no question was about them.
        """
        self._settle()
        result = np.full(len(self._order), NO_TIMESTAMP, np.int64)
        if self._blocks.opaque.any():
            block, unread = self._current_block(positions)
            block = block[unread]
            known = self._blocks.first[block] == positions[unread]
            result[unread] = np.where(known, self._blocks.head[block], NO_TIMESTAMP)
        return result

    def divided_at(self) -> list[int]:
        """Bounds at which blocks are divided already, rising: to cut there costs no question. O(m log m)."""
        self._settle()
        bounds: list[int] = np.unique(self._blocks.high[self._blocks.opaque == TO_A_BOUND]).tolist()
        return bounds

    def _is_opaque(self, blocks: Int64Array) -> BoolArray:
        opaque: BoolArray = self._blocks.opaque[blocks] != LOADED
        return opaque

    def _locate_later(self, blocks: Int64Array, skip: Int64Array, bound_us: int) -> Int64Array:
        """Of each opaque block how many records from `skip` on go before the first later one; -1 if none is later.

        One question for all. The answers divide the blocks when `_divide` is called: until then these have their
        numbers.
        """
        if not blocks.size:
            return np.empty(0, np.int64)
        assert self._locate is not None, "without it there are no opaque blocks"
        split_ids = [self._order[owner] for owner in self._blocks.owner[blocks].tolist()]
        starts = self._blocks.first[blocks] + skip
        stops = self._blocks.end[blocks]
        positions, times = self._locate(split_ids, starts, stops, bound_us)
        if ((positions < starts) | (positions > stops) | ((positions < stops) & (times <= bound_us))).any():
            raise InvalidArgumentError(
                f"locate was asked for the first record in [start, stop) later than {bound_us}, and gave another"
            )
        columns = (blocks.tolist(), starts.tolist(), positions.tolist(), times.tolist())
        self._answers += [_Answer(*answer, bound_us) for answer in zip(*columns, strict=True)]
        return np.where(positions < stops, positions - starts, -1)

    def _divide(self) -> None:
        """Take in the answers since the last time. O(m + answers)."""
        if not self._answers:
            return
        answers = {answer.block: answer for answer in self._answers}
        assert len(answers) == len(self._answers), "a block is asked for once between two divisions"
        self._answers.clear()
        parts = {number: self._parts(answer) for number, answer in answers.items()}
        counts = np.ones(self._blocks.first.size, np.int64)
        counts[list(parts)] = [len(several) for several in parts.values()]
        begins = np.cumsum(counts) - counts
        blocks = self._blocks.where(np.repeat(np.arange(counts.size), counts))
        for number, several in parts.items():
            begin = int(begins[number])
            for i, part in enumerate(several, begin):
                blocks.first[i], blocks.end[i], blocks.high[i], blocks.opaque[i], blocks.head[i] = part
        self._blocks = blocks
        self._stale = True

    def _parts(self, answer: _Answer) -> list[tuple[int, int, int, int, int]]:
        """What becomes of a block: first, end, high, opaque and head of each of its parts."""
        blocks, block, start, position = self._blocks, answer.block, answer.start, answer.position
        columns = (blocks.first, blocks.end, blocks.high, blocks.opaque, blocks.head)
        first, end, high, opaque, head = (int(column[block]) for column in columns)
        parts = []
        if first < start:
            # Nothing was asked about these. They were read before: the latest of the block may be among them.
            parts.append((first, start, high, TO_A_BOUND, head))
            head = NO_TIMESTAMP
        if start < position:
            parts.append((start, position, min(high, answer.bound), TO_A_BOUND, head))
        if position < end:
            parts.append((position, end, high, opaque, answer.time))
        return parts
