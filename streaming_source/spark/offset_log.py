"""What a query has written into its checkpoint, read by others than Spark."""

from __future__ import annotations

import json
from typing import Any

from pyarrow import fs

from streaming_source.exceptions import DataLossError, OffsetError

__all__ = ["OffsetLog"]


class OffsetLog:
    """The offsets of a query's micro-batches, of which Spark keeps the latest hundred, and which are committed.

    Parameters
    ----------
    checkpoint
        `checkpointLocation` of the query: a local path, or a URI that pyarrow opens. It need not be there yet.
    """

    def __init__(self, checkpoint: str) -> None:
        self.checkpoint = checkpoint
        is_local = "://" not in checkpoint and not checkpoint.startswith("file:")
        self._files: fs.FileSystem
        self._root: str
        self._files, self._root = (fs.LocalFileSystem(), checkpoint) if is_local else fs.FileSystem.from_uri(checkpoint)

    def query_id(self) -> str | None:
        """Which tells it from another query that has the checkpoint later; None before it has started."""
        text = self._text("metadata")
        return None if text is None else str(json.loads(text)["id"])

    def last_committed(self) -> int | None:
        """Number of the latest micro-batch that is done; None if there is none. One listing."""
        return max(self._numbers("commits"), default=None)

    def batches(self) -> list[int]:
        """Numbers of the micro-batches of which the offsets are there, in order. One listing."""
        return sorted(self._numbers("offsets"))

    def offsets(self, batch: int) -> list[Any]:
        """Where the sources of the query stand at the end of a micro-batch; None for one that has not begun.

        Raises
        ------
        DataLossError
            If they are not there any more.
        OffsetError
            If the log is of another version than Spark 4 writes.
        """
        text = self._text(f"offsets/{batch}")
        if text is None:
            raise DataLossError(f"{self.checkpoint} has no offsets of micro-batch {batch}: Spark keeps the latest 100")
        version, _, *offsets = text.splitlines()
        if version != "v1":
            raise OffsetError(f"{self.checkpoint}/offsets/{batch} is of version {version!r}: only v1 is read")
        return [None if offset == "-" else json.loads(offset) for offset in offsets]

    def _numbers(self, folder: str) -> list[int]:
        selector = fs.FileSelector(f"{self._root}/{folder}", allow_not_found=True)
        names = [info.base_name for info in self._files.get_file_info(selector)]
        return [int(name) for name in names if name.isdigit()]

    def _text(self, name: str) -> str | None:
        try:
            with self._files.open_input_stream(f"{self._root}/{name}") as stream:
                return str(stream.read().decode())
        except FileNotFoundError:
            return None
