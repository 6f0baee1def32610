"""The files of a split as one sequence of records."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from streaming_source.connectors.files.formats import FileBlocks, Place
from streaming_source.connectors.files.split import FileRange

__all__ = ["FileLog", "LoggedFile", "cut_ranges"]


@dataclass(frozen=True, slots=True)
class LoggedFile:
    """One file of a split.

    Attributes
    ----------
    name
        Of the file, within its split.
    path
        To open it.
    position
        Of its first row in the split.
    group_rows
        Rows of each of its blocks.
    number
        Of the file in its split, from 1.
    places
        Where each of its blocks begins, as the format has it; None where a row is enough to find it.
    one_range
        Whether only a reader that begins at the beginning can read it: it is not shared by several.
    """

    name: str
    path: str
    position: int
    group_rows: tuple[int, ...]
    number: int = 0
    places: tuple[int, ...] | None = None
    one_range: bool = False

    @classmethod
    def of(cls, name: str, path: str, position: int, blocks: FileBlocks, number: int = 0) -> LoggedFile:
        """A file by its description."""
        return cls(name, path, position, tuple(blocks.rows.tolist()), number, blocks.places, blocks.one_range)

    @property
    def end(self) -> int:
        """Position after its last row."""
        return self.position + sum(self.group_rows)

    def place_of(self, row: int) -> Place | None:
        """Where to begin to read a row. O(blocks)."""
        if self.places is None:
            return None
        first = 0
        for rows, place in zip(self.group_rows, self.places, strict=True):
            if first + rows > row:
                return Place(first, place)
            first += rows
        return None


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
        begun = first = max(start - file.position, 0)
        end_of_group = 0
        place = None
        last = min(stop - file.position, sum(file.group_rows))
        for number, group_rows in enumerate(file.group_rows):
            end_of_group += group_rows
            if end_of_group <= first or begun >= last:
                continue
            upto = min(end_of_group, last)
            if file.places is not None and end_of_group - group_rows <= begun:
                place = Place(end_of_group - group_rows, file.places[number])
            if upto == last or (rows + upto - begun >= rows_per_range and not file.one_range):
                current.append(FileRange(file.path, begun, upto, file.position + begun, place))
                rows += upto - begun
                begun = upto
                if rows >= rows_per_range:
                    close()
    close()
    return groups
