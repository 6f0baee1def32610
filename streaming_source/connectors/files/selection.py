"""Which files a source reads: paths, patterns of names, times; and folders of tables, which it refuses."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from glob import escape
from typing import Final

from pyarrow import fs

from alignment.shown import log_of, without_secrets
from alignment.time_texts import iso8601_us
from streaming_source.data_files.faults import StoreRetries
from streaming_source.data_files.stores import NO_STORAGE_OPTIONS, Root, StorageOptions, repr_without_secrets
from streaming_source.exceptions import OptionError, PathNotFoundError

_log = log_of(__name__)

SINK_LOG: Final = "_spark_metadata"
"""The directory in which Spark's file sink keeps its log."""

_WILD: Final = re.compile(r"[*?\[{]")

_LOGS: Final = {"_delta_log": ("Delta", "aligned_delta"), ".hoodie": ("Hudi", "hudi")}
"""Name of the folder that a table has -> what the table is called, and the format that reads it."""

_ICEBERG: Final = ("Iceberg", "aligned_iceberg")
_ICEBERG_FOLDERS: Final = ("data", "metadata")
_ICEBERG_METADATA: Final = re.compile(r"(v\d+|\d+-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})(\.\w+)?\.metadata\.json")


@dataclass(frozen=True, slots=True, repr=False)
class Selection:
    """Which files of a file system are read: those below `paths`, which are directories or patterns.

    In patterns `*`, `?`, `[a-z]` and `{a,b}` match parts of one name. `storage` has the arguments of the file system.
    Of the files below the paths those are selected whose names match `name_pattern` and that were modified later than
    `after_ms` and earlier than `before_ms`; None for no limit. `by_sink_log` if of a directory that Spark's file sink
    writes those are read that are in its log.
    """

    paths: tuple[str, ...]
    storage: StorageOptions = NO_STORAGE_OPTIONS
    name_pattern: str | None = None
    after_ms: int | None = None
    before_ms: int | None = None
    by_sink_log: bool = True

    def __repr__(self) -> str:
        return repr_without_secrets(self)

    def open(self) -> tuple[fs.FileSystem, str]:
        """Return the file system, and the root: the one path, or the lowest directory that contains all paths."""
        filesystems, paths, _ = zip(*self._parsed(), strict=True)
        return filesystems[0], paths[0] if len(paths) == 1 else posixpath.commonpath(paths)

    def single_directory(self) -> tuple[fs.FileSystem, str] | None:
        """Return the file system and the path, if there is one path, and it is neither a pattern nor a file."""
        (filesystem, path, pattern), *others = self._parsed()
        return None if pattern or others else (filesystem, path)

    def names(self) -> list[list[str]]:
        """Return the names below the root that lead to each path, of which the last may be patterns."""
        _, root = self.open()
        return [[*filter(None, start[len(root) :].split("/")), *pattern] for _, start, pattern in self._parsed()]

    def patterns(self) -> tuple[str, ...]:
        """Return the paths without their file system, sorted: they identify this selection."""
        return tuple(sorted(posixpath.join(fixed, *pattern) for _, fixed, pattern in self._parsed()))

    def select(self) -> tuple[dict[str, fs.FileInfo], list[fs.FileInfo]]:
        """Return the directories of which all is read, by their paths below the root; and single files."""
        _, root = self.open()
        directories: dict[str, fs.FileInfo] = {}
        files: list[fs.FileInfo] = []
        for filesystem, fixed, pattern in self._parsed():
            info = filesystem.get_file_info(fixed)
            if not pattern or info.type is not fs.FileType.NotFound:
                _check_directory(info, fixed)
            for found in _matching(filesystem, fixed, pattern) if pattern else [info]:
                if found.type is fs.FileType.Directory:
                    directories[found.path[len(root) :].strip("/")] = found
                elif self.takes(found):
                    files.append(found)
        return directories, files

    def takes(self, info: fs.FileInfo) -> bool:
        """Return whether a file is selected, if it is not hidden."""
        if info.type is not fs.FileType.File or info.size == 0 or not self.takes_name(info.base_name):
            return False
        modified_ms = (info.mtime_ns or 0) // 1_000_000
        return (self.after_ms is None or modified_ms > self.after_ms) and (
            self.before_ms is None or modified_ms < self.before_ms
        )

    def takes_name(self, name: str) -> bool:
        """Return whether a name matches `pathGlobFilter`."""
        return self.name_pattern is None or any(fnmatchcase(name, one) for one in _without_braces(self.name_pattern))

    def _parsed(self) -> list[tuple[fs.FileSystem, str, list[str]]]:
        """Return, for each path, its file system, the part before the first pattern, and the patterns after that."""
        parsed = []
        for path in self.paths:
            for one in _without_braces(path):
                fixed, pattern = _fixed_part(one)
                filesystem, start = Root(fixed, self.storage).open()
                literal = posixpath.join(start, *pattern)
                found = StoreRetries().run(partial(filesystem.get_file_info, literal)) if pattern else None
                if found and found.type is fs.FileType.Directory:
                    start, pattern = literal, []
                elif (not pattern and _is_file(filesystem, start)) or (found and found.type is fs.FileType.File):
                    start, name = posixpath.split(literal)
                    pattern = [escape(name)]
                parsed.append((filesystem, start, pattern))
        first = parsed[0][0]
        for filesystem, start, _ in parsed[1:]:
            if not filesystem.equals(first):
                raise OptionError(
                    f"path: {parsed[0][1]} and {start} are of different file systems; read them as two sources"
                )
        return parsed


