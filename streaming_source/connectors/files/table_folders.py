"""Folders of Delta, Iceberg and Hudi tables, which are refused: not all files in them belong to the table."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from typing import Final

from pyarrow import fs

from alignment.shown import log_of
from streaming_source.exceptions import OptionError

__all__ = ["check_above", "check_entries"]

_log = log_of(__name__)

_LOGS: Final = {"_delta_log": ("Delta", "aligned_delta"), ".hoodie": ("Hudi", "hudi")}
"""Name of the folder that a table has -> what the table is called, and the format that reads it."""

_ICEBERG: Final = ("Iceberg", "aligned_iceberg")
_ICEBERG_FOLDERS: Final = ("data", "metadata")
_ICEBERG_METADATA: Final = re.compile(r"(v\d+|\d+-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})(\.\w+)?\.metadata\.json")


def check_entries(paths: Iterable[str]) -> None:
    """Raise an `OptionError` if one of these paths of files and directories belongs to the log of a table."""
    for path in paths:
        for folder, kind in _LOGS.items():
            # Most paths have neither name anywhere.
            if folder in path and (parts := path.split("/")).count(folder):
                raise _is_table("/".join(parts[: parts.index(folder)]), *kind)
        if path.endswith(".metadata.json") and _is_iceberg(path):
            raise _is_table(posixpath.dirname(posixpath.dirname(path)), *_ICEBERG)


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


def _is_iceberg(path: str) -> bool:
    directory, name = posixpath.split(path)
    return posixpath.basename(directory) == "metadata" and _ICEBERG_METADATA.fullmatch(name) is not None


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
