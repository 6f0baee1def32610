"""Reads what a checkpoint says of the sources of a query: its offset log is enough, and no Spark is needed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from pyarrow import fs

from streaming_source.exceptions import CheckpointError
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
        The query's `checkpointLocation`: a local path, or a URI of a file system that Arrow knows (`s3://`, `hdfs://`).

    Raises
    ------
    CheckpointError
        If there is no offset log.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        if "://" in path or path.startswith("file:"):
            self._files, root = fs.FileSystem.from_uri(path)
        else:
            self._files, root = fs.LocalFileSystem(), path
        self._root = root.rstrip("/")
        if self._files.get_file_info(f"{self._root}/offsets").type is not fs.FileType.Directory:
            raise CheckpointError(
                f"{path} is no checkpoint of a streaming query: it has no directory `offsets`; give the "
                "checkpointLocation of the query"
            )

    def history(self) -> list[MicroBatch]:
        """All micro-batches that the offset log still has, oldest first: Spark keeps the last hundred. O(size)."""
        committed = set(self._numbers("commits"))
        since: dict[int, tuple[int | None, int]] = {}
        batches = []
        for number in self._numbers("offsets"):
            lines = self._read(f"offsets/{number}")
            if lines is None:
                continue
            metadata, offsets = _parsed(lines, f"{self.path}/offsets/{number}")
            at_us = int(metadata["batchTimestampMs"]) * 1000
            reports = tuple(_report(place, offset, at_us, since) for place, offset in enumerate(offsets))
            watermark_us = int(metadata.get("batchWatermarkMs", 0)) * 1000
            batches.append(MicroBatch(number, at_us, watermark_us, number in committed, reports))
        return batches

    def latest(self) -> MicroBatch | None:
        """The last micro-batch that was planned; None if none was. As `history`, since when the watermark stands."""
        history = self.history()
        return history[-1] if history else None

    # ---- inside --------------------------------------------------------------------------------------------------

    def _numbers(self, folder: str) -> list[int]:
        selector = fs.FileSelector(f"{self._root}/{folder}", allow_not_found=True)
        return sorted(int(file.base_name) for file in self._files.get_file_info(selector) if file.base_name.isdigit())

    def _read(self, name: str) -> list[str] | None:
        try:
            with self._files.open_input_stream(f"{self._root}/{name}") as file:
                return bytes(file.read()).decode().splitlines()
        except FileNotFoundError:
            # A running query removes its oldest ones.
            return None


def _parsed(lines: Sequence[str], name: str) -> tuple[dict[str, Any], list[Any]]:
    version, metadata, *written = lines if len(lines) > 1 else ("", "")
    if version not in ("v1", "v2"):
        raise CheckpointError(f"{name} begins with {version!r}: only offset logs of the versions v1 and v2 are known")
    if version == "v2":
        # Each with the name of its source before it.
        written = [line.partition(":")[2] for line in written]
    try:
        # A source without data yet is a dash, and other sources may write anything.
        return json.loads(metadata), [json.loads(line) if line.startswith("{") else None for line in written]
    except ValueError as error:
        raise CheckpointError(f"{name} is damaged: {error}") from error


def _report(place: int, offset: Any, at_us: int, since: dict[int, tuple[int | None, int]]) -> WatermarkReport | None:
    """Of the source at a place of the query; `since` remembers where its watermark stood, and since when."""
    if not (isinstance(offset, dict) and {"v", "source", "id", "n", "splits"} <= offset.keys()):
        return None
    if place not in since or since[place][0] != offset["watermark"]:
        since[place] = offset["watermark"], at_us
    return report_of_offset(offset, at_us, since[place][1])
