"""Which files are finished: what an offset, or a log beside it, remembers of them."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from bisect import bisect_left
from operator import attrgetter
from typing import Final

import numpy as np

from streaming_source.connectors.files.config import FileOrder
from streaming_source.connectors.files.finite.backlog import order_key
from streaming_source.connectors.files.finite.marks import MARK, Marks, marks_of
from streaming_source.connectors.files.places.listing import ListedFile
from streaming_source.connectors.files.split import OrderKey, Remembered, Segment

__all__ = ["FinishedFiles", "RecentFiles"]

_log = logging.getLogger(__name__)

_UPTO: Final = attrgetter("upto")
_SEGMENTS: Final = 8
_AGE_SEGMENTS: Final = 64
_LARGE_BYTES: Final = 48 * 1024


class FinishedFiles(ABC):
    """The files that were read to their ends and are in no offset as splits any more.

    Its methods run on the coordinator's thread; `load`, `forgotten` and `is_forgotten` on any.

    Parameters
    ----------
    order
        In which files are begun.
    by_name
        See `marks_of`.
    """

    def __init__(self, order: FileOrder, *, by_name: bool) -> None:
        self._order = order
        self._by_name = by_name

    @abstractmethod
    def load(self) -> Marks:
        """Those that were finished before the start.

        Raises
        ------
        DataLossError
            If what was written down of them is gone.
        """

    @property
    @abstractmethod
    def forgotten(self) -> OrderKey | None:
        """Files up to this key cannot be distinguished from finished ones; None if all can."""

    def is_forgotten(self, file: ListedFile) -> bool:
        """Whether a file cannot be distinguished from one that was finished and forgotten."""
        return self.forgotten is not None and order_key(file, self._order) <= self.forgotten

    @abstractmethod
    def add(self, file: ListedFile) -> None:
        """A file is finished."""

    @abstractmethod
    def save(self, checkpoint_id: int, lowest_waiting: OrderKey | None, newest_ms: int) -> Remembered:
        """The part of a state's offset, after all that was added is in it or written down.

        Parameters
        ----------
        checkpoint_id
            Number of the state.
        lowest_waiting
            No file that waits has a lower key; None if none waits. It is not forgotten, or a restart would miss it.
        newest_ms
            When the newest file was modified.
        """


class RecentFiles(FinishedFiles):
    """Finished files that are young, or late in the order of names or modification times; the others are forgotten.

    What is forgotten is a mark in that order: files up to it are ignored. So each file is read once; what
    is missed is a file that appears later and stands before the mark.

    Parameters
    ----------
    order
        Of the files. By event time they are forgotten by age alone; else so many are remembered at most.
    max_age_ms
        How much older than the newest file one is that can be forgotten.
    state
        Of an offset.
    max_files
        How many are remembered, where the order is not by event time; about.
    by_name
        See `marks_of`.
    """

    def __init__(
        self, order: FileOrder, max_age_ms: int, state: Remembered, max_files: int, *, by_name: bool = False
    ) -> None:
        super().__init__(order, by_name=by_name)
        self._max_age_ms = max_age_ms
        self._max_files = max_files
        self._segment_bytes = max(max_files // _SEGMENTS, 1) * MARK.itemsize
        self._by_age = order == "eventTime"
        self._forgotten = state.forgotten
        self._segments = list(state.segments)
        self._width_ms = max(max_age_ms // _AGE_SEGMENTS, 1)
        self._warned = False

    def load(self) -> Marks:
        """See `FinishedFiles`."""
        return np.frombuffer(b"".join(segment.marks for segment in self._segments), MARK)

    @property
    def forgotten(self) -> OrderKey | None:
        """See `FinishedFiles`."""
        return self._forgotten

    def add(self, file: ListedFile) -> None:
        """See `FinishedFiles`. O(segments)."""
        if self.is_forgotten(file):
            return
        key = order_key(file, self._order)
        mark = marks_of([file], by_name=self._by_name).tobytes()
        if self._by_age:
            key = ((key[0] // self._width_ms + 1) * self._width_ms - 1, "")
        place = bisect_left(self._segments, key, key=_UPTO)
        if self._by_age:
            fits = place < len(self._segments) and self._segments[place].upto == key
        else:
            fits = place < len(self._segments)
            last = len(self._segments) - 1
            if not fits and last >= 0 and len(self._segments[last].marks) < self._segment_bytes:
                place, fits = last, True
        if fits:
            segment = self._segments[place]
            self._segments[place] = Segment(max(segment.upto, key), segment.marks + mark)
        else:
            self._segments.insert(place, Segment(key, mark))

    def save(self, checkpoint_id: int, lowest_waiting: OrderKey | None, newest_ms: int) -> Remembered:
        """See `FinishedFiles`."""
        if self._by_age:
            self._forget_old(lowest_waiting, newest_ms - self._max_age_ms)
        else:
            self._forget_first(lowest_waiting)
        self._warn_if_large()
        return Remembered(self._forgotten, tuple(self._segments))

    def _forget_old(self, lowest_waiting: OrderKey | None, horizon_ms: int) -> None:
        """Forget what is older than the newest by more than the age, and than all that waits."""
        if lowest_waiting is not None:
            horizon_ms = min(horizon_ms, lowest_waiting[0] - 1)
        old = bisect_left(self._segments, (horizon_ms + 1, ""), key=_UPTO)
        if old:
            del self._segments[:old]
            self._forgotten = max((horizon_ms, ""), self._forgotten or (horizon_ms, ""))

    def _forget_first(self, lowest_waiting: OrderKey | None) -> None:
        """Forget the first of too many, but for those behind which one waits."""
        marks = sum(len(segment.marks) for segment in self._segments) // MARK.itemsize
        while marks > self._max_files:
            first = self._segments[0]
            if lowest_waiting is not None and first.upto >= lowest_waiting:
                return
            self._forgotten = first.upto
            marks -= len(first.marks) // MARK.itemsize
            del self._segments[0]

    def _warn_if_large(self) -> None:
        held = sum(len(segment.marks) for segment in self._segments)
        if held * 4 // 3 > _LARGE_BYTES and not self._warned:
            self._warned = True
            _log.warning(
                "the offset remembers %d finished files and grows with every one that is not older than maxFileAge: "
                "give a stateLocation, or a fileOrder in which files are known by their place, or a shorter maxFileAge",
                held // MARK.itemsize,
            )
