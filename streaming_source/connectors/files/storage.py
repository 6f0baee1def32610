"""Where files lie: the paths and patterns that a source reads, what opens them, and which of its errors pass."""

from __future__ import annotations

import errno
import json
import os
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from importlib import import_module
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from alignment.arrow_times import parse_iso8601
from streaming_source.api import RetryPolicy
from streaming_source.exceptions import OptionError, PathNotFoundError, StoreUnavailableError

__all__ = [
    "NO_STORAGE_OPTIONS",
    "Root",
    "Selection",
    "StorageOptions",
    "StoreRetries",
    "is_hidden",
    "may_pass",
    "modified_ms",
    "repr_without_secrets",
    "split_paths",
    "without_secrets",
]

_KINDS: Final[Sequence[tuple[str, Callable[[str], Any], str]]] = (
    (
        "allow_bucket_(creation|deletion)|allow_delayed_open|anonymous|background_writes|force_virtual_addressing|"
        "check_directory_existence_before_creation",
        lambda value: {"true": True, "false": False}[value.lower()],
        "true or false",
    ),
    ("buffer_size|default_block_size|load_frequency|port|replication", int, "a number"),
    ("(connect|request)_timeout", float, "a number"),
)
"""Names of arguments that are not text, how they are read, and what they are."""

