"""What lies below a path; where Spark's file sink has written, what of it is in that sink's log."""

from __future__ import annotations

import json
import logging
import math
import os
import posixpath
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from pyarrow import fs

from streaming_source.connectors.files.storage import Selection, is_hidden, without_secrets
from streaming_source.exceptions import MalformedDataError

__all__ = ["ListedDirectory", "ListedFile", "Lister", "SinkLog", "list_files", "name_ten", "names_in"]

_log = logging.getLogger(__name__)

_FULL_EVERY_S: Final = 60.0
_NAMED: Final = 10
"""Files that a message names at most."""
_SETTLED_NS: Final = 3_000_000_000
"""A directory that changed this long before it was listed cannot have changed again within one step of its clock."""
_CLOCKS_DIFFER_MS: Final = 60_000
"""The clock of a store and ours differ by less."""

_SINK_LOG: Final = "_spark_metadata"
_SINK_LOG_ENTRY: Final = re.compile(r"(\d+)(\.compact)?")
_SINK_LOG_VERSION: Final = "v1"
_TRIALS: Final = 10


class ListedFile(NamedTuple):
    """One file: its directory below the root (empty for the root itself), its name, when it was modified, its bytes."""

    directory: str
    name: str
    modified_ms: int
    size: int

    @staticmethod
    def of(relative_path: str, modified_ms: int, size: int) -> ListedFile:
        return ListedFile(*posixpath.split(relative_path), modified_ms, size)

    @staticmethod
    def of_info(directory: str, info: fs.FileInfo) -> ListedFile:
        return ListedFile(directory, info.base_name, (info.mtime_ns or 0) // 1_000_000, info.size or 0)

    @property
    def relative_path(self) -> str:
        return f"{self.directory}/{self.name}" if self.directory else self.name


@dataclass(frozen=True, slots=True)
class ListedDirectory:
    """What a directory holds that is not hidden: `files` directly in it, in no order, by its path below the root.

    It `is_empty` if it has neither files nor directories. A listing is not of one moment: if files `may_have_come`
    meanwhile, it may have one and miss another that came before it.
    """

    path: str
    files: list[ListedFile]
    is_empty: bool
    may_have_come: bool = False


class Lister:
    """Lists what a source selects again and again: of what was listed before only directories that may have changed.

    A directory of a local file system is listed again when the time at which it changed is another, and now and then in
    any case: a file that is written anew in place does not change its directory. On other file systems every directory
    is. Names that begin with `_` or `.` are hidden, and all below them. A link to a directory above it is not followed.
    Of what Spark's file sink has written there are those files alone that are in its log. A file of 0 bytes is not
    there until it has some, and is named once, as are files modified after `until_ms`, which are left out.
    """

    def __init__(self, selection: Selection, until_ms: int | None = None) -> None:
        self._selection = selection
        self._filesystem, self._root = selection.open()
        self._until_ms = until_ms
        self._has_named_later = False
        self._sink_log: SinkLog | None = None
        # Of directories that have settled: when they changed, and their directories.
        self._settled: dict[str, tuple[int, tuple[str, ...]]] = {}
        self._full_at = -math.inf
        # Files of 0 bytes, those that were named, and their directories: a file's first bytes do not change these.
        self._empty: set[str] = set()
        self._named_empty: set[str] = set()
        self._holding_empty: set[str] = set()

    def list_changed(self) -> Iterator[ListedDirectory]:
        """The directories that may have changed since they were listed last, in no order.

        A `PathNotFoundError` if a path is missing or not a directory, a `MalformedDataError` if Spark's file sink has
        written here, and its log cannot be read.
        """
        directories, files = self._selection.select()
        if self._sink_log is None:
            self._sink_log = SinkLog.of(self._selection)
        has_more = self._sink_log is not None and self._sink_log.refresh()
        # Files are there before they are in the log.
        if has_more or time.monotonic() >= self._full_at + _FULL_EVERY_S:
            self._settled.clear()
            self._full_at = time.monotonic()
        return self._restricted(self._list(directories, files), is_complete=has_more)

    def list_again(self, directory: str) -> list[ListedFile]:
        """The files directly in a directory, by its path below the root, once more and now."""
        listed, _ = self._list_one(_path(self._root, directory), directory)
        return [file for found in self._restricted(iter([listed]), is_complete=False) for file in found.files]

    def name_empty(self) -> None:
        """Log which files of 0 bytes were passed over, each once."""
        if new := self._empty - self._named_empty:
            self._named_empty |= new
            _log.warning("files of 0 bytes are skipped until they have some: %s", name_ten(new))

    def forget(self) -> None:
        self._settled.clear()

    def _list(self, directories: dict[str, fs.FileInfo], files: list[fs.FileInfo]) -> Iterator[ListedDirectory]:
        seen: set[str] = set()
        for directory, info in directories.items():
            # Object stores have no such times, and list all below a directory in one go.
            yield from (self._list_all if info.mtime_ns is None else self._walk)(directory, seen)
        yield from self._single(files, seen)

    def _restricted(self, listed: Iterator[ListedDirectory], *, is_complete: bool) -> Iterator[ListedDirectory]:
        if self._sink_log is not None:
            listed = self._in_log(listed, self._sink_log.paths, is_complete=is_complete)
        return listed if self._until_ms is None else self._until(listed, self._until_ms)

    def _in_log(
        self, listed: Iterator[ListedDirectory], paths: set[str], *, is_complete: bool
    ) -> Iterator[ListedDirectory]:
        """What the log of a file sink has; directories without any of that are none."""
        there: set[str] = set()
        for directory in listed:
            files = [file for file in directory.files if file.relative_path in paths]
            there.update(file.relative_path for file in files)
            if files:
                yield replace(directory, files=files)
        gone = {path for path in paths - there if self._selection.takes_name(posixpath.basename(path))}
        if is_complete and gone:
            _log.warning(
                "%d files are in the log of Spark's file sink and not there; they are read no more: %s",
                len(gone),
                name_ten(gone),
            )

    def _until(self, listed: Iterator[ListedDirectory], until_ms: int) -> Iterator[ListedDirectory]:
        later: list[str] = []
        for directory in listed:
            later += [file.relative_path for file in directory.files if file.modified_ms > until_ms]
            yield replace(directory, files=[file for file in directory.files if file.modified_ms <= until_ms])
        if later and not self._has_named_later:
            self._has_named_later = True
            _log.warning(
                "%d files are not part of this query: %s. With bounded = true it ends with the files that were there "
                "when it was first started; to read later ones use a new checkpointLocation, with or without bounded",
                len(later),
                name_ten(later),
            )

    def _walk(self, start: str, seen: set[str]) -> Iterator[ListedDirectory]:
        settles = self._filesystem.type_name == "local"
        left = [start]
        while left:
            directories = [directory for directory in left if directory not in seen]
            seen.update(directories)
            left = []
            infos = self._filesystem.get_file_info([_path(self._root, directory) for directory in directories])
            for directory, info in zip(directories, infos, strict=True):
                if info.type is not fs.FileType.Directory or (settles and _leads_up(info.path, directory)):
                    continue
                changed_ns = info.mtime_ns or 0
                settled = self._settled.get(directory)
                if settled is not None and settled[0] == changed_ns:
                    left += settled[1]
                    continue
                listed_ns = time.time_ns()
                found, below = self._list_one(info.path, directory)
                left += below
                has_settled = changed_ns < listed_ns - _SETTLED_NS
                if settles and has_settled and info.path not in self._holding_empty:
                    self._settled[directory] = (changed_ns, tuple(below))
                else:
                    self._settled.pop(directory, None)
                is_same = has_settled and self._filesystem.get_file_info(info.path).mtime_ns == changed_ns
                yield replace(found, may_have_come=not is_same)

    def _takes(self, info: fs.FileInfo) -> bool:
        if info.type is fs.FileType.File and info.size == 0 and self._selection.takes_name(info.base_name):
            self._empty.add(info.path)
            self._holding_empty.add(posixpath.dirname(info.path))
        return self._selection.takes(info)

    def _list_one(self, path: str, directory: str) -> tuple[ListedDirectory, list[str]]:
        files, below = [], []
        for info in self._filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True)):
            if is_hidden(info.base_name):
                continue
            if info.type is fs.FileType.Directory:
                below.append(posixpath.join(directory, info.base_name))
            elif self._takes(info):
                files.append(ListedFile.of_info(directory, info))
        return ListedDirectory(directory, files, not files and not below), below

    def _list_all(self, start: str, seen: set[str]) -> Iterator[ListedDirectory]:
        files: dict[str, list[ListedFile]] = {start: []}
        parents, listed_ms = set(), time.time_ns() // 1_000_000
        base = _path(self._root, start)
        for info in self._filesystem.get_file_info(fs.FileSelector(base, recursive=True, allow_not_found=True)):
            below = info.path[len(base) :].strip("/")
            if any(map(is_hidden, below.split("/"))):
                continue
            relative = posixpath.join(start, below)
            directory = posixpath.dirname(relative)
            parents.add(directory)
            if info.type is fs.FileType.Directory:
                files.setdefault(relative, [])
            elif self._takes(info):
                files.setdefault(directory, []).append(ListedFile.of_info(directory, info))
        for path in list(files):
            found = files.pop(path)
            if path not in seen:
                seen.add(path)
                newest_ms = max((file.modified_ms for file in found), default=0)
                is_empty = not found and path not in parents
                yield ListedDirectory(path, found, is_empty, may_have_come=newest_ms > listed_ms - _CLOCKS_DIFFER_MS)

    def _single(self, infos: Iterable[fs.FileInfo], seen: set[str]) -> Iterator[ListedDirectory]:
        by_directory: dict[str, list[ListedFile]] = {}
        for info in infos:
            directory = posixpath.dirname(info.path[len(self._root) :].strip("/"))
            if directory not in seen:
                by_directory.setdefault(directory, []).append(ListedFile.of_info(directory, info))
        for directory, files in by_directory.items():
            yield ListedDirectory(directory, sorted({*files}), False)


