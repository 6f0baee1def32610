"""A file system whose credentials expire: each call goes to one that is opened with those that are valid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyarrow import fs


def renewed(current: Callable[[], fs.FileSystem]) -> fs.FileSystem:
    """Return a file system that calls `current` before each operation, and delegates the operation to the result.

    An open file keeps the credentials that it was opened with.
    """
    return fs.PyFileSystem(_RenewedHandler(current))


class _RenewedHandler(fs.FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    """Delegates each call. Streams are not decompressed: the caller does that."""

    def __init__(self, current: Callable[[], fs.FileSystem]) -> None:
        self._current = current

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _RenewedHandler) and bool(self._current().equals(other._current()))

    __hash__ = None  # type: ignore[assignment]

    def get_type_name(self) -> str:
        return str(self._current().type_name)

    def normalize_path(self, path: str) -> str:
        return str(self._current().normalize_path(path))

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        found: list[fs.FileInfo] = self._current().get_file_info(paths)
        return found

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        found: list[fs.FileInfo] = self._current().get_file_info(selector)
        return found

    def create_dir(self, path: str, recursive: bool) -> None:
        self._current().create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        self._current().delete_dir(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        self._current().delete_dir_contents(path, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        self._current().delete_dir_contents("/", accept_root_dir=True)

    def delete_file(self, path: str) -> None:
        self._current().delete_file(path)

    def move(self, src: str, dest: str) -> None:
        self._current().move(src, dest)

    def copy_file(self, src: str, dest: str) -> None:
        self._current().copy_file(src, dest)

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self._current().open_input_stream(path, compression=None)

    def open_input_file(self, path: str) -> pa.NativeFile:
        return self._current().open_input_file(path)

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        return self._current().open_output_stream(path, compression=None, metadata=metadata)

    def open_append_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        return self._current().open_append_stream(path, compression=None, metadata=metadata)
