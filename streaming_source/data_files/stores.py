"""File systems: what opens a path or URI. Its arguments may be secret, and are in no log or error."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from alignment.shown import scrubbed, without_secrets
from streaming_source.api import Option, OptionSet
from streaming_source.api.options import any_text, credentials_option
from streaming_source.exceptions import OptionError, PathNotFoundError

if TYPE_CHECKING:
    from streaming_source.api.credentials import Credentials, MakeCredentials


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
"""Arguments that are not text: a pattern of their names, how they are parsed, and what they are called in errors."""

_PREFIX: Final = "storage."
_CREDENTIALS_OF: Final = (_PREFIX, "kafka.", "schemaRegistry.")
"""Prefixes of the names that a function of credentials may return: one function may serve several sources."""

_EXAMPLES: Final = {
    "S3FileSystem": "access_key",
    "GcsFileSystem": "access_token",
    "AzureFileSystem": "account_key",
    "HadoopFileSystem": "user",
}
_SAME_SCHEMES: Final = (("s3", "s3a"), ("gs", "gcs"), ("abfs", "abfss"))
"""Schemes by which one store is called, the first as it is known here."""
_HOSTS: Final = ("", "//")
"""The texts that may stand between `file:` and a path."""
_KNOWN_TO_ARROW: Final = ("file", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs", "hf", "mock")


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Arguments of a file system as text: keys, endpoints, regions. They are in no log, error or `repr`.

    `credentials` return more arguments, which expire.
    """

    values: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    credentials: Credentials | None = None

    @staticmethod
    def of(values: Mapping[str, str], credentials: Credentials | MakeCredentials | str | None = None) -> StorageOptions:
        """Make them from names without `storage.`; `credentials` are a function, or its name as `module:function`."""
        texts = sorted((name, str(value)) for name, value in values.items())
        if credentials is None:
            return StorageOptions(tuple(texts))
        # Imported here: few stores have credentials that expire.
        from streaming_source.api.credentials import Credentials

        return StorageOptions(tuple(texts), Credentials.of(credentials))

    @staticmethod
    def of_options(values: Mapping[str, Any]) -> StorageOptions:
        """Make them from parsed values of `STORAGE_OPTIONS`."""
        return StorageOptions.of(values["storage.*"], values["credentials"])

    @staticmethod
    def pop_from(options: dict[str, str]) -> StorageOptions:
        """Make them from those of the options that are of `STORAGE_OPTIONS`, in any case, which leave `options`."""
        given = [name for name in options if name.lower().startswith(_PREFIX) or name.lower() == "credentials"]
        return StorageOptions.of_options(STORAGE_OPTIONS.parse({name: options.pop(name) for name in given}))

    @property
    def is_given(self) -> bool:
        """True if any argument or credentials are given."""
        return bool(self.values) or self.credentials is not None

    def current(self) -> StorageOptions:
        """Return the arguments that are valid now, with those of `credentials` among the values."""
        if self.credentials is None:
            return self
        given = self.credentials.current(_CREDENTIALS_OF)
        own = {name[len(_PREFIX) :]: given[name] for name in given if name.startswith(_PREFIX)}
        return StorageOptions.of(dict(self.values) | own)

    def at(self, uri: str) -> Root:
        """Return the place of a URI, opened with these options; a local one is opened without any."""
        return Root(uri, NO_STORAGE_OPTIONS if Root(uri).is_local else self)

    def located(self, location: str, named: Collection[str] = ()) -> tuple[fs.FileSystem, str]:
        """Open the store of a location out of data, and return it with the path there, which is not escaped.

        Nothing of the location but the bucket decides how the store is opened. `named` are places that options name.
        """
        # Imported here: few data name locations.
        from streaming_source.from_data import Location

        found = Location.of(location, named)
        if found.is_local:
            return fs.LocalFileSystem(), found.path
        filesystem, base = Root(found.root, self).open()
        return filesystem, f"{base.rstrip('/')}/{found.path}".rstrip("/")

    def opened(self, checkpoint: str) -> tuple[fs.FileSystem, str] | None:
        """Open a checkpoint in a store; None for a local path, which its reader opens by itself."""
        return None if Root(checkpoint).is_local else Root(checkpoint, self).open()

    def arguments(self) -> dict[str, Any]:
        """Return the arguments as the classes of `pyarrow.fs` take them."""
        return {name: _value(name, value) for name, value in self.values}


NO_STORAGE_OPTIONS: Final = StorageOptions()

STORAGE_OPTIONS: Final = OptionSet(
    [
        Option(
            "storage.*",
            any_text,
            "Arguments of the file system, as its class in `pyarrow.fs` takes them: `storage.access_key`, "
            "`storage.endpoint_override`. They are in no offset, log or error.",
            {},
            secret=re.compile(""),
        ),
        credentials_option("options `storage.*`"),
    ]
)
"""Options of each format whose files may be in any file system."""


