"""The offset log of a checkpoint, read without Spark: the offsets of its micro-batches, and which are committed."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from pyarrow import ArrowInvalid, fs

from streaming_source.exceptions import CheckpointError, DataLossError, OffsetError

__all__ = ["RESTORE", "LoggedBatch", "OffsetLog"]

RESTORE: Final = "restore it from a copy of the checkpoint"
"""What to do about a damaged file."""


class LoggedBatch(NamedTuple):
    """One micro-batch of an offset log: the offsets of the sources at its end, None for a source that has not begun."""

    planned_at_us: int
    watermark_us: int
    offsets: list[Any]


class OffsetLog:
    """The offsets of a query's last hundred micro-batches, and which of these are committed.

    `checkpoint` is a local path, or a URI of a file system that Arrow opens (`s3a://`, `hdfs://`). It need not exist.
    `opened` is its file system and its path there, if the caller has opened it.
    """

    def __init__(self, checkpoint: str, opened: tuple[fs.FileSystem, str] | None = None) -> None:
        self.checkpoint = checkpoint
        self.files: fs.FileSystem = fs.LocalFileSystem()
        self.root = checkpoint.rstrip("/")
        if opened is not None:
            self.files, self.root = opened
        elif "://" in checkpoint or checkpoint.startswith("file:"):
            try:
                # `s3a` is Hadoop's name for `s3`.
                self.files, self.root = fs.FileSystem.from_uri(checkpoint.replace("s3a:", "s3:", 1))
            except (ArrowInvalid, NotImplementedError) as error:
                raise CheckpointError(
                    f"{checkpoint}: Arrow knows no such file system; copy it to a local folder: {error}"
                ) from None

    def query_id(self) -> str | None:
        """Return the id of the query that uses the checkpoint; None before one has started."""
        text = self.text("metadata")
        return None if text is None else str(json.loads(text)["id"])

    def committed(self) -> set[int]:
        """Return the numbers of the committed micro-batches. One listing."""
        return set(self._files("commits"))

    def commit_times_us(self) -> dict[int, int]:
        """Return when each of these was committed, by the time of its file. One listing."""
        return {number: (info.mtime_ns or 0) // 1000 for number, info in self._files("commits").items()}

    def batches(self) -> list[int]:
        """Return the numbers of the micro-batches in the log, in order. One listing."""
        return sorted(self.offset_files())

    def offset_files(self) -> dict[int, fs.FileInfo]:
        """Return the files of these offsets, by number. One listing."""
        return self._files("offsets")

    def read(self, batch: int) -> LoggedBatch:
        """Read one micro-batch; a `DataLossError` if Spark has removed it, an `OffsetError` if the file is damaged."""
        name, text = f"{self.checkpoint}/offsets/{batch}", self.text(f"offsets/{batch}")
        if text is None:
            raise DataLossError(f"{self.checkpoint} has no offsets of micro-batch {batch}: Spark keeps the latest 100")
        version, *lines = text.rstrip("\n").split("\n")
        if not version:
            raise OffsetError(f"{name} is empty; {RESTORE}")
        if version not in ("v1", "v2"):
            raise OffsetError(
                f"{name} is of version {version!r}, and v1 and v2 are read; upgrade this library, or {RESTORE}"
            )
        metadata, *offsets = lines or [""]
        if not offsets:
            raise OffsetError(f"{name} is damaged: it has no source; {RESTORE}")
        if version == "v2":
            # Each offset follows the name of its source.
            offsets = [offset.partition(":")[2] for offset in offsets]
        try:
            # Other sources may write any text.
            found = [json.loads(offset) if offset.startswith("{") else None for offset in offsets]
            known = json.loads(metadata)
            return LoggedBatch(known["batchTimestampMs"] * 1000, known["batchWatermarkMs"] * 1000, found)
        except (ValueError, KeyError, TypeError) as error:
            raise OffsetError(f"{name} is damaged: {error!r}; {RESTORE}") from None

    def _files(self, folder: str) -> dict[int, fs.FileInfo]:
        selector = fs.FileSelector(f"{self.root}/{folder}", allow_not_found=True)
        return {int(info.base_name): info for info in self.files.get_file_info(selector) if info.base_name.isdigit()}

    def text(self, name: str) -> str | None:
        """Read a file of the checkpoint; None if there is none of that name, an `OffsetError` if it is no text."""
        try:
            with self.files.open_input_stream(f"{self.root}/{name}") as stream:
                return str(stream.read().decode())
        except FileNotFoundError:
            return None
        except UnicodeDecodeError as error:
            raise OffsetError(
                f"{self.checkpoint}/{name} is damaged: byte {error.start} is not of a text; {RESTORE}"
            ) from None
