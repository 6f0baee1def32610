"""Fetching records of files."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

import pyarrow as pa

from streaming_source.api import RecordBlock, RecordsBySplits, SplitReader, SplitsAddition, SplitsChange
from streaming_source.connectors.files.config import FilesConfig
from streaming_source.connectors.files.formats import FileRows, StoredFile
from streaming_source.connectors.files.retries import StoreRetries
from streaming_source.connectors.files.split import FileSplit

__all__ = ["FileSplitReader"]


class FileSplitReader(SplitReader[FileSplit]):
    """Reads the columns `schema` of the ranges of its splits one after another, a batch a fetch."""

    def __init__(self, config: FilesConfig, schema: pa.Schema) -> None:
        self._config = config
        self._filesystem, _ = config.root.open()
        self._format = config.reading
        self._place_columns = config.place_columns
        self._schema = schema
        self._retries = StoreRetries()
        # In order of their addition; a file is opened when its first block is fetched.
        self._unread: dict[str, Generator[RecordBlock]] = {}

    def handle_splits_changes(self, change: SplitsChange[FileSplit]) -> None:
        for split in change.splits:
            if isinstance(change, SplitsAddition):
                self._unread[split.split_id] = self._blocks(split)
            else:
                self._end(split.split_id)

    def fetch(self) -> RecordsBySplits[RecordBlock]:
        split_id = next(iter(self._unread), None)
        if split_id is None:
            return RecordsBySplits()
        block = next(self._unread[split_id], None)
        if block is None:
            self._end(split_id)
            return RecordsBySplits(finished_splits={split_id})
        return RecordsBySplits({split_id: [block]})

    def close(self) -> None:
        for split_id in list(self._unread):
            self._end(split_id)

    def _end(self, split_id: str) -> None:
        blocks = self._unread.pop(split_id, None)
        if blocks is not None:
            blocks.close()

    def _blocks(self, split: FileSplit) -> Generator[RecordBlock]:
        """What is left to read of the split's ranges from its position on."""
        for part in split.ranges:
            read = min(max(split.position - part.position, 0), part.stop - part.start)
            if read == part.stop - part.start:
                continue
            position_of_row_0 = part.position - part.start
            start = part.start + read
            file = StoredFile(self._filesystem, part.path, self._place_columns)
            with self._config.tolerated():
                for block in self._rows(FileRows(file, start, part.stop, part.place)):
                    yield RecordBlock(block.batch, block.positions + position_of_row_0)

    def _rows(self, unread: FileRows) -> Generator[RecordBlock]:
        """The rows, from behind the last one on where the store failed for a moment."""
        rows = self._format.read_rows(unread, self._schema)

        def next_block() -> RecordBlock | None:
            nonlocal rows
            try:
                return next(rows, None)
            except BaseException:
                rows = self._format.read_rows(unread, self._schema)
                raise

        while (block := self._retries.run(next_block)) is not None:
            unread = replace(unread, start=block.next_position or unread.start)
            yield block
