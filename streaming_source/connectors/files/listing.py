"""What lies below a path."""

from __future__ import annotations

import logging
import os
import posixpath
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from pyarrow import fs

from streaming_source.exceptions import PathNotFoundError

__all__ = ["ListedDirectory", "ListedFile", "Lister", "Root", "list_files", "names_in"]

_log = logging.getLogger(__name__)

_LOOKS_BETWEEN_FULL: Final = 60
_SETTLED_NS: Final = 3_000_000_000
"""A directory that changed this long before it was listed cannot have changed again at the same time as told."""


@dataclass(frozen=True, slots=True)
class Root:
    """Where the files of a source lie: a file system and a path in it, from a local path or a URI."""

    uri: str

    def open(self) -> tuple[fs.FileSystem, str]:
        """The file system and the path. Cheap for local ones.

        Raises
        ------
        PathNotFoundError
            If the URI has a scheme that pyarrow does not know.
        """
        try:
            if "://" in self.uri or self.uri.startswith("file:"):
                filesystem, path = fs.FileSystem.from_uri(self.uri)
            else:
                filesystem, path = fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(self.uri))
        except (ValueError, OSError) as error:
            raise PathNotFoundError(f"path: cannot be opened as a file system: {error}") from None
        return filesystem, path.rstrip("/") or "/"


class ListedFile(NamedTuple):
    """One file: its directory below the root (empty for the root itself), its name, when it was modified, its bytes."""

    directory: str
    name: str
    modified_ms: int
    size: int

    @staticmethod
    def of(relative_path: str, modified_ms: int, size: int) -> ListedFile:
        """A file by its path below the root."""
        return ListedFile(*posixpath.split(relative_path), modified_ms, size)

    @property
    def relative_path(self) -> str:
        """Below the root."""
        return f"{self.directory}/{self.name}" if self.directory else self.name


@dataclass(frozen=True, slots=True)
class ListedDirectory:
    """What a directory holds that is not hidden.

    Attributes
    ----------
    path
        Below the root; empty for the root itself.
    files
        Directly in it, in no order.
    is_empty
        Whether it has neither files nor directories.
    """

    path: str
    files: list[ListedFile]
    is_empty: bool


class Lister:
    """Lists a root again and again: of what was listed before only the directories that may have changed.

    A directory of a local file system is listed again when the time at which it changed is another, and now and then in
    any case: a file that is written anew in place does not change its directory. On other file systems every directory
    is. Names that begin with `_` or `.` are hidden, and all below them. A link to a directory above it is not followed.

    Parameters
    ----------
    root
        What to list.
    """

    def __init__(self, root: Root) -> None:
        self._root = root
        # Of directories that have settled: when they changed, and their directories.
        self._settled: dict[str, tuple[int, tuple[str, ...]]] = {}
        self._looks = 0

    def look(self) -> Iterator[ListedDirectory]:
        """The directories that may have changed since the last look, in no order.

        Raises
        ------
        PathNotFoundError
            If the root is missing or not a directory.
        """
        filesystem, root = self._root.open()
        info = filesystem.get_file_info(root)
        if info.type is fs.FileType.NotFound:
            raise PathNotFoundError(f"path {root!r} does not exist; give an existing directory in option path")
        if info.type is not fs.FileType.Directory:
            raise PathNotFoundError(f"path {root!r} is not a directory; give the directory above it in option path")
        if self._looks % _LOOKS_BETWEEN_FULL == 0:
            self._settled.clear()
        self._looks += 1
        return self._walk(filesystem, root) if _has_times(info) else _list_all(filesystem, root)

    def forget(self) -> None:
        """Look at everything again the next time."""
        self._settled.clear()

    def _walk(self, filesystem: fs.FileSystem, root: str) -> Iterator[ListedDirectory]:
        settles = filesystem.type_name == "local"
        left = [""]
        while left:
            directories, left = left, []
            paths = [posixpath.join(root, directory).rstrip("/") or "/" for directory in directories]
            for directory, info in zip(directories, filesystem.get_file_info(paths), strict=True):
                if info.type is not fs.FileType.Directory or (settles and _leads_up(info.path, directory)):
                    continue
                changed_ns = info.mtime_ns or 0
                settled = self._settled.get(directory)
                if settled is not None and settled[0] == changed_ns:
                    left += settled[1]
                    continue
                listed_ns = time.time_ns()
                found, below = _list_one(filesystem, info.path, directory)
                left += below
                if settles and changed_ns < listed_ns - _SETTLED_NS:
                    self._settled[directory] = (changed_ns, tuple(below))
                else:
                    self._settled.pop(directory, None)
                yield found


def list_files(root: Root) -> Iterator[ListedFile]:
    """All files below a root, in no order; see `Lister`."""
    return (file for directory in Lister(root).look() for file in directory.files)


def names_in(filesystem: fs.FileSystem, directory: str) -> list[str]:
    """Names of the files directly in a directory, by its whole path."""
    return [file.name for file in _list_one(filesystem, directory, "")[0].files]


def _list_one(filesystem: fs.FileSystem, path: str, directory: str) -> tuple[ListedDirectory, list[str]]:
    files, below = [], []
    for info in filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True)):
        name = info.base_name
        if _is_hidden(name):
            continue
        if info.type is fs.FileType.Directory:
            below.append(posixpath.join(directory, name))
        elif info.type is fs.FileType.File:
            files.append(ListedFile(directory, name, (info.mtime_ns or 0) // 1_000_000, info.size or 0))
    return ListedDirectory(directory, files, not files and not below), below


def _list_all(filesystem: fs.FileSystem, root: str) -> Iterator[ListedDirectory]:
    """All in one request: what object stores are made for."""
    files: dict[str, list[ListedFile]] = {}
    parents = set()
    skip = len(root) if root != "/" else 0
    for info in filesystem.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True)):
        relative = info.path[skip:].strip("/")
        if any(map(_is_hidden, relative.split("/"))):
            continue
        directory, name = posixpath.split(relative)
        if info.type is fs.FileType.Directory:
            files.setdefault(relative, [])
            parents.add(directory)
        elif info.type is fs.FileType.File:
            file = ListedFile(directory, name, (info.mtime_ns or 0) // 1_000_000, info.size or 0)
            files.setdefault(directory, []).append(file)
    for path in list(files):
        found = files.pop(path)
        yield ListedDirectory(path, found, not found and path not in parents)


def _is_hidden(name: str) -> bool:
    return name.startswith(("_", "."))


def _has_times(directory: fs.FileInfo) -> bool:
    return directory.mtime_ns is not None


def _leads_up(path: str, directory: str) -> bool:
    """Whether a directory of the local file system is a link to one above it."""
    if not os.path.islink(path):
        return False
    target = os.path.realpath(path)
    above = os.path.realpath(os.path.dirname(path))
    leads_up = above == target or above.startswith(target.rstrip("/") + "/")
    if leads_up:
        _log.warning("%s is a link to a directory above it, %s: not followed", directory, target)
    return leads_up
