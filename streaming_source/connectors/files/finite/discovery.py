"""Finding new files that are splits of their own, off the planner's thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from streaming_source.connectors.files.config import FileOrder
from streaming_source.connectors.files.finite.backlog import WaitingFile
from streaming_source.connectors.files.finite.finished import FinishedFiles
from streaming_source.connectors.files.finite.marks import Known, Marks, MarkSet, marks_of
from streaming_source.connectors.files.formats import FileBlocks
from streaming_source.connectors.files.places.listing import ListedDirectory, ListedFile, name_ten
from streaming_source.connectors.files.split import OrderKey

__all__ = ["FileDiscovery", "FoundFiles", "warn_ignored"]

_log = logging.getLogger(__name__)

_AT_ONCE: Final = 4096

_TOO_LATE: Final[dict[FileOrder, str]] = {
    "eventTime": "modified longer ago than maxFileAge allows",
    "name": "by name far before files that were begun",
    "modificationTime": "modified long before files that were begun",
}


@dataclass(slots=True)
class FoundFiles:
    """What was found at once.

    Attributes
    ----------
    waiting
        New files, packed: see `backlog.WaitingFile`.
    rewritten
        Files that were known, and are others now.
    left_out
        Paths of new files that the source goes on without.
    finished
        The first time, paths of files that are finished and still there.
    newest_ms
        When the newest of all files there was modified, new or not; 0 if there is none.
    forgotten
        Files up to this key were left out.
    """

    waiting: list[bytes] = field(default_factory=list)
    rewritten: list[WaitingFile] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    newest_ms: int = 0
    forgotten: OrderKey | None = None


@dataclass(slots=True)
class FileDiscovery:
    """Each file is a split.

    Attributes
    ----------
    order
        In which files are begun. By event time each is described as soon as it is found.
    describe
        The blocks of files; None in place of one that the source goes on without.
    load
        The files that are finished at the start.
    in_work
        Those that are in work then.
    finished
        Knows which files are forgotten.
    by_name
        A file is any that has its name: see `marks_of`.
    """

    order: FileOrder
    describe: Callable[[list[ListedFile]], list[FileBlocks | None]]
    load: Callable[[], Marks]
    in_work: Marks
    finished: FinishedFiles
    by_name: bool = False
    _known: MarkSet | None = None

    def find_new(self, directories: Iterable[ListedDirectory]) -> FoundFiles:
        """The files not found before, described where their order needs that. Called by one thread at a time."""
        is_first = self._known is None
        known, finished = self._known, MarkSet()
        if known is None:
            known, ended = MarkSet(), self.load()
            finished.add(ended)
            known.add(ended)
            known.add(self.in_work)
        found, marks = FoundFiles(forgotten=self.finished.forgotten), []
        ignored: list[str] = []
        for files in self._portions(directories, found):
            of_files = marks_of(files, by_name=self.by_name)
            known_as = known.match(of_files)
            if is_first and len(finished):
                there = np.flatnonzero((known_as == Known.SAME) & (finished.match(of_files) == Known.SAME))
                found.finished += [files[i].relative_path for i in there.tolist()]
            interesting = np.flatnonzero(known_as != Known.SAME)
            marks.append(of_files[interesting])
            new = [(files[i], known_as[i] == Known.REWRITTEN) for i in interesting.tolist()]
            ignored += [file.relative_path for file, _ in new if self.finished.is_forgotten(file)]
            self._take([entry for entry in new if not self.finished.is_forgotten(entry[0])], found)
        # Only now, when all was described: what failed is new again the next time.
        for portion in marks:
            known.add(portion)
        self._known = known
        if ignored and is_first:
            # As a rule they are; a file that came in the meantime cannot be distinguished from them.
            _log.info("%d files are taken for read and forgotten", len(ignored))
        elif ignored:
            warn_ignored(ignored, self.order)
        return found

    def _portions(self, directories: Iterable[ListedDirectory], found: FoundFiles) -> Iterator[list[ListedFile]]:
        portion: list[ListedFile] = []
        names: set[str] = set()
        for directory in directories:
            for file in directory.files:
                if self.by_name and (file.name in names or names.add(file.name)):  # type: ignore[func-returns-value]
                    continue
                found.newest_ms = max(found.newest_ms, file.modified_ms)
                portion.append(file)
                if len(portion) == _AT_ONCE:
                    yield portion
                    portion = []
        if portion:
            yield portion

    def _take(self, new: list[tuple[ListedFile, bool]], found: FoundFiles) -> None:
        described: list[FileBlocks | None] = [None] * len(new)
        if self.order == "eventTime":
            described = self.describe([file for file, _ in new])
        for (file, is_rewritten), blocks in zip(new, described, strict=True):
            if self.order == "eventTime" and blocks is None:
                found.left_out.append(file.relative_path)
                continue
            waiting = WaitingFile(file, blocks)
            if is_rewritten:
                found.rewritten.append(waiting)
            else:
                found.waiting.append(waiting.pack(self.order))


def warn_ignored(paths: list[str], order: FileOrder) -> None:
    """Log that files came too late."""
    _log.warning(
        "ignored: %s, %s, so not to be told from what was read and forgotten",
        name_ten(paths),
        _TOO_LATE[order],
    )
