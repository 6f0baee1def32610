"""The reader that turns a `SplitReader` into a `SourceReader`."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from streaming_source.api import (
    InputStatus,
    ReaderOutput,
    RecordBlock,
    SourceOutput,
    SourceReader,
    SourceReaderContext,
    SourceSplit,
    SplitReader,
    SplitsAddition,
)
from streaming_source.exceptions import SourceError

__all__ = ["SourceReaderBase"]

SplitT = TypeVar("SplitT", bound=SourceSplit)


@dataclass(slots=True)
class _OpenSplit(Generic[SplitT]):
    split: SplitT
    output: SourceOutput | None = None


class SourceReaderBase(SourceReader[SplitT]):
    """Fetches with one `SplitReader`, and emits one block a poll into its split's output.

    Parameters
    ----------
    split_reader
        What fetches.
    context
        Where this runs.
    """

    def __init__(self, split_reader: SplitReader[SplitT], context: SourceReaderContext) -> None:
        self._split_reader = split_reader
        self._context = context
        self._open: dict[str, _OpenSplit[SplitT]] = {}
        self._blocks: deque[tuple[str, RecordBlock]] = deque()
        self._finishing: frozenset[str] = frozenset()
        self._no_more_splits = False

    def start(self) -> None:
        """Nothing to begin: splits come by `add_splits`."""

    def add_splits(self, splits: Sequence[SplitT]) -> None:
        """See `SourceReader`."""
        for split in splits:
            self._open[split.split_id] = _OpenSplit(split)
        self._split_reader.handle_splits_changes(SplitsAddition(splits))

    def notify_no_more_splits(self) -> None:
        """See `SourceReader`."""
        self._no_more_splits = True

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        """See `SourceReader`. Fetches where no block is at hand."""
        if not self._blocks and self._open:
            fetched = self._split_reader.fetch()
            self._blocks.extend(fetched)
            self._finishing = fetched.finished_splits
        if self._blocks:
            split_id, block = self._blocks.popleft()
            self._emit(split_id, block, output)
        if not self._blocks:
            self._finish(output)
        if self._blocks or self._open:
            return InputStatus.MORE_AVAILABLE
        return InputStatus.END_OF_INPUT if self._no_more_splits else InputStatus.NOTHING_AVAILABLE

    def snapshot_state(self) -> list[SplitT]:
        """See `SourceReader`."""
        return [opened.split for opened in self._open.values()]

    def close(self) -> None:
        """See `SourceReader`."""
        self._split_reader.close()

    def _emit(self, split_id: str, block: RecordBlock, output: ReaderOutput) -> None:
        opened = self._open.get(split_id)
        if opened is None:
            raise SourceError(f"records of split {split_id!r}, which this reader was not given or has finished")
        if opened.output is None:
            opened.output = output.create_output_for_split(split_id)
        opened.output.collect(block.batch, block.source_timestamps, positions=block.positions)

    def _finish(self, output: ReaderOutput) -> None:
        for split_id in sorted(self._finishing):
            self._open.pop(split_id, None)
            output.release_output_for_split(split_id)
        self._finishing = frozenset()
