"""Listing the files below a path, again and again: only directories that may have changed are listed again."""

from __future__ import annotations

import math
import os
import posixpath
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from pyarrow import fs

from alignment.shown import log_of
from streaming_source.connectors.files.selection import SINK_LOG, Selection, check_above, check_entries, is_hidden
from streaming_source.exceptions import MalformedDataError

if TYPE_CHECKING:
    from streaming_source.connectors.files.sink_log import SinkLog
    from streaming_source.data_files.file import FileBlocks

_log = log_of(__name__)

_FULL_EVERY_S: Final = 60.0
_NAMED: Final = 10
"""Files that a message names at most."""
_SETTLED_NS: Final = 3_000_000_000
"""A directory that changed this long before it was listed cannot have changed again within one step of its clock."""
_CLOCKS_DIFFER_MS: Final = 60_000
"""The clocks of a store and of this machine are assumed to differ by less."""
_SIZE_BITS: Final = 48


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

    @property
    def version(self) -> int:
        """Time and bytes as one number, which is another when the file was rewritten or appended to."""
        return self.modified_ms << _SIZE_BITS | self.size

    def at(self, version: int) -> ListedFile:
        """Return the file as it was in another version."""
        return self._replace(modified_ms=version >> _SIZE_BITS, size=version & (1 << _SIZE_BITS) - 1)


class NewFile(NamedTuple):
    """A file as it was described; None as blocks if the source skips it. `newest_ms` is that of a `LoggedFile`."""

    file: ListedFile
    blocks: FileBlocks | None
    newest_ms: int


@dataclass(frozen=True, slots=True)
class ListedDirectory:
    """The files directly in a directory, in no order, without hidden ones. `path` is below the root.

    It `is_empty` if it has neither files nor directories. If files `may_have_come` while it was listed, a file may be
    missing although a later one is listed.
    """

    path: str
    files: list[ListedFile]
    is_empty: bool
    may_have_come: bool = False


@dataclass(frozen=True, slots=True)
class _Settled:
    """A local directory that has not changed for a while, with the directories in it, and the last of its files."""

    path: str
    changed_ns: int
    below: tuple[str, ...]
    last: ListedFile | None

    def is_as_it_was(self) -> bool:
        """Return whether neither the directory nor its last file has changed. Two system calls, no listing."""
        try:
            if os.stat(self.path).st_mtime_ns != self.changed_ns:
                return False
            return self.last is None or _is_there(posixpath.join(self.path, self.last.name), self.last)
        except FileNotFoundError:
            return False


