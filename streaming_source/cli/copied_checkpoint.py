"""A checkpoint copied for another source: its last offsets are replaced by ours, all else is unchanged."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

import numpy as np
from pyarrow import fs

from alignment.combine import SplitStatus
from alignment.plan import WatermarkTable
from alignment.watermarks import LONG_AGO_US, MIN_WATERMARK
from streaming_source.api import SourceSplit
from streaming_source.checkpoint.offset_log import LoggedBatch, OffsetLog
from streaming_source.coordinator import SourceState
from streaming_source.exceptions import OffsetError, OptionError

_VERSION: Final = "v1"
GIVE_NUMBER: Final = "give the number of that source, as it is in the query's progress"
"""The advice where an offset is of another kind of source."""

Encode: TypeAlias = Callable[[int, str, int], object]
"""Sequence number of a state, offset of Spark's own source, watermark in milliseconds -> our offset, for JSON."""


class CopiedCheckpoint:
    """The checkpoint of a stopped query, to be copied with our offsets in place of those of its source `source`.

    Of a stream that is joined with itself both sides are replaced: they are one source, whichever is named.

    Raises
    ------
    OptionError
        If there is no checkpoint, or the new place is not empty.
    OffsetError
        If Spark itself could not continue from the checkpoint.
    """

    def __init__(self, checkpoint: str, new_checkpoint: str, source: int) -> None:
        self._checkpoint, self._source = checkpoint, source
        self._old, self._new = OffsetLog(checkpoint), OffsetLog(new_checkpoint)
        batches, self._commits = self._old.batches(), self._old.committed()
        if not batches:
            raise OptionError(
                f"checkpoint = {checkpoint!r}: there are no offsets; give the checkpointLocation of the query"
            )
        if self._new.filesystem.get_file_info(self._new.root).type is not fs.FileType.NotFound:
            raise OptionError(
                f"new_checkpoint = {new_checkpoint!r}: there is something already; give a place with nothing"
            )
        self._last = batches[-1]
        self._kept = [number for number in (self._last - 1, self._last) if number >= 0]
        is_whole = {*self._kept} <= {*batches} and max(self._commits, default=-1) in (self._last, self._last - 1)
        if not is_whole:
            raise OffsetError(
                f"checkpoint {checkpoint!r} is damaged: Spark itself could not go on from it; start the new query with "
                "startingOffsets and a new checkpointLocation"
            )
        self._folders = self._old.source_folders([self._old.read(number) for number in self._kept])

    @property
    def folder(self) -> str:
        """The folder of the source in `sources/`."""
        return self._folders[self._source] if self._source < len(self._folders) else str(self._source)

    @property
    def next_batch(self) -> int:
        """The number of the micro-batch with which the copy continues."""
        return self._last + (self._last in self._commits)

    @property
    def is_read_again(self) -> bool:
        """True if Spark had planned the next micro-batch and not committed it."""
        return self._last not in self._commits

    @property
    def last_offset(self) -> str | None:
        """The last offset of the source, as text; None if the query has read nothing of it yet."""
        return self._read(self._last).offsets[self._source]

    def text(self, name: str) -> str:
        """Read a file of the old checkpoint; raises an `OffsetError` if it is missing."""
        text = self._old.text(name)
        if text is None:
            raise OffsetError(
                f"checkpoint {self._old.root!r} has no {name}: no source of that number is Spark's; give the number of "
                "another one, as it is in the query's progress"
            )
        return text

    def write(self, encode: Encode) -> None:
        """Copy the checkpoint, with the last two offsets replaced by `encode`; if that raises, no copy is left."""
        written = {number: self._offsets(sequence, number, encode) for sequence, number in enumerate(self._kept, 1)}
        # All but the offsets: Spark reads only the last two, so the copy has only these, all of them ours.
        fs.copy_files(self._old.root, self._new.root, self._old.filesystem, self._new.filesystem)
        self._new.filesystem.delete_dir_contents(f"{self._new.root}/offsets")
        for number, text in written.items():
            with self._new.filesystem.open_output_stream(f"{self._new.root}/offsets/{number}") as stream:
                stream.write(text.encode())

    def _read(self, number: int) -> LoggedBatch:
        logged = self._old.read(number)
        if logged.version != _VERSION or self._source >= len(logged.offsets):
            raise OffsetError(
                f"offsets/{number} of checkpoint {self._checkpoint!r} has version {logged.version} and "
                f"{len(logged.offsets)} sources, source {self._source} of version {_VERSION} was wanted; see `sources` "
                "in the query's progress for the number"
            )
        return logged

    def _offsets(self, sequence: int, number: int, encode: Encode) -> str:
        logged = self._read(number)
        offset = logged.offsets[self._source]
        if offset is not None:
            watermark_us = max(logged.watermark_us, self._old.next_watermark_us(number) or 0)
            ours = encode(sequence, offset, watermark_us // 1_000)
            text = json.dumps(ours, separators=(",", ":"))
            for side in (place for place, folder in enumerate(self._folders) if folder == self.folder):
                logged = logged.with_offset(side, text)
        return str(logged)


def state_at(sequence: int, splits: Iterable[SourceSplit], watermark_ms: int, checkpoint: Any) -> SourceState[Any, Any]:
    """Return a state with these splits in work; records at or below Spark's watermark stay late."""
    ordered = sorted(splits, key=lambda split: split.split_id)
    n, watermark = len(ordered), watermark_ms * 1000 if watermark_ms > 0 else MIN_WATERMARK
    table = WatermarkTable(
        split_ids=tuple(split.split_id for split in ordered),
        watermarks=np.full(n, watermark, np.int64),
        statuses=np.full(n, SplitStatus.ACTIVE, np.int8),
        combined=watermark,
    )
    nothing, unknown = np.zeros(n, np.int64), np.full(n, LONG_AGO_US, np.int64)
    return SourceState(sequence, tuple(ordered), table, nothing, unknown, checkpoint)
