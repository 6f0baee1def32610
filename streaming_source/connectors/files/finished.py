"""Finished files: which of them an offset remembers, by their marks, and which it forgets."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from typing import Final

import numpy as np
from sortedcontainers import SortedDict

from streaming_source.connectors.files.checkpoint import FileOrder, OrderKey, Remembered, Segment
from streaming_source.connectors.files.listing import ListedFile
from streaming_source.connectors.files.marks import MARK, Marks, marks_of

__all__ = ["FinishedFiles", "RecentFiles", "order_key"]

_log = logging.getLogger(__name__)

_SEGMENTS: Final = 8
_AGE_SEGMENTS: Final = 64
_MANY_FILES: Final = 3 * 1024
"""In base 64, some 48 KiB of the offset."""


def order_key(file: ListedFile, order: FileOrder) -> OrderKey:
    """Return the key of a file in an order. In that of event times the age decides, as names have no meaning there."""
    return (0 if order == "name" else file.modified_ms, "" if order == "eventTime" else file.relative_path)


class FinishedFiles(ABC):
    """The files that were read to their ends, and are no longer splits in an offset.

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
    """All files up to this key count as finished; None if each finished file is remembered."""

    def take_forgotten(self) -> Marks:
        """Return the marks of the files that were forgotten since the last call. On any thread."""
        return np.empty(0, MARK)

    def is_forgotten(self, file: ListedFile) -> bool:
        """Return whether a file counts as finished because of its key."""
        return False

    @abstractmethod
    def add(self, file: ListedFile) -> None:
        """Remember a file that was read to its end."""

    @abstractmethod
    def save(self, checkpoint_id: int, lowest_waiting: OrderKey | None, newest_ms: int) -> Remembered:
        """Return what the offset of a state remembers. All files that were added are in it, or in a log, afterwards.

        `lowest_waiting` is the lowest key of the files that wait, None if none waits. Keys from there on are not
        forgotten: a restart would ignore those files.
        """


class RecentFiles(FinishedFiles):
    """Remembers the finished files with the highest keys, and forgets the others.

    Files up to the highest forgotten key are ignored. So each file is read at most once, and a file that appears later
    with a lower key is not read.

    In the order of event times a file is forgotten when it is older than the newest one by `max_age_ms`. In the other
    orders about `max_files` are remembered.
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
        # The marks of each segment, by its highest key.
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
                "the offset remembers %d finished files, and grows with each file until it is older than maxFileAge: "
                "set stateLocation, a fileOrder other than eventTime, or a shorter maxFileAge",
                held,
            )
        return Remembered(self.forgotten, tuple(Segment(*entry) for entry in self._segments.items()))
