"""The files of a split as one sequence of records."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np

from streaming_source.connectors.files.formats import FileBlocks, Place
from streaming_source.connectors.files.split import FileRange

__all__ = ["FileLog", "LoggedFile", "cut_ranges"]


@dataclass(frozen=True, slots=True)
class LoggedFile:
    """One file of a split: its name there, how to open it, the position of its first row, its number from 1."""

    name: str
    path: str
    position: int
    blocks: FileBlocks
    number: int = 0

    @property
    def end(self) -> int:
        """Position after its last row."""
        return self.position + int(self.blocks.rows.sum())

    def place_of(self, row: int) -> Place | None:
        """Where to begin to read a row; None where it can be read from its beginning only. O(blocks)."""
        if self.blocks.places is None:
            return None
        ends = np.cumsum(self.blocks.rows)
        block = int(np.searchsorted(ends, row, side="right"))
        return Place(int(ends[block - 1]) if block else 0, self.blocks.places[block])


@dataclass(slots=True)
class FileLog:
    """Consecutive files of a split, from the one that holds the next record on."""

    files: list[LoggedFile] = field(default_factory=list)

    def append(self, file: LoggedFile) -> None:
        """Add the next file. O(1)."""
        self.files.append(file)

    def locate(self, position: int) -> LoggedFile | None:
        """The file that holds `position`, or after which it will come. O(log n)."""
        place = bisect_right(self.files, position, key=attrgetter("position")) - 1
        return self.files[place] if place >= 0 else None

    def covers(self, start: int, stop: int) -> bool:
        """Whether all records of `[start, stop)` are in these files."""
        return bool(self.files) and self.files[0].position <= start and stop <= self.files[-1].end

    def forget_before(self, position: int) -> None:
        """Drop the files that end at or before `position`, but for the last one."""
        keep = 0
        while keep < len(self.files) - 1 and self.files[keep].end <= position:
            keep += 1
        if keep:
            del self.files[:keep]


def cut_ranges(
    files: Iterable[LoggedFile], start: int, stop: int, rows_per_range: int
) -> Sequence[tuple[tuple[FileRange, ...], int]]:
    """The records `[start, stop)` as groups of file ranges of about `rows_per_range` rows, with their row counts.

    Cut between blocks, so that none is decoded twice.
    """
    groups: list[tuple[tuple[FileRange, ...], int]] = []
    current: list[FileRange] = []
    rows = 0

    def close() -> None:
        nonlocal rows
        if current:
            groups.append((tuple(current), rows))
            current.clear()
            rows = 0

    for file in files:
        begun = max(start - file.position, 0)
        last = min(stop, file.end) - file.position
        for end_of_block in np.cumsum(file.blocks.rows).tolist():
            upto = min(end_of_block, last)
            if upto <= begun or not (upto == last or rows + upto - begun >= rows_per_range):
                continue
            if upto < last and file.blocks.places is None:
                continue
            current.append(FileRange(file.path, begun, upto, file.position + begun, file.place_of(begun)))
            rows += upto - begun
            begun = upto
            if rows >= rows_per_range:
                close()
    close()
    return groups