@dataclass(frozen=True, slots=True, repr=False)
class Root:
    """A place: a local path, or a URI of any file system that pyarrow opens, by itself or through `fsspec`."""

    uri: str
    storage: StorageOptions = NO_STORAGE_OPTIONS

    def __repr__(self) -> str:
        return repr_without_secrets(self)

    @property
    def is_local(self) -> bool:
        """True if this is a path of the local file system."""
        return "://" not in self.uri and not self.uri.startswith("file:")

    @property
    def spellings(self) -> tuple[str, ...]:
        """The ways to write this place, without a trailing slash; the first one is the same for all of them."""
        scheme, colon, rest = self.uri.partition(":")
        if self.is_local or scheme == "file":
            path = self.uri if self.is_local else unquote(re.sub("^//[^/]*", "", rest))
            path = os.path.abspath(os.path.expanduser(path))
            quoted = quote(path)
            return tuple(dict.fromkeys((path, *(f"file:{host}{one}" for host in _HOSTS for one in (path, quoted)))))
        schemes = next((known for known in _SAME_SCHEMES if scheme in known), (scheme,))
        return tuple(f"{one}{colon}{rest.rstrip('/')}" for one in schemes)

    def open(self) -> tuple[fs.FileSystem, str]:
        """Return the file system and the path in it, without a trailing slash.

        The process keeps the file system open.
        """
        if self.is_local:
            if self.storage.values:
                names = ", ".join(f"storage.{name}" for name, _ in self.storage.values)
                raise OptionError(f"{names}: the local file system takes no storage options, and path is local")
            if self.storage.credentials is not None:
                raise OptionError(
                    "option credentials: the local file system takes none, and path is local; leave it out"
                )
            return fs.LocalFileSystem(), _trimmed(os.path.abspath(os.path.expanduser(self.uri)))
        if self.storage.credentials is None:
            return _opened(self)
        _, path = self._current()
        return renewed(lambda: self._current()[0]), path

    def _current(self) -> tuple[fs.FileSystem, str]:
        return _opened(Root(self.uri, self.storage.current()))


def repr_without_secrets(value: Any) -> str:
    """Return the `repr` of a dataclass without its `repr=False` fields, and `without_secrets`."""
    shown = (f"{field.name}={getattr(value, field.name)!r}" for field in fields(value) if field.repr)
    return without_secrets(f"{type(value).__qualname__}({', '.join(shown)})")


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
        message = scrubbed(without_secrets(str(error)), (value for _, value in root.storage.values))
        raise PathNotFoundError(f"path: cannot be opened as a file system: {message}") from None


def _with_options(scheme: str, root: Root) -> tuple[fs.FileSystem, str]:
    parts = urlsplit(root.uri)
    arguments = root.storage.arguments()
    if scheme in ("s3", "s3a", "gs", "gcs"):
        kind = fs.S3FileSystem if scheme.startswith("s3") else fs.GcsFileSystem
        path = f"{parts.netloc.rpartition('@')[2]}{parts.path}"
        if ":" in path.partition("/")[0]:
            raise ValueError("its bucket has a colon, as if a key in a URI has a slash; give keys by option storage.*")
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
    """Open a URI through `fsspec`, which knows more schemes, each in a package of its own."""
    try:
        fsspec = import_module("fsspec")
    except ImportError:
        raise ValueError(
            f"pyarrow does not know the scheme {scheme!r}: it knows {', '.join(_KNOWN_TO_ARROW)}. Others are read "
            "through fsspec: install spark-watermark-alignment[fsspec], and the package that fsspec has for this one"
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
        # The message of `TypeError` has the name of the argument and no value.
        unknown = next((name for name in arguments if f"'{name}'" in str(error)), None)
        if unknown is None:
            raise OptionError(f"storage options of {scheme} do not fit: {', '.join(sorted(arguments))}") from None
        raise OptionError(
            f"option storage.{unknown} is not known to {kind.__name__} of pyarrow, which opens {scheme}"
            f"{_near(kind, unknown)}: it takes the arguments of that class, as in storage.{_EXAMPLES[kind.__name__]}, "
            "not those of Hadoop (fs.*)"
        ) from None


def _near(kind: Callable[..., fs.FileSystem], unknown: str) -> str:
    """Return the argument of a file system that is written almost like this one, as a question."""
    # These classes have no signature, and name their arguments in their documentation.
    near = get_close_matches(unknown.lower(), re.findall(r"^\s*(\w+) ?: ", kind.__doc__ or "", re.MULTILINE), 1)
    return f" (did you mean storage.{near[0]}?)" if near else ""


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


def renewed(current: Callable[[], fs.FileSystem]) -> fs.FileSystem:
    """Return a file system that calls `current` before each operation, and delegates the operation to the result.

    An open file keeps the credentials that it was opened with.
    """
    return fs.PyFileSystem(_RenewedHandler(current))


def _passed_on(name: str) -> Callable[..., Any]:
    """A method that calls that of the current file system, with the same arguments."""
    return lambda handler, *arguments: getattr(handler._current(), name)(*arguments)


class _RenewedHandler(fs.FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    """Delegates each call. Streams are not decompressed: the caller does that."""

    def __init__(self, current: Callable[[], fs.FileSystem]) -> None:
        self._current = current

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _RenewedHandler) and bool(self._current().equals(other._current()))

    __hash__ = None  # type: ignore[assignment]

    get_file_info = get_file_info_selector = _passed_on("get_file_info")
    normalize_path, open_input_file = _passed_on("normalize_path"), _passed_on("open_input_file")
    delete_dir, delete_file = _passed_on("delete_dir"), _passed_on("delete_file")
    move, copy_file = _passed_on("move"), _passed_on("copy_file")

    def get_type_name(self) -> str:
        return str(self._current().type_name)

    def create_dir(self, path: str, recursive: bool) -> None:
        self._current().create_dir(path, recursive=recursive)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        self._current().delete_dir_contents(path, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        self._current().delete_dir_contents("/", accept_root_dir=True)

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self._current().open_input_stream(path, compression=None)

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        return self._current().open_output_stream(path, compression=None, metadata=metadata)

    def open_append_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        return self._current().open_append_stream(path, compression=None, metadata=metadata)
