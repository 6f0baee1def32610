"""What a query has written into its checkpoint: its offset log is enough, and no Spark is needed."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from pyarrow import ArrowInvalid, fs

from streaming_source.exceptions import CheckpointError, DataLossError, OffsetError
from streaming_source.monitoring.micro_batch import MicroBatch
from streaming_source.monitoring.report import WatermarkReport, report_of_offset

__all__ = ["Checkpoint", "OffsetLog"]


class Checkpoint:
    """A checkpoint directory of a streaming query, which may run or not; `path` is as for `OffsetLog`, and there."""

    def __init__(self, path: str) -> None:
        self._log = OffsetLog(path)
        if not self._log.is_there:
            raise CheckpointError(
                f"{path} is no checkpoint of a streaming query: it has no directory `offsets`; give the "
                "checkpointLocation of the query"
            )

    def history(self) -> list[MicroBatch]:
        """All micro-batches that the offset log still has, oldest first: Spark keeps the last hundred. O(size)."""
        committed, batches = self._log.committed(), []
        # Of each source its watermark, and since when it stands there.
        since: dict[int, tuple[int | None, int]] = {}
        for number in self._log.batches():
            try:
                at_us, watermark_us, offsets = self._log.read(number)
            except DataLossError:
                # A query that runs removes its oldest ones.
                continue
            reports = tuple(_report(place, offset, at_us, since) for place, offset in enumerate(offsets))
            batches.append(MicroBatch(number, at_us, watermark_us, number in committed, reports))
        return batches


def _report(place: int, offset: Any, at_us: int, since: dict[int, tuple[int | None, int]]) -> WatermarkReport | None:
    if not (isinstance(offset, dict) and {"v", "source", "id", "n", "splits"} <= offset.keys()):
        return None
    if place not in since or since[place][0] != offset["watermark"]:
        since[place] = offset["watermark"], at_us
    return report_of_offset(offset, at_us, since[place][1])


class LoggedBatch(NamedTuple):
    """One micro-batch of an offset log: where the sources of the query stand at its end; None for one not begun."""

    planned_at_us: int
    watermark_us: int
    offsets: list[Any]


class OffsetLog:
    """The offsets of a query's micro-batches, of which Spark keeps the latest hundred, and which are committed.

    `checkpoint` is a local path, or a URI of a file system that Arrow knows (`s3a://`, `hdfs://`). It may not be there.
    """

    def __init__(self, checkpoint: str) -> None:
        self.checkpoint = checkpoint
        self.files: fs.FileSystem = fs.LocalFileSystem()
        self.root = checkpoint.rstrip("/")
        if "://" in checkpoint or checkpoint.startswith("file:"):
            try:
                # s3a is Hadoop's name of the same.
                self.files, self.root = fs.FileSystem.from_uri(checkpoint.replace("s3a:", "s3:", 1))
            except (ArrowInvalid, NotImplementedError) as error:
                raise CheckpointError(
                    f"{checkpoint}: Arrow knows no such file system; copy it to a local folder: {error}"
                ) from None

    @property
    def is_there(self) -> bool:
        """Whether a query has begun to write it."""
        return bool(self.files.get_file_info(f"{self.root}/offsets").type is fs.FileType.Directory)

    def query_id(self) -> str | None:
        """Which tells it from another query that has the checkpoint later; None before it has started."""
        text = self.text("metadata")
        return None if text is None else str(json.loads(text)["id"])

    def committed(self) -> set[int]:
        """Numbers of the micro-batches that are known to be done. One listing."""
        return set(self._numbers("commits"))

    def batches(self) -> list[int]:
        """Numbers of the micro-batches of which the offsets are there, in order. One listing."""
        return sorted(self._numbers("offsets"))

    def read(self, batch: int) -> LoggedBatch:
        """One micro-batch; `DataLossError` if Spark has removed it."""
        name, text = f"{self.checkpoint}/offsets/{batch}", self.text(f"offsets/{batch}")
        if text is None:
            raise DataLossError(f"{self.checkpoint} has no offsets of micro-batch {batch}: Spark keeps the latest 100")
        version, metadata, *offsets = text.splitlines() if "\n" in text else (text, "")
        if version not in ("v1", "v2"):
            raise OffsetError(f"{name} is of version {version!r}: only v1 and v2 are read")
        if version == "v2":
            # Each with the name of its source before it.
            offsets = [offset.partition(":")[2] for offset in offsets]
        try:
            # Sources that are not ours write any text.
            found = [json.loads(offset) if offset.startswith("{") else None for offset in offsets]
            known = json.loads(metadata)
            return LoggedBatch(known["batchTimestampMs"] * 1000, known["batchWatermarkMs"] * 1000, found)
        except (ValueError, KeyError, TypeError) as error:
            raise OffsetError(f"{name} is damaged: {error!r}") from error

    def _numbers(self, folder: str) -> list[int]:
        selector = fs.FileSelector(f"{self.root}/{folder}", allow_not_found=True)
        names = [info.base_name for info in self.files.get_file_info(selector)]
        return [int(name) for name in names if name.isdigit()]

    def text(self, name: str) -> str | None:
        """What is in one of its files, if there is one of that name."""
        try:
            with self.files.open_input_stream(f"{self.root}/{name}") as stream:
                return str(stream.read().decode())
        except FileNotFoundError:
            return None
