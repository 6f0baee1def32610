"""Archives or deletes files that were read."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable
from typing import Any

from pyarrow import fs

from alignment.shown import log_of
from streaming_source.connectors.files.config import FilesConfig
from streaming_source.connectors.files.listing import sink_log_of
from streaming_source.connectors.files.selection import is_hidden
from streaming_source.exceptions import OptionError
from streaming_source.from_data import is_stored_below, path_below

_log = log_of(__name__)


class Cleaner:
    """Archives or deletes each file as soon as all its records are committed.

    Cleaning is idempotent: a file that is gone counts as cleaned. A file that cannot be moved or deleted is logged, and
    left to the next start. Raises an `OptionError` if the archive is on another file system or where its files would be
    read again, or if the files are the output of Spark's file sink. A file that a link outside of the root leads to is
    read, as Spark does, and left where it is.
    """

    def __init__(
        self, config: FilesConfig, map_on_workers: Callable[[Callable[[str], None], Iterable[str]], Any]
    ) -> None:
        self._config = config
        self._map_on_workers = map_on_workers
        self._filesystem, self._root = config.root.open()
        if sink_log_of(config.root) is not None:
            raise OptionError(
                f"cleanSource = {config.clean_source}: {self._root} is the output of Spark's file sink, whose log "
                "lists its files; leave cleanSource out, and let the sink's retention remove old files"
            )
        self._archive = self._archive_path(config.source_archive_dir) if config.source_archive_dir else ""
        # `(state, path)` of files whose last records the micro-batch before that state reads.
        self._read: list[tuple[int, str]] = []

    def add(self, state: int, path: str) -> None:
        """Add a file, by its path below the root, whose last records the micro-batch before a state reads."""
        self._read.append((state, path))

    def commit(self, state: int) -> None:
        """Clean the files of all micro-batches before a state: they are committed."""
        done = [path for read_in, path in self._read if read_in <= state]
        if done:
            self._read = [entry for entry in self._read if entry[0] > state]
            self.clean(done)

    def clean(self, paths: Iterable[str]) -> None:
        """Archive or delete files, by their paths below the root."""
        self._map_on_workers(self._clean, paths)

    def _clean(self, relative: str) -> None:
        path = posixpath.join(self._root, relative)
        is_local = self._filesystem.type_name == "local"
        if path_below(self._root, relative) is None or (is_local and not is_stored_below(self._root, path)):
            what = self._config.clean_source
            _log.warning("cleanSource = %s: %s is left where it is: it is outside of %s", what, path, self._root)
            return
        try:
            if self._config.clean_source == "delete":
                self._filesystem.delete_file(path)
                return
            target = posixpath.join(self._archive, relative)
            self._filesystem.create_dir(posixpath.dirname(target), recursive=True)
            self._filesystem.move(path, target)
        except FileNotFoundError:
            pass
        except OSError as error:
            if self._filesystem.get_file_info(path).type is not fs.FileType.NotFound:
                _log.warning("cleanSource = %s: %s is left where it is: %s", self._config.clean_source, path, error)

    def _archive_path(self, uri: str) -> str:
        filesystem, target = self._config.place(uri).open()
        root = self._root
        if not filesystem.equals(self._filesystem):
            raise OptionError(
                f"sourceArchiveDir {target!r} is on another file system than path {root!r}: files are moved, not "
                "copied; give a directory there"
            )
        is_below = f"{target}/".startswith(f"{root.rstrip('/')}/")
        if is_below and not any(map(is_hidden, filter(None, target[len(root) :].split("/")))):
            raise OptionError(
                f"sourceArchiveDir {target!r} is below path {root!r}: its files would be read again. Give a directory "
                "elsewhere, or one whose name begins with _ or ."
            )
        return target
