"""A checkpoint as texts, bytes and listings, and its logs: what each micro-batch was to read, and which were committed.

A folder that is missing is None. Of those that were committed: what each read, and by which watermark it dropped rows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, Self

from pyarrow import ArrowInvalid, fs

from streaming_source.checkpoint import POLICY
from streaming_source.exceptions import CheckpointError, DataLossError
from streaming_source.from_data import as_json

RESTORE: Final = "restore it from a copy of the checkpoint"
"""The advice for a damaged file."""


class CheckpointFiles:
    """The files below a `checkpointLocation`; it need not exist.

    `checkpoint` is a local path, in which `~` is the home, or a URI of a file system that Arrow opens (`s3a://`,
    `hdfs://`). `opened` is its file system and its path there, if the caller has opened it.
    """

    def __init__(self, checkpoint: str, opened: tuple[fs.FileSystem, str] | None = None) -> None:
        self.checkpoint = checkpoint
        self.filesystem: fs.FileSystem = fs.LocalFileSystem()
        self.root = os.path.expanduser(checkpoint).rstrip("/")
        if opened is not None:
            self.filesystem, self.root = opened
        elif "://" in checkpoint or checkpoint.startswith("file:"):
            try:
                # `s3a` is Hadoop's name for `s3`.
                self.filesystem, self.root = fs.FileSystem.from_uri(checkpoint.replace("s3a:", "s3:", 1))
            except (ArrowInvalid, NotImplementedError) as error:
                raise CheckpointError(
                    f"{checkpoint}: Arrow knows no such file system; copy it to a local folder: {error}"
                ) from None

    @property
    def is_remote(self) -> bool:
        """True if reading a file takes requests to a store."""
        return bool(self.filesystem.type_name != "local")

    def query_id(self) -> str | None:
        """Return the id of the query that uses the checkpoint; None before one has started."""
        text = self.text("metadata")
        try:
            return None if text is None else str(as_json(text)["id"])
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{self.checkpoint}/metadata is damaged ({error!r}); {RESTORE}") from None

    def list_folder(self, folder: str) -> dict[str, fs.FileInfo] | None:
        """Return what a folder has, by name; None if there is no such folder. One listing."""
        try:
            found = self.filesystem.get_file_info(fs.FileSelector(f"{self.root}/{folder}"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return {info.base_name: info for info in sorted(found, key=lambda info: str(info.base_name))}

    def numbered(self, folder: str) -> dict[int, fs.FileInfo] | None:
        """Return the entries of a folder whose names are numbers, in order; None if there is no such folder."""
        found = self.list_folder(folder)
        return None if found is None else dict(sorted((int(name), found[name]) for name in found if name.isdigit()))

    def bytes_of(self, name: str) -> bytes | None:
        """Read a file; None if there is none of that name. A `CheckpointError` if it is no file, as a pipe is none."""
        try:
            if not self.is_remote and self.filesystem.get_file_info(f"{self.root}/{name}").type is fs.FileType.Unknown:
                raise CheckpointError(f"{self.checkpoint}/{name} is no file; {RESTORE}")
            with self.filesystem.open_input_stream(f"{self.root}/{name}") as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def text(self, name: str) -> str | None:
        """Read a file of text; None if there is none of that name. A `CheckpointError` if it is no text."""
        data = self.bytes_of(name)
        try:
            return None if data is None else data.decode()
        except UnicodeDecodeError as error:
            raise CheckpointError(
                f"{self.checkpoint}/{name} is damaged: byte {error.start} is not of a text; {RESTORE}"
            ) from None


_OFFSETS: Final = ("v1", "v2")
_COMMITS: Final = ("v1", "v2", "v3")
_NO_OFFSET: Final = "-"
_MS: Final = 1_000
_DAMAGED: Final = (ValueError, KeyError, TypeError, AttributeError, OverflowError)


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """One micro-batch of an offset log. `name` is its file, for errors.

    Attributes
    ----------
    version : str
        `v1`, or `v2`, in which each source has a name.
    policy : str
        The way in which Spark makes one watermark of several: `min` or `max`.
    planned_at_us, watermark_us : int
        Microseconds since the epoch: when it was planned, and Spark's watermark in it, 0 before there is one.
    names : sequence of str
        The folders of the sources in `sources/`: their names in version 2, their numbers in version 1.
    offsets : sequence of (str or None)
        What each source was to be read up to, as its text; None for one that has no offset yet.
    """

    name: str
    version: str
    metadata: str
    policy: str
    planned_at_us: int
    watermark_us: int
    names: Sequence[str]
    offsets: Sequence[str | None]

    @classmethod
    def parse(cls, text: str, name: str) -> Self:
        """Parse a file of the log; `name` is for errors. Raises a `CheckpointError` if it is damaged."""
        version, *lines = text.rstrip("\n").split("\n")
        _check_version(version, _OFFSETS, name)
        metadata, *sources = lines or [""]
        if not sources:
            raise CheckpointError(f"{name} is damaged: it has no source; {RESTORE}")
        names: Sequence[str] = tuple(map(str, range(len(sources))))
        if version == "v2":
            names = tuple(line.partition(":")[0] for line in sources)
            sources = [line.partition(":")[2] for line in sources]
        try:
            if any("/" in one or one.startswith(".") for one in names):
                raise ValueError("the name of a source is a path")
            known = as_json(metadata)
            planned_us, watermark_us = (int(known[f"batch{what}Ms"]) * _MS for what in ("Timestamp", "Watermark"))
            conf = known.get("conf") or {}
            if not isinstance(conf, dict):
                raise TypeError("its conf is no object")
        except _DAMAGED as error:
            raise CheckpointError(f"{name} is damaged ({error!r}); {RESTORE}") from None
        offsets = tuple(None if offset == _NO_OFFSET else offset for offset in sources)
        return cls(
            name=name,
            version=version,
            metadata=metadata,
            policy=str(conf.get(POLICY, "min")).lower(),
            planned_at_us=planned_us,
            watermark_us=watermark_us,
            names=names,
            offsets=offsets,
        )

    def __str__(self) -> str:
        """Return the text of the file."""
        lines = [_NO_OFFSET if offset is None else offset for offset in self.offsets]
        if self.version == "v2":
            lines = [f"{name}:{line}" for name, line in zip(self.names, lines, strict=True)]
        return "\n".join([self.version, self.metadata, *lines])

    def parsed(self) -> list[Any]:
        """Return the offsets as JSON, None for what is no object: other sources may write any text."""
        try:
            return [as_json(text) if text is not None and text.startswith("{") else None for text in self.offsets]
        except ValueError as error:
            raise CheckpointError(f"{self.name} is damaged ({error!r}); {RESTORE}") from None

    def with_offset(self, source: int, text: str) -> LoggedBatch:
        """Return it with another offset of one source."""
        return replace(self, offsets=(*self.offsets[:source], text, *self.offsets[source + 1 :]))


class OffsetLog(CheckpointFiles):
    """The offsets of a query's last hundred micro-batches, and which of these are committed.

    The checkpoint is as for `CheckpointFiles`. It need not exist.
    """

    def committed(self) -> set[int]:
        """Return the numbers of the committed micro-batches. One listing."""
        return set(self.numbered("commits") or ())

    def commit_times_us(self) -> dict[int, int]:
        """Return when each of these was committed, by the time of its file. One listing."""
        return {number: (info.mtime_ns or 0) // 1000 for number, info in (self.numbered("commits") or {}).items()}

    def batches(self) -> list[int]:
        """Return the numbers of the micro-batches in the log, in order. One listing."""
        return list(self.numbered("offsets") or ())

    def offset_files(self) -> dict[int, fs.FileInfo]:
        """Return the files of the offsets, by number; a `CheckpointError` if this is no checkpoint. One listing."""
        files = self.numbered("offsets")
        if files is None:
            raise CheckpointError(
                f"{self.checkpoint} is no checkpoint of a streaming query: it has no directory `offsets`; give the "
                "checkpointLocation of the query. If it is that, the checkpoint was deleted, and the query would begin "
                "anew with it"
            )
        return files

    def read(self, batch: int) -> LoggedBatch:
        """Read one micro-batch; a `DataLossError` if Spark has removed it, a `CheckpointError` if it is damaged."""
        text = self.text(f"offsets/{batch}")
        if text is None:
            raise DataLossError(
                f"{self.checkpoint} has no offsets of micro-batch {batch}: Spark keeps the latest 100. Name a "
                f"micro-batch that {self.checkpoint}/offsets has; spark.sql.streaming.minBatchesToRetain keeps more"
            )
        return LoggedBatch.parse(text, f"{self.checkpoint}/offsets/{batch}")

    def source_folders(self, batches: Sequence[LoggedBatch]) -> Sequence[str]:
        """Return the folder in `sources/` of each source. One listing.

        A stream that is joined with itself is one source of Spark's, with one folder: the log has its offset once for
        each side, and both are equal in all `batches`.
        """
        names = batches[-1].names
        found = self.list_folder("sources") or {}
        logged = list(zip(*(one.offsets for one in batches), strict=False))
        folders = {offsets: str(number) for number, offsets in enumerate(dict.fromkeys(logged))}
        # In version 2 a source has a name, whatever its place.
        is_by_place = batches[-1].version == _OFFSETS[0]
        if not is_by_place or {name for name in found if name.isdigit()} != {*folders.values()}:
            return names
        return tuple(folders[offsets] for offsets in logged)

    def next_watermark_us(self, batch: int) -> int | None:
        """Return the watermark that follows from the rows of a committed micro-batch; None if it is not committed.

        That is None as well in the commit log of a query that has never had a watermark.
        """
        text = self.text(f"commits/{batch}")
        if text is None:
            return None
        name = f"{self.checkpoint}/commits/{batch}"
        version, _, metadata = text.partition("\n")
        _check_version(version, _COMMITS, name)
        try:
            found = as_json(metadata).get("nextBatchWatermarkMs")
            return None if found is None else int(found) * _MS
        except _DAMAGED as error:
            raise CheckpointError(f"{name} is damaged ({error!r}); {RESTORE}") from None


def _check_version(version: str, known: Sequence[str], name: str) -> None:
    if not version:
        raise CheckpointError(f"{name} is empty; {RESTORE}")
    if version not in known:
        read = f"{', '.join(known[:-1])} and {known[-1]}"
        raise CheckpointError(
            f"{name} is of version {version!r}, and {read} are read; upgrade this library, or {RESTORE}"
        )


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """One micro-batch that was committed. Watermarks are in microseconds since the epoch.

    Spark dropped rows by `late_us`, the watermark of the micro-batch before, and emitted windows by `watermark_us`, its
    own. `next_us` is the watermark that follows from its rows, None if the commit log lacks it. `starts` and `ends` are
    the offsets of the sources as text, None for a source without one.
    """

    number: int
    late_us: int
    watermark_us: int
    next_us: int | None
    starts: Sequence[str | None]
    ends: Sequence[str | None]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The checkpoint of a query over any sources, which may run or not. Nothing is written to it.

    Attributes
    ----------
    batches : sequence of CommittedBatch
        Those whose watermarks Spark still has, oldest first.
    purged_until : sequence of (str or None), or None
        The offsets of the sources at the beginning of the first of `batches`, if Spark has removed earlier ones; None
        if the log has the whole query.
    source_folders : sequence of str
        The folder of each source in `sources/`; both sides of a stream that is joined with itself have the same one.
    policy : str
        How Spark combines the watermarks of several `withWatermark`: `min` or `max`.
    """

    path: str
    log: OffsetLog
    batches: Sequence[CommittedBatch]
    purged_until: Sequence[str | None] | None
    source_folders: Sequence[str]
    policy: str

    @classmethod
    def open(cls, path: str, opened: tuple[fs.FileSystem, str] | None = None) -> Self:
        """Read the offset log and the commit log: two listings, and two small files a micro-batch.

        Raises
        ------
        CheckpointError
            If it is no checkpoint, has no committed micro-batch, is damaged, or lacks a file that Spark had written.
        """
        log = OffsetLog(path, opened)
        logged = _logged(log)
        numbers = list(logged)
        _check(path, logged)
        last = logged[numbers[-1]]
        return cls(
            path,
            log,
            [_committed(log, path, number, logged) for number in numbers if number == 0 or number - 1 in logged],
            logged[numbers[0]].offsets if numbers[0] > 0 else None,
            log.source_folders(list(logged.values())),
            last.policy,
        )

    @property
    def emitted_us(self) -> int:
        """The watermark up to which windows have been emitted: that of the last committed micro-batch."""
        return self.batches[-1].watermark_us if self.batches else 0


