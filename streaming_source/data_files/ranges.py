"""Files that follow each other in a split, and how their records are cut into ranges for readers."""

from __future__ import annotations

import posixpath
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple, Self

import numpy as np

from alignment.arrow_times import format_timestamp
from alignment.event_time_range import EventTimeRange
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, Int64Array
from streaming_source.api import SourceSplit
from streaming_source.data_files.file import DataFile, FileBlocks, SeekPoint
from streaming_source.exceptions import DataLossError


@dataclass(frozen=True, slots=True)
class FileRange:
    """Rows `[start, stop)` of one file; `position` is that of the first of them in its split.

    `seek_point` is where a reader starts, at or before the first of them; None for the start of the file. The event
    times of the rows are from `low_us` to `high_us`, by the blocks of the file.
    """

    file: DataFile
    start: int
    stop: int
    position: int
    seek_point: SeekPoint | None = None
    low_us: int = NO_TIMESTAMP
    high_us: int = MAX_WATERMARK

    def check(self, times: Int64Array) -> None:
        """Raise a `DataLossError` if one of some event times is outside of the bounds: the statistics are wrong."""
        if not times.size or (times.max() <= self.high_us and times.min() >= self.low_us):
            return
        valid = times[times != NO_TIMESTAMP]
        low_us, high_us = int(valid.min(initial=MAX_WATERMARK)), int(valid.max(initial=NO_TIMESTAMP))
        if low_us < self.low_us or high_us > self.high_us:
            (of_rows, of_footer) = (
                f"{format_timestamp(low)} to {format_timestamp(high)}"
                for low, high in ((low_us, high_us), (self.low_us, self.high_us))
            )
            raise DataLossError(
                f"{self.file.path}: rows {self.start} to {self.stop - 1} have event times from {of_rows}, but from "
                f"{of_footer} by the statistics in its footer, which are wrong: a watermark that follows from them "
                "drops rows. Set indexing = scan, and use a new checkpointLocation if rows were read already"
            )


class Arrival(NamedTuple):
    """When a file came: in which `log`, and as which there, in the `order` that `by` names."""

    log: str
    order: int
    by: str


class RangedSplit(SourceSplit):
    """A split whose records are in data files. `ranges` are what a reader reads, in this order.

    The planner leaves them empty.
    """

    __slots__ = ()

    ranges: tuple[FileRange, ...]

    @abstractmethod
    def with_ranges(self, ranges: tuple[FileRange, ...]) -> Self:
        """Return the split for a reader of these ranges."""

    @abstractmethod
    def arrival_of(self, part: FileRange) -> Arrival:
        """Return when the file of one of the `ranges` came."""


@dataclass(frozen=True, slots=True)
class LoggedFile:
    """One file of a split: its blocks, and the position of its first row.

    In a split of several files it has a `number`, from 1 on, and `size` bytes that were modified at `modified_ms`; the
    latest of the files up to it was modified at `newest_ms`.
    """

    file: DataFile
    position: int
    blocks: FileBlocks
    number: int = 0
    size: int = 0
    modified_ms: int = 0
    newest_ms: int = 0

    @property
    def name(self) -> str:
        return posixpath.basename(self.file.path)

    @property
    def end(self) -> int:
        return self.position + int(self.blocks.rows.sum())

    def block_of(self, row: int) -> tuple[int, int]:
        """Return the number of the block that has a row, and the first row of that block. O(blocks)."""
        if len(self.blocks.rows) == 1:
            return 0, 0
        ends = np.cumsum(self.blocks.rows)
        block = int(np.searchsorted(ends, row, side="right"))
        return block, int(ends[block - 1]) if block else 0

    def range_of(self, first: int, stop: int) -> FileRange:
        """Return the range of these rows of the file, one or more. O(blocks)."""
        found = self.blocks
        block, begin = self.block_of(first)
        blocks = slice(block, self.block_of(stop - 1)[0] + 1)
        low_us, high_us = int(found.valid_min_us[blocks].min()), int(found.max_us[blocks].max())
        # Where no event time is known there are no bounds.
        bounds = (low_us, high_us) if low_us <= high_us else (NO_TIMESTAMP, MAX_WATERMARK)
        # A file without offsets can only be read from its start.
        seek_point = None if found.offsets is None else SeekPoint(begin, found.offsets[block])
        return FileRange(self.file, first, stop, self.position + first, seek_point, *bounds)

    def parts(self, start: int, stop: int, wanted: EventTimeRange | None) -> list[tuple[int, int]]:
        """Return the rows of the positions `[start, stop)` as runs of blocks that may have `wanted` event times.

        A file that can only be read from its beginning has one run at most. O(blocks).
        """
        first, last = max(start - self.position, 0), min(stop, self.end) - self.position
        if not wanted or first >= last:
            return [(first, last)] if first < last else []
        kept = ~wanted.excludes(self.blocks.min_us, self.blocks.max_us)
        if self.blocks.offsets is None:
            kept = np.logical_or.accumulate(kept) & np.logical_or.accumulate(kept[::-1])[::-1]
        edges = np.flatnonzero(np.diff(kept, prepend=False, append=False))
        bounds = np.concatenate([[0], np.cumsum(self.blocks.rows)])[edges].clip(first, last).reshape(-1, 2)
        return [(begin, end) for begin, end in bounds.tolist() if begin < end]


@dataclass(slots=True)
class FileLog:
    """Consecutive files of a split, beginning with the file of the next record."""

    files: list[LoggedFile] = field(default_factory=list)

    def locate(self, position: int) -> LoggedFile | None:
        """Return the file that holds `position`, else the last one before it. O(log n)."""
        index = bisect_right(self.files, position, key=attrgetter("position")) - 1
        return self.files[index] if index >= 0 else None

    def covers(self, start: int, stop: int) -> bool:
        """Return whether all records of `[start, stop)` are in these files."""
        return bool(self.files) and self.files[0].position <= start and stop <= self.files[-1].end

    def forget_before(self, position: int) -> None:
        """Drop the files that end at or before `position`, but for the last one."""
        while len(self.files) > 1 and self.files[0].end <= position:
            del self.files[0]


def cut_ranges(
    files: Iterable[LoggedFile], start: int, stop: int, rows_per_range: int, wanted: EventTimeRange | None = None
) -> Sequence[tuple[tuple[FileRange, ...], int]]:
    """Cut the records `[start, stop)` into groups of file ranges, each of about `rows_per_range` rows.

    Returns `(ranges, rows)` of each group. Groups end where blocks end, so that no block is decoded twice. Blocks
    without `wanted` event times are in no group, unless they lie between others in a file that can only be read from
    its beginning.
    """
    groups: list[tuple[tuple[FileRange, ...], int]] = []
    current: list[FileRange] = []
    rows = 0
    for file in files:
        ends = np.cumsum(file.blocks.rows)
        for first, last in file.parts(start, stop, wanted):
            begin = first
            for end_of_block in ends[np.searchsorted(ends, first, side="right") :].tolist():
                end = min(end_of_block, last)
                if end < last and (rows + end - begin < rows_per_range or file.blocks.offsets is None):
                    # More blocks are in this group, or all that follow.
                    continue
                if end <= begin:
                    continue
                current.append(file.range_of(begin, end))
                rows += end - begin
                begin = end
                if rows >= rows_per_range:
                    groups.append((tuple(current), rows))
                    current, rows = [], 0
    return [*groups, (tuple(current), rows)] if current else groups
