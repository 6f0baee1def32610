"""Which files are new, rewritten or gone where each file is a split: what one listing has, beside what is known."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import numpy as np

from alignment.timestamps import NO_TIMESTAMP
from streaming_source.connectors.files.backlog import WaitingFile
from streaming_source.connectors.files.checkpoint import FileOrder, OrderKey
from streaming_source.connectors.files.finished import FinishedFiles
from streaming_source.connectors.files.lagging import Span
from streaming_source.connectors.files.listing import ListedDirectory, ListedFile, Lister, name_ten
from streaming_source.connectors.files.marks import MARK, Known, Marks, MarkSet
from streaming_source.data_files.file import FileBlocks

__all__ = ["FileDiscovery", "FoundFiles", "warn_ignored"]

_AT_ONCE: Final = 4096
_TOO_LATE: Final[dict[FileOrder, str]] = {
    "eventTime": "modified longer ago than maxFileAge allows",
    "name": "by name far before files that were begun",
    "modificationTime": "modified long before files that were begun",
}

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class FoundFiles:
    """The result of one listing.

    `waiting` are new files, packed (see `WaitingFile`). `rewritten` files were known with another content. `left_out`
    files are skipped by the source, until they are gone. In the first listing `finished` has the paths of finished
    files that are still there. `newest_ms` is the latest modification of all files, 0 without any. Files up to the key
    `forgotten` are in none of these. In the order of event times `spans` has, by directory, those of the new files.
    """

    waiting: list[bytes] = field(default_factory=list)
    rewritten: list[WaitingFile] = field(default_factory=list)
    left_out: list[ListedFile] = field(default_factory=list)
    left_out_and_gone: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    newest_ms: int = 0
    forgotten: OrderKey | None = None
    spans: dict[str, Span] = field(default_factory=dict)

    def extend_span(self, file: ListedFile, blocks: FileBlocks) -> None:
        """A new file was described. O(blocks)."""
        earliest_us, latest_us = blocks.earliest_us, int(blocks.max_us.max(initial=NO_TIMESTAMP))
        if NO_TIMESTAMP < earliest_us <= latest_us:
            known = self.spans.get(file.directory, (earliest_us, latest_us))
            self.spans[file.directory] = min(known[0], earliest_us), max(known[1], latest_us)


@dataclass(slots=True)
class FileDiscovery:
    """Finds new files where each file is a split.

    `order` is the order in which files begin. In that of event times each new file is described; `describe` returns
    None for a file that the source skips, and `left_out` returns the files that are skipped so far. At the start some
    files are `in_work`; `finished` has those that were finished before, without `just_finished` ones.

    No file may be read twice. So the mark of each found file is kept, until `finished` has forgotten it (from then on
    its key shows that it was read) and a listing of all directories lacks it. With a `stateLocation` nothing is
    forgotten.
    """

    order: FileOrder
    describe: Callable[[list[ListedFile]], list[FileBlocks | None]]
    finished: FinishedFiles
    just_finished: list[ListedFile]
    in_work: list[ListedFile]
    left_out: Callable[[], list[ListedFile]] = list
    _known: MarkSet | None = None
    # Marks of files that `finished` has forgotten: they are kept until a listing lacks them.
    _leaving: Marks = field(default_factory=lambda: np.empty(0, MARK))

    def find_new(self, lister: Lister) -> FoundFiles:
        """Return the files that were not found before, described if their order needs that.

        Called by one thread at a time.
        """
        is_first = self._known is None
        known, finished = self._known, MarkSet()
        if known is None:
            known, ended = MarkSet(), self.finished.load()
            finished.add(ended)
            finished.add(self.finished.marks_of(self.just_finished))
            known.add(ended)
            known.add(self.finished.marks_of([*self.just_finished, *self.in_work]))
        self._leaving = np.append(self._leaving, self.finished.take_forgotten())
        found, marks, there_now = FoundFiles(forgotten=self.finished.forgotten), [], MarkSet()
        ignored: list[ListedFile] = []
        left_out = self.left_out()
        listed = self._files(lister.list_changed(), found)
        while files := list(islice(listed, _AT_ONCE)):
            of_files = self.finished.marks_of(files)
            if lister.lists_all and (self._leaving.size or left_out):
                there_now.add(of_files)
            known_as = known.match(of_files)
            # With `by_name` another file of the name may have been read: this one is not cleaned.
            if is_first and len(finished) and not self.finished.by_name:
                there = np.flatnonzero((known_as == Known.SAME) & (finished.match(of_files) == Known.SAME))
                found.finished += [files[i].relative_path for i in there.tolist()]
            interesting = np.flatnonzero(known_as != Known.SAME)
            marks.append(of_files[interesting])
            new = [(files[i], known_as[i] == Known.REWRITTEN) for i in interesting.tolist()]
            ignored += [file for file, _ in new if self.finished.is_forgotten(file)]
            self._take([entry for entry in new if not self.finished.is_forgotten(entry[0])], found)
        # Only when all files are described: after an error they are new again.
        known.add(np.concatenate([np.empty(0, MARK), *marks]))
        self._known = known
        if lister.lists_all:
            self._forget_gone(known, there_now, left_out, found)
        self._leaving = np.append(self._leaving, self.finished.marks_of(ignored))
        if ignored and is_first:
            # Nearly all of them were read. A file that was added while the source was down looks the same.
            _log.info("%d files are as old as forgotten ones and count as read", len(ignored))
        elif ignored:
            warn_ignored([file.relative_path for file in ignored], self.order)
        return found

    def _forget_gone(self, known: MarkSet, there_now: MarkSet, left_out: list[ListedFile], found: FoundFiles) -> None:
        """Forget the files that a listing of all directories lacks, of those that were forgotten or left out."""
        is_gone = there_now.match(self._leaving) == Known.NEW
        known.remove(self._leaving[is_gone])
        self._leaving = self._leaving[~is_gone]
        marks = self.finished.marks_of(left_out)
        is_gone = there_now.match(marks) == Known.NEW
        known.remove(marks[is_gone])
        found.left_out_and_gone += [left_out[i].relative_path for i in np.flatnonzero(is_gone).tolist()]

    def remembered(self) -> int:
        """Return how many marks are kept."""
        return 0 if self._known is None else len(self._known)

    def _files(self, directories: Iterable[ListedDirectory], found: FoundFiles) -> Iterator[ListedFile]:
        names: set[str] = set()
        for directory in directories:
            for file in directory.files:
                if self.finished.by_name and file.name in names:
                    continue
                if self.finished.by_name:
                    names.add(file.name)
                found.newest_ms = max(found.newest_ms, file.modified_ms)
                yield file

    def _take(self, new: list[tuple[ListedFile, bool]], found: FoundFiles) -> None:
        described: list[FileBlocks | None] = [None] * len(new)
        if self.order == "eventTime":
            described = self.describe([file for file, _ in new])
        for (file, is_rewritten), blocks in zip(new, described, strict=True):
            if self.order == "eventTime" and blocks is None:
                found.left_out.append(file)
            elif is_rewritten:
                found.rewritten.append(WaitingFile(file, blocks))
            else:
                if blocks is not None:
                    found.extend_span(file, blocks)
                found.waiting.append(WaitingFile(file, blocks).pack(self.order))


def warn_ignored(paths: list[str], order: FileOrder) -> None:
    """Log that files are ignored because they were found too late."""
    _log.warning(
        "ignored, because they cannot be distinguished from forgotten files that were read: %s, %s",
        name_ten(paths),
        _TOO_LATE[order],
    )
