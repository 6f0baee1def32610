"""The micro-batches in the checkpoint of a query: their offsets, and the watermarks by which they dropped rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Self

from pyarrow import fs

from streaming_source.data_files.stores import NO_STORAGE_OPTIONS, Root, StorageOptions
from streaming_source.exceptions import CheckpointError
from streaming_source.monitoring.offset_log import RESTORE, OffsetLog

__all__ = ["Checkpoint", "CommittedBatch"]

_GIVE: Final = "give the checkpointLocation of the query"
_NO_OFFSET: Final = "-"
_MS: Final = 1_000


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
    starts: tuple[str | None, ...]
    ends: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class _Logged:
    watermark_us: int
    conf: dict[str, Any]
    names: tuple[str, ...]
    offsets: tuple[str | None, ...]


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
    source_names : sequence of str
        The folders of the sources in `sources/`: their names in an offset log of version 2, their places in version 1.
    policy : str
        How Spark combines the watermarks of several `withWatermark`: `min` or `max`.
    """

    path: str
    log: OffsetLog
    batches: Sequence[CommittedBatch]
    purged_until: Sequence[str | None] | None
    source_names: Sequence[str]
    policy: str

    @classmethod
    def open(cls, path: str, storage: StorageOptions = NO_STORAGE_OPTIONS) -> Self:
        """Read the offset log and the commit log: two listings, and one small file a micro-batch.

        Raises
        ------
        CheckpointError
            If it is no checkpoint, has no committed micro-batch, or is damaged.
        """
        log = OffsetLog(path, None if Root(path).is_local else Root(path, storage).open())
        if log.files.get_file_info(f"{log.root}/offsets").type is not fs.FileType.Directory:
            raise CheckpointError(
                f"{path} is no checkpoint of a streaming query: it has no directory `offsets`; {_GIVE}"
            )
        committed = max(log.committed(), default=-1)
        numbers = [number for number in log.batches() if number <= committed]
        if not numbers:
            raise CheckpointError(
                f"{path} has no committed micro-batch: there is nothing to audit yet; wait until the query has written "
                "one"
            )
        logged = {number: found for number in numbers if (found := _logged(log, path, number)) is not None}
        numbers = [number for number in numbers if number in logged]
        for before, number in pairwise(numbers):
            if number != before + 1:
                raise CheckpointError(f"{path}: the offsets of micro-batch {before + 1} are missing; {RESTORE}")
        counts = {len(found.offsets) for found in logged.values()}
        if len(counts) > 1:
            raise CheckpointError(
                f"{path}: its micro-batches have {' and '.join(map(str, sorted(counts)))} sources, and the sources of "
                f"a query never change in number; {RESTORE}"
            )
        return cls(
            path,
            log,
            [_committed(log, path, number, logged) for number in numbers if number == 0 or number - 1 in logged],
            logged[numbers[0]].offsets if numbers[0] > 0 else None,
            logged[numbers[-1]].names,
            str(logged[numbers[-1]].conf.get("spark.sql.streaming.multipleWatermarkPolicy", "min")),
        )

    @property
    def emitted_us(self) -> int:
        """The watermark up to which windows have been emitted: that of the last committed micro-batch."""
        return self.batches[-1].watermark_us if self.batches else 0

    def names_in(self, folder: str) -> list[str]:
        """Return the names in a folder of the checkpoint, sorted; none if there is no such folder. One listing."""
        selector = fs.FileSelector(f"{self.log.root}/{folder}", allow_not_found=True)
        return sorted(info.base_name for info in self.log.files.get_file_info(selector))

    def bytes_of(self, name: str) -> bytes | None:
        """Read a file of the checkpoint; None if there is none of that name."""
        try:
            with self.log.files.open_input_stream(f"{self.log.root}/{name}") as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None


def _logged(log: OffsetLog, path: str, number: int) -> _Logged | None:
    """Read a file of the offset log; None if the running query has just removed it."""
    text = log.text(f"offsets/{number}")
    if text is None:
        return None
    lines = text.rstrip("\n").split("\n")
    version, metadata = [*lines, ""][:2]
    if not version:
        raise CheckpointError(f"{path}/offsets/{number} is empty; {RESTORE}")
    if version not in ("v1", "v2"):
        raise CheckpointError(
            f"{path}/offsets/{number} is of version {version!r}, and v1 and v2 are read; upgrade this library, or "
            f"{RESTORE}"
        )
    try:
        known = json.loads(metadata)
        watermark_us, conf = int(known["batchWatermarkMs"]) * _MS, dict(known.get("conf", {}))
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}/offsets/{number} is damaged ({error!r}); {RESTORE}") from None
    offsets = lines[2:]
    names = tuple(map(str, range(len(offsets))))
    if version == "v2":
        names = tuple(line.partition(":")[0] for line in offsets)
        offsets = [line.partition(":")[2] for line in offsets]
    if not offsets:
        raise CheckpointError(f"{path}/offsets/{number} is damaged: it names no source; {RESTORE}")
    return _Logged(watermark_us, conf, names, tuple(None if text == _NO_OFFSET else text for text in offsets))


def _committed(log: OffsetLog, path: str, number: int, logged: dict[int, _Logged]) -> CommittedBatch:
    own = logged[number]
    before = logged.get(number - 1)
    if before is not None and before.watermark_us > own.watermark_us:
        raise CheckpointError(
            f"{path}: the watermark goes back from micro-batch {number - 1} to {number}, which Spark's never does: the "
            f"files are of two queries; {RESTORE}"
        )
    starts = (None,) * len(own.offsets) if before is None else before.offsets
    late_us = own.watermark_us if before is None else before.watermark_us
    return CommittedBatch(number, late_us, own.watermark_us, _next_us(log, number), starts, own.offsets)


def _next_us(log: OffsetLog, number: int) -> int | None:
    _, _, metadata = (log.text(f"commits/{number}") or "").partition("\n")
    try:
        return int(json.loads(metadata)["nextBatchWatermarkMs"]) * _MS
    except (ValueError, KeyError, TypeError):
        return None
