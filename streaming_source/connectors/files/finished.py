"""Which files are finished: what is remembered of them, twelve bytes a file, and how much of it in an offset."""

from __future__ import annotations

import logging
import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from enum import IntEnum
from hashlib import blake2b
from typing import Final

import numpy as np
import numpy.typing as npt
from sortedcontainers import SortedDict

from streaming_source.connectors.files.checkpoint import FileOrder, OrderKey, Remembered, Segment
from streaming_source.connectors.files.listing import ListedFile

__all__ = ["MARK", "FinishedFiles", "Known", "MarkSet", "Marks", "RecentFiles", "marks_of", "order_key"]

_log = logging.getLogger(__name__)

_SEGMENTS: Final = 8
_AGE_SEGMENTS: Final = 64
_MANY_FILES: Final = 3 * 1024
"""In base 64, some 48 KiB of the offset."""

MARK: Final = np.dtype([("path", "<u8"), ("version", "<u4")])
"""A digest of the path below the root, and one of size and modification time."""

_ANY_VERSION: Final = 0
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
        return np.array([(_digest(file.name), _ANY_VERSION) for file in files], MARK)
    return np.array([(_digest(file.relative_path), _version(file)) for file in files], MARK)


def _digest(path: str) -> int:
    return int.from_bytes(blake2b(path.encode(), digest_size=8).digest(), "little")


def _version(file: ListedFile) -> int:
    return _ANY_VERSION if file.size < 0 else zlib.crc32(b"%d:%d" % (file.size, file.modified_ms)) or 1


class Known(IntEnum):
    """What is known of a file."""

    NEW = 0
    SAME = 1
    REWRITTEN = 2


class MarkSet:
    """Files that are known, by their marks: 12 bytes a file. One may be known in several versions."""

    def __init__(self) -> None:
        # Sorted by path.
        self._paths = np.empty(0, np.uint64)
        self._versions = np.empty(0, np.uint32)

    def __len__(self) -> int:
        return self._paths.size

    def add(self, marks: Marks) -> None:
        """Make m files known. O(m log m), and copying those that are known."""
        if marks.size:
            new = marks[np.argsort(marks["path"])]
            place = np.searchsorted(self._paths, new["path"])
            self._paths = np.insert(self._paths, place, new["path"])
            self._versions = np.insert(self._versions, place, new["version"])

    def remove(self, marks: Marks) -> None:
        """Forget these versions of m files. O((m + n) log m) for n known ones."""
        gone = {(int(mark["path"]), int(mark["version"])) for mark in marks}
        (near,) = np.isin(self._paths, marks["path"]).nonzero()
        pairs = zip(self._paths[near].tolist(), self._versions[near].tolist(), strict=True)
        leaves = near[[pair in gone for pair in pairs]] if near.size else near
        self._paths, self._versions = np.delete(self._paths, leaves), np.delete(self._versions, leaves)

    def match(self, marks: Marks) -> npt.NDArray[np.int8]:
        """Of each file what is known of it, `int8[n]` of `Known`. O(n log m) for m known ones."""
        found = np.full(marks.size, Known.NEW, np.int8)
        paths, versions = self._paths, self._versions
        place, undecided = np.searchsorted(paths, marks["path"]), np.arange(marks.size)
        # Versions of one path stand next to each other; there is hardly ever more than one.
        while undecided.size:
            there = place < paths.size
            there[there] = paths[place[there]] == marks["path"][undecided[there]]
            place, undecided = place[there], undecided[there]
            known, wanted = versions[place], marks["version"][undecided]
            same = (known == wanted) | (known == _ANY_VERSION) | (wanted == _ANY_VERSION)
            found[undecided] = np.where(same, Known.SAME, Known.REWRITTEN)
            place, undecided = place[~same] + 1, undecided[~same]
        return found


def order_key(file: ListedFile, order: FileOrder) -> OrderKey:
    """Return where a file comes in an order. By event time a name has no meaning, so that its age decides."""
    return (0 if order == "name" else file.modified_ms, "" if order == "eventTime" else file.relative_path)


