"""Computing the records of splits."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pyarrow as pa

from streaming_source.api import RecordBlock, RecordsBySplits, SplitReader, SplitsAddition, SplitsChange
from streaming_source.connectors.datagen.generator import RecordGenerator
from streaming_source.connectors.datagen.split import GeneratedSplit

__all__ = ["GeneratorSplitReader"]

_BATCH_ROWS: Final = 32_768


class GeneratorSplitReader(SplitReader[GeneratedSplit]):
    """Computes the ranges of its splits one after another, a batch a fetch.

    Parameters
    ----------
    generator
        What the records are.
    schema
        Columns to compute.
    """

    def __init__(self, generator: RecordGenerator, schema: pa.Schema) -> None:
        self._generator = generator
        self._schema = schema
        # In order of their addition, each with the position that is next.
        self._unread: dict[str, GeneratedSplit] = {}

    def handle_splits_changes(self, change: SplitsChange[GeneratedSplit]) -> None:
        """See `SplitReader`."""
        for split in change.splits:
            if isinstance(change, SplitsAddition):
                self._unread[split.split_id] = split
            else:
                self._end(split.split_id)

    def fetch(self) -> RecordsBySplits[RecordBlock]:
        """See `SplitReader`."""
        split = next(iter(self._unread.values()), None)
        if split is None:
            return RecordsBySplits()
        assert split.stop is not None, "a split for a reader says where to stop"
        stop = min(split.position + _BATCH_ROWS, split.stop)
        batch, times = self._generator.batch(split.number, split.position, stop, self._schema)
        blocks = {split.split_id: [RecordBlock(batch, split.position, times)]}
        if stop < split.stop:
            self._unread[split.split_id] = replace(split, position=stop)
            return RecordsBySplits(blocks)
        self._end(split.split_id)
        return RecordsBySplits(blocks, finished_splits={split.split_id})

    def _end(self, split_id: str) -> None:
        self._unread.pop(split_id, None)
