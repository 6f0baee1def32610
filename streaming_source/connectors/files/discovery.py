"""Looking for new files, off the planner's thread."""

from __future__ import annotations

import logging
import posixpath
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from streaming_source.connectors.files.formats import FileBlocks
from streaming_source.connectors.files.listing import ListedFile, Root, list_files
from streaming_source.exceptions import MalformedDataError

__all__ = ["DirectoryDiscovery", "Discovery", "FileDiscovery", "Found", "FoundFile"]

_log = logging.getLogger(__name__)

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
class Discovery(ABC):
    """Lists the root again and again, and reads the footers of what is new.

    Attributes
    ----------
    root
        Where.
    describe
        `path -> FileBlocks`, called in several threads.
    map_files
        `(describe, paths) -> blocks`, several at once.
    until_ms
        Files modified after this are not there; None for no such limit.
    """

    root: Root
    describe: Callable[[str], FileBlocks]
    map_files: Callable[[Callable[[str], FileBlocks], list[str]], list[FileBlocks]]
    until_ms: int | None = None

    def look(self) -> Found:
        """List, and describe what is new. Called by one thread at a time; remembers what it has told."""
        filesystem, path = self.root.open()
        listing = list_files(filesystem, path)
        until_ms = self.until_ms
        files = [file for file in listing.files if until_ms is None or file.modified_ms <= until_ms]
        new = [(self._split_of(file), file) for file in files if self._is_new(file)]
        blocks = self.map_files(self.describe, [posixpath.join(path, file.relative_path) for _, file in new])
        found = tuple(FoundFile(split_id, file, b) for (split_id, file), b in zip(new, blocks, strict=True))
        # Only now, when every footer was read: what failed is new again at the next look.
        for _, file in new:
            self._remember(file)
        return Found(found, self._new_empty_splits(listing.empty_directories))

    @abstractmethod
    def _split_of(self, file: ListedFile) -> str: ...

    @abstractmethod
    def _is_new(self, file: ListedFile) -> bool: ...

    @abstractmethod
    def _remember(self, file: ListedFile) -> None: ...

    def _new_empty_splits(self, directories: tuple[str, ...]) -> tuple[str, ...]:
        return ()


@dataclass(slots=True)
class DirectoryDiscovery(Discovery):
    """Each directory is a split, its files in order of their names.

    Attributes
    ----------
    reached
        Of each split at a restart the name of the file that was reached; files before it are read.
    read
        How many files of each split were read then.
    fully_read
        Splits of which the file that was reached is among them.
    finished
        Splits that are read to their end.
    """

    reached: dict[str, str] = field(default_factory=dict)
    read: dict[str, int] = field(default_factory=dict)
    fully_read: frozenset[str] = frozenset()
    finished: frozenset[str] = frozenset()
    _skipped: Counter[str] = field(default_factory=Counter)
    _seen: dict[str, set[str]] = field(default_factory=dict)
    _last: dict[str, str] = field(default_factory=dict)

    def look(self) -> Found:
        """See `Discovery`."""
        self._skipped.clear()
        found = Discovery.look(self)  # a class with slots is made anew: `super()` would look for the old one
        for split_id, count in self._skipped.items():
            if count > self.read[split_id]:
                raise MalformedDataError(
                    f"{split_id} has {count} files up to {self.reached[split_id]}, but only {self.read[split_id]} of "
                    f"them were read: others came later under earlier names. {_IN_ORDER_OF_NAMES}"
                )
        return found

    def _split_of(self, file: ListedFile) -> str:
        return file.directory or "."

    def _is_new(self, file: ListedFile) -> bool:
        split_id = self._split_of(file)
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
        split_id = self._split_of(file)
        self._seen.setdefault(split_id, set()).add(file.name)
        self._last[split_id] = max(file.name, self._last.get(split_id, ""))

    def _new_empty_splits(self, directories: tuple[str, ...]) -> tuple[str, ...]:
        new = tuple(d for d in directories if d not in self._seen and d not in self.finished)
        self._seen.update((directory, set()) for directory in new)
        return new


@dataclass(slots=True)
class FileDiscovery(Discovery):
    """Each file is a split.

    Attributes
    ----------
    known
        Paths that are in work or finished.
    forgotten_ms
        Files last modified at or before this are not looked at; None for no such limit.
    """

    known: set[str] = field(default_factory=set)
    restored: frozenset[str] = frozenset()
    forgotten_ms: int | None = None
    _ignored: set[str] = field(default_factory=set)
    _newly_ignored: list[str] = field(default_factory=list)
    _looked: bool = False

    def look(self) -> Found:
        """See `Discovery`."""
        found = Discovery.look(self)  # a class with slots is made anew: `super()` would look for the old one
        if self._newly_ignored and not self._looked:
            # As a rule these are what it says; none of them can be told from a file that came in the meantime.
            _log.info("%d files older than maxFileAge are taken for read and forgotten", len(self._newly_ignored))
        elif self._newly_ignored:
            _log.warning(
                "ignored: %s, modified longer ago than maxFileAge allows, so not to be told from what was read and "
                "forgotten",
                ", ".join(self._newly_ignored),
            )
        self._ignored.update(self._newly_ignored)
        self._newly_ignored.clear()
        self._looked = True
        return found

    def _split_of(self, file: ListedFile) -> str:
        return file.relative_path

    def _is_new(self, file: ListedFile) -> bool:
        path = file.relative_path
        if path in self.known or path in self._ignored:
            return False
        if self.forgotten_ms is None or file.modified_ms > self.forgotten_ms or path in self.restored:
            return True
        self._newly_ignored.append(path)
        return False

    def _remember(self, file: ListedFile) -> None:
        self.known.add(file.relative_path)
