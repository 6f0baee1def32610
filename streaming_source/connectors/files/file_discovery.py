"""Which files are new, rewritten or gone where each is a split, which wait, and which directories lag behind others.

A listing has what is there; what is known of it decides the rest.
"""

from __future__ import annotations

import pickle
import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from sortedcontainers import SortedDict, SortedList

from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK
from streaming_source.connectors.files.finished import FinishedFiles, order_key
from streaming_source.connectors.files.listing import ListedDirectory, ListedFile, Lister
from streaming_source.connectors.files.marks import NO_MARKS, Known, Marks, MarkSet
from streaming_source.connectors.files.split import FileOrder, OrderKey
from streaming_source.data_files.file import FileBlocks

if TYPE_CHECKING:
    from alignment.claims import Claims


_KEY: Final = struct.Struct(">?Q")
_TO_UNSIGNED: Final = 2**63


class WaitingFile(NamedTuple):
    """A file as it was listed, and its blocks; None if it is not described yet, where the order is by other things."""

    file: ListedFile
    blocks: FileBlocks | None = None

    def pack(self, order: FileOrder) -> bytes:
        """Pack the file into bytes that sort in this order: key, path, a zero byte, the rest."""
        key = b""
        if order == "modificationTime":
            key = _KEY.pack(True, self.file.modified_ms + _TO_UNSIGNED)
        elif order == "eventTime":
            assert self.blocks is not None, "by event time a file is described before it waits"
            earliest_us = self.blocks.earliest_us
            key = _KEY.pack(earliest_us != MAX_WATERMARK, earliest_us + _TO_UNSIGNED)
        path, blocks = self.file.relative_path.encode(), None
        if self.blocks is not None:
            of_times = (self.blocks.min_us, self.blocks.max_us, self.blocks.valid_min_us)
            blocks = (*(column.tobytes() for column in (self.blocks.rows, *of_times)), self.blocks.offsets)
        return b"".join((key, path, b"\0", pickle.dumps((self.file.modified_ms, self.file.size, blocks))))

    @staticmethod
    def unpack(data: bytes, order: FileOrder) -> WaitingFile:
        start = 0 if order == "name" else _KEY.size
        end = data.index(b"\0", start)
        modified_ms, size, blocks = pickle.loads(memoryview(data)[end + 1 :])
        if blocks is not None:
            *columns, offsets = blocks
            rows, low, high, earliest = (np.frombuffer(column, np.int64) for column in columns)
            blocks = FileBlocks(rows, low, high, earliest, offsets)
        return WaitingFile(ListedFile.of(data[start:end].decode(), modified_ms, size), blocks)


class Backlog:
    """A queue of files, packed: about 100 bytes a file beside its path.

    In the order of event times the earliest event time of a file counts. Files without a valid one come first: no other
    file waits for them, and they wait for none. In that order `lowest` may be up to `width_ms` below the oldest file: a
    wider span needs less memory.

    With n files waiting, adding one, taking the next one and `lowest` cost O(log n).
    """

    def __init__(self, order: FileOrder, width_ms: int = 1000) -> None:
        self._order = order
        self._width_ms = width_ms
        self._files: SortedList[bytes] = SortedList()
        # In the order of event times: how many files were modified in each span of `width_ms`.
        self._modified: SortedDict[int, int] = SortedDict()

    def __len__(self) -> int:
        return len(self._files)

    def add(self, packed: Iterable[bytes]) -> None:
        """Add files, packed with `WaitingFile.pack` in the order of this backlog."""
        new = list(packed)
        if self._order == "eventTime":
            for entry in new:
                self._count(WaitingFile.unpack(entry, self._order), 1)
        self._files.update(new)

    def pop(self) -> WaitingFile:
        """Remove and return the next file; raises an `IndexError` if none waits."""
        return self._taken(self._files.pop(0))

    @property
    def earliest_us(self) -> int:
        """The earliest valid event time of all waiting files, in their order; `MAX_WATERMARK` if they have none."""
        assert self._order == "eventTime"
        first = self._files.bisect_left(_KEY.pack(True, 0))
        return int(_KEY.unpack_from(self._files[first])[1]) - _TO_UNSIGNED if first < len(self) else MAX_WATERMARK

    def take(self, path: str) -> WaitingFile | None:
        """Remove and return a file by its path; None if it does not wait. O(n)."""
        searched, start = path.encode() + b"\0", 0 if self._order == "name" else _KEY.size
        entry = next((entry for entry in self._files if entry.startswith(searched, start)), None)
        if entry is None:
            return None
        self._files.remove(entry)
        return self._taken(entry)

    @property
    def lowest(self) -> OrderKey | None:
        """A lower bound of the `order_key` of all waiting files; None if none waits."""
        if not self:
            return None
        if self._order == "eventTime":
            return (self._modified.peekitem(0)[0] * self._width_ms, "")
        return order_key(WaitingFile.unpack(self._files[0], self._order).file, self._order)

    def _taken(self, entry: bytes) -> WaitingFile:
        waiting = WaitingFile.unpack(entry, self._order)
        if self._order == "eventTime":
            self._count(waiting, -1)
        return waiting

    def _count(self, waiting: WaitingFile, change: int) -> None:
        span = waiting.file.modified_ms // self._width_ms
        count = self._modified[span] = self._modified.get(span, 0) + change
        if not count:
            del self._modified[span]


