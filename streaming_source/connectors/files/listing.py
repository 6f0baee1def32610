"""What lies below a path."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable
from dataclasses import dataclass

from pyarrow import fs

from streaming_source.exceptions import PathNotFoundError

__all__ = ["ListedFile", "Listing", "Root", "list_files"]


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


@dataclass(frozen=True, slots=True)
class ListedFile:
    """One file: its directory below the root (empty for the root itself), its name, and when it was modified."""

    directory: str
    name: str
    modified_ms: int

    @property
    def relative_path(self) -> str:
        """Below the root."""
        return posixpath.join(self.directory, self.name)


@dataclass(frozen=True, slots=True)
class Listing:
    """All visible files below a root, in order of directory and name; and directories that hold nothing."""

    files: tuple[ListedFile, ...]
    empty_directories: tuple[str, ...]


def list_files(filesystem: fs.FileSystem, root: str) -> Listing:
    """List a root recursively. Names that begin with `_` or `.` are hidden, and all below them.

    Raises
    ------
    PathNotFoundError
        If the root is missing or not a directory.
    """
    kind = filesystem.get_file_info(root).type
    if kind is fs.FileType.NotFound:
        raise PathNotFoundError(f"path {root!r} does not exist; give an existing directory in option path")
    if kind is not fs.FileType.Directory:
        raise PathNotFoundError(f"path {root!r} is not a directory; give the directory above it in option path")
    files, directories, parents = [], set(), {""}
    for info in filesystem.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True)):
        relative = info.path[len(root) :].lstrip("/") if root != "/" else info.path.lstrip("/")
        if _is_hidden(relative):
            continue
        directory, name = posixpath.split(relative)
        parents.add(directory)
        if info.type is fs.FileType.Directory:
            directories.add(relative)
        elif info.type is fs.FileType.File:
            modified_ms = (info.mtime_ns or 0) // 1_000_000
            files.append(ListedFile(directory, name, modified_ms))
    files.sort(key=lambda file: (file.directory, file.name))
    return Listing(tuple(files), tuple(sorted(directories - parents)))


def _is_hidden(relative: str) -> bool:
    return any(part.startswith(("_", ".")) for part in _parts(relative))


def _parts(relative: str) -> Iterable[str]:
    return relative.split("/")
