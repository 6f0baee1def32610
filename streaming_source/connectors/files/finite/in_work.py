"""Files that were begun and are not read to their ends: the offset holds each of them."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

from streaming_source.connectors.files.places.listing import ListedFile

__all__ = ["FilesInWork"]

_log = logging.getLogger(__name__)

_BYTES_BESIDE_PATH: Final = 72
_LARGE_BYTES: Final = 56 * 1024


class FilesInWork:
    """Files by their splits, as long as they are in work.

    Parameters
    ----------
    max_files
        How many there are room for.
    max_bytes
        What they may add to an offset: where paths are long there is room for fewer.

    Notes
    -----
    Room is advice: where nothing could be read otherwise, files are taken in beyond it, which is logged once.
    """

    def __init__(self, max_files: int, max_bytes: int) -> None:
        self._max_files = max_files
        self._max_bytes = max_bytes
        self._files: dict[str, ListedFile] = {}
        self._bytes = 0
        self._warned = False

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, split_id: str) -> ListedFile:
        """The file of a split in work."""
        return self._files[split_id]

    @property
    def files(self) -> Collection[ListedFile]:
        """All of them."""
        return self._files.values()

    def has_path(self, path: str) -> bool:
        """Whether a file of this path is in work. O(files)."""
        return any(file.relative_path == path for file in self._files.values())

    def has_room(self, taken: int) -> bool:
        """Whether there is room for one more when so many others were taken in."""
        n_bytes = self._bytes + taken * _BYTES_BESIDE_PATH
        return len(self._files) + taken < self._max_files and n_bytes < self._max_bytes

    def add(self, split_id: str, file: ListedFile) -> None:
        """Take a file in. O(1)."""
        self._files[split_id] = file
        self._bytes += _bytes_of(split_id)
        if self._bytes > _LARGE_BYTES and not self._warned:
            self._warned = True
            _log.warning(
                "%d files are in work at once, some %d KiB of the offset: their event times overlap, so that none can "
                "be read to its end before the others begin. Larger files, or fewer that span the same time, make it "
                "small again",
                len(self._files),
                self._bytes >> 10,
            )

    def pop(self, split_id: str) -> ListedFile:
        """Let go of the file of a split that is read to its end. O(1)."""
        self._bytes -= _bytes_of(split_id)
        return self._files.pop(split_id)


def _bytes_of(split_id: str) -> int:
    return len(split_id.encode()) + _BYTES_BESIDE_PATH
