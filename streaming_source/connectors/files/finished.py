"""Which files are finished: what an offset, or a log beside it, remembers of them: twelve bytes a file."""

from __future__ import annotations

import logging
import posixpath
import zlib
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable
from enum import IntEnum
from hashlib import blake2b
from operator import attrgetter
from typing import Final, NamedTuple
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from streaming_source.connectors.files.listing import ListedFile
from streaming_source.connectors.files.split import FileOrder, OrderKey, Remembered, Segment
from streaming_source.connectors.files.storage import Root
from streaming_source.exceptions import DataLossError

__all__ = ["MARK", "FinishedFiles", "Known", "LoggedFiles", "MarkSet", "Marks", "RecentFiles", "marks_of", "order_key"]

_log = logging.getLogger(__name__)

_UPTO: Final = attrgetter("upto")
_SEGMENTS: Final = 8
_AGE_SEGMENTS: Final = 64
_MANY_FILES: Final = 3 * 1024
"""In base 64, some 48 KiB of the offset."""

MARK: Final = np.dtype([("path", "<u8"), ("version", "<u4")])
"""A digest of the path below the root, and one of size and modification time."""

_ANY_VERSION: Final = 0
"""The version of a file of which only the path is known."""

Marks = npt.NDArray[np.void]
"""Array of `MARK`."""


def marks_of(files: Iterable[ListedFile], *, by_name: bool = False) -> Marks:
    """The marks of files, in their order; of one of unknown size (below 0) that of all its versions.

    With `by_name` a file is any that has its name, in whatever directory and version.

    Two paths have one digest by chance only: among `n` files that are remembered and `m` that are new, one is taken for
    another with a probability of `n * m / 2**64` (a million of each: 1 in 18 million).
    """
    if by_name:
        return np.array([(_digest(file.name), _ANY_VERSION) for file in files], MARK)
    return np.array([(_digest(file.relative_path), _version(file)) for file in files], MARK)


def _digest(path: str) -> int:
    return int.from_bytes(blake2b(path.encode(), digest_size=8).digest(), "little")


def _version(file: ListedFile) -> int:
    return _ANY_VERSION if file.size < 0 else zlib.crc32(b"%d:%d" % (file.size, file.modified_ms)) or 1


class Known(IntEnum):
    """What is known of a file."""

    NEW = 0
    SAME = 1
    REWRITTEN = 2


class MarkSet:
    """Files that are known, by their marks: 12 bytes a file. One may be known in several versions."""

    def __init__(self) -> None:
        # Sorted by path.
        self._paths = np.empty(0, np.uint64)
        self._versions = np.empty(0, np.uint32)

    def __len__(self) -> int:
        return self._paths.size

    def add(self, marks: Marks) -> None:
        """Make m files known. O(m log m), and copying those that are known."""
        if marks.size:
            new = marks[np.argsort(marks["path"])]
            place = np.searchsorted(self._paths, new["path"])
            self._paths = np.insert(self._paths, place, new["path"])
            self._versions = np.insert(self._versions, place, new["version"])

    def match(self, marks: Marks) -> npt.NDArray[np.int8]:
        """Of each file what is known of it, `int8[n]` of `Known`. O(n log m) for m known ones."""
        found = np.full(marks.size, Known.NEW, np.int8)
        paths, versions = self._paths, self._versions
        place, undecided = np.searchsorted(paths, marks["path"]), np.arange(marks.size)
        # Versions of one path stand next to each other; there is hardly ever more than one.
        while undecided.size:
            there = place < paths.size
            there[there] = paths[place[there]] == marks["path"][undecided[there]]
            place, undecided = place[there], undecided[there]
            known, wanted = versions[place], marks["version"][undecided]
            same = (known == wanted) | (known == _ANY_VERSION) | (wanted == _ANY_VERSION)
            found[undecided] = np.where(same, Known.SAME, Known.REWRITTEN)
            place, undecided = place[~same] + 1, undecided[~same]
        return found


def order_key(file: ListedFile, order: FileOrder) -> OrderKey:
    """Where a file stands. Where files come by event time a name means nothing, and age must do."""
    return (0 if order == "name" else file.modified_ms, "" if order == "eventTime" else file.relative_path)


class FinishedFiles(ABC):
    """The files that were read to their ends and are in no offset as splits any more.

    Its methods run on the coordinator's thread; `load`, `forgotten` and `is_forgotten` on any.
    """

    def __init__(self, *, by_name: bool) -> None:
        self.by_name = by_name

    def marks_of(self, files: Iterable[ListedFile]) -> Marks:
        return marks_of(files, by_name=self.by_name)

    @abstractmethod
    def load(self) -> Marks:
        """Those that were finished before the start; a `DataLossError` if what was written down of them is gone."""

    forgotten: OrderKey | None = None
    """Files up to this key cannot be distinguished from finished ones; None if all can."""

    def is_forgotten(self, file: ListedFile) -> bool:
        """Whether a file cannot be distinguished from one that was finished and forgotten."""
        return False

    @abstractmethod
    def add(self, file: ListedFile) -> None:
        """A file is finished."""

    @abstractmethod
    def save(self, checkpoint_id: int, lowest_waiting: OrderKey | None, newest_ms: int) -> Remembered:
        """The part of a state's offset, after all that was added is in it or written down.

        No file that waits has a key below `lowest_waiting`: that is not forgotten, or a restart would miss it.
        """