_AT_ONCE: Final = 4096
_KEPT_S: Final = 3600.0
"""A forgotten file that is gone is known for so long: it may come back."""


@dataclass(slots=True)
class FoundFiles:
    """The result of one listing.

    `waiting` are new files, packed (see `WaitingFile`). `rewritten` files were known with another content. `left_out`
    files are skipped by the source, until they are gone. The first listing has in `finished` the paths of finished
    files that are still there, and in `forgotten` the marks of forgotten ones; of these `gone` are gone, and `back` are
    there again. `newest_ms` is the latest modification of all files, 0 without any. In the order of event times `spans`
    has, by directory, those of the new files. With `watermarkFrom` it has what the writer has `claimed` by these files.
    """

    waiting: list[bytes] = field(default_factory=list)
    rewritten: list[WaitingFile] = field(default_factory=list)
    left_out: list[ListedFile] = field(default_factory=list)
    left_out_and_gone: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    newest_ms: int = 0
    forgotten: Marks | None = None
    gone: Marks = field(default_factory=lambda: NO_MARKS)
    back: Marks = field(default_factory=lambda: NO_MARKS)
    spans: dict[str, Span] = field(default_factory=dict)
    claimed: Claims | None = None

    def extend_span(self, file: ListedFile, blocks: FileBlocks) -> None:
        """A new file was described. O(blocks)."""
        earliest_us, latest_us = blocks.earliest_us, int(blocks.max_us.max(initial=NO_TIMESTAMP))
        if NO_TIMESTAMP < earliest_us <= latest_us:
            known = self.spans.get(file.directory, (earliest_us, latest_us))
            self.spans[file.directory] = min(known[0], earliest_us), max(known[1], latest_us)


@dataclass(slots=True)
class FileDiscovery:
    """Finds new files where each file is a split.

    `order` is the order in which files are opened. In that of event times each new file is described; `describe`
    returns None for a file that the source skips, and `left_out` returns the files that are skipped so far. At the
    start some files are `in_work`; `finished` has those that were finished before, without `just_finished` ones.

    No file may be read twice. So the mark of each found file is kept, until `finished` has forgotten it and listings of
    all directories have lacked it for an hour. With a `stateLocation` nothing is forgotten.
    """

    order: FileOrder
    describe: Callable[[list[ListedFile]], list[FileBlocks | None]]
    finished: FinishedFiles
    just_finished: list[ListedFile]
    in_work: list[ListedFile]
    left_out: Callable[[], list[ListedFile]] = list
    _known: MarkSet | None = None
    # Marks of files that `finished` has forgotten: those that are there, and those that are gone, with since when.
    _leaving: Marks = field(default_factory=lambda: NO_MARKS)
    _gone: Marks = field(default_factory=lambda: NO_MARKS)
    _gone_at: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0))

    def find_new(self, lister: Lister) -> FoundFiles:
        """Return the files that were not found before, described if their order needs that.

        Called by one thread at a time.
        """
        found, marks, there_now, ended = FoundFiles(), [NO_MARKS], MarkSet(), MarkSet()
        known, left_out = self._known, self.left_out()
        if known is None:
            known = MarkSet()
            read = np.append(self.finished.load(), self.finished.marks_of(self.just_finished))
            ended.add(read)
            known.add(np.append(read, self.finished.marks_of([*self.in_work])))
            if self.finished.forgotten is not None:
                found.forgotten = self._leaving = np.concatenate(self._find_forgotten(lister, known))
        self._leaving = np.append(self._leaving, self.finished.take_forgotten())
        for files, of_files in self._listed(lister, found):
            if lister.lists_all and (self._leaving.size or self._gone.size or left_out):
                there_now.add(of_files)
            known_as = known.match(of_files)
            # With `by_name` another file of the name may have been read: this one is not cleaned.
            if len(ended) and not self.finished.by_name:
                there = np.flatnonzero((known_as == Known.SAME) & (ended.match(of_files) == Known.SAME))
                found.finished += [files[i].relative_path for i in there.tolist()]
            interesting = np.flatnonzero(known_as != Known.SAME)
            marks.append(of_files[interesting])
            self._take([(files[i], known_as[i] == Known.REWRITTEN) for i in interesting.tolist()], found)
        # Only when all files are described: after an error they are new again.
        known.add(np.concatenate(marks))
        self._known = known
        if lister.lists_all:
            self._forget_gone(known, there_now, left_out, found)
        return found

    def finished_files(self, lister: Lister) -> tuple[MarkSet, int]:
        """Return the finished files, and how many of those that are remembered one by one are not there.

        Nothing is forgotten twice: a file that was forgotten counts if it is there, or if few are gone.
        """
        read = finished = self.finished.load()
        if self.finished.forgotten is not None:
            known = np.append(read, self.finished.marks_of(self.in_work))
            finished = np.concatenate([read, *self._find_forgotten(lister, MarkSet(known.tobytes()))])
        there = np.concatenate([NO_MARKS, *(marks for _, marks in self._listed(lister, FoundFiles()))])
        return MarkSet(finished.tobytes()), np.setdiff1d(finished["path"], there["path"]).size

    def _find_forgotten(self, lister: Lister, known: MarkSet) -> tuple[Marks, Marks]:
        """Return the finished files that were forgotten: those that are there, and those that are gone.

        They are added to the known ones.

        Which they are shows when all of them are listed. So the first look of a run lists everything twice.
        """
        unread, marks = MarkSet(self.finished.unread.tobytes()), [NO_MARKS]
        for files, of_files in self._listed(lister, FoundFiles()):
            is_read = np.fromiter(map(self.finished.is_forgotten, files), np.bool_, len(files))
            is_read &= (known.match(of_files) != Known.SAME) & (unread.match(of_files) != Known.SAME)
            marks.append(of_files[is_read])
        lister.forget()
        there: Marks = np.concatenate(marks)
        added, gone = self.finished.compare(there)
        there = there[MarkSet(added.tobytes()).match(there) != Known.SAME]
        # What is gone may be there in another version.
        known.add(np.append(there, gone))
        return there, gone

    def _listed(self, lister: Lister, found: FoundFiles) -> Iterator[tuple[list[ListedFile], Marks]]:
        """Yield the files of a listing, some thousands at a time, with their marks."""
        files = self._files(lister.list_changed(), found)
        while some := list(islice(files, _AT_ONCE)):
            yield some, self.finished.marks_of(some)

    def _forget_gone(self, known: MarkSet, there_now: MarkSet, left_out: list[ListedFile], found: FoundFiles) -> None:
        """Forget the files that a listing of all directories lacks, of those that were forgotten or left out."""
        now = time.monotonic()
        is_there, is_back = (there_now.match(some) == Known.SAME for some in (self._leaving, self._gone))
        found.gone, found.back = self._leaving[~is_there], self._gone[is_back]
        self._leaving = np.append(self._leaving[is_there], found.back)
        if self.finished.forgotten is not None:
            is_old = ~is_back & (self._gone_at < now - _KEPT_S)
            known.remove(self._gone[is_old])
            is_back |= is_old
        self._gone = np.append(self._gone[~is_back], found.gone)
        self._gone_at = np.append(self._gone_at[~is_back], np.full(found.gone.size, now))
        marks = self.finished.marks_of(left_out)
        is_gone = there_now.match(marks) == Known.NEW
        known.remove(marks[is_gone])
        found.left_out_and_gone += [left_out[i].relative_path for i in np.flatnonzero(is_gone).tolist()]

    def remembered(self) -> int:
        """Return how many marks are remembered."""
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


