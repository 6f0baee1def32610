"""Splits of files: what is in one, how it is cut into ranges for readers, and how offsets write it."""

from __future__ import annotations

import json
import posixpath
from base64 import b64decode, b64encode
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal, TypeAlias

import numpy as np
from pyarrow import fs

from streaming_source.api import SimpleVersionedSerializer, SourceSplit
from streaming_source.api.serializer import check_version
from streaming_source.connectors.files.formats import FileBlocks, Place
from streaming_source.connectors.files.listing import ListedFile
from streaming_source.exceptions import OffsetError

__all__ = [
    "FileLog",
    "FileOrder",
    "FileRange",
    "FileSplit",
    "FileSplitSerializer",
    "FilesCheckpoint",
    "FilesCheckpointSerializer",
    "LoggedFile",
    "OrderKey",
    "Remembered",
    "Segment",
    "cut_ranges",
]

FileOrder: TypeAlias = Literal["eventTime", "name", "modificationTime"]

OrderKey: TypeAlias = tuple[int, str]
"""Where a file stands among those that are remembered: when it was modified, and its path; where both count."""


@dataclass(frozen=True, slots=True)
class FileRange:
    """Rows `[start, stop)` of one file; `position` is that of the first of them in its split.

    `place` is where a reader begins, at or before the first of them; None for the beginning of the file.
    """

    path: str
    start: int
    stop: int
    position: int
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class FileSplit(SourceSplit):
    """A directory that is a log of files, or a single file.

    `split_id` is the path below the source's root, with `@modified_ms` for a file that was rewritten; `position` the
    number of the next record. For a directory, `file` is the name of the file in which that record is, and `row` its
    row there; the files before it by name are read. None as row says that this file is read too, and the record will
    come in a later one. Empty and 0 at the origin and for a single file. `files` is how many there were up to and with
    `file`: if there are more later, some are new. For a single file, `modified_ms` is when it was last modified, and
    `size` its bytes. `ranges` are for a reader only: what to read.
    """

    split_id: str = field()  # declared as a field: else the property of the base class is taken for its default
    position: int = 0
    file: str = ""
    row: int | None = 0
    files: int = 0
    modified_ms: int | None = None
    size: int | None = None
    ranges: tuple[FileRange, ...] = ()

    @staticmethod
    def of_file(file: ListedFile, *, is_rewritten: bool = False) -> FileSplit:
        """A single file before its first record; a file that was rewritten has another id than before."""
        path = file.relative_path
        split_id = f"{path}@{file.modified_ms}" if is_rewritten else path
        return FileSplit(split_id, modified_ms=file.modified_ms, size=file.size)

    @property
    def path(self) -> str:
        """Of the directory or file below the source's root."""
        return self.split_id.removesuffix(f"@{self.modified_ms}")

    def is_rewritten(self, info: fs.FileInfo) -> bool:
        """Whether what is there now is another file; not of one that is gone, or of which too little is known."""
        if info.type is not fs.FileType.File or not self.modified_ms:
            return False
        return (info.mtime_ns or 0) // 1_000_000 != self.modified_ms or self.size not in (None, info.size)

    @property
    def place(self) -> str:
        """`row 17 of AA/part-003.parquet`; see `SourceSplit`."""
        row, name = (self.row or 0, f"/{self.file}") if self.file else (self.position, "")
        return f"row {row} of {self.path}{name}"

    def origin(self) -> FileSplit:
        return FileSplit(self.split_id, modified_ms=self.modified_ms, size=self.size)


@dataclass(frozen=True, slots=True)
class LoggedFile:
    """One file of a split: how to open it, the position of its first row, its number from 1."""

    path: str
    position: int
    blocks: FileBlocks
    number: int = 0

    @property
    def name(self) -> str:
        return posixpath.basename(self.path)

    @property
    def end(self) -> int:
        return self.position + int(self.blocks.rows.sum())

    def block_of(self, row: int) -> tuple[int, int]:
        """The number of the block that has a row, and the first row of it. O(blocks)."""
        ends = np.cumsum(self.blocks.rows)
        block = int(np.searchsorted(ends, row, side="right"))
        return block, int(ends[block - 1]) if block else 0

    def place_of(self, row: int) -> Place | None:
        """Where to begin to read a row; None where it can be read from its beginning only."""
        if self.blocks.places is None:
            return None
        block, first = self.block_of(row)
        return Place(first, self.blocks.places[block])


@dataclass(slots=True)
class FileLog:
    """Consecutive files of a split, from the one that holds the next record on."""

    files: list[LoggedFile] = field(default_factory=list)

    def locate(self, position: int) -> LoggedFile | None:
        """The file that holds `position`, or after which it will come. O(log n)."""
        place = bisect_right(self.files, position, key=attrgetter("position")) - 1
        return self.files[place] if place >= 0 else None

    def covers(self, start: int, stop: int) -> bool:
        """Whether all records of `[start, stop)` are in these files."""
        return bool(self.files) and self.files[0].position <= start and stop <= self.files[-1].end

    def forget_before(self, position: int) -> None:
        """Drop the files that end at or before `position`, but for the last one."""
        while len(self.files) > 1 and self.files[0].end <= position:
            del self.files[0]


