"""Splits of files, and how offsets write them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from streaming_source.api import SimpleVersionedSerializer, SourceSplit
from streaming_source.connectors.files.formats import Place
from streaming_source.exceptions import OffsetError

__all__ = ["FileRange", "FileSplit", "FileSplitSerializer", "FilesCheckpoint", "FilesCheckpointSerializer"]


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

    Attributes
    ----------
    split_id
        Path of the directory or file below the source's root.
    position
        Number of the next record.
    file, row
        For a directory, the name of the file in which that record is, and its row there; the files before it by name
        are read. None as row says that this file is read too, and the record will come in a later one. Empty and 0 at
        the origin and for a single file.
    files
        For a directory, how many files up to and with `file` there were: more of them later are news, not read ones.
    modified_ms
        For a single file, when it was last modified.
    ranges
        For a reader only: what to read.
    """

    split_id: str
    position: int = 0
    file: str = ""
    row: int | None = 0
    files: int = 0
    modified_ms: int = 0
    ranges: tuple[FileRange, ...] = ()

    def origin(self) -> FileSplit:
        """See `SourceSplit`."""
        return FileSplit(self.split_id, modified_ms=self.modified_ms)

    def to_read(self, ranges: tuple[FileRange, ...]) -> FileSplit:
        """The split with what a reader shall read of it."""
        return replace(self, ranges=ranges)


class FileSplitSerializer(SimpleVersionedSerializer[FileSplit]):
    """For a directory `[split id, position, file, row, files]`, for a file `[split id, position, modified ms]`."""

    @property
    def version(self) -> int:
        """See `SimpleVersionedSerializer`."""
        return 1

    def serialize(self, value: FileSplit) -> bytes:
        """See `SimpleVersionedSerializer`."""
        place = [value.modified_ms] if value.modified_ms else [value.file, value.row, value.files]
        return json.dumps([value.split_id, value.position, *place], separators=(",", ":")).encode()

    def deserialize(self, version: int, data: bytes) -> FileSplit:
        """See `SimpleVersionedSerializer`."""
        _check_version(version, self.version, "splits")
        split_id, position, *place = json.loads(data)
        if len(place) == 1:
            return FileSplit(split_id, position, modified_ms=place[0])
        file, row, files = place
        return FileSplit(split_id, position, file, row, files)


@dataclass(frozen=True, slots=True)
class FilesCheckpoint:
    """What is remembered beside the splits in work.

    Attributes
    ----------
    finished
        Modification time in milliseconds of each finished split, by its id.
    forgotten_ms
        Files last modified at or before this are not looked at any more, unless they are in work; None while nothing
        was forgotten.
    until_ms
        Of a bounded source: files modified after this were not there at its start; None before that.
    """

    finished: tuple[tuple[str, int], ...] = ()
    forgotten_ms: int | None = None
    until_ms: int | None = None


class FilesCheckpointSerializer(SimpleVersionedSerializer[FilesCheckpoint]):
    """`{"finished": {id: ms}, "forgotten": ms, "until": ms}`."""

    @property
    def version(self) -> int:
        """See `SimpleVersionedSerializer`."""
        return 1

    def serialize(self, value: FilesCheckpoint) -> bytes:
        """See `SimpleVersionedSerializer`."""
        state = {"finished": dict(value.finished), "forgotten": value.forgotten_ms, "until": value.until_ms}
        return json.dumps(state, separators=(",", ":"), sort_keys=True).encode()

    def deserialize(self, version: int, data: bytes) -> FilesCheckpoint:
        """See `SimpleVersionedSerializer`."""
        _check_version(version, self.version, "enumerator")
        state = json.loads(data)
        return FilesCheckpoint(tuple(sorted(state["finished"].items())), state["forgotten"], state["until"])


def _check_version(version: int, known: int, what: str) -> None:
    if version > known:
        raise OffsetError(
            f"the offset's {what} have version {version}, this library reads up to {known}: they were written by a "
            "newer one; upgrade spark-watermark-alignment"
        )