_AGAIN: Final = 3
"""Listings in which a directory came behind the others: once may be a file that was delayed."""
_DIRECTORIES: Final = 1000
"""Directories that are remembered, those that last had a new file."""

Span = tuple[int, int]
"""The earliest and the latest event time of the new files of a directory in one listing."""


@dataclass(frozen=True, slots=True)
class Lag:
    """The files of `directory` come up to `lag_us` behind those of the directory `ahead`."""

    directory: str
    ahead: str
    lag_us: int


@dataclass(slots=True)
class _Known:
    latest_us: int
    times: int = 0
    lag_us: int = 0


class LaggingDirectories:
    """Compares the new files of each listing with those of the listings before.

    A directory lags where its new files begin before files of others that were found earlier, by more than `bound_us`,
    although they follow the earlier files of their own directory: no order inside of files or directories is the
    cause, but that directories are written at different times.
    """

    def __init__(self, bound_us: int) -> None:
        self._bound_us = bound_us
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._ahead, self._latest_us = "", NO_TIMESTAMP
        self._is_found = False

    def look(self, found: Mapping[str, Span]) -> Lag | None:
        """Take in the new files of one listing, by directory; return the lag, once, when it was seen often enough.

        O(directories with new files).
        """
        ahead, limit_us, is_again = self._ahead, self._latest_us - self._bound_us, False
        for directory, (earliest_us, latest_us) in sorted(found.items()):
            known = self._known.pop(directory, None) or _Known(NO_TIMESTAMP)
            follows = NO_TIMESTAMP < known.latest_us <= earliest_us + self._bound_us
            if self._latest_us > NO_TIMESTAMP and follows and earliest_us < limit_us:
                known.times += 1
                known.lag_us = max(known.lag_us, self._latest_us - earliest_us)
                is_again |= known.times >= _AGAIN
            known.latest_us = max(known.latest_us, latest_us)
            self._known[directory] = known
        for directory, (_, latest_us) in found.items():
            if latest_us > self._latest_us:
                self._ahead, self._latest_us = directory, latest_us
        while len(self._known) > _DIRECTORIES:
            self._known.popitem(last=False)
        if self._is_found or not is_again:
            return None
        self._is_found = True
        furthest = max(self._known, key=lambda directory: self._known[directory].lag_us)
        return Lag(furthest, ahead, self._known[furthest].lag_us)
