"""Marks of files: twelve bytes by which a file is known again, and whether it was rewritten; and sets of them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from enum import IntEnum
from hashlib import blake2b
from typing import Final

import numpy as np
import numpy.typing as npt

from streaming_source.connectors.files.listing import ListedFile

MARK: Final = np.dtype([("path", "<u8"), ("version", "<u4")])
"""A digest of the path below the root, and one of size and modification time."""

_ANY_VERSION: Final = 0
"""The version of a file of which only the path is known."""

Marks = npt.NDArray[np.void]
"""Array of `MARK`."""

NO_MARKS: Final[Marks] = np.empty(0, MARK)

_CELL: Final = np.dtype([("count", "<i4"), ("path", "<u8"), ("version", "<u4"), ("check", "<u4")])
_BITS: Final = 6
_ROWS: Final = 3


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
    """The answer of a set of marks to a file: it has it, in this version or another, or it has not."""

    NEW = 0
    SAME = 1
    REWRITTEN = 2


class MarkSet:
    """A set of marks, 12 bytes each. A file may be in it in several versions."""

    def __init__(self, marks: bytes = b"") -> None:
        # Sorted by path.
        self._paths = np.empty(0, np.uint64)
        self._versions = np.empty(0, np.uint32)
        self.add(np.frombuffer(marks, MARK))

    def __len__(self) -> int:
        return self._paths.size

    def add(self, marks: Marks) -> None:
        """Add the marks of m files. O(m log m), and a copy of the set."""
        if marks.size:
            new = marks[np.argsort(marks["path"])]
            before = np.searchsorted(self._paths, new["path"])
            self._paths = np.insert(self._paths, before, new["path"])
            self._versions = np.insert(self._versions, before, new["version"])

    def remove(self, marks: Marks) -> None:
        """Remove these versions of m files. O((m + n) log m) for n marks in the set."""
        removed = set(marks.tolist())
        (same_path,) = np.isin(self._paths, marks["path"]).nonzero()
        pairs = zip(self._paths[same_path].tolist(), self._versions[same_path].tolist(), strict=True)
        same = same_path[np.fromiter((pair in removed for pair in pairs), np.bool_)]
        self._paths, self._versions = np.delete(self._paths, same), np.delete(self._versions, same)

    def match(self, marks: Marks) -> npt.NDArray[np.int8]:
        """Return `Known` of each of n files, `int8[n]`. O(n log m) for m marks in the set."""
        found = np.full(marks.size, Known.NEW, np.int8)
        paths, versions = self._paths, self._versions
        number, undecided = np.searchsorted(paths, marks["path"]), np.arange(marks.size)
        # The versions of one path follow each other; there is hardly ever more than one.
        while undecided.size:
            there = number < paths.size
            there[there] = paths[number[there]] == marks["path"][undecided[there]]
            number, undecided = number[there], undecided[there]
            known, asked = versions[number], marks["version"][undecided]
            same = (known == asked) | (known == _ANY_VERSION) | (asked == _ANY_VERSION)
            found[undecided] = np.where(same, Known.SAME, Known.REWRITTEN)
            number, undecided = number[~same] + 1, undecided[~same]
        return found


class MarkSketch:
    """A set of marks in 4 KB, however many they are, that can be compared with another set: what one of them lacks.

    An invertible Bloom lookup table (Goodrich and Mitzenmacher, 2011; as a difference of sets: Eppstein and others,
    2011). Each mark is in one cell of each row, chosen by a digest of path and version; a cell has how many marks are
    in it, and their exclusive or. Of two sets the cells are subtracted: what both have vanishes, and what is left is
    taken out of the cells that have one mark alone, again and again. So differences of up to some 130 marks are found,
    and larger ones are seen to be larger. That a difference is wrong takes digests of 32 bits that are equal by chance.

    No mark may be added twice.
    """

    def __init__(self, data: bytes = b"") -> None:
        cells = np.frombuffer(data, _CELL) if data else np.zeros(_ROWS << _BITS, _CELL)
        self._cells = cells.reshape(_ROWS, -1).copy()

    @staticmethod
    def of(marks: Marks) -> MarkSketch:
        sketch = MarkSketch()
        sketch.add(marks)
        return sketch

    def __len__(self) -> int:
        return int(self._cells[0]["count"].sum())

    def tobytes(self) -> bytes:
        return self._cells.tobytes()

    def add(self, marks: Marks) -> None:
        """Add m marks. O(m)."""
        self._change(marks, 1)

    def remove(self, marks: Marks) -> None:
        """Remove m marks, which are in it. O(m)."""
        self._change(marks, -1)

    def surely_lacks_some(self, marks: Marks) -> bool:
        """Return whether it shows that some of m marks are not in it: what is gone may hide them. O(m)."""
        left = MarkSketch(self.tobytes())
        left.remove(marks)
        counts = left._cells["count"]
        return bool(((counts < 0) | ((counts == 0) & (left._cells["path"] != 0))).any())

    def difference(self, marks: Marks) -> tuple[Marks, Marks] | None:
        """Return the marks that only another set has, and those that only this one has; None if these are too many.

        O(m) for the m `marks` of the other set.
        """
        left, found = MarkSketch(self.tobytes()), {1: [NO_MARKS], -1: [NO_MARKS]}
        left.remove(marks)
        while True:
            cells = left._cells.reshape(-1)
            alone = np.abs(cells["count"]) == 1
            alone &= cells["check"] == _digests(cells) >> np.uint64(32)
            if not alone.any():
                break
            for sign, marks_of_sign in found.items():
                # One mark is alone in up to three cells.
                taken = np.unique(_marks_in(cells[alone & (cells["count"] == sign)]))
                left._change(taken, -sign)
                marks_of_sign.append(taken)
                if taken.size:
                    break
        if any(left.tobytes()):
            return None
        return np.concatenate(found[-1]), np.concatenate(found[1])

    def _change(self, marks: Marks, count: int) -> None:
        digests = _digests(marks)
        checks = (digests >> np.uint64(32)).astype(np.uint32)
        for number, row in enumerate(self._cells):
            cells = ((digests >> np.uint64(number * _BITS)) & np.uint64((1 << _BITS) - 1)).astype(np.intp)
            np.add.at(row["count"], cells, count)
            for name, values in (("path", marks["path"]), ("version", marks["version"]), ("check", checks)):
                np.bitwise_xor.at(row[name], cells, values)


def _marks_in(cells: npt.NDArray[np.void]) -> Marks:
    marks = np.empty(cells.size, MARK)
    marks["path"], marks["version"] = cells["path"], cells["version"]
    return marks


def _digests(marks: npt.NDArray[np.void]) -> npt.NDArray[np.uint64]:
    """Return a digest of path and version, `uint64[n]`: the lower bits choose the cells, the upper half checks them."""
    mixed: npt.NDArray[np.uint64] = marks["path"] ^ (marks["version"].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))
