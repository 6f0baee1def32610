"""What both enumerators of files share: files are listed in the background, and cleaned when they were read."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from streaming_source.api import SplitEnumeratorContext
from streaming_source.connectors.files.checkpoint import FilesCheckpoint
from streaming_source.connectors.files.cleaning import Cleaner
from streaming_source.connectors.files.config import FilesConfig
from streaming_source.connectors.files.listing import ListedFile, Lister
from streaming_source.connectors.files.split import FileSplit
from streaming_source.data_files.enumerator import DataFileEnumerator
from streaming_source.data_files.file import DataFile, FileBlocks
from streaming_source.exceptions import DataLossError, FileGoneError

__all__ = ["FileSplitEnumerator"]

T = TypeVar("T")


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
        self._cleaner = Cleaner(config, context.map_on_workers)
        self.cleans_up = self._cleaner.is_on
        self._restored: dict[str, FileSplit] = {}
        self._until_ms = checkpoint.until_ms

    def restore_splits(self, splits: Sequence[FileSplit]) -> None:
        self._restored = {split.split_id: split for split in splits}

    def finish_split(self, split_id: str) -> None:
        super().finish_split(split_id)
        self._restored.pop(split_id, None)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._cleaner.commit(checkpoint_id)

    # ---- for directories and finite files ----------------------------------------------------------------------------

    def _discover(self, find_new: Callable[[Lister], T], handler: Callable[[T], None]) -> None:
        """Find new files in the background: once if the source is bounded, else again and again."""
        lister = Lister(self._config.root, self._until_ms)

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
        self._in_background(lambda: self._retries.run(listed), handler, period_seconds=period)

    def _data_file(self, file: ListedFile) -> DataFile:
        path = self._path(file.relative_path)
        return DataFile(path, self._given.of(file, path))

    def _describe_listed(self, files: Iterable[ListedFile]) -> list[FileBlocks | None]:
        return self._describe_all(map(self._data_file, files))

    def _path(self, *parts: str) -> str:
        return posixpath.normpath(posixpath.join(self._root, *parts))

    def _changed(self, start: FileSplit, end: FileSplit) -> DataLossError:
        return DataLossError(
            f"split {end.split_id!r} has changed: the records {start.position} to {end.position} that were planned "
            f"are not where they were (from {start.file or 'its first file'} to {end.file or 'its end'}); restore "
            "its files, or start with a new checkpointLocation"
        )

    def _gone(self, split: FileSplit) -> FileGoneError:
        return FileGoneError(
            f"{posixpath.join(self._root, split.split_id, split.file).rstrip('/')} is gone, and only the records of "
            f"split {split.split_id!r} before position {split.position} were read; restore it, or start with a new "
            "checkpointLocation"
        )
