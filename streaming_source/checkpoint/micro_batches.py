"""The micro-batches that were committed: what each read, and by which watermark it dropped rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from pyarrow import fs

from streaming_source.checkpoint.offset_log import RESTORE, LoggedBatch, OffsetLog
from streaming_source.exceptions import CheckpointError, DataLossError


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
