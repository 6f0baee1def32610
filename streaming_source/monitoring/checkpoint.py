"""Reads what a checkpoint says of the sources of a query: its offset log is enough, and no Spark is needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from streaming_source.exceptions import CheckpointError, DataLossError
from streaming_source.monitoring.offset_log import OffsetLog
from streaming_source.monitoring.offsets import report_of_offset
from streaming_source.monitoring.report import WatermarkReport
from streaming_source.monitoring.statistics import Statistics, epoch_us

__all__ = ["Checkpoint", "MicroBatch"]

_NO_WATERMARK: Final = "1970-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One micro-batch of a query.

    Attributes
    ----------
    number
        As Spark counts them.
    planned_at_us
        Processing time, in microseconds since the epoch.
    watermark_us
        Spark's own watermark in it: that of the micro-batch before, of all sources, to the millisecond.
    is_committed
        Whether it was read and written to its end.
    sources
        Of each source of the query what its offset says; None of one that is not of this library.
    statistics
        What Spark counted in it; None of a checkpoint, which does not say.
    """

    number: int
    planned_at_us: int
    watermark_us: int
    is_committed: bool
    sources: tuple[WatermarkReport | None, ...]
    statistics: Statistics | None = None

    @classmethod
    def of_progress(cls, progress: Mapping[str, Any]) -> Self:
        """The same from the progress of a query, as its listeners get it: a micro-batch that is done."""
        return cls(
            progress["batchId"],
            epoch_us(progress["timestamp"]),
            epoch_us(progress["eventTime"].get("watermark", _NO_WATERMARK)),
            True,
            tuple(WatermarkReport.of_progress(progress)),
            Statistics.of_progress(progress),
        )


class Checkpoint:
    """A checkpoint directory of a streaming query, which may run or not.

    Parameters
    ----------
    path
        The query's `checkpointLocation`; see `OffsetLog`.

    Raises
    ------
    CheckpointError
        If there is no offset log.
    """

    def __init__(self, path: str) -> None:
        self._log = OffsetLog(path)
        if not self._log.is_there:
            raise CheckpointError(
                f"{path} is no checkpoint of a streaming query: it has no directory `offsets`; give the "
                "checkpointLocation of the query"
            )

    def history(self) -> list[MicroBatch]:
        """All micro-batches that the offset log still has, oldest first: Spark keeps the last hundred. O(size).

        Raises
        ------
        OffsetError
            If the log is damaged, or of another version than Spark 4 writes.
        """
        return list(self._batches())

    def _batches(self) -> Iterator[MicroBatch]:
        committed = self._log.committed()
        # Of each source its watermark, and since when it stands there.
        since: dict[int, tuple[int | None, int]] = {}
        for number in self._log.batches():
            try:
                at_us, watermark_us, offsets = self._log.read(number)
            except DataLossError:
                # A query that runs removes its oldest ones.
                continue
            reports = tuple(_report(place, offset, at_us, since) for place, offset in enumerate(offsets))
            yield MicroBatch(number, at_us, watermark_us, number in committed, reports)


def _report(place: int, offset: Any, at_us: int, since: dict[int, tuple[int | None, int]]) -> WatermarkReport | None:
    if not (isinstance(offset, dict) and {"v", "source", "id", "n", "splits"} <= offset.keys()):
        return None
    if place not in since or since[place][0] != offset["watermark"]:
        since[place] = offset["watermark"], at_us
    return report_of_offset(offset, at_us, since[place][1])
