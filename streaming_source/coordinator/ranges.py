"""The records between two states of a source: which they are, in ranges, and who reads them."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from streaming_source.api import SplitRange
from streaming_source.api.split import SplitT
from streaming_source.coordinator.state import CheckpointT, SourceState
from streaming_source.exceptions import DataLossError, UnsupportedOperationError

if TYPE_CHECKING:
    from streaming_source.coordinator.runtime import SourceRuntime

MOST_PARTS: Final = 10_000
"""Parts of one range, each a task of Spark."""
_ALL_ROWS: Final = 2**62


def ranges_between(
    runtime: SourceRuntime[SplitT, CheckpointT],
    start: SourceState[SplitT, CheckpointT],
    end: SourceState[SplitT, CheckpointT],
    readers: int,
    min_rows: int,
    *,
    read_at: SourceState[SplitT, Any] | None = None,
) -> list[SplitRange[SplitT]]:
    """Return what lies between two states, cut into ranges for `readers`; of it what a stream had `read_at` a state."""
    pairs = [*end.since(start, reads_on=runtime.reads_on), *_left_out(runtime, start, end)]
    pairs = [(before, after) for before, after in _as_read(runtime, pairs, read_at) if after.position > before.position]
    # In the order of their ids, wherever they were found: what is read again is cut in the same way.
    pairs.sort(key=lambda pair: pair[1].split_id)
    rows = sum(after.position - before.position for before, after in pairs)
    # If a watermark depends on the order of records, one reader reads the whole split.
    size = _ALL_ROWS if runtime.reads_on else rows_per_range(rows, readers, min_rows)
    return [part for before, after in pairs for part in runtime.event_times.ranges(before, after, size)]


def whole_splits(
    runtime: SourceRuntime[SplitT, Any],
    splits: Sequence[SplitT],
    readers: int,
    min_rows: int,
    *,
    read_at: SourceState[SplitT, Any] | None = None,
) -> list[SplitRange[SplitT]]:
    """Return fresh splits to their ends, which readers find; of them what a stream had `read_at` a state."""
    ends = [split.at(split.position + 1 if split.stop is None else split.stop) for split in splits]
    whole = [
        SplitRange(begun if read_at is None else begun.until(ended.position), ended.position - begun.position)
        for begun, ended in _as_read(runtime, list(zip(splits, ends, strict=True)), read_at)
        if ended.position > begun.position
    ]
    size = rows_per_range(sum(part.rows for part in whole), readers, min_rows)
    return [part for one in whole for part in cut_range(one, size)]


def _as_read(
    runtime: SourceRuntime[SplitT, Any], pairs: list[tuple[SplitT, SplitT]], at: SourceState[SplitT, Any] | None
) -> list[tuple[SplitT, SplitT]]:
    """Cut what lies between two states of splits to what a stream had read of it."""
    if at is None or not pairs:
        return pairs
    known, ends = at.by_id(), [ended for _, ended in pairs]
    assert at.checkpoint is not None, "a state with records has a checkpoint"
    stops = runtime.host.enumerator.read_at(ends, known, at.checkpoint)
    cut = []
    for (begun, ended), stop in zip(pairs, stops, strict=True):
        split = known.get(ended.split_id)
        first = begun.position if split is None else max(begun.position, split.origin().position)
        cut.append((begun.at(first), ended.at(max(min(ended.position, stop), first))))
    return cut


def _left_out(
    runtime: SourceRuntime[SplitT, CheckpointT],
    start: SourceState[SplitT, CheckpointT],
    end: SourceState[SplitT, CheckpointT],
) -> list[tuple[SplitT, SplitT]]:
    """Find the splits that the end of a micro-batch leaves out, as they were before and after it."""
    if not any(end.left_out):
        return []
    before, in_work = start.by_id(), frozenset(end.table.split_ids)
    left = [split for split in start.unfinished() if split.split_id not in in_work]
    if (index := runtime.event_times.index) is None:
        raise UnsupportedOperationError(f"{runtime.name} has no checkpoint that names finished splits")
    found = index.finished_between(left, start.checkpoint, end.checkpoint, in_work)
    if (len(found), sum(split.position for split in found)) != end.left_out:
        raise DataLossError(
            f"{runtime.name}: the micro-batch that is read again had read {end.left_out[1]} records of "
            f"{end.left_out[0]} splits to their ends, and now there are {sum(one.position for one in found)} of "
            f"{len(found)}: what it read was changed or removed since. Restore that, or use a new "
            "checkpointLocation"
        )
    return [(before.get(split.split_id) or split.origin(), split) for split in found]


# ---- who reads them --------------------------------------------------------------------------------------------------


def rows_per_range(rows: int, readers: int, min_rows: int) -> int:
    """The size of ranges, `min_rows` at least, of which there are as many as readers if there are as many rows."""
    share = -(-rows // readers)
    return max(min_rows, share if -(-rows // max(share, 1)) >= readers else max(rows // readers, 1))


def assign_ranges(
    ranges: Sequence[SplitRange[SplitT]], readers: int, max_rows: int | None = None
) -> list[list[SplitT]]:
    """Give ranges to at most `readers` readers so that each has about as many records; no reader is left empty.

    Largest range first, each to the reader that has least: within 4/3 of the best. O(n log n). Equal input gives equal
    output. Ranges of one split stay in their order within a reader. With `max_rows` no reader of divisible splits has
    more records than that, and there are as many readers as that takes. A range is cut into `MOST_PARTS` at most: its
    positions may have a gap of any width.
    """
    if max_rows is not None:
        ranges = [part for whole in ranges for part in cut_range(whole, max(max_rows, -(-whole.rows // MOST_PARTS)))]
    loads = [(0, reader) for reader in range(min(readers, len(ranges)))]
    assigned: list[list[int]] = [[] for _ in loads]
    for number in sorted(range(len(ranges)), key=lambda n: (-ranges[n].rows, n)):
        rows, reader = heapq.heappop(loads)
        if max_rows is not None and rows and rows + ranges[number].rows > max_rows:
            heapq.heappush(loads, (rows, reader))
            rows, reader = 0, len(assigned)
            assigned.append([])
        assigned[reader].append(number)
        heapq.heappush(loads, (rows + ranges[number].rows, reader))
    return [[ranges[number].split for number in sorted(numbers)] for numbers in assigned]


def one_range_each(ranges: Sequence[SplitT]) -> list[list[SplitT]]:
    """The ranges of one reader in rounds, in each at most one of a split: a reader knows a split by its id."""
    rounds: list[list[SplitT]] = []
    taken: Counter[str] = Counter()
    for split in ranges:
        if (number := taken[split.split_id]) == len(rounds):
            rounds.append([])
        rounds[number].append(split)
        taken[split.split_id] += 1
    return rounds


def cut_range(whole: SplitRange[SplitT], max_rows: int) -> list[SplitRange[SplitT]]:
    """A range in parts of at most so many rows, if its split can be read from any position."""
    split = whole.split
    if whole.rows <= max_rows or not split.is_divisible or split.stop is None:
        return [whole]
    return SplitRange.evenly(split, split.stop, max_rows)
