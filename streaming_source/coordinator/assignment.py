"""Who reads what in one micro-batch."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

from streaming_source.api import SourceSplit, SplitRange

__all__ = ["assign_ranges", "even_ranges"]

SplitT = TypeVar("SplitT", bound=SourceSplit)


def even_ranges(start: SplitT, stop: int, rows_per_range: int) -> list[SplitRange[SplitT]]:
    """What lies before `stop` in a split, in ranges of about as many positions, at most `rows_per_range`. O(ranges)."""
    rows = stop - start.position
    parts = max(-(-rows // rows_per_range), 1)
    cuts = [start.position + rows * part // parts for part in range(parts + 1)]
    return [SplitRange(start.at(begin).until(end), end - begin) for begin, end in pairwise(cuts)]


def assign_ranges(
    ranges: Sequence[SplitRange[SplitT]], readers: int, max_rows: int | None = None
) -> list[list[SplitT]]:
    """Give ranges to at most `readers` readers so that each has about as many records; no reader is left empty.

    Largest range first, each to the reader that has least: within 4/3 of the best. O(n log n). Equal input gives equal
    output. Ranges of one split stay in their order within a reader. With `max_rows` no reader of divisible splits has
    more records than that, and there are as many readers as that takes.
    """
    if max_rows is not None:
        ranges = [part for whole in ranges for part in _cut(whole, max_rows)]
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


def _cut(whole: SplitRange[SplitT], max_rows: int) -> list[SplitRange[SplitT]]:
    split = whole.split
    if whole.rows <= max_rows or not split.is_divisible or split.stop is None:
        return [whole]
    return even_ranges(split, split.stop, max_rows)
