"""What travels to the executors, and how it is read there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from streaming_source.api import InputStatus, Source, SourceEvent, SourceReaderContext, SourceSplit
from streaming_source.spark.rows import FrameOutput, RowShaper

__all__ = ["MIN_ROWS_PER_READER", "AlignedInputPartition", "read_splits"]

MIN_ROWS_PER_READER = 32_768
"""Below this another task costs more than it saves."""


class AlignedInputPartition(InputPartition):
    """What one task reads.

    Parameters
    ----------
    splits
        Ranges of splits, in order.
    announced
        The watermark that holds while they are processed.
    watermark_row_us
        Event time of the watermark row that rides along, or None.
    subtask_id
        Number of the reader.
    events
        From the enumerator, for this reader.
    """

    def __init__(
        self,
        splits: Sequence[SourceSplit],
        announced: int,
        watermark_row_us: int | None = None,
        subtask_id: int = 0,
        events: Sequence[SourceEvent] = (),
    ) -> None:
        super().__init__(None)
        self.splits = tuple(splits)
        self.announced = announced
        self.watermark_row_us = watermark_row_us
        self.subtask_id = subtask_id
        self.events = tuple(events)


def read_splits(
    source: Source[Any, Any],
    schema: pa.Schema,
    shaper: RowShaper,
    splits: Sequence[SourceSplit],
    *,
    subtask_id: int = 0,
    events: Sequence[SourceEvent] = (),
) -> Iterator[pa.RecordBatch]:
    """Rows of the given ranges, through the source's reader. Where there is nothing yet it waits for the reader."""
    context = SourceReaderContext(
        schema,
        subtask_id,
        allow_unaligned_source_splits=shaper.options.allow_unaligned,
        send_split_request=_nothing_more,
    )
    remaining = list(splits)
    while remaining:
        # A reader knows a split by its id; further ranges of the same split are read by a further reader.
        now: dict[str, SourceSplit] = {}
        later: list[SourceSplit] = []
        for split in remaining:
            if split.split_id in now:
                later.append(split)
            else:
                now[split.split_id] = split
        yield from _read(source, context, shaper, list(now.values()), events)
        remaining, events = later, ()


def _read(
    source: Source[Any, Any],
    context: SourceReaderContext,
    shaper: RowShaper,
    splits: Sequence[SourceSplit],
    events: Sequence[SourceEvent],
) -> Iterator[pa.RecordBatch]:
    reader = source.create_reader(context)
    try:
        reader.add_splits(splits)
        reader.notify_no_more_splits()
        reader.start()
        for event in events:
            reader.handle_source_events(event)
        output = FrameOutput(shaper)
        while (status := reader.poll_next(output)) is not InputStatus.END_OF_INPUT:
            yield from output.take()
            if status is InputStatus.NOTHING_AVAILABLE:
                reader.is_available().result()
        yield from output.take()
    finally:
        reader.close()


def _nothing_more() -> None:
    """A request for a split after "no more splits", as it is with any coordinator: without effect."""