def split_paths(name: str, value: str) -> tuple[str, ...]:
    """Split an option into paths: a JSON list of several, or one path as it is, commas included."""
    try:
        paths = json.loads(value) if value.strip().startswith("[") else value
    except ValueError:
        # A pattern may start with a bracket as well.
        paths = value
    if isinstance(paths, list) and not (paths and all(isinstance(path, str) and path.strip() for path in paths)):
        raise OptionError(f"option {name} = {without_secrets(value)!r}: must be a JSON list of paths, of text")
    if not value.strip():
        raise OptionError(f"option {name} is empty; give it a value or leave it out")
    return tuple(paths) if isinstance(paths, list) else (value,)


def modified_ms(option: str, text: str | None, zone: str) -> int | None:
    """Return the time of an option in milliseconds, None without one; raises an `OptionError` if it is no time."""
    if text is None:
        return None
    if (time_us := iso8601_us(text, zone)) is None:
        raise OptionError(f"option {option} = {text!r}: must be a time such as 2024-01-31T00:00:00")
    return time_us // 1000


def is_hidden(name: str) -> bool:
    """Return whether a file or directory of this name is left out: it is hidden, or `hdfs dfs` still copies it."""
    return name.startswith(".") or name.endswith("._COPYING_") or (name.startswith("_") and "=" not in name)


def _is_file(filesystem: fs.FileSystem, path: str) -> bool:
    """Return whether a path is one file. In a store, where this takes a request, its name must have a dot."""
    if filesystem.type_name != "local" and "." not in posixpath.basename(path):
        return False
    return bool(StoreRetries().run(partial(filesystem.get_file_info, path)).type is fs.FileType.File)


def _fixed_part(path: str) -> tuple[str, list[str]]:
    """Return the part of a path before its first pattern, and the names after that."""
    if not _WILD.search(path):
        return path, []
    scheme, separator, rest = path.partition("://")
    kept = (rest if separator else path).split("/")
    wild = next(i for i, name in enumerate(kept) if _WILD.search(name))
    names = [name for name in kept[wild:] if name]
    fixed = "/".join(kept[:wild])
    if separator:
        if not fixed:
            raise OptionError(f"path {without_secrets(path)!r}: a bucket or host cannot be a pattern; name it")
        return f"{scheme}://{fixed}", names
    return fixed or ("/" if path.startswith("/") else "."), names


