"""The base of both enumerators of files: files are listed in the background, and cleaned when they were read."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final, TypeVar

from pyarrow import fs

from alignment.shown import log_of
from streaming_source.api import SplitEnumeratorContext
from streaming_source.connectors.files.config import FilesConfig
from streaming_source.connectors.files.listing import ListedFile, Lister, sink_log_of
from streaming_source.connectors.files.selection import is_hidden
from streaming_source.connectors.files.split import FilesCheckpoint, FileSplit
from streaming_source.data_files.enumerator import DataFileEnumerator
from streaming_source.data_files.file import DataFile, FileBlocks
from streaming_source.data_files.formats.base import FileScan
from streaming_source.exceptions import DataLossError, FileGoneError, OffsetError, OptionError, SourceError
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


T = TypeVar("T")

_DESCRIBED_AGAIN: Final = 3
"""Times that a file is described once more that was written on meanwhile."""


class FileSplitEnumerator(DataFileEnumerator[FileSplit, FilesCheckpoint]):
    """Finds the files of a source by listing its path."""

    _config: FilesConfig

    def __init__(
        self, config: FilesConfig, context: SplitEnumeratorContext[FileSplit], checkpoint: FilesCheckpoint
    ) -> None:
        filesystem, self._root = config.root.open()
        super().__init__(config, filesystem, context)
        # Statistics are read as fast as records are counted.
        self._may_count_alone = config.indexing == "auto" and not self._format.has_statistics
        self._given = config.given_columns(context.schema)
        self._cleaner: Cleaner | None = None
        self.cleans_up = config.clean_source != "off"
        if self.cleans_up:
            self._cleaner = Cleaner(config, context.map_on_workers)
        self._until_ms = checkpoint.until_ms
        self._names: list[list[str]] | None = None

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        if self._cleaner is not None:
            self._cleaner.commit(checkpoint_id)

    # ---- for directories and finite files ----------------------------------------------------------------------------

    def _discover(
        self,
        find_new: Callable[[Lister], T],
        handler: Callable[[T], None],
        in_work: Callable[[], Iterable[ListedFile]],
        *,
        repeats: bool = True,
    ) -> Callable[[], None]:
        """Find new files in the background: once if the source is bounded, else again and again.

        If it does not `repeats`, what is returned has to be called for the further listings.
        """
        lister = Lister(self._config.root, self._until_ms, in_work)

        def listed() -> T:
            try:
                found = find_new(lister)
                lister.name_empty()
                return found
            except BaseException:
                # All directories are listed again the next time: what was found here is lost.
                lister.forget()
                raise

        period = None if self._config.bounded else self._config.discovery_interval_us / 1e6
        again = partial(self._in_background, lambda: self._retries.run(listed), handler)
        again(period_seconds=period if repeats else None)
        return lambda: None if period is None else again(period_seconds=period, delay_seconds=period)

    def _as_it_is(self, file: ListedFile) -> ListedFile:
        """Return a file as it is now; elsewhere than on this machine it is listed when it is complete."""
        if self._filesystem.type_name != "local":
            return file
        info = self._filesystem.get_file_info(self._path(file.relative_path))
        return ListedFile.of_info(file.directory, info) if info.type is fs.FileType.File else file

    def _open_scan(self, file: ListedFile) -> FileScan:
        return self._scan_of(self._data_file(file))

    def _data_file(self, file: ListedFile) -> DataFile:
        path = self._path(file.relative_path)
        return DataFile(path, self._given.of(file, path), size=None if self._config.ignore_changed_files else file.size)

    def _describe_listed(self, files: Iterable[ListedFile]) -> list[FileBlocks | None]:
        return self._describe_all(map(self._data_file, files))

    def _describe_as_found(self, files: Sequence[ListedFile]) -> list[tuple[ListedFile, FileBlocks | None]]:
        """Describe files, each as it was when it was described: it may have been written on since it was listed."""
        found = list(zip(files, self._describe_listed(files), strict=True))
        # Elsewhere a file is listed when it is complete.
        for _ in range(_DESCRIBED_AGAIN if self._filesystem.type_name == "local" else 0):
            infos = self._filesystem.get_file_info([self._path(file.relative_path) for file, _ in found])
            now = [ListedFile.of_info(file.directory, info) for (file, _), info in zip(found, infos, strict=True)]
            written = [
                number
                for number, info in enumerate(infos)
                if info.type is fs.FileType.File and now[number].version != found[number][0].version
            ]
            if not written:
                break
            files = [now[number] for number in written]
            for number, file, blocks in zip(written, files, self._describe_listed(files), strict=True):
                found[number] = file, blocks
        return found

    def _take_change(self, file: ListedFile, error: SourceError) -> None:
        """Raise the error for a file that has changed, or log it if such files are taken as they are."""
        if not self._config.ignore_changed_files:
            raise error
        _log.warning("ignored (ignoreChangedFiles): %s has changed since it was found", self._path(file.relative_path))

    def _check_selected(self, split: FileSplit) -> None:
        """Refuse a split of an offset that is below the common directory of all paths, and in none of them."""
        if self._names is None:
            self._names = self._config.root.names()
        parts = [part for part in split.path.split("/") if part != "."]
        if not any(all(map(fnmatchcase, parts, names)) for names in self._names):
            raise OffsetError(
                f"damaged offset: split {split.split_id!r} is in no directory of option path; restore the offset, or "
                "start with a new checkpointLocation"
            )

    def _path(self, *parts: str) -> str:
        return posixpath.normpath(posixpath.join(self._root, *parts))

    def _changed(self, start: FileSplit, end: FileSplit) -> DataLossError:
        return DataLossError(
            f"split {end.split_id!r} has changed: the records {start.position} to {end.position} that were planned "
            f"are not where they were (from {start.file or 'its first file'} to {end.file or 'its end'}); restore "
            "its files with their times, start with a new checkpointLocation, or set ignoreChangedFiles = true to read "
            "what is there now"
        )

    def _gone(self, split: FileSplit) -> FileGoneError:
        return FileGoneError(
            f"{posixpath.join(self._root, split.split_id, split.file).rstrip('/')} is gone, and only the records of "
            f"split {split.split_id!r} before position {split.position} were read; restore it, or start with a new "
            "checkpointLocation"
        )
