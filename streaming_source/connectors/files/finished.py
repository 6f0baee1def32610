"""Finished files: which of them an offset remembers one by one, and which as a sketch of them all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from sortedcontainers import SortedDict

from alignment.arrow_times import format_timestamp
from alignment.shown import log_of
from streaming_source.connectors.files.listing import ListedFile
from streaming_source.connectors.files.marks import MARK, NO_MARKS, Known, Marks, MarkSet, MarkSketch, marks_of
from streaming_source.connectors.files.split import FileOrder, OrderKey, Remembered, Segment
from streaming_source.exceptions import MalformedDataError

_log = log_of(__name__)

_SEGMENTS: Final = 8
_MANY_FILES: Final = 3 * 1024
"""In base 64, some 48 KiB of the offset."""


def order_key(file: ListedFile, order: FileOrder) -> OrderKey:
    """Return the key of a file in an order. In that of event times the age decides, as names have no meaning there."""
    return (0 if order == "name" else file.modified_ms, "" if order == "eventTime" else file.relative_path)


class FinishedFiles(ABC):
    """The files that were read to their ends.

    Those up to the key `forgotten` are not remembered one by one: after a restart the first listing has them, with
    `unread` ones and those that came meanwhile, and `compare` returns which is which. While the source runs, all files
    that are there are known. Its methods run on the coordinator's thread, or on any where they are marked so.
    """

    def __init__(self, order: FileOrder, state: Remembered, *, by_name: bool) -> None:
        self.by_name = by_name
        self.forgotten = state.forgotten
        self.unread: Marks = np.frombuffer(state.unread, MARK)
        self._order = order
        # Of the finished files up to `forgotten` that the last listing of all directories had; None in version 1.
        self._sketch = MarkSketch(state.sketch) if state.sketch else None

    @property
    def has_sketch(self) -> bool:
        """True if it is known which files are finished of those up to `forgotten`, if there are any."""
        return self._sketch is not None

    def marks_of(self, files: Iterable[ListedFile]) -> Marks:
        """Return the marks of files. On any thread."""
        return marks_of(files, by_name=self.by_name)

    def is_forgotten(self, file: ListedFile) -> bool:
        """Return whether a file is not remembered for itself, because of its key. On any thread."""
        return self.forgotten is not None and order_key(file, self._order) <= self.forgotten

    def compare(self, there: Marks) -> tuple[Marks, Marks]:
        """Return which of the files up to `forgotten` in the first listing are new, and which finished ones are gone.

        `there` are those of the listing without the `unread` ones. On any thread. A `MalformedDataError` if more files
        are new or removed than can be distinguished.
        """
        if self._sketch is None:
            _log.info("%d files are as old as forgotten ones and count as read", there.size)
            return NO_MARKS, NO_MARKS
        if (found := self._sketch.difference(there)) is not None:
            return found
        if self._sketch.surely_lacks_some(there):
            what, fix = "modification times", "modification times, as touch does"
            if self._order == "name":
                what = fix = "names"
            raise MalformedDataError(
                f"{there.size} files have {what} up to {self._shown}, where {len(self._sketch)} were read: new files "
                "came while the query did not run, and more than about 130 are new or removed: they cannot be "
                f"distinguished. Give the new files later {fix}, or use a new checkpointLocation (with stateLocation "
                "any number may come and go)"
            )
        if there.size:
            _log.warning(
                "%d of %d files that were read up to %s are gone since this query ran last, too many to distinguish "
                "the %d that are there from others: all of these count as read, and with so low a name or modification "
                "time one that came meanwhile is not read. Set stateLocation, with the same checkpointLocation: then "
                "any number may come and go",
                *(len(self._sketch) - there.size, len(self._sketch), self._shown, there.size),
            )
        return NO_MARKS, NO_MARKS

    @property
    def _shown(self) -> str:
        modified_ms, path = self.forgotten or (0, "")
        return path if self._order == "name" else format_timestamp(1000 * modified_ms)

    @abstractmethod
    def load(self) -> Marks:
        """Return the files that were finished before the start, without forgotten ones. On any thread.

        A `DataLossError` if a log of them is gone.
        """

    @abstractmethod
    def finished_by(self, start: Remembered | None, end: Remembered) -> Marks:
        """Return the files that the micro-batch between two states has finished. On any thread, before any `save`."""

    @abstractmethod
    def settle(self, there: Marks) -> None:
        """Take in which files up to `forgotten` are finished, by the first listing."""

    @abstractmethod
    def add(self, file: ListedFile) -> None:
        """Remember a file that no micro-batch of this run has finished."""

    @abstractmethod
    def save(
        self, checkpoint_id: int, finished: Sequence[ListedFile], lowest_waiting: OrderKey | None, newest_ms: int
    ) -> Remembered:
        """Return what the offset of a state remembers, without `unread`; `finished` are the files of its micro-batch.

        `lowest_waiting` is the lowest key of the files that wait, None if none waits. Keys from there on are not
        forgotten.
        """

    def _of_forgotten(self) -> Remembered:
        return Remembered(self.forgotten, sketch=b"" if self._sketch is None else self._sketch.tobytes())

    def take_forgotten(self) -> Marks:
        """Return the marks of the files that were forgotten since the last call. On any thread."""
        return NO_MARKS

    def look(self, gone: Marks, back: Marks) -> None:  # noqa: B027
        """Take in which files that were forgotten are gone, and which of these are there again."""


class RecentFiles(FinishedFiles):
    """Remembers the finished files with the highest keys one by one, about `max_files`, and forgets the others.

    In the order of event times with `by_name` it is those that are not older than the newest one by `max_age_ms`: a
    name counts wherever it comes again.
    """

    def __init__(
        self, order: FileOrder, max_age_ms: int, state: Remembered, max_files: int, *, by_name: bool = False
    ) -> None:
        super().__init__(order, state, by_name=by_name)
        self._max_age_ms = max_age_ms
        self._max_files = max_files
        self._segment_bytes = max(max_files // _SEGMENTS, 1) * MARK.itemsize
        self._by_age = by_name and order == "eventTime"
        # Marks by an upper bound of their keys. The segments of low keys are forgotten first.
        self._segments: SortedDict[OrderKey, bytes] = SortedDict((one.upto, one.marks) for one in state.segments)
        # What the last micro-batch finished, by keys; of an offset by one upper bound of them.
        self._last = [] if state.last is None else [(state.last.upto, state.last.marks)]
        self._warned = False
        # Appended to by one thread, emptied by another.
        self._forgotten_marks: deque[bytes] = deque()

    def load(self) -> Marks:
        return np.frombuffer(b"".join([*self._segments.values(), *(marks for _, marks in self._last)]), MARK)

    def finished_by(self, start: Remembered | None, end: Remembered) -> Marks:
        return NO_MARKS if end.last is None else np.frombuffer(end.last.marks, MARK)

    def settle(self, there: Marks) -> None:
        self._sketch = None if self.forgotten is None else MarkSketch.of(there)

    def look(self, gone: Marks, back: Marks) -> None:
        if gone.size or back.size:
            assert self._sketch is not None, "what is forgotten is in a sketch"
            self._sketch.remove(gone)
            self._sketch.add(back)

    def take_forgotten(self) -> Marks:
        taken = [self._forgotten_marks.popleft() for _ in range(len(self._forgotten_marks))]
        return np.frombuffer(b"".join(taken), MARK)

    def add(self, file: ListedFile) -> None:
        mark = self.marks_of([file])
        if MarkSet(b"".join(marks for _, marks in self._last)).match(mark) != Known.SAME:
            self._add(order_key(file, self._order), mark.tobytes())

    def save(
        self, checkpoint_id: int, finished: Sequence[ListedFile], lowest_waiting: OrderKey | None, newest_ms: int
    ) -> Remembered:
        for key, marks in self._last:
            self._add(key, marks)
        held = sum(map(len, self._segments.values())) // MARK.itemsize
        while self._segments:
            upto, marks = self._segments.peekitem(0)
            is_recent = upto[0] > newest_ms - self._max_age_ms if self._by_age else held <= self._max_files
            if is_recent or (lowest_waiting is not None and upto >= lowest_waiting):
                break
            del self._segments[upto]
            held -= len(marks) // MARK.itemsize
            self.forgotten = upto
            self._forget(marks)
        if held > _MANY_FILES and not self._warned:
            self._warned = True
            _log.warning(
                "the offset remembers %d finished files, in %d KiB, and grows with each file until %s: set "
                "stateLocation, with the same checkpointLocation",
                held,
                held * MARK.itemsize * 4 // 3 >> 10,
                "it is older than maxFileAge" if self._by_age else "those that were modified before it are read",
            )
        self._last = [(order_key(file, self._order), self.marks_of([file]).tobytes()) for file in finished]
        last = Segment(max(self._last)[0], b"".join(marks for _, marks in self._last)) if self._last else None
        segments = tuple(Segment(*entry) for entry in self._segments.items())
        return replace(self._of_forgotten(), segments=segments, last=last)

    def _add(self, key: OrderKey, marks: bytes) -> None:
        if self.forgotten is not None and key <= self.forgotten:
            self._forget(marks)
        else:
            upto = self._segment_of(key)
            self._segments[upto] = self._segments.get(upto, b"") + marks

    def _forget(self, marks: bytes) -> None:
        if self._sketch is None:
            self._sketch = MarkSketch()
        self._sketch.add(np.frombuffer(marks, MARK))
        self._forgotten_marks.append(marks)

    def _segment_of(self, key: OrderKey) -> OrderKey:
        """Return the key of the segment that takes a file. O(log n)."""
        number = self._segments.bisect_left(key)
        if number < len(self._segments):
            upto: OrderKey = self._segments.keys()[number]
            return upto
        if number and len(self._segments.peekitem()[1]) < self._segment_bytes:
            # The last segment has room: it now reaches up to this key.
            self._segments[key] = self._segments.popitem()[1]
        return key
