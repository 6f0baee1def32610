"""The log of Spark's file sink: which files of a directory its queries have written."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote, urlsplit

from pyarrow import fs

from alignment.shown import without_secrets
from streaming_source.connectors.files.selection import SINK_LOG
from streaming_source.exceptions import MalformedDataError
from streaming_source.from_data import as_json, path_below

_SINK_LOG_ENTRY: Final = re.compile(r"(\d+)(\.compact)?")
_SINK_LOG_VERSION: Final = "v1"
_TRIALS: Final = 10


def last_micro_batch(filesystem: fs.FileSystem, root: str) -> int | None:
    """Return the last micro-batch that a query has committed to a directory; None if none has. One listing."""
    selector = fs.FileSelector(posixpath.join(root, SINK_LOG), allow_not_found=True)
    matches = [_SINK_LOG_ENTRY.fullmatch(info.base_name) for info in filesystem.get_file_info(selector)]
    return max((int(found[1]) for found in matches if found), default=None)


class SinkLog:
    """The log that Spark's file sink keeps in `_spark_metadata`: which files of one directory a query has written.

    `paths` are the files in the log, below the root, as of the last `refresh`, and `last` is the last micro-batch of
    them; -1 before the first. Other files are not read: their micro-batch failed, wrote them twice, or is not finished.
    As in Spark (`MetadataLogFileIndex`), the log counts only if it is in the path that is read, not in a directory
    below. It has a file `N` for each micro-batch: a line `v1`, and a JSON object for each file written. `N.compact`
    replaces the files of all micro-batches up to `N`.
    """

    def __init__(self, filesystem: fs.FileSystem, root: str) -> None:
        self._filesystem = filesystem
        self._root = root
        self._folder = posixpath.join(root, SINK_LOG)
        self.paths: set[str] = set()
        self.last = -1

    def refresh(self) -> bool:
        """Read new entries; return whether there were any."""
        before = self.last
        for trial in range(_TRIALS):
            try:
                self._refresh()
            except FileNotFoundError:
                # Spark deletes the files that a compacted one replaces.
                if trial + 1 == _TRIALS:
                    raise
            else:
                break
        return self.last != before

    def _refresh(self) -> None:
        listed = self._filesystem.get_file_info(fs.FileSelector(self._folder))
        matches = [found for info in listed if (found := _SINK_LOG_ENTRY.fullmatch(info.base_name))]
        compacted = max((int(found[1]) for found in matches if found[2]), default=-1)
        paths, read = self.paths, self.last
        if compacted > read:
            paths, read = set(self._files_of(f"{compacted}.compact")), compacted
        following = sorted(number for found in matches if not found[2] and (number := int(found[1])) > read)
        new: list[str] = []
        for expected, number in enumerate(following, read + 1):
            if number != expected:
                raise self._malformed(str(number), f"that of micro-batch {expected}, which comes before it, is missing")
            new += self._files_of(str(number))
        self.paths, self.last = paths.union(new), following[-1] if following else read

    def _files_of(self, name: str) -> Iterator[str]:
        with self._filesystem.open_input_stream(posixpath.join(self._folder, name), compression=None) as file:
            lines = file.read().decode(errors="replace").splitlines()
        if not lines or lines[0] != _SINK_LOG_VERSION:
            raise self._malformed(name, f"its first line is {lines[0] if lines else ''!r}, not {_SINK_LOG_VERSION!r}")
        for line in lines[1:]:
            try:
                uri = as_json(line)["path"]
                yield self._below_root(name, uri)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                if isinstance(error, MalformedDataError):
                    raise
                raise self._malformed(name, f"this line is not the JSON of a file: {line[:200]!r}") from None

    def _below_root(self, name: str, uri: str) -> str:
        parts = urlsplit(uri)
        path = unquote(parts.path)
        # In an object store the host is the bucket, and the first part of the path.
        paths = [path, f"{parts.netloc.rpartition('@')[2]}{path}", f"{parts.netloc.partition('@')[0]}{path}"]
        roots = [self._root]
        if self._filesystem.type_name == "local":
            paths.append(os.path.realpath(path) if "\0" not in path else path)
            roots.append(os.path.realpath(self._root))
        for root in roots:
            for below in paths:
                if below.startswith("/") == root.startswith("/") and (found := path_below(root, below)) is not None:
                    return found
        raise self._malformed(name, f"it has {without_secrets(uri)!r}, which is not below: was the directory moved?")

    def _malformed(self, name: str, why: str) -> MalformedDataError:
        return MalformedDataError(
            f"{self._folder}/{name}: this log of Spark's file sink decides which files are read, and cannot be read "
            f"itself: {why}. Repair it, or read all files without the log, by a pattern in place of the directory, as "
            f"in {self._root}/*"
        )