def _logged(log: OffsetLog) -> dict[int, LoggedBatch]:
    """Read the offsets of all committed micro-batches that are still there, in order."""
    # A running query goes on meanwhile: what is not committed at first is in no count, but may be committed by then.
    before, planned = log.committed(), list(log.offset_files())
    commits, committed = before | log.committed(), max(before, default=-1)
    if not planned or (not before and planned == [0]):
        raise CheckpointError(
            f"{log.checkpoint} has no committed micro-batch: there is nothing to audit yet; wait until the query has "
            "written one"
        )
    # Spark plans a micro-batch when the one before is committed, and removes the oldest of both logs one by one.
    if lost := sorted(set(range(planned[0] + 1, planned[-1])) - commits):
        raise CheckpointError(
            f"{log.checkpoint}: micro-batch {lost[0]} is not in `commits`, and later ones were planned, which Spark "
            f"does only after it was committed; {RESTORE}"
        )
    if planned[-1] < committed:
        raise CheckpointError(
            f"{log.checkpoint}: the offsets of micro-batch {planned[-1] + 1}, which is in `commits`, are missing; "
            f"{RESTORE}"
        )
    found = {}
    for number in planned:
        if number <= committed:
            try:
                found[number] = log.read(number)
            except DataLossError:
                # A query that runs removes its oldest ones.
                continue
    return found


def _check(path: str, logged: Mapping[int, LoggedBatch]) -> None:
    for before, number in pairwise(logged):
        if number != before + 1:
            raise CheckpointError(f"{path}: the offsets of micro-batch {before + 1} are missing; {RESTORE}")
        if logged[before].watermark_us > logged[number].watermark_us:
            raise CheckpointError(
                f"{path}: the watermark goes back from micro-batch {before} to {number}, which Spark's never does: the "
                f"files are of two queries; {RESTORE}"
            )
    counts = {len(found.offsets) for found in logged.values()}
    if len(counts) > 1:
        raise CheckpointError(
            f"{path}: its micro-batches have {' and '.join(map(str, sorted(counts)))} sources, and the sources of a "
            f"query never change in number; {RESTORE}"
        )


def _committed(log: OffsetLog, path: str, number: int, logged: Mapping[int, LoggedBatch]) -> CommittedBatch:
    own = logged[number]
    before = logged.get(number - 1)
    starts = (None,) * len(own.offsets) if before is None else before.offsets
    late_us = own.watermark_us if before is None else before.watermark_us
    return CommittedBatch(number, late_us, own.watermark_us, log.next_watermark_us(number), starts, own.offsets)
