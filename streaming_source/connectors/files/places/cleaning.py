"""What becomes of files that were read, when their micro-batch is committed."""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable, Iterable
from typing import Any

from pyarrow import fs

from streaming_source.connectors.files.config import CleanSource
from streaming_source.connectors.files.places.listing import is_hidden
from streaming_source.connectors.files.places.storage import Root
from streaming_source.exceptions import OptionError

__all__ = ["Cleaner"]

_log = logging.getLogger(__name__)


class Cleaner:
    """Archives or deletes files, each as soon as what was read of it is committed.

    Doing it twice is as good as once: a file that is gone is done. One that cannot be moved or deleted is
    logged, and left to the next start. An archive on another file system, or where its files would be read again, is
    an `OptionError`.
    """

    def __init__(
        self,
        what: CleanSource,
        archive: Root | None,
        filesystem: fs.FileSystem,
        root: str,
        map_on_workers: Callable[[Callable[[str], None], Iterable[str]], Any],
    ) -> None:
        self._what = what
        self._filesystem = filesystem
        self._root = root
        self._map_on_workers = map_on_workers
        self._archive = "" if archive is None else _archive_path(archive, filesystem, root)
        # Files that are read in the micro-batch that leads to a state.
        self._read: list[tuple[int, str]] = []

    def add(self, state: int, path: str) -> None:
        """A file, by its path below the root, is read when the micro-batch that leads to a state is."""
        self._read.append((state, path))

    def commit(self, state: int) -> None:
        """That micro-batch is committed, and all before it."""
        done = [path for read_in, path in self._read if read_in <= state]
        if done:
            self._read = [entry for entry in self._read if entry[0] > state]
            self.clean(done)

    def clean(self, paths: Iterable[str]) -> None:
        """Archive or delete files, by their paths below the root."""
        self._map_on_workers(self._clean, paths)

    def _clean(self, relative: str) -> None:
        path = posixpath.join(self._root, relative)
        try:
            if self._what == "delete":
                self._filesystem.delete_file(path)
                return
            target = posixpath.join(self._archive, relative)
            self._filesystem.create_dir(posixpath.dirname(target), recursive=True)
            self._filesystem.move(path, target)
        except FileNotFoundError:
            pass
        except OSError as error:
            if self._filesystem.get_file_info(path).type is not fs.FileType.NotFound:
                _log.warning("cleanSource = %s: %s is left where it is: %s", self._what, path, error)


def _archive_path(archive: Root, filesystem: fs.FileSystem, root: str) -> str:
    target_system, target = archive.open()
    if not target_system.equals(filesystem):
        raise OptionError(
            f"sourceArchiveDir {target!r} is on another file system than path {root!r}: files are moved, not copied; "
            "give a directory there"
        )
    below = target[len(root) :] if target == root or target.startswith(f"{root.rstrip('/')}/") else None
    if below is not None and not any(map(is_hidden, filter(None, below.split("/")))):
        raise OptionError(
            f"sourceArchiveDir {target!r} is below path {root!r}: its files would be read again. Give a directory "
            "elsewhere, or one whose name begins with _ or ."
        )
    return target