def _matching(filesystem: fs.FileSystem, path: str, names: list[str]) -> Iterator[fs.FileInfo]:
    for info in filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True)):
        if (is_hidden(info.base_name) and not is_hidden(names[0])) or not fnmatchcase(info.base_name, names[0]):
            continue
        if len(names) == 1:
            yield info
        elif info.type is fs.FileType.Directory:
            yield from _matching(filesystem, info.path, names[1:])


def _without_braces(pattern: str) -> list[str]:
    """Return the patterns without braces that are equivalent to one with `{a,b}`."""
    found = re.search(r"\{([^{}]*)\}", pattern)
    if found is None:
        return [pattern]
    before, after = pattern[: found.start()], pattern[found.end() :]
    return [one for choice in found[1].split(",") for one in _without_braces(before + choice + after)]


def _check_directory(info: fs.FileInfo, path: str) -> None:
    if info.type is fs.FileType.NotFound:
        several = '; several paths are a JSON list, as in ["/a", "/b"]' if "," in path else ""
        raise PathNotFoundError(f"path {path!r} does not exist; give an existing directory in option path{several}")
    if info.type is not fs.FileType.Directory:
        raise PathNotFoundError(f"path {path!r} is not a directory; give the directory above it in option path")


def check_entries(paths: Iterable[str]) -> None:
    """Raise an `OptionError` if one of these paths of files and directories belongs to the log of a table."""
    for path in paths:
        for folder, kind in _LOGS.items():
            # Most paths have neither name anywhere.
            if folder in path and (parts := path.split("/")).count(folder):
                raise _is_table("/".join(parts[: parts.index(folder)]), *kind)
        if path.endswith(".metadata.json"):
            directory, name = posixpath.split(path)
            if posixpath.basename(directory) == "metadata" and _ICEBERG_METADATA.fullmatch(name):
                raise _is_table(posixpath.dirname(directory), *_ICEBERG)


def check_above(filesystem: fs.FileSystem, paths: Iterable[str]) -> None:
    """Raise an `OptionError` if one of these directories is the folder of a table, or a part of it.

    A directory above a path that cannot be read counts as no table.
    """
    above = sorted({directory for path in paths for directory in _directories_to(path)})
    folders = [posixpath.join(directory, name) for directory in above for name in _LOGS]
    check_entries(info.path for info in _there(filesystem, folders) if info.type is fs.FileType.Directory)
    tables = {posixpath.dirname(path) for path in above if posixpath.basename(path) in _ICEBERG_FOLDERS}
    metadata = _there(filesystem, [posixpath.join(table, "metadata") for table in sorted(tables)])
    for directory in [info.path for info in metadata if info.type is fs.FileType.Directory]:
        check_entries(info.path for info in _there(filesystem, fs.FileSelector(directory)))


def _directories_to(path: str) -> Iterator[str]:
    while path.strip("/"):
        yield path
        path = posixpath.dirname(path)


def _there(filesystem: fs.FileSystem, places: list[str] | fs.FileSelector) -> list[fs.FileInfo]:
    try:
        return list(filesystem.get_file_info(places))
    except OSError as error:
        _log.debug("not looked at for a table: %s", error)
        return []


def _is_table(path: str, name: str, format_name: str) -> OptionError:
    ours = format_name.startswith("aligned_")
    stream = f"read_stream(spark).format({format_name!r})"
    if not ours:
        stream = f"spark.readStream.format({format_name!r}) and withWatermark"
    return OptionError(
        f"option path: {path} is the folder of a table of {name}, and its files are not its rows: files that the table "
        f"has removed or rewritten are still there, and would be read as well. Read it with {stream}, in batches with "
        f"spark.read.format({format_name!r}); or give a path without tables"
    )