class Lister:
    """Lists the files that a source selects, again and again.

    On a local file system a directory is listed again when it has changed, or the last of its files, or one of those
    `in_work`; and every minute in any case, since another file that is rewritten in place changes none of these. On
    other file systems every directory is listed each time. Names that begin with `_` or `.` are hidden, with all below
    them. A link to a directory above itself is not followed. In the output of Spark's file sink only the files in the
    sink's log are listed. Files of 0 bytes, until they have some, and files modified after `until_ms` are left out, and
    logged once. `in_work` is called on the thread that lists.
    """

    def __init__(
        self, selection: Selection, until_ms: int | None = None, in_work: Callable[[], Iterable[ListedFile]] = tuple
    ) -> None:
        self._selection = selection
        self._filesystem, self._root = selection.open()
        self._until_ms = until_ms
        self._in_work = in_work
        self._has_named_later = False
        self._sink_log: SinkLog | None = None
        self._is_local = self._filesystem.type_name == "local"
        self._settled: dict[str, _Settled] = {}
        self._full_at = -math.inf
        # Whether the last listing has all directories, not only changed ones.
        self.lists_all = False
        # Files of 0 bytes, those that were logged, and their directories: these do not change when a file gets its
        # first bytes.
        self._empty: set[str] = set()
        self._named_empty: set[str] = set()
        self._holding_empty: set[str] = set()

    def list_changed(self) -> Iterator[ListedDirectory]:
        """Return the directories that may have changed since they were listed last, in no order.

        Raises a `PathNotFoundError` if a path is missing or not a directory, a `MalformedDataError` if the log of
        Spark's file sink cannot be read, an `OptionError` if a path is in the folder of a table, or contains one.
        """
        directories, files = self._selection.select()
        # A directory with a file of 0 bytes never settles, so each listing finds all such files.
        self._empty.clear()
        self._holding_empty.clear()
        if self._sink_log is None:
            self._sink_log = sink_log_of(self._selection)
        if self._full_at == -math.inf:
            paths = [_path(self._root, directory) for directory in directories]
            check_above(self._filesystem, {*paths, *(posixpath.dirname(file.path) for file in files)})
        has_more = self._sink_log is not None and self._sink_log.refresh()
        # A file is written before it is in the log: its directory may have settled without it.
        if has_more or time.monotonic() >= self._full_at + _FULL_EVERY_S:
            self._settled.clear()
            self._full_at = time.monotonic()
        self.lists_all = not self._settled
        if self._settled:
            for file in self._in_work():
                if file.directory in self._settled and not _is_there(_path(self._root, file.relative_path), file):
                    del self._settled[file.directory]
        return self._restricted(self._list(directories, files), is_complete=has_more)

    @property
    def last_micro_batch(self) -> int:
        """The last micro-batch of Spark's file sink whose files were listed; -1 without such a log, or before one."""
        return -1 if self._sink_log is None else self._sink_log.last

    def list_again(self, directory: str) -> list[ListedFile]:
        """List the files directly in a directory again, by its path below the root."""
        listed, _ = self._list_one(_path(self._root, directory), directory)
        return [file for found in self._restricted(iter([listed]), is_complete=False) for file in found.files]

    def name_empty(self) -> None:
        """Log which files of 0 bytes were left out, each once."""
        new, self._named_empty = self._empty - self._named_empty, {*self._empty}
        if new:
            _log.warning("files of 0 bytes are skipped until they have some: %s", name_ten(new))

    def forget(self) -> None:
        """List all directories the next time."""
        self._settled.clear()

    def _list(self, directories: dict[str, fs.FileInfo], files: list[fs.FileInfo]) -> Iterator[ListedDirectory]:
        seen: set[str] = set()
        for directory, info in directories.items():
            # Directories of object stores have no time of modification; all below one is listed in one call.
            yield from (self._list_all if info.mtime_ns is None else self._walk)(directory, seen)
        yield from self._single(files, seen)

    def _restricted(self, listed: Iterator[ListedDirectory], *, is_complete: bool) -> Iterator[ListedDirectory]:
        if self._sink_log is not None:
            listed = self._in_log(listed, self._sink_log.paths, is_complete=is_complete)
        return listed if self._until_ms is None else self._until(listed, self._until_ms)

    def _in_log(
        self, listed: Iterator[ListedDirectory], paths: set[str], *, is_complete: bool
    ) -> Iterator[ListedDirectory]:
        """Yield the files that the log of a file sink has; directories without any of them are left out."""
        there: set[str] = set()
        for directory in listed:
            files = [file for file in directory.files if file.relative_path in paths]
            there.update(file.relative_path for file in files)
            if files:
                yield replace(directory, files=files)
        gone = {path for path in paths - there if self._selection.takes_name(posixpath.basename(path))}
        if is_complete and gone:
            _log.warning(
                "%d files are in the log of Spark's file sink but do not exist; they are not read: %s",
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
        left = [start]
        while left:
            unseen, left = [directory for directory in left if directory not in seen], []
            seen.update(unseen)
            directories = []
            for directory in unseen:
                settled = self._settled.get(directory)
                if settled is not None and settled.is_as_it_was():
                    left += settled.below
                else:
                    directories.append(directory)
            infos = self._filesystem.get_file_info([_path(self._root, directory) for directory in directories])
            for directory, info in zip(directories, infos, strict=True):
                if info.type is not fs.FileType.Directory or (self._is_local and _leads_up(info.path, directory)):
                    continue
                changed_ns = info.mtime_ns or 0
                listed_ns = time.time_ns()
                found, below = self._list_one(info.path, directory)
                left += below
                has_settled = changed_ns < listed_ns - _SETTLED_NS
                if self._is_local and has_settled and info.path not in self._holding_empty:
                    last = max(found.files, key=attrgetter("name"), default=None)
                    self._settled[directory] = _Settled(info.path, changed_ns, tuple(below), last)
                else:
                    self._settled.pop(directory, None)
                is_same = has_settled and self._filesystem.get_file_info(info.path).mtime_ns == changed_ns
                yield replace(found, may_have_come=not is_same)

    def _takes(self, info: fs.FileInfo) -> bool:
        if info.type is fs.FileType.File and info.size == 0 and self._selection.takes_name(info.base_name):
            self._empty.add(info.path)
            self._holding_empty.add(posixpath.dirname(info.path))
        return self._selection.takes(info)

    def _entries(self, path: str, *, recursive: bool = False) -> list[fs.FileInfo]:
        infos: list[fs.FileInfo] = self._filesystem.get_file_info(
            fs.FileSelector(path, recursive=recursive, allow_not_found=True)
        )
        try:
            check_entries(info.path for info in infos)
        except UnicodeDecodeError as error:
            raise MalformedDataError(
                f"{path} has a file whose name is not UTF-8: {error.object!r}; rename it, or move it away"
            ) from None
        return infos

    def _list_one(self, path: str, directory: str) -> tuple[ListedDirectory, list[str]]:
        files, below = [], []
        for info in self._entries(path):
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
        for info in self._entries(base, recursive=True):
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
    """Return the first ten paths for a message, and how many more there are."""
    names = sorted(paths)
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def list_files(selection: Selection) -> Iterator[ListedFile]:
    """Yield all files that are selected, in no order; see `Lister`."""
    return (file for directory in Lister(selection).list_changed() for file in directory.files)


def list_directory(selection: Selection, directory: str) -> list[ListedFile]:
    """Return the selected files directly in a directory, in the order of names; the path is below the root."""
    filesystem, root = selection.open()
    (selected, files), path = selection.select(), _path(root, directory)
    infos = [file for file in files if posixpath.dirname(file.path) == path]
    if any(not start or f"{directory}/".startswith(f"{start}/") for start in selected):
        infos += filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
    below = "" if directory == "." else directory
    taken = (info for info in infos if selection.takes(info) and not is_hidden(info.base_name))
    found = {ListedFile.of_info(below, info) for info in taken}
    log = sink_log_of(selection)
    if log is not None:
        log.refresh()
        found = {file for file in found if file.relative_path in log.paths}
    return sorted(found)


def sink_log_of(selection: Selection) -> SinkLog | None:
    """Return the log of Spark's file sink if the selection is one directory, read by it, and this has one."""
    filesystem, path = selection.single_directory() or (None, "")
    if filesystem is None or not selection.by_sink_log:
        return None
    if filesystem.get_file_info(posixpath.join(path, SINK_LOG)).type is not fs.FileType.Directory:
        return None
    # Imported here: few directories were written by Spark's file sink.
    from streaming_source.connectors.files.sink_log import SinkLog

    return SinkLog(filesystem, path)


def _path(root: str, directory: str) -> str:
    return posixpath.normpath(posixpath.join(root, directory)) if directory not in ("", ".") else root


def _is_there(path: str, file: ListedFile) -> bool:
    """Return whether a file of the local file system is there in this version."""
    try:
        now = os.stat(path)
    except FileNotFoundError:
        return False
    return (now.st_mtime_ns // 1_000_000, now.st_size) == (file.modified_ms, file.size)


def _leads_up(path: str, directory: str) -> bool:
    """Return whether a directory of the local file system is a link to one above it."""
    # Most are no links, and each is asked at each look: they are not resolved.
    if not os.path.islink(path):
        return False
    target, above = os.path.realpath(path), os.path.realpath(os.path.dirname(path))
    if leads_up := f"{above}/".startswith(f"{target.rstrip('/')}/"):
        _log.warning("%s is a link to a directory above it, %s: not followed", directory, target)
    return leads_up
