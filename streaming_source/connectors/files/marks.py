"""Marks of files: twelve bytes by which a file that was found is known again, and whether it was rewritten."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from enum import IntEnum
from hashlib import blake2b
from typing import Final

import numpy as np
import numpy.typing as npt

from streaming_source.connectors.files.listing import ListedFile

__all__ = ["MARK", "Known", "MarkSet", "Marks", "marks_of"]

MARK: Final = np.dtype([("path", "<u8"), ("version", "<u4")])
"""A digest of the path below the root, and one of size and modification time."""

_ANY_VERSION: Final = 0
"""The version of a file of which only the path is known."""

Marks = npt.NDArray[np.void]
"""Array of `MARK`."""


def marks_of(files: Iterable[ListedFile], *, by_name: bool = False) -> Marks:
    """Return the marks of files, in their order. The mark of a file of unknown size (below 0) is of all its versions.

    With `by_name` all files of one name are the same, whatever their directory and version.

    Two paths may have the same digest by chance: of `m` new files and `n` remembered ones, some pair does with a
    probability of `n * m / 2**64` (a million of each: 1 in 18 million).
    """
    if by_name:
        return np.array([(_digest(file.name), _ANY_VERSION) for file in files], MARK)
    return np.array([(_digest(file.relative_path), _version(file)) for file in files], MARK)


def _digest(path: str) -> int:
    return int.from_bytes(blake2b(path.encode(), digest_size=8).digest(), "little")


def _version(file: ListedFile) -> int:
    return _ANY_VERSION if file.size < 0 else zlib.crc32(b"%d:%d" % (file.size, file.modified_ms)) or 1


class Known(IntEnum):
    """Whether a set of marks has a file, in this version or another."""

    NEW = 0
    SAME = 1
    REWRITTEN = 2


class MarkSet:
    """A set of marks, 12 bytes each. A file may be in it in several versions."""

    def __init__(self) -> None:
        # Sorted by path.
        self._paths = np.empty(0, np.uint64)
        self._versions = np.empty(0, np.uint32)

    def __len__(self) -> int:
        return self._paths.size

    def add(self, marks: Marks) -> None:
        """Add the marks of m files. O(m log m), and a copy of the set."""
        if marks.size:
            new = marks[np.argsort(marks["path"])]
            place = np.searchsorted(self._paths, new["path"])
            self._paths = np.insert(self._paths, place, new["path"])
            self._versions = np.insert(self._versions, place, new["version"])

    def remove(self, marks: Marks) -> None:
        """Remove these versions of m files. O((m + n) log m) for n marks in the set."""
        gone = {(int(mark["path"]), int(mark["version"])) for mark in marks}
        (near,) = np.isin(self._paths, marks["path"]).nonzero()
        pairs = zip(self._paths[near].tolist(), self._versions[near].tolist(), strict=True)
        leaves = near[[pair in gone for pair in pairs]] if near.size else near
        self._paths, self._versions = np.delete(self._paths, leaves), np.delete(self._versions, leaves)

    def match(self, marks: Marks) -> npt.NDArray[np.int8]:
        """Return `Known` of each of n files, `int8[n]`. O(n log m) for m marks in the set."""
        found = np.full(marks.size, Known.NEW, np.int8)
        paths, versions = self._paths, self._versions
        place, undecided = np.searchsorted(paths, marks["path"]), np.arange(marks.size)
        # The versions of one path follow each other; there is hardly ever more than one.
        while undecided.size:
            there = place < paths.size
            there[there] = paths[place[there]] == marks["path"][undecided[there]]
            place, undecided = place[there], undecided[there]
            known, wanted = versions[place], marks["version"][undecided]
            same = (known == wanted) | (known == _ANY_VERSION) | (wanted == _ANY_VERSION)
            found[undecided] = np.where(same, Known.SAME, Known.REWRITTEN)
            place, undecided = place[~same] + 1, undecided[~same]
        return found
