"""Directories beside the data, which options name: `lateLocation`, `alignmentLocation`, `reportLocation`."""

from __future__ import annotations

import posixpath
from typing import Any, Final
from uuid import uuid4

from pyarrow import ArrowException

from streaming_source.api import Source
from streaming_source.data_files.stores import NO_STORAGE_OPTIONS, Root, StorageOptions, without_secrets, write_whole
from streaming_source.exceptions import OptionError, SourceError

__all__ = ["PLACE_ERRORS", "check_writable", "place_of"]

PLACE_ERRORS: Final = (ArrowException, OSError, SourceError)
"""Errors of a file system, and of opening one: from its URI or its credentials."""


def place_of(source: Source[Any, Any], uri: str) -> Root:
    """Return a place that is opened with the source's `storage.*` options and credentials, if it has any."""
    storage = getattr(source, "storage", NO_STORAGE_OPTIONS)
    return storage.at(uri) if isinstance(storage, StorageOptions) else Root(uri)


def check_writable(root: Root, option: str, fix: str) -> None:
    """Raise an `OptionError`, which ends with the fix, if this process may not write into a directory."""
    try:
        files, folder = root.open()
        path = posixpath.join(folder, f"_{uuid4().hex}")
        write_whole(files, path, b"")
        files.delete_file(path)
    except PLACE_ERRORS as error:
        raise OptionError(
            f"option {option} = {without_secrets(root.uri)!r}: a file cannot be written there: "
            f"{without_secrets(str(error))}; {fix}"
        ) from None