def name_ten(paths: Iterable[str]) -> str:
    """Paths for a message: the first ones, and how many more there are."""
    names = sorted(paths)
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def list_files(selection: Selection) -> Iterator[ListedFile]:
    """All files that are selected, in no order; see `Lister`."""
    return (file for directory in Lister(selection).list_changed() for file in directory.files)


def names_in(selection: Selection, directory: str) -> list[str]:
    """Names of the files that are selected directly in a directory, by its path below the root; sorted."""
    filesystem, root = selection.open()
    (selected, files), path = selection.select(), _path(root, directory)
    infos = [file for file in files if posixpath.dirname(file.path) == path]
    if any(not start or f"{directory}/".startswith(f"{start}/") for start in selected):
        infos += filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
    found = {info.base_name for info in infos if selection.takes(info) and not is_hidden(info.base_name)}
    log = SinkLog.of(selection)
    if log is not None:
        log.refresh()
        found = {name for name in found if posixpath.normpath(posixpath.join(directory, name)) in log.paths}
    return sorted(found)


def _path(root: str, directory: str) -> str:
    return posixpath.normpath(posixpath.join(root, directory)) if directory not in ("", ".") else root


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


class SinkLog:
    """The log that Spark's file sink keeps in `_spark_metadata`: which files of one directory a query has written.

    `paths` are those of the files that there are, below the root, as of the last `refresh`. A file that is not in it
    does not exist: it is of a micro-batch that failed, was written twice, or is not done. As in Spark
    (`MetadataLogFileIndex`) the log counts where the path that is read has one, not where a directory below has. It
    has a file `N` for each micro-batch: a line `v1`, and a JSON object for each file written. `N.compact` stands for
    all micro-batches up to `N`.
    """

    def __init__(self, filesystem: fs.FileSystem, root: str) -> None:
        self._filesystem = filesystem
        self._root = root
        self._place = posixpath.join(root, _SINK_LOG)
        self.paths: set[str] = set()
        # Number of the last micro-batch that was read.
        self._read = -1

    @classmethod
    def of(cls, selection: Selection) -> SinkLog | None:
        """That of what is selected, if it is one directory and has one."""
        root = selection.single_directory()
        if root is None:
            return None
        filesystem, path = root
        place = posixpath.join(path, _SINK_LOG)
        return cls(filesystem, path) if filesystem.get_file_info(place).type is fs.FileType.Directory else None

    def refresh(self) -> bool:
        """Read what is new; whether there was something."""
        before = self._read
        for trial in range(_TRIALS):
            try:
                self._refresh()
            except FileNotFoundError:
                # Spark deletes what a compacted file stands for.
                if trial + 1 == _TRIALS:
                    raise
            else:
                break
        return self._read != before

    def _refresh(self) -> None:
        listed = self._filesystem.get_file_info(fs.FileSelector(self._place))
        matches = [found for info in listed if (found := _SINK_LOG_ENTRY.fullmatch(info.base_name))]
        compacted = max((int(found[1]) for found in matches if found[2]), default=-1)
        paths, read = self.paths, self._read
        if compacted > read:
            paths, read = set(self._files_of(f"{compacted}.compact")), compacted
        following = sorted(number for found in matches if not found[2] and (number := int(found[1])) > read)
        new: list[str] = []
        for expected, number in enumerate(following, read + 1):
            if number != expected:
                raise self._malformed(str(number), f"that of micro-batch {expected}, which comes before it, is missing")
            new += self._files_of(str(number))
        self.paths, self._read = paths.union(new), following[-1] if following else read

    def _files_of(self, name: str) -> Iterator[str]:
        with self._filesystem.open_input_stream(posixpath.join(self._place, name), compression=None) as file:
            lines = file.read().decode(errors="replace").splitlines()
        if not lines or lines[0] != _SINK_LOG_VERSION:
            raise self._malformed(name, f"its first line is {lines[0] if lines else ''!r}, not {_SINK_LOG_VERSION!r}")
        for line in lines[1:]:
            try:
                uri = json.loads(line)["path"]
                yield self._below_root(name, uri)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                if isinstance(error, MalformedDataError):
                    raise
                raise self._malformed(name, f"this line is not the JSON of a file: {line[:200]!r}") from None

    def _below_root(self, name: str, uri: str) -> str:
        parts = urlsplit(uri)
        path = unquote(parts.path)
        # In an object store the host is the bucket, and the first part of the path.
        places = [path, f"{parts.netloc.rpartition('@')[2]}{path}", f"{parts.netloc.partition('@')[0]}{path}"]
        roots = [self._root]
        if self._filesystem.type_name == "local":
            places.append(os.path.realpath(path))
            roots.append(os.path.realpath(self._root))
        for root in roots:
            for place in places:
                if place.startswith(f"{root.rstrip('/')}/"):
                    return posixpath.relpath(place, root)
        raise self._malformed(name, f"it has {without_secrets(uri)!r}, which is not below: was the directory moved?")

    def _malformed(self, name: str, why: str) -> MalformedDataError:
        return MalformedDataError(
            f"{self._place}/{name}: this log of Spark's file sink says which files there are, and cannot be read: "
            f"{why}. Repair it, or read what is there regardless of the log by a pattern in place of the directory, "
            f"as in {self._root}/*"
        )