class FinishedFiles(ABC):
    """The files that were read to their ends and are in no offset as splits any more.

    Its methods run on the coordinator's thread; `load`, `forgotten` and `is_forgotten` on any.
    """

    def __init__(self, *, by_name: bool) -> None:
        self.by_name = by_name

    def marks_of(self, files: Iterable[ListedFile]) -> Marks:
        return marks_of(files, by_name=self.by_name)

    @abstractmethod
    def load(self) -> Marks:
        """Return the files that were finished before the start; a `DataLossError` if a log of them is gone."""

    forgotten: OrderKey | None = None
    """Files up to this key are taken for finished ones; None if each file is known."""

    def take_forgotten(self) -> Marks:
        """Return the marks of the files that were forgotten since the last call. On any thread."""
        return np.empty(0, MARK)

    def is_forgotten(self, file: ListedFile) -> bool:
        """Return whether a file is taken for one that was finished and forgotten."""
        return False

    @abstractmethod
    def add(self, file: ListedFile) -> None:
        """Remember a file that was read to its end."""

    @abstractmethod
    def save(self, checkpoint_id: int, lowest_waiting: OrderKey | None, newest_ms: int) -> Remembered:
        """Return what the offset of a state remembers; all files that were added are then in it, or in a log.

        `lowest_waiting` is the lowest key of the files that wait, None without any. Keys from there on are not
        forgotten: a restart would leave those files out.
        """


class RecentFiles(FinishedFiles):
    """Finished files that are young, or late in the order of names or modification times; the others are forgotten.

    Files up to the highest forgotten key are ignored. So each file is read at most once, and a file that appears late,
    below that key, is not read.

    By event time they are forgotten when they are older than the newest by `max_age_ms`, whatever their number; in any
    other order some `max_files` are remembered.
    """

    def __init__(
        self, order: FileOrder, max_age_ms: int, state: Remembered, max_files: int, *, by_name: bool = False
    ) -> None:
        super().__init__(by_name=by_name)
        self.forgotten = state.forgotten
        self._order = order
        self._max_age_ms = max_age_ms
        self._max_files = max_files
        self._segment_bytes = max(max_files // _SEGMENTS, 1) * MARK.itemsize
        self._by_age = order == "eventTime"
        # Marks, by the highest key of the segment that they are in.
        self._segments: SortedDict[OrderKey, bytes] = SortedDict((one.upto, one.marks) for one in state.segments)
        self._width_ms = max(max_age_ms // _AGE_SEGMENTS, 1)
        self._warned = False
        # Appended to by one thread, emptied by another.
        self._forgotten_marks: deque[bytes] = deque()

    def load(self) -> Marks:
        return np.frombuffer(b"".join(self._segments.values()), MARK)

    def take_forgotten(self) -> Marks:
        taken = [self._forgotten_marks.popleft() for _ in range(len(self._forgotten_marks))]
        return np.frombuffer(b"".join(taken), MARK)

    def is_forgotten(self, file: ListedFile) -> bool:
        return self.forgotten is not None and order_key(file, self._order) <= self.forgotten

    def add(self, file: ListedFile) -> None:
        if self.is_forgotten(file):
            return
        upto = self._segment_of(order_key(file, self._order))
        self._segments[upto] = self._segments.get(upto, b"") + self.marks_of([file]).tobytes()

    def _segment_of(self, key: OrderKey) -> OrderKey:
        """Return the highest key of the segment that takes a file. O(log n)."""
        if self._by_age:
            return ((key[0] // self._width_ms + 1) * self._width_ms - 1, "")
        place = self._segments.bisect_left(key)
        if place < len(self._segments):
            upto: OrderKey = self._segments.keys()[place]
            return upto
        if place and len(self._segments.peekitem()[1]) < self._segment_bytes:
            # The last segment has room: it now reaches up to this key.
            self._segments[key] = self._segments.popitem()[1]
        return key

    def save(self, checkpoint_id: int, lowest_waiting: OrderKey | None, newest_ms: int) -> Remembered:
        held = sum(map(len, self._segments.values())) // MARK.itemsize
        oldest_ms = newest_ms - self._max_age_ms
        if lowest_waiting is not None:
            oldest_ms = min(oldest_ms, lowest_waiting[0] - 1)
        while self._segments:
            upto = self._segments.peekitem(0)[0]
            is_kept = held <= self._max_files or (lowest_waiting is not None and upto >= lowest_waiting)
            if self._by_age:
                is_kept = upto[0] > oldest_ms
            if is_kept:
                break
            self.forgotten = (oldest_ms, "") if self._by_age else upto
            marks = self._segments.popitem(0)[1]
            held -= len(marks) // MARK.itemsize
            self._forgotten_marks.append(marks)
        if held > _MANY_FILES and not self._warned:
            self._warned = True
            _log.warning(
                "the offset remembers %d finished files and grows with every one that is not older than maxFileAge: "
                "give a stateLocation, or a fileOrder in which files are known by their place, or a shorter maxFileAge",
                held,
            )
        return Remembered(self.forgotten, tuple(Segment(*entry) for entry in self._segments.items()))
