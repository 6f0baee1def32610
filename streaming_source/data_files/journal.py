"""Small files in a directory beside the data, which an option names.

Options `lateLocation`, `stateLocation`, `alignmentLocation` and `reportLocation` do. A *journal* is a folder of such a
directory, on any file system, and each file in it is an *entry*. For all of them:

- An entry is there whole or not at all. Where the store shows files before they are complete it is written as `_name`
  and moved; what a killed process left under such a name is no entry.
- A directory that is not there has no entries; the next one that is written makes it. On a local disk it and its
  entries are for their user alone (0700, 0600).
- Each error is a `SourceError` of one sentence, with the option and the directory. If the journal `is_patient` a call
  that a store does not answer is repeated for half a minute. A damaged entry, or one of another version, is an
  `OffsetError` with the fix. A missing one is left out: its owner may know why.
- The age of an entry is by the clock of the store, which wrote its time.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, TypeVar
from uuid import uuid4

from pyarrow import ArrowException, fs

from alignment.exceptions import AlignmentError
from alignment.shown import without_secrets
from streaming_source.data_files.faults import StoreRetries, store_fault
from streaming_source.data_files.stores import NO_STORAGE_OPTIONS, Root, StorageOptions
from streaming_source.exceptions import OffsetError, OptionError, SourceError
from streaming_source.from_data import as_json

T = TypeVar("T")

_AT_ONCE: Final = 16
"""Entries that are read or removed concurrently: in an object store each takes some 20 ms."""
_FEW: Final = 4
"""Entries for which threads are not worth starting."""

_WRITES_WHOLE_FILES: Final = ("s3", "gcs", "abfs")
"""File systems on which a file appears only when it is complete."""


class Journal:
    """The entries of one `folder` in the directory `root`, by default the directory itself, which an `option` names.

    Errors have who must be able to write there (`writers`), and what to do about a damaged entry (`mend`). If it
    `is_patient`, a call that the store does not answer is repeated.
    """

    def __init__(
        self,
        root: Root,
        option: str,
        *,
        writers: str = "the query",
        mend: str = "restore it",
        is_patient: bool = True,
        folder: str = "",
    ) -> None:
        self._root = root
        self._folder = folder
        self._given: dict[str, Any] = {"option": option, "writers": writers, "mend": mend, "is_patient": is_patient}
        self._what = f"option {option}: {self}"
        self._retries = StoreRetries(self._what, None if is_patient else 0)

    @staticmethod
    def root_of(source: object, uri: str) -> Root:
        """Return a directory that is opened with the source's `storage.*` options and credentials, if it has any."""
        storage = getattr(source, "storage", NO_STORAGE_OPTIONS)
        return storage.at(uri) if isinstance(storage, StorageOptions) else Root(uri)

    def __str__(self) -> str:
        return without_secrets(posixpath.join(self._root.uri, self._folder).rstrip("/"))

    def within(self, folder: str) -> Journal:
        """Return the journal of a folder in this one."""
        return Journal(self._root, folder=posixpath.join(self._folder, folder), **self._given)

    def check(self) -> float | None:
        """Raise an `OptionError` unless this process may write and delete here; return the store's time of day.

        In seconds since 1970; None for a store that keeps no times.
        """

        def probe(files: fs.FileSystem, folder: str) -> float | None:
            path = posixpath.join(folder, f"_{uuid4().hex}")
            _write_whole(files, path, b"")
            written_ns = files.get_file_info(path).mtime_ns
            files.delete_file(path)
            return None if written_ns is None else written_ns / 1e9

        try:
            return self._on_store(probe)
        except SourceError as error:
            fix = f"name a directory that {self._given['writers']} may write to"
            raise OptionError(f"a file cannot be written there: {error}; {fix}") from None

    def write(self, name: str, content: bytes) -> None:
        """Write or replace an entry. A store that cannot replace a file has none of that name for a moment."""
        self._on_store(lambda files, folder: _write_whole(files, posixpath.join(folder, name), content))

    def names(self) -> list[str]:
        """Return the names of the entries, in order. One listing."""
        return sorted(info.base_name for info in self._listed() if not info.base_name.startswith("_"))

    def read(
        self, names: Iterable[str], parse: Callable[[bytes], T], errors: list[SourceError] | None = None
    ) -> dict[str, T]:
        """Return what `parse` makes of those of these entries that are there, in their order.

        The first error is raised; where `errors` are given all are put there.
        """

        def read(name: str) -> T | SourceError | None:
            def content(files: fs.FileSystem, folder: str) -> bytes | None:
                try:
                    with files.open_input_stream(posixpath.join(folder, name), compression=None) as stream:
                        return bytes(stream.read())
                except FileNotFoundError:
                    return None

            try:
                found = self._on_store(content)
                return None if found is None else self._parsed(name, found, parse)
            except SourceError as error:
                return error

        found = {}
        for name, entry in _each(read, names):
            if isinstance(entry, SourceError):
                if errors is None:
                    raise entry
                errors.append(entry)
            elif entry is not None:
                found[name] = entry
        return found

    def remove(self, names: Iterable[str]) -> None:
        """Remove entries, of which some may be gone already."""

        def remove(files: fs.FileSystem, path: str) -> None:
            with suppress(FileNotFoundError):
                files.delete_file(path)

        def of(name: str) -> None:
            self._on_store(lambda files, folder: remove(files, posixpath.join(folder, name)))

        _each(of, names)

    def remove_older(self, since_s: float, name: re.Pattern[str]) -> None:
        """Remove entries of such a name, half-written ones too, that are from before this time of the store's clock.

        Of a store that has no times none is removed.
        """
        old = [info.base_name for info in self._listed() if info.mtime_ns is not None and info.mtime_ns < since_s * 1e9]
        self.remove(one for one in old if name.fullmatch(one.removeprefix("_")))

    def _listed(self) -> list[fs.FileInfo]:
        def listed(files: fs.FileSystem, folder: str) -> list[fs.FileInfo]:
            infos = files.get_file_info(fs.FileSelector(folder, allow_not_found=True))
            return [info for info in infos if info.type is fs.FileType.File]

        return self._on_store(listed)

    def _parsed(self, name: str, content: bytes, parse: Callable[[bytes], T]) -> T:
        try:
            return parse(content)
        except AlignmentError as error:
            raise OffsetError(f"{self._what}/{name}: {error}") from None
        except (ArrowException, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
            raise OffsetError(f"{self._what}/{name} is damaged ({error!r}); {self._given['mend']}") from None

    def _on_store(self, call: Callable[[fs.FileSystem, str], T]) -> T:
        """Call with the file system and the folder's path; each error is a `SourceError`."""

        def called() -> T:
            files, path = self._root.open()
            try:
                return call(files, posixpath.join(path, self._folder).rstrip("/"))
            except ArrowException as error:
                raise error if isinstance(error, OSError) else OSError(str(error)) from error

        try:
            return self._retries.run(called)
        except FileNotFoundError as error:
            raise error if isinstance(error, SourceError) else store_fault(error, self._what) from None


def to_json(version: int, values: Mapping[str, Any]) -> bytes:
    """Return an entry in JSON, with the version of its layout."""
    return json.dumps({"v": version, **values}).encode()


def from_json(version: int, content: bytes) -> dict[str, Any]:
    """Return the values of an entry that `to_json` made; an `OffsetError` is raised for another version."""
    values: dict[str, Any] = as_json(content)
    if values["v"] != version:
        raise OffsetError(f"it is of version {values['v']}: upgrade spark-watermark-alignment everywhere")
    return values


def _write_whole(files: fs.FileSystem, path: str, content: bytes) -> None:
    folder, name = posixpath.split(path)
    if files.type_name == "local":
        # Its user alone may read it, and no link is followed in its place.
        os.makedirs(folder, mode=0o700, exist_ok=True)
        written = posixpath.join(folder, f"_{name}")
        with open(written, "wb", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o600)) as file:
            file.write(content)
        os.replace(written, path)
        return
    files.create_dir(folder, recursive=True)
    at_once = files.type_name.removeprefix("py::") in _WRITES_WHOLE_FILES
    written = path if at_once else posixpath.join(folder, f"_{name}")
    with files.open_output_stream(written, compression=None) as stream:
        stream.write(content)
    if at_once:
        return
    if files.get_file_info(path).type is not fs.FileType.NotFound:
        # Not every file system moves one file over another.
        files.delete_file(path)
    files.move(written, path)


def _each(call: Callable[[str], T], names: Iterable[str]) -> list[tuple[str, T]]:
    """Return each name with what the call returns for it."""
    if len(names := [*names]) < _FEW:
        return [(name, call(name)) for name in names]
    with ThreadPoolExecutor(min(_AT_ONCE, len(names))) as threads:
        return [*zip(names, threads.map(call, names), strict=True)]