class RecentFiles(FinishedFiles):
    """Finished files that are young, or late in the order of names or modification times; the others are forgotten.

    What is forgotten is a mark in that order: files up to it are ignored. So each file is read once; what
    is missed is a file that appears later and stands before the mark.

    By event time they are forgotten when they are older than the newest by `max_age_ms`, whatever their number; in any
    other order some `max_files` are remembered.
    """

    def __init__(
        self, order: FileOrder, max_age_ms: int, state: Remembered, max_files: int, *, by_name: bool = False
    ) -> None:
        super().__init__(by_name=by_name)
        self.forgotten = state.forgotten
        self._order = order
        self._max_age_ms = max_age_ms
        self._max_files = max_files
        self._segment_bytes = max(max_files // _SEGMENTS, 1) * MARK.itemsize
        self._by_age = order == "eventTime"
        self._segments = list(state.segments)
        self._width_ms = max(max_age_ms // _AGE_SEGMENTS, 1)
        self._warned = False

    def load(self) -> Marks:
        return np.frombuffer(b"".join(segment.marks for segment in self._segments), MARK)

    def is_forgotten(self, file: ListedFile) -> bool:
        return self.forgotten is not None and order_key(file, self._order) <= self.forgotten

    def add(self, file: ListedFile) -> None:
        if self.is_forgotten(file):
            return
        segments, key, mark = self._segments, order_key(file, self._order), self.marks_of([file]).tobytes()
        if self._by_age:
            key = ((key[0] // self._width_ms + 1) * self._width_ms - 1, "")
        place = bisect_left(segments, key, key=_UPTO)
        fits = place < len(segments) and (not self._by_age or segments[place].upto == key)
        if place and place == len(segments) and not self._by_age and len(segments[-1].marks) < self._segment_bytes:
            place, fits = place - 1, True
        if fits:
            segments[place] = Segment(max(segments[place].upto, key), segments[place].marks + mark)
        else:
            segments.insert(place, Segment(key, mark))

    def save(self, checkpoint_id: int, lowest_waiting: OrderKey | None, newest_ms: int) -> Remembered:
        held = sum(len(segment.marks) for segment in self._segments) // MARK.itemsize
        oldest_ms = newest_ms - self._max_age_ms
        if lowest_waiting is not None:
            oldest_ms = min(oldest_ms, lowest_waiting[0] - 1)
        while self._segments:
            upto = self._segments[0].upto
            is_kept = held <= self._max_files or (lowest_waiting is not None and upto >= lowest_waiting)
            if self._by_age:
                is_kept = upto[0] > oldest_ms
            if is_kept:
                break
            self.forgotten = (oldest_ms, "") if self._by_age else upto
            held -= len(self._segments.pop(0).marks) // MARK.itemsize
        if held > _MANY_FILES and not self._warned:
            self._warned = True
            _log.warning(
                "the offset remembers %d finished files and grows with every one that is not older than maxFileAge: "
                "give a stateLocation, or a fileOrder in which files are known by their place, or a shorter maxFileAge",
                held,
            )
        return Remembered(self.forgotten, tuple(self._segments))


# ---- written down ----------------------------------------------------------------------------------------------------

_FILES_MERGED: Final = 32
_SCHEMA: Final = pa.schema([("state", pa.int64()), ("path", pa.uint64()), ("version", pa.uint32())])
_WRITES_WHOLE_FILES: Final = ("s3", "gcs", "abfs")
"""File systems on which a file is there when it was written to its end, and not before."""


class _Part(NamedTuple):
    """A file of the log: the entries of the states `first` to `last`, merged so many times."""

    first: int
    last: int
    merged: int = 0

    @property
    def name(self) -> str:
        return f"{self.first:012d}-{self.last:012d}-{self.merged}.arrow"

    @staticmethod
    def of(name: str) -> _Part | None:
        numbers = name.removesuffix(".arrow").split("-")
        if len(numbers) != 3 or not all(number.isdigit() for number in numbers):
            return None
        first, last, merged = map(int, numbers)
        return _Part(first, last, merged)

    def holds(self, other: _Part) -> bool:
        return self.first <= other.first and other.last <= self.last


class LoggedFiles(FinishedFiles):
    """A log of finished files: an entry a state, written before the offset of the state is given out.

    The offset has the log's id and the last state that it had an entry of. A restart from any offset, however old,
    reads the entries up to that; those after it, of a life that was given up, are removed before the next is written.
    So an entry that is written again replaces the one before it.

    An entry is an Arrow file with columns `state`, `path` and `version` (see `MARK`). When there are many they
    are merged, so that n entries are O(log n) files, and each mark is written O(log n) times.
    """

    def __init__(self, root: Root, state: Remembered, *, by_name: bool = False) -> None:
        super().__init__(by_name=by_name)
        self._root = root
        self._log_id, self._last = state.log or (uuid4().hex[:12], 0)
        self._added: list[ListedFile] = []
        self._parts: list[_Part] | None = None

    def load(self) -> Marks:
        if not self._last:
            return np.empty(0, MARK)
        parts = _without_held(self._listed())
        if not any(part.first <= self._last <= part.last for part in parts):
            raise DataLossError(
                f"stateLocation has no entry of state {self._last} in {self._directory()[1]}: without it finished "
                "files cannot be told from new ones. Restore it, or start with a new checkpointLocation"
            )
        table = _upto(pa.concat_tables([self._read(part) for part in parts if part.first <= self._last]), self._last)
        marks = np.empty(table.num_rows, MARK)
        marks["path"], marks["version"] = table["path"].to_numpy(), table["version"].to_numpy()
        return marks

    def add(self, file: ListedFile) -> None:
        self._added.append(file)

    def save(self, checkpoint_id: int, lowest_waiting: OrderKey | None, newest_ms: int) -> Remembered:
        if self._added:
            if self._parts is None:
                self._parts = self._cut()
            marks = self.marks_of(self._added)
            part = _Part(checkpoint_id, checkpoint_id)
            columns = (np.full(marks.size, checkpoint_id), marks["path"].copy(), marks["version"].copy())
            self._write(part, pa.table([pa.array(column) for column in columns], schema=_SCHEMA))
            self._parts.append(part)
            self._last = checkpoint_id
            self._added.clear()
            self._merge()
        return Remembered(log=(self._log_id, self._last)) if self._last else Remembered()

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _directory(self) -> tuple[fs.FileSystem, str]:
        # Hidden from whoever reads the path in which it may lie.
        filesystem, path = self._root.open()
        return filesystem, posixpath.join(path, f"_{self._log_id}")

    def _listed(self) -> list[_Part]:
        filesystem, directory = self._directory()
        infos = filesystem.get_file_info(fs.FileSelector(directory, allow_not_found=True))
        return sorted(part for info in infos if (part := _Part.of(info.base_name)) is not None)

    def _cut(self) -> list[_Part]:
        """Remove what was written after the state from which reading goes on; what is left."""
        kept = []
        for part in _without_held(listed := self._listed()):
            if part.last > self._last >= part.first:
                table = _upto(self._read(part), self._last)
                part = part._replace(last=self._last)
                self._write(part, table)
            if part.last <= self._last:
                kept.append(part)
        self._delete(set(listed) - set(kept))
        return kept

    def _merge(self) -> None:
        """Make one file of the last ones that were merged equally often, as long as there are enough of them."""
        assert self._parts is not None
        while True:
            last = self._parts[-1]
            small = self._parts[-_FILES_MERGED:]
            if len(small) < _FILES_MERGED or small[0].merged != last.merged:
                return
            whole = _Part(small[0].first, last.last, last.merged + 1)
            self._write(whole, pa.concat_tables([self._read(part) for part in small]))
            self._parts[-_FILES_MERGED:] = [whole]
            self._delete(small)

    def _read(self, part: _Part) -> pa.Table:
        filesystem, directory = self._directory()
        try:
            with filesystem.open_input_file(posixpath.join(directory, part.name)) as file:
                return pa.ipc.open_file(file).read_all()
        except (pa.ArrowException, OSError) as error:
            raise DataLossError(
                f"stateLocation: {posixpath.join(directory, part.name)} cannot be read ({error}): finished files "
                "cannot be told from new ones without it. Restore it, or start with a new checkpointLocation"
            ) from error

    def _write(self, part: _Part, table: pa.Table) -> None:
        """Write a file that is there as a whole or not at all."""
        filesystem, directory = self._directory()
        filesystem.create_dir(directory, recursive=True)
        path = posixpath.join(directory, part.name)
        at_once = filesystem.type_name in _WRITES_WHOLE_FILES
        written = path if at_once else posixpath.join(directory, f"_{part.name}")
        with filesystem.open_output_stream(written) as stream, pa.ipc.new_file(stream, _SCHEMA) as writer:
            writer.write_table(table)
        if not at_once:
            filesystem.move(written, path)

    def _delete(self, parts: Iterable[_Part]) -> None:
        filesystem, directory = self._directory()
        for part in parts:
            filesystem.delete_file(posixpath.join(directory, part.name))


def _without_held(parts: list[_Part]) -> list[_Part]:
    """Those that no other holds: a merged file may stand beside the ones that it was made of."""
    return [part for part in parts if not any(other != part and other.holds(part) for other in parts)]


def _upto(table: pa.Table, state: int) -> pa.Table:
    """The entries of the states up to this."""
    return table.filter(pc.less_equal(table["state"], state))
