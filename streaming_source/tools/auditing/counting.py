"""Counting the rows of each micro-batch and split that were dropped, emitted or are open, by the bounds of a rule."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from operator import add
from typing import Final

import numpy as np

from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK, Int64Array
from streaming_source.exceptions import DataLossError, FileGoneError
from streaming_source.tools.auditing.rule import RowTimes, Rule, SessionWindows, Undecided, Windows
from streaming_source.tools.auditing.sources.base import LostRows, SplitRead, TimeBlock

_PURGED: Final = Undecided("Spark has removed the offsets of its micro-batch")
_WIDEST: Final = 1 << 20
"""The widest span of time in which a pause between sessions is looked for, in gaps."""


@dataclass(slots=True)
class Tally:
    """Counts of rows: `dropped + emitted + open + unknown + without_time == read`.

    A row is dropped if it was dropped from at least one of its windows, emitted if all of its windows are, else open.
    Rows without an event time are in no window. If windows overlap, `pairs` counts pairs of a row and a window: all,
    dropped, emitted and open ones (0 if these depend on whether the mode is append or update, and it is not known);
    else it is None. `earliest_us` and `latest_us` are those of all rows with an event time. The event times of
    `scanned` rows were read; for the others statistics were enough. `gone` is why rows can no longer be read: these are
    in no count, or unknown if their number is known.
    """

    read: int = 0
    dropped: int = 0
    emitted: int = 0
    open: int = 0
    unknown: int = 0
    without_time: int = 0
    pairs: list[int] | None = None
    earliest_us: int = MAX_WATERMARK
    latest_us: int = NO_TIMESTAMP
    scanned: int = 0
    gone: str | None = None

    def add(self, rows: int, dropped: int, emitted: int, waiting: int, unknown: int) -> None:
        """Add rows with an event time."""
        self.read += rows
        self.dropped += dropped
        self.emitted += emitted
        self.open += waiting
        self.unknown += unknown

    def lose(self, lost: LostRows) -> None:
        """Add rows of which only their number is known."""
        self.read += lost.rows
        self.unknown += lost.rows
        self.gone = lost.why if self.gone in (None, lost.why) else f"{self.gone}; {lost.why}"

    def undecide(self) -> None:
        """Make all rows unknown: what was counted does not follow from what the query did."""
        self.unknown = self.read
        self.dropped = self.emitted = self.open = self.without_time = 0
        if self.pairs is not None:
            self.pairs[1:] = 0, 0, 0

    def reach(self, earliest_us: int, latest_us: int) -> None:
        """Extend the range of event times."""
        self.earliest_us = min(self.earliest_us, earliest_us)
        self.latest_us = max(self.latest_us, latest_us)


def count_reads(
    reads: Iterable[SplitRead], rule: Rule, emitted_us: int, workers: int, done: Callable[[], object] = lambda: None
) -> Iterator[tuple[SplitRead, Tally]]:
    """Yield each split of a micro-batch with its counts, in order.

    Several are read at once; `done` is called after each. O(rows) where bounds lie within a block's times, else
    O(blocks).
    """

    def count(read: SplitRead) -> tuple[SplitRead, Tally]:
        return read, _tally(read, rule, emitted_us)

    with ThreadPoolExecutor(min(workers, 4 * (os.cpu_count() or 1))) as pool:
        for counted in pool.map(count, reads):
            done()
            yield counted


def _tally(read: SplitRead, rule: Rule, emitted_us: int) -> Tally:
    if read.batch is None:
        rule, late_us = _PURGED, MIN_WATERMARK
    else:
        late_us = read.batch.late_us
    tally = Tally()
    bounds = rule.bounds(late_us, emitted_us)
    windows = rule if isinstance(rule, Windows) and rule.is_sliding else None
    if windows is not None:
        tally.pairs = [0, 0, 0, 0]
    try:
        for block in read.blocks():
            if not block.rows:
                continue
            if isinstance(block, LostRows):
                tally.lose(block)
                continue
            if windows is not None and tally.pairs is not None:
                total, dropped, ended = _pairs(windows, block, late_us, emitted_us)
                more = (total, dropped, ended - dropped, (total - ended) * (windows.waits is not None))
                tally.pairs[:] = map(add, tally.pairs, more)
            if block.is_bounded and not bounds.crosses(block.min_us, block.max_us):
                one = np.array([block.max_us])
                tally.add(block.rows, *(part * block.rows for part in bounds.parted(one)))
                tally.reach(block.min_us, block.max_us)
                continue
            times = block.load()
            tally.scanned += len(times)
            valid = times[times != NO_TIMESTAMP]
            tally.add(len(valid), *bounds.parted(valid))
            _add_without_time(tally, len(times) - len(valid), rule)
            if len(valid):
                tally.reach(int(valid.min()), int(valid.max()))
    except DataLossError as error:
        # Its first sentence, without the advice for a query that runs.
        text = " ".join(str(error).splitlines())
        tally.gone = "the file was deleted" if isinstance(error, FileGoneError) else text.partition(". ")[0]
    return tally


def _add_without_time(tally: Tally, rows: int, rule: Rule) -> None:
    """Count rows without an event time: no watermark drops them, and they are in no window."""
    tally.read += rows
    if isinstance(rule, Undecided):
        tally.unknown += rows
    elif rule.needs_time:
        tally.without_time += rows
    elif isinstance(rule, RowTimes) and rule.waits:
        # A watermark never passes their group.
        tally.open += rows
    elif isinstance(rule, RowTimes) and rule.waits is None:
        tally.unknown += rows
    else:
        tally.emitted += rows


def _pairs(windows: Windows, block: TimeBlock, late_us: int, emitted_us: int) -> tuple[int, int, int]:
    """Return the pairs of a row and a window: how many there are, how many are dropped, and how many have ended."""
    each, rest = divmod(windows.size_us, windows.slide_us)
    # Half of the maximum, so that differences do not overflow.
    emitted_us = MAX_WATERMARK // 2 if windows.waits is False else emitted_us
    if block.is_bounded and not rest:
        # If the first and the last row have the same late and emitted windows, so have all between them.
        low, high = (np.array([us]) for us in (block.min_us, block.max_us))
        parts = [[windows.windows(one, ended)[1] for ended in (late_us, emitted_us)] for one in (low, high)]
        if parts[0] == parts[1] and set(parts[0]) <= {0, each}:
            dropped, ended = parts[0]
            return block.rows * each, block.rows * dropped, block.rows * ended
    times = block.load()
    valid = times[times != NO_TIMESTAMP]
    return *windows.windows(valid, late_us), windows.windows(valid, emitted_us)[1]


# ---- sessions --------------------------------------------------------------------------------------------------------


def settled_sessions(reads: Sequence[SplitRead], rule: SessionWindows, emitted_us: int) -> SessionWindows:
    """Return the rule with the time before which every session has ended, whatever the keys.

    That is the last time before the watermark after which the rows of all keys together pause for the gap. Event times
    are read backwards from the watermark, in growing spans, until there is such a pause.
    """
    last = emitted_us - rule.gap_us
    width = 64
    while width <= _WIDEST:
        begin = last - width * rule.gap_us
        times = np.unique(np.concatenate([np.empty(0, np.int64), *_kept(reads, rule, emitted_us, begin)]))
        # Rows later than the watermark may continue a session that began before it.
        pauses = np.flatnonzero(np.diff(times, append=last + 2 * rule.gap_us) > rule.gap_us)
        before = times[pauses][times[pauses] <= last]
        if len(before) or not len(times) or times[0] > last:
            return replace(rule, settled_us=int(before[-1]) + 1 if len(before) else begin)
        width *= 8
    return replace(rule, settled_us=MIN_WATERMARK)


def _kept(reads: Sequence[SplitRead], rule: SessionWindows, emitted_us: int, begin_us: int) -> Iterator[Int64Array]:
    """Yield the event times of rows that were not dropped, from `begin_us` to one gap beyond the watermark."""
    for read in reads:
        late_us = MIN_WATERMARK if read.batch is None else read.batch.late_us
        kept = MIN_WATERMARK if read.batch is None else rule.bounds(late_us, emitted_us).dropped
        first, end = max(kept, begin_us), emitted_us + rule.gap_us
        try:
            for block in read.blocks():
                if isinstance(block, LostRows) or (block.is_bounded and (block.max_us < first or block.min_us > end)):
                    continue
                times = block.load()
                yield np.unique(times[(times >= first) & (times <= end) & (times != NO_TIMESTAMP)])
        except DataLossError:
            # Its rows may belong to any session.
            yield np.arange(first, end, rule.gap_us)
