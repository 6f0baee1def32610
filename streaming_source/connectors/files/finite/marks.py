"""Files by twelve bytes each: enough to know them again, and to see that one was rewritten."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from enum import IntEnum
from hashlib import blake2b
from typing import Final

import numpy as np
import numpy.typing as npt

from streaming_source.connectors.files.places.listing import ListedFile

__all__ = ["ANY_VERSION", "MARK", "Known", "MarkSet", "Marks", "marks_of"]

MARK: Final = np.dtype([("path", "<u8"), ("version", "<u4")])
"""A digest of the path below the root, and one of size and modification time."""

ANY_VERSION: Final = 0
"""The version of a file of which only the path is known."""

Marks = npt.NDArray[np.void]
"""Array of `MARK`."""


def marks_of(files: Iterable[ListedFile], *, by_name: bool = False) -> Marks:
    """The marks of files, in their order; of one of unknown size (below 0) that of all its versions.

    With `by_name` a file is any that has its name, in whatever directory and version.

    Two paths have one digest by chance only: among `n` files that are remembered and `m` that are new, one is taken for
    another with a probability of `n * m / 2**64` (a million of each: 1 in 18 million).
    """
    if by_name:
        return np.array([(_digest(file.name), ANY_VERSION) for file in files], MARK)
    return np.array([(_digest(file.relative_path), _version(file)) for file in files], MARK)


def _digest(path: str) -> int:
    return int.from_bytes(blake2b(path.encode(), digest_size=8).digest(), "little")


def _version(file: ListedFile) -> int:
    if file.size < 0:
        return ANY_VERSION
    return zlib.crc32(b"%d:%d" % (file.size, file.modified_ms)) or 1


class Known(IntEnum):
    """What is known of a file."""

    NEW = 0
    SAME = 1
    REWRITTEN = 2


class MarkSet:
    """Files that are known, by their marks. A file may be known in several versions.

    Kept in sorted arrays of which each is at least twice as long as the next: 12 bytes a file.
    """

    def __init__(self) -> None:
        self._levels: list[Marks] = []

    def __len__(self) -> int:
        """How many marks were added."""
        return sum(level.size for level in self._levels)

    def add(self, marks: Marks) -> None:
        """Make files known. O(log n) amortised a file, in numpy steps."""
        new = marks
        while self._levels and self._levels[-1].size < 2 * new.size:
            new = np.concatenate([self._levels.pop(), new])
        if new.size:
            self._levels.append(new[np.argsort(new["path"], kind="stable")])

    def match(self, marks: Marks) -> npt.NDArray[np.int8]:
        """Of each file what is known of it, `int8[n]` of `Known`. O(n log m log m) for m known ones."""
        found = np.full(marks.size, Known.NEW, np.int8)
        for level in self._levels:
            place = np.searchsorted(level["path"], marks["path"], side="left")
            undecided = np.arange(marks.size)
            # Versions of one path stand next to each other; there is hardly ever more than one.
            while undecided.size:
                inside = place < level.size
                undecided, place = undecided[inside], place[inside]
                hit = level["path"][place] == marks["path"][undecided]
                undecided, place = undecided[hit], place[hit]
                known, wanted = level["version"][place], marks["version"][undecided]
                same = (known == wanted) | (known == ANY_VERSION) | (wanted == ANY_VERSION)
                found[undecided[same]] = Known.SAME
                rest = ~same & (found[undecided] != Known.SAME)
                found[undecided[rest]] = Known.REWRITTEN
                undecided, place = undecided[rest], place[rest] + 1
        return found
