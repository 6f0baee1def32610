"""Looking for new files of directories that are logs, off the planner's thread."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from streaming_source.connectors.files.formats import FileBlocks
from streaming_source.connectors.files.places.listing import ListedFile, Lister
from streaming_source.connectors.files.places.selection import Selection
from streaming_source.exceptions import MalformedDataError

__all__ = ["DirectoryDiscovery", "Found", "FoundFile"]

_IN_ORDER_OF_NAMES = (
    "With splitBy = directory a directory is a log whose files come in the order of their names. Let later files have "
    "later names, or read with splitBy = file"
)


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file that was not known before, and its blocks."""

    split_id: str
    file: ListedFile
    blocks: FileBlocks


@dataclass(frozen=True, slots=True)
class Found:
    """What one look found: files in order of their names within each split, and splits that have none yet."""

    files: tuple[FoundFile, ...]
    empty_splits: tuple[str, ...]


@dataclass(slots=True)
class DirectoryDiscovery:
    """Each directory is a split, its files in order of their names.

    Attributes
    ----------
    selection
        Where.
    describe
        `path -> FileBlocks`, called in several threads.
    map_files
        `(describe, paths) -> blocks`, several at once.
    until_ms
        Files modified after this are not there; None for no such limit.
    reached
        Of each split at a restart the name of the file that was reached; files before it are read.
    read
        How many files of each split were read then.
    fully_read
        Splits of which the file that was reached is among them.
    finished
        Splits that are read to their end.
    """

    selection: Selection
    describe: Callable[[str], FileBlocks]
    map_files: Callable[[Callable[[str], FileBlocks], list[str]], list[FileBlocks]]
    until_ms: int | None = None
    reached: dict[str, str] = field(default_factory=dict)
    read: dict[str, int] = field(default_factory=dict)
    fully_read: frozenset[str] = frozenset()
    finished: frozenset[str] = frozenset()
    _lister: Lister = field(init=False)
    _skipped: Counter[str] = field(default_factory=Counter)
    _seen: dict[str, set[str]] = field(default_factory=dict)
    _last: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lister = Lister(self.selection, self.until_ms)

    def look(self) -> Found:
        """List, and describe what is new. Called by one thread at a time; remembers what it has told."""
        try:
            return self._look()
        except BaseException:
            # What failed is new again at the next look, wherever it is.
            self._lister.forget()
            raise

    def _look(self) -> Found:
        self._skipped.clear()
        new: list[ListedFile] = []
        empty = []
        for directory in self._lister.look():
            if directory.is_empty and directory.path:
                empty.append(directory.path)
            new += [file for file in sorted(directory.files) if self._is_new(file)]
        new.sort()
        root = self.selection.open()[1]
        blocks = self.map_files(self.describe, [posixpath.join(root, file.relative_path) for file in new])
        found = tuple(FoundFile(_split_of(file), file, b) for file, b in zip(new, blocks, strict=True))
        for file in new:
            self._remember(file)
        self._check_skipped()
        return Found(found, self._new_empty_splits(empty))

    def _is_new(self, file: ListedFile) -> bool:
        split_id = _split_of(file)
        if split_id in self.finished or file.name in self._seen.get(split_id, ()):
            return False
        reached = self.reached.get(split_id, "")
        if file.name < reached or (file.name == reached and split_id in self.fully_read):
            self._skipped[split_id] += 1
            return False
        last = self._last.get(split_id, "")
        if file.name < last:
            raise MalformedDataError(
                f"{file.relative_path} appeared behind {last}, which is listed already. {_IN_ORDER_OF_NAMES}"
            )
        return True

    def _remember(self, file: ListedFile) -> None:
        split_id = _split_of(file)
        self._seen.setdefault(split_id, set()).add(file.name)
        self._last[split_id] = max(file.name, self._last.get(split_id, ""))

    def _check_skipped(self) -> None:
        for split_id, count in self._skipped.items():
            if count > self.read[split_id]:
                raise MalformedDataError(
                    f"{split_id} has {count} files up to {self.reached[split_id]}, but only {self.read[split_id]} of "
                    f"them were read: others came later under earlier names. {_IN_ORDER_OF_NAMES}"
                )

    def _new_empty_splits(self, directories: list[str]) -> tuple[str, ...]:
        new = tuple(sorted(d for d in directories if d not in self._seen and d not in self.finished))
        self._seen.update((directory, set()) for directory in new)
        return new


def _split_of(file: ListedFile) -> str:
    return file.directory or "."