_EXAMPLES: Final = {
    "S3FileSystem": "access_key",
    "GcsFileSystem": "access_token",
    "AzureFileSystem": "account_key",
    "HadoopFileSystem": "user",
}
_KNOWN_TO_ARROW: Final = ("file", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs", "hf", "mock")
_WILD: Final = re.compile(r"[*?\[{]")


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Arguments of a file system as text: keys, endpoints, regions. They show nowhere."""

    values: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @staticmethod
    def of(values: Mapping[str, str]) -> StorageOptions:
        return StorageOptions(tuple(sorted((name, str(value)) for name, value in values.items())))

    def arguments(self) -> dict[str, Any]:
        """As the classes of `pyarrow.fs` take them."""
        return {name: _value(name, value) for name, value in self.values}


NO_STORAGE_OPTIONS: Final = StorageOptions()


@dataclass(frozen=True, slots=True, repr=False)
class Root:
    """A place: a local path, or a URI of any file system that pyarrow opens, by itself or through `fsspec`."""

    uri: str
    storage: StorageOptions = NO_STORAGE_OPTIONS

    def __repr__(self) -> str:
        return repr_without_secrets(self)

    @property
    def is_local(self) -> bool:
        """Whether this is a path of the local file system."""
        return "://" not in self.uri and not self.uri.startswith("file:")

    def open(self) -> tuple[fs.FileSystem, str]:
        """The file system and the path in it, without a slash at its end. Connections are kept in the process."""
        if self.is_local:
            if self.storage.values:
                names = ", ".join(f"storage.{name}" for name, _ in self.storage.values)
                raise OptionError(f"{names}: the local file system takes no storage options, and path is local")
            return fs.LocalFileSystem(), _trimmed(os.path.abspath(os.path.expanduser(self.uri)))
        return _opened(self)


def without_secrets(text: str) -> str:
    """A text in which no user, password or query of a URI shows."""
    text = re.sub(r"(\w+://)[^/@\s]+@", r"\1***@", text)
    return re.sub(r"(\w+://[^\s'\"?]*)\?[^\s'\",]*", r"\1?***", text)


def repr_without_secrets(value: Any) -> str:
    """The `repr` of a dataclass, such fields hidden as its own would hide, and all that `without_secrets` does."""
    shown = (f"{field.name}={getattr(value, field.name)!r}" for field in fields(value) if field.repr)
    return without_secrets(f"{type(value).__qualname__}({', '.join(shown)})")


@dataclass(frozen=True, slots=True, repr=False)
class Selection:
    """Paths of one file system, directories or patterns, and which names below them count.

    In patterns of directories and files `*`, `?`, `[a-z]` and `{a,b}` stand for parts of one name. `storage` has the
    arguments of the file system. Files whose names do not match `name_pattern` are not there, nor are those that were
    not modified later than `after_ms` and earlier than `before_ms`; None for no limit.
    """

    paths: tuple[str, ...]
    storage: StorageOptions = NO_STORAGE_OPTIONS
    name_pattern: str | None = None
    after_ms: int | None = None
    before_ms: int | None = None

    def __repr__(self) -> str:
        return repr_without_secrets(self)

    def open(self) -> tuple[fs.FileSystem, str]:
        """The file system, and the root: the path, or the nearest directory that holds all of them."""
        filesystems, places, _ = zip(*self._parsed(), strict=True)
        return filesystems[0], places[0] if len(places) == 1 else posixpath.commonpath(places)

    def single_directory(self) -> tuple[fs.FileSystem, str] | None:
        """The file system and the path, if one directory is selected and no pattern."""
        (filesystem, path, pattern), *others = self._parsed()
        return None if pattern or others else (filesystem, path)

    def patterns(self) -> tuple[str, ...]:
        """The paths without the file system that they are in, sorted: they identify this selection."""
        return tuple(sorted(posixpath.join(fixed, *pattern) for _, fixed, pattern in self._parsed()))

    def select(self) -> tuple[dict[str, fs.FileInfo], list[fs.FileInfo]]:
        """The directories, by their paths below the root, of which all is read; and single files."""
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
        """Whether this is a file that counts, if it is not hidden."""
        if info.type is not fs.FileType.File or info.size == 0 or not self.takes_name(info.base_name):
            return False
        modified_ms = (info.mtime_ns or 0) // 1_000_000
        return (self.after_ms is None or modified_ms > self.after_ms) and (
            self.before_ms is None or modified_ms < self.before_ms
        )

    def takes_name(self, name: str) -> bool:
        """Whether `pathGlobFilter` lets a name pass."""
        return self.name_pattern is None or any(fnmatchcase(name, one) for one in _without_braces(self.name_pattern))

    def _parsed(self) -> list[tuple[fs.FileSystem, str, list[str]]]:
        """Of each path its file system, the part before the first pattern, and the patterns of names after that."""
        parsed = []
        for path in self.paths:
            for one in _without_braces(path):
                fixed, pattern = _fixed_part(one)
                filesystem, place = Root(fixed, self.storage).open()
                literal = posixpath.join(place, *pattern)
                found = StoreRetries().run(partial(filesystem.get_file_info, literal)) if pattern else None
                if found and found.type is fs.FileType.Directory:
                    place, pattern = literal, []
                parsed.append((filesystem, place, pattern))
        first = parsed[0][0]
        for filesystem, place, _ in parsed[1:]:
            if not filesystem.equals(first):
                raise OptionError(
                    f"path: {parsed[0][1]} and {place} are of different file systems; read them as two sources"
                )
        return parsed


def split_paths(name: str, value: str) -> tuple[str, ...]:
    """One path, in which a comma is a comma, or a JSON list of several."""
    try:
        paths = json.loads(value) if value.strip().startswith("[") else value
    except ValueError:
        # A pattern may begin so as well.
        paths = value
    if isinstance(paths, list) and not (paths and all(isinstance(path, str) and path.strip() for path in paths)):
        raise OptionError(f"option {name} = {without_secrets(value)!r}: must be a JSON list of paths, of text")
    if not value.strip():
        raise OptionError(f"option {name} is empty; give it a value or leave it out")
    return tuple(paths) if isinstance(paths, list) else (value,)


def modified_ms(option: str, text: str | None, zone: str) -> int | None:
    """The value of an option that says when files were modified; an `OptionError` if it is no time."""
    if text is None:
        return None
    micros, valid = parse_iso8601(pa.array([text]), zone)
    if not valid[0]:
        raise OptionError(f"option {option} = {text!r}: must be a time such as 2024-01-31T00:00:00")
    return int(micros[0]) // 1000


def is_hidden(name: str) -> bool:
    """Whether a file or directory of this name is passed over."""
    return name.startswith(("_", "."))


def _fixed_part(path: str) -> tuple[str, list[str]]:
    """The part of a path that has no pattern, and the names after it."""
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


def _matching(filesystem: fs.FileSystem, place: str, names: list[str]) -> Iterator[fs.FileInfo]:
    for info in filesystem.get_file_info(fs.FileSelector(place, allow_not_found=True)):
        if (is_hidden(info.base_name) and not is_hidden(names[0])) or not fnmatchcase(info.base_name, names[0]):
            continue
        if len(names) == 1:
            yield info
        elif info.type is fs.FileType.Directory:
            yield from _matching(filesystem, info.path, names[1:])


def _without_braces(pattern: str) -> list[str]:
    """A pattern with `{a,b}` as patterns without."""
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


# ---- file systems ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _opened(root: Root) -> tuple[fs.FileSystem, str]:
    scheme = root.uri.partition(":")[0].lower()
    try:
        if scheme not in _KNOWN_TO_ARROW:
            return _by_fsspec(scheme, root)
        if not root.storage.values or scheme == "file":
            filesystem, path = fs.FileSystem.from_uri(root.uri)
            return filesystem, _trimmed(path)
        return _with_options(scheme, root)
    except (ValueError, OSError, NotImplementedError, ImportError) as error:
        if isinstance(error, OptionError):
            raise
        message = without_secrets(str(error))
        for _, value in sorted(root.storage.values, key=lambda entry: -len(entry[1])):
            # Where it stands by itself: a user `p` is none of the letters of `path`.
            message = re.sub(rf"(?<![^\W_]){re.escape(value)}(?![^\W_])", "***", message) if value else message
        raise PathNotFoundError(f"path: cannot be opened as a file system: {message}") from None


def _with_options(scheme: str, root: Root) -> tuple[fs.FileSystem, str]:
    parts = urlsplit(root.uri)
    arguments = root.storage.arguments()
    if scheme in ("s3", "s3a", "gs", "gcs"):
        kind = fs.S3FileSystem if scheme.startswith("s3") else fs.GcsFileSystem
        path = f"{parts.netloc.rpartition('@')[2]}{parts.path}"
    elif scheme in ("abfs", "abfss"):
        container, _, host = parts.netloc.partition("@")
        arguments.setdefault("account_name", host.partition(".")[0])
        kind, path = fs.AzureFileSystem, f"{container}{parts.path}"
    elif scheme in ("hdfs", "viewfs"):
        arguments.setdefault("host", parts.hostname or "default")
        arguments.setdefault("port", parts.port or 0)
        kind, path = fs.HadoopFileSystem, parts.path
    else:
        raise ValueError(f"storage options are not known for the scheme {scheme!r}: known are s3, gs, abfs, hdfs")
    return _made(scheme, kind, arguments), _trimmed(path)


def _by_fsspec(scheme: str, root: Root) -> tuple[fs.FileSystem, str]:
    """Through `fsspec`, which knows more schemes: each in a package of its own."""
    try:
        fsspec = import_module("fsspec")
    except ImportError:
        raise ValueError(
            f"pyarrow does not know the scheme {scheme!r}: it knows {', '.join(_KNOWN_TO_ARROW)}. Others are read "
            "through fsspec: install it, and the package that it has for this one"
        ) from None
    if scheme not in fsspec.available_protocols():
        raise ValueError(
            f"neither pyarrow nor fsspec knows the scheme {scheme!r}: pyarrow knows {', '.join(_KNOWN_TO_ARROW)}"
        )
    try:
        filesystem, path = fsspec.core.url_to_fs(root.uri, **root.storage.arguments())
    except TypeError:
        names = ", ".join(f"storage.{name}" for name, _ in root.storage.values)
        raise OptionError(f"storage options do not fit what fsspec opens {scheme} with: {names or 'none'}") from None
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem)), _trimmed(path)


def _made(scheme: str, kind: Callable[..., fs.FileSystem], arguments: dict[str, Any]) -> fs.FileSystem:
    try:
        return kind(**arguments)
    except TypeError as error:
        # It names the argument, and none of the values.
        unknown = next((name for name in arguments if f"'{name}'" in str(error)), None)
        if unknown is None:
            raise OptionError(f"storage options of {scheme} do not fit: {', '.join(sorted(arguments))}") from None
        raise OptionError(
            f"option storage.{unknown} is not known to {kind.__name__} of pyarrow, which opens {scheme}: it takes the "
            f"arguments of that class, as in storage.{_EXAMPLES[kind.__name__]}, not those of Hadoop (fs.*)"
        ) from None


def _value(name: str, text: str) -> Any:
    for names, parse, what in _KINDS:
        if re.fullmatch(names, name):
            try:
                return parse(text)
            except (ValueError, KeyError):
                raise OptionError(f"option storage.{name}: must be {what}") from None
    return text


def _trimmed(path: str) -> str:
    return path.rstrip("/") or "/"


# ---- errors that pass ------------------------------------------------------------------------------------------------

RETRY_S = 30.0

_PASSING: Final = {
    *(errno.EAGAIN, errno.EBUSY, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTDOWN),
    *(errno.EHOSTUNREACH, errno.EINTR, errno.EIO, errno.EMFILE, errno.ENETDOWN, errno.ENETRESET, errno.ENETUNREACH),
    *(errno.ENFILE, errno.ENOTCONN, errno.EPIPE, errno.ESTALE, errno.ETIMEDOUT),
}
_PASSING_TEXT: Final = re.compile(
    r"AWS Error (NETWORK_CONNECTION|INTERNAL_FAILURE|SERVICE_UNAVAILABLE|SLOW_DOWN|THROTTLING|REQUEST_TIMEOUT)"
    r"|HTTP status 5\d\d|HTTP response code 5\d\d|curlCode|UNAVAILABLE|DEADLINE_EXCEEDED"
    r"|\[Errno (?P<errno>\d+)\]"
)
"""pyarrow's errors about clouds have no number, and what was raised within a decoder is left as text."""


def may_pass(error: BaseException) -> bool:
    """Whether a store failed in a way that it may not the next time; not a file that is gone or malformed."""
    if isinstance(error, StoreUnavailableError | ConnectionError | TimeoutError):
        return True
    if not isinstance(error, OSError):
        return False
    if error.errno is not None:
        return error.errno in _PASSING
    found = _PASSING_TEXT.search(str(error))
    return found is not None and (found["errno"] is None or int(found["errno"]) in _PASSING)


class StoreRetries(RetryPolicy):
    """Tries calls of a file system again, beside what its own client does."""

    def __init__(self) -> None:
        super().__init__(RETRY_S)

    def passes(self, error: Exception) -> bool:
        return may_pass(error)
