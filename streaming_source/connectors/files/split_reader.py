"""Fetching records of files."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import pyarrow as pa
from pyarrow import fs

from streaming_source.api import RecordBlock, RecordsWithSplitIds, SplitReader, SplitsAddition
from streaming_source.connectors.files.parquet import read_rows
from streaming_source.connectors.files.split import FileSplit

__all__ = ["FileSplitReader"]


class FileSplitReader(SplitReader[FileSplit]):
    """Reads the ranges of its splits one after another, a batch a fetch.

    Parameters
    ----------
    filesystem
        Where the files lie.
    schema
        Columns to read.
    """

    def __init__(self, filesystem: fs.FileSystem, schema: pa.Schema) -> None:
        self._filesystem = filesystem
        self._schema = schema
        self._waiting: deque[FileSplit] = deque()
        self._current: tuple[str, Iterator[RecordBlock]] | None = None

    def handle_splits_changes(self, change: SplitsAddition[FileSplit]) -> None:
        """See `SplitReader`."""
        self._waiting.extend(change.splits)

    def fetch(self) -> RecordsWithSplitIds:
        """See `SplitReader`."""
        if self._current is None:
            if not self._waiting:
                return RecordsWithSplitIds()
            split = self._waiting.popleft()
            self._current = split.split_id, self._blocks(split)
        split_id, blocks = self._current
        block = next(blocks, None)
        if block is None:
            self._current = None
            return RecordsWithSplitIds(finished_splits=frozenset({split_id}))
        return RecordsWithSplitIds([(split_id, block)])

    def _blocks(self, split: FileSplit) -> Iterator[RecordBlock]:
        for part in split.ranges:
            position = part.position
            for batch in read_rows(self._filesystem, part.path, part.start, part.stop, self._schema):
                yield RecordBlock(batch, position)
                position += batch.num_rows
