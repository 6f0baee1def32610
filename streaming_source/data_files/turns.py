"""Files that are splits of their own: those that were begun are in work, and the others wait until there is room."""

from __future__ import annotations

import logging
import math
from collections import UserDict
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, Protocol, TypeVar

__all__ = ["BYTES_IN_WORK", "FILES_IN_WORK", "MOST_FILES", "FilesInWork", "WaitingFiles", "next_files"]

FILES_IN_WORK: Final = 500
"""Files in work at once; there are more only if nothing could be read otherwise."""

MOST_FILES: Final = 10_000
"""Files that begin in one micro-batch at most, with those in work: each takes some KiB of the planner's memory."""

BYTES_IN_WORK: Final = 40 * 1024
"""Bytes that the splits in work may add to an offset: with long paths fewer of them fit."""

_AT_ONCE: Final = 64
_BYTES_BESIDE_ID: Final = 72
_LARGE_BYTES: Final = 56 * 1024

_log = logging.getLogger(__name__)

FileT = TypeVar("FileT")
FileT_co = TypeVar("FileT_co", covariant=True)


class WaitingFiles(Protocol[FileT_co]):
    """Files that wait, in the order in which they will begin."""

    def __len__(self) -> int:
        """Return how many wait."""

    def pop(self) -> FileT_co:
        """Remove and return the next file; raises an `IndexError` if none waits."""


class FilesInWork(UserDict[str, FileT]):
    """Files by their splits, as long as they are in work.

    There is room for `max_files`, or for as many as add `max_bytes` to an offset, if these are fewer: each adds its id
    and `bytes_beside`. Those that the next plan is expected to finish take none of it, up to `MOST_FILES`. The limit is
    soft: more files are taken if nothing could be read otherwise; a warning is logged once.
    """

    def __init__(self, max_files: int, max_bytes: int, bytes_beside: int = _BYTES_BESIDE_ID) -> None:
        super().__init__()
        self._max_files = max_files
        self._max_bytes = max_bytes
        self._bytes_beside = bytes_beside
        self._bytes = 0
        self._finishing: set[str] = set()
        self._finishing_bytes = 0
        self.at_once: float = math.inf
        self._warned = self._warned_of_most = False

    @property
    def left(self) -> int:
        """How many are in work after the next plan, as far as that is known."""
        return len(self) - len(self._finishing)

    def expect_finished(self, split_ids: Collection[str]) -> None:
        """The next plan reads these to their ends; it replaces what was expected before.

        From now on files begin `at_once` at most, so that none begins for which a limit of rows has no room.
        """
        self._finishing = {split_id for split_id in split_ids if split_id in self}
        self._finishing_bytes = sum(map(self._bytes_of, self._finishing))
        self.at_once = _AT_ONCE

    def has_room(self, taken: int, bytes_taken: int = 0) -> bool:
        """Return whether there is room for one more file beside `taken` new ones with ids of so many bytes."""
        if len(self) + taken >= MOST_FILES:
            if not self._warned_of_most:
                self._warned_of_most = True
                _log.warning(
                    "a micro-batch reads %d files at most, and maxRowsPerTrigger would allow more: larger files "
                    "(compaction), or fewer rows, make full use of it",
                    MOST_FILES,
                )
            return False
        n_bytes = self._bytes - self._finishing_bytes + bytes_taken + taken * self._bytes_beside
        return self.left + taken < self._max_files and n_bytes < self._max_bytes

    def __setitem__(self, split_id: str, file: FileT) -> None:
        super().__setitem__(split_id, file)
        self._bytes += self._bytes_of(split_id)
        if self._bytes - self._finishing_bytes > _LARGE_BYTES and not self._warned:
            self._warned = True
            _log.warning(
                "%d files are in work at once, some %d KiB of the offset: their event times overlap, so that none can "
                "be read to its end before the others begin. Larger files, or fewer that span the same time, make it "
                "small again",
                self.left,
                (self._bytes - self._finishing_bytes) >> 10,
            )

    def __delitem__(self, split_id: str) -> None:
        super().__delitem__(split_id)
        self._bytes -= self._bytes_of(split_id)
        if split_id in self._finishing:
            self._finishing.remove(split_id)
            self._finishing_bytes -= self._bytes_of(split_id)

    def _bytes_of(self, split_id: str) -> int:
        return len(split_id.encode()) + self._bytes_beside


def next_files(
    waiting: WaitingFiles[FileT],
    in_work: FilesInWork[Any],
    *,
    id_of: Callable[[FileT], str],
    is_blocked: bool,
    may_begin: Callable[[], bool] = lambda: True,
) -> Iterator[FileT]:
    """Take the files that begin now, as many as there is room for and the user's limits (`may_begin`) allow.

    `id_of` is a file's split, by which it is in work.

    Where nothing can be read before another one begins (`is_blocked`), some begin without room: an eighth of those
    in work, so that the next ones do not take a micro-batch each; one where the user's limits allow no more.
    """
    taken = bytes_taken = 0
    beyond = 1 if is_blocked else 0
    if is_blocked and may_begin():
        beyond = max(1, in_work.left // 8)
    while (
        len(waiting)
        and taken < in_work.at_once
        and ((in_work.has_room(taken, bytes_taken) and may_begin()) or taken < beyond)
    ):
        file = waiting.pop()
        taken, bytes_taken = taken + 1, bytes_taken + len(id_of(file).encode())
        yield file