def cut_ranges(
    files: Iterable[LoggedFile], start: int, stop: int, rows_per_range: int
) -> Sequence[tuple[tuple[FileRange, ...], int]]:
    """The records `[start, stop)` as groups of file ranges of about `rows_per_range` rows, with their row counts.

    Cut between blocks, so that none is decoded twice.
    """
    groups: list[tuple[tuple[FileRange, ...], int]] = []
    current: list[FileRange] = []
    rows = 0
    for file in files:
        begun = max(start - file.position, 0)
        last = min(stop, file.end) - file.position
        for end_of_block in np.cumsum(file.blocks.rows).tolist():
            upto = min(end_of_block, last)
            if upto <= begun or not (upto == last or rows + upto - begun >= rows_per_range):
                continue
            if upto < last and file.blocks.places is None:
                continue
            current.append(FileRange(file.path, begun, upto, file.position + begun, file.place_of(begun)))
            rows += upto - begun
            begun = upto
            if rows >= rows_per_range:
                groups.append((tuple(current), rows))
                current, rows = [], 0
    return [*groups, (tuple(current), rows)] if current else groups


class FileSplitSerializer(SimpleVersionedSerializer[FileSplit]):
    """Of a directory `[split id, position, file, row, files]`, of a file `[split id, position, modified_ms, size]`."""

    version = 1

    def to_json(self, value: FileSplit) -> list[object]:
        is_directory = value.modified_ms is None
        place = [value.file, value.row, value.files] if is_directory else [value.modified_ms, value.size]
        return [value.split_id, value.position, *place]

    def serialize(self, value: FileSplit) -> bytes:
        return json.dumps(self.to_json(value), separators=(",", ":")).encode()

    def deserialize(self, version: int, data: bytes) -> FileSplit:
        check_version(version, self.version, "splits")
        try:
            split_id, position, *place = json.loads(data)
            if len(place) <= 2:
                modified_ms, size = [*place, None][:2]
                split = FileSplit(split_id, position, modified_ms=modified_ms, size=size)
            else:
                file, row, files = place
                split = FileSplit(split_id, position, file, row, files)
            _check_types(split)
        except (ValueError, TypeError) as error:
            raise OffsetError(f"damaged offset: {data!r} is no split of files: {error}") from error
        return split


def _check_types(split: FileSplit) -> None:
    names: tuple[object, ...] = (split.split_id, split.file)
    numbers: tuple[object, ...] = (split.position, split.row or 0, split.files, split.modified_ms or 0, split.size or 0)
    if not all(isinstance(name, str) for name in names) or not all(isinstance(number, int) for number in numbers):
        raise TypeError("a name is no text, or a number no number")


@dataclass(frozen=True, slots=True)
class Segment:
    """Finished files, 12 bytes each (see `finished.MARK`), with keys after the segment before and at most `upto`."""

    upto: OrderKey
    marks: bytes


@dataclass(frozen=True, slots=True)
class Remembered:
    """The finished files of an offset.

    Files up to the key `forgotten` are ignored, unless they are in work. Those after it are in `segments`, in order of
    keys; or they are written down in a `log`, of which this is the id, and the last state that it has an entry of.
    """

    forgotten: OrderKey | None = None
    segments: tuple[Segment, ...] = ()
    log: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class FilesCheckpoint:
    """What is remembered beside the splits in work.

    `finished` has the ids of finished splits, sorted, where splits are directories; `remembered` the finished ones
    where they are files. Of a bounded source, files modified after `until_ms` were not there at its start; None before
    that. By name or modification time, `latest_us` is the latest event time in the files that were begun, None before
    any. `split_by` is what a split is; where it is a file, `order` is in which order they are begun, and `by_name` says
    that they are known by their names alone.
    """

    finished: tuple[str, ...] = ()
    remembered: Remembered = field(default_factory=Remembered)
    until_ms: int | None = None
    latest_us: int | None = None
    split_by: Literal["directory", "file"] = "directory"
    order: FileOrder = "eventTime"
    by_name: bool = False


class FilesCheckpointSerializer(SimpleVersionedSerializer[FilesCheckpoint]):
    """`{"finished": [id], "forgotten": key, "remembered": [[key, marks in base 64]], "log": [id, state], ...}`.

    Entries that are empty or the default are left out, but for `finished`.
    """

    version = 1

    def serialize(self, value: FilesCheckpoint) -> bytes:
        state = {
            "finished": value.finished,
            "forgotten": value.remembered.forgotten,
            "remembered": [[s.upto, b64encode(s.marks).decode()] for s in value.remembered.segments] or None,
            "log": value.remembered.log,
            "until": value.until_ms,
            "latest": value.latest_us,
            "splitBy": value.split_by,
            "order": None if value.order == "eventTime" else value.order,
            "byName": value.by_name or None,
        }
        known = {name: entry for name, entry in state.items() if entry is not None}
        return json.dumps(known, separators=(",", ":"), sort_keys=True).encode()

    def deserialize(self, version: int, data: bytes) -> FilesCheckpoint:
        check_version(version, self.version, "enumerator")
        try:
            state = json.loads(data)
            segments = tuple(Segment((ms, path), b64decode(marks)) for (ms, path), marks in state.get("remembered", ()))
            remembered = Remembered(_pair(state.get("forgotten")), segments, _pair(state.get("log")))
            finished = tuple(state["finished"])
            by, order = state.get("splitBy", "directory"), state.get("order", "eventTime")
            until_ms, latest_us, by_name = state.get("until"), state.get("latest"), state.get("byName", False)
            return FilesCheckpoint(finished, remembered, until_ms, latest_us, by, order, by_name)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise OffsetError(f"damaged offset: {data!r} has no finished files: {error!r}") from error


def _pair(value: list[Any] | None) -> tuple[Any, Any] | None:
    return None if value is None else (value[0], value[1])
