"""A split as the planner reads it: for its event times alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from alignment.columns import top_level_column
from alignment.timestamps import TimestampAssigner
from streaming_source.api import (
    CaughtUp,
    ReaderMetrics,
    Source,
    SourceOutput,
    SourceReaderContext,
    SourceSplit,
    SplitReader,
    SplitsAddition,
    SplitState,
)
from streaming_source.coordinator.event_times.scanned_records import SeenBlock
from streaming_source.exceptions import SourceError
from streaming_source.reader.split_output import SplitOutput

__all__ = ["AheadReader", "Fetched", "columns_for_times"]

SplitT = TypeVar("SplitT", bound=SourceSplit)


def columns_for_times(schema: pa.Schema, assigner: TimestampAssigner) -> pa.Schema:
    """The columns that event times are made of; at least one, since records without columns cannot be counted."""
    columns = assigner.columns
    if columns is None:
        return schema
    needed = {top_level_column(column, schema.names) for column in columns} or {*schema.names[:1]}
    return pa.schema([field for field in schema if field.name in needed])


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one fetch brought.

    Attributes
    ----------
    blocks
        In order; none is empty.
    finished
        Nothing more will come.
    caught_up
        See `SplitReader.caught_up`.
    """

    blocks: tuple[SeenBlock, ...]
    finished: bool
    caught_up: CaughtUp | None = None

    @property
    def rows(self) -> int:
        """Records in all blocks."""
        return sum(map(len, self.blocks))


class AheadReader(Generic[SplitT]):
    """Fetches one split with a `SplitReader` of its own, opened when it is needed, and closed in between if need be.

    Used by one thread at a time, but for `wake_up`.

    Parameters
    ----------
    source
        Whose split it is.
    split
        From its position on.
    context
        Of the `SplitReader`.
    assigner
        Makes event times of what it reads.
    """

    def __init__(
        self, source: Source[SplitT, Any], split: SplitT, context: SourceReaderContext, assigner: TimestampAssigner
    ) -> None:
        self._source = source
        self._context = context
        self._state = SplitState(split)
        self._times = _TimesOutput(assigner)
        self._output = SplitOutput(self._times, ReaderMetrics(), source.end_of_stream, split.stop)
        self._emitter = source.create_record_emitter(self._context)
        self._reader: SplitReader[SplitT] | None = None
        self._is_woken = False

    def fetch(self) -> Fetched:
        """Fetch once. May block until `wake_up`."""
        split = self._state.split
        if not self._has_reached_stop:
            reader = self._opened()
            records = reader.fetch()
            self._is_woken = False
            while (split_id := records.next_split()) is not None:
                if split_id != split.split_id:
                    raise SourceError(f"fetched records of split {split_id!r} with the reader of {split.split_id!r}")
                while (element := records.next_record_from_split()) is not None:
                    self._emitter.emit_record(element, self._output, self._state)
            finished = split.split_id in records.finished_splits
            records.recycle()
            if not finished and not self._output.ended and not self._has_reached_stop:
                return Fetched(self._times.take(), False, reader.caught_up(split.split_id))
        self.close()
        return Fetched(self._times.take(), finished=True)

    def wake_up(self) -> None:
        """Make a fetch that blocks return. From any thread."""
        # Said before the reader is looked for: one that is being opened is looked for in vain, and must hear of it.
        self._is_woken = True
        reader = self._reader
        if reader is not None:
            reader.wake_up()

    def close(self) -> None:
        """Close the `SplitReader`; the next fetch opens another, from where this one was."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    @property
    def _has_reached_stop(self) -> bool:
        stop = self._state.split.stop
        return stop is not None and self._state.position >= stop

    def _opened(self) -> SplitReader[SplitT]:
        if self._reader is None:
            self._reader = self._source.create_split_reader(self._context)
            self._reader.handle_splits_changes(SplitsAddition([self._state.to_split()]))
            if self._is_woken:
                self._reader.wake_up()
        return self._reader


class _TimesOutput(SourceOutput):
    """Keeps positions and event times."""

    def __init__(self, assigner: TimestampAssigner) -> None:
        self._assigner = assigner
        self._blocks: list[SeenBlock] = []

    def collect(
        self,
        batch: pa.RecordBatch,
        source_timestamps: npt.NDArray[np.int64] | None = None,
        *,
        positions: int | npt.NDArray[np.int64],
    ) -> None:
        """See `SourceOutput`."""
        # Copied: they would keep the whole batch in memory, and its buffers may be used again.
        times = np.array(self._assigner.extract(batch, source_timestamps).values)
        self._blocks.append(
            SeenBlock(positions if isinstance(positions, int) else np.array(positions, np.int64), times)
        )

    def take(self) -> tuple[SeenBlock, ...]:
        """What was collected since the last call."""
        taken, self._blocks = tuple(self._blocks), []
        return taken
