"""One source, read three ways: all at once, as a stream that ends, and as one that does not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from alignment.strategy import WatermarkStrategy
from alignment.watermarks import MAX_WATERMARK
from streaming_source.api import Source
from streaming_source.coordinator.rules import FrameOptions
from streaming_source.spark.datasource import AlignedDataSource
from tests.spark.reading import Reading

_PATIENCE_S = 60.0


def check_that_all_ways_read_the_same(
    make: Callable[[bool], Source[Any, Any]], strategy: WatermarkStrategy, rows: int, max_rows: int = 13
) -> list[dict[str, Any]]:
    """The records of a source that `make` makes, bounded or not, are the same however it is read; what they are."""
    by_batch = [_batch(make(bounded), strategy) for bounded in (True, False)]
    ended, watermark = _stream(make(True), strategy, max_rows, drains=False)
    assert watermark == MAX_WATERMARK, "a bounded stream ends"
    drained, watermark = _stream(make(False), strategy, max_rows, drains=True)
    assert watermark is None or watermark < MAX_WATERMARK, "another one does not"
    assert len(ended) == rows
    assert by_batch[0] == by_batch[1] == ended == drained
    return ended


def _described(source: Source[Any, Any], strategy: WatermarkStrategy) -> AlignedDataSource:
    return AlignedDataSource(source, strategy, FrameOptions(watermark_rows=True, include_metadata=True))


def _batch(source: Source[Any, Any], strategy: WatermarkStrategy) -> list[dict[str, Any]]:
    described = _described(source, strategy)
    reader = described.batch_reader(described.schema())
    return _records([pa.Table.from_batches(reader.read(part)) for part in reader.partitions() if part.splits])  # type: ignore[attr-defined]


def _stream(
    source: Source[Any, Any], strategy: WatermarkStrategy, max_rows: int, *, drains: bool
) -> tuple[list[dict[str, Any]], int | None]:
    described = _described(source, strategy)
    reading = Reading(described.stream_reader(described.schema()))
    if drains:
        reading.reader.prepareForTriggerAvailableNow()
    tables, limit = [], time.monotonic() + _PATIENCE_S
    try:
        while time.monotonic() < limit:
            table = reading.next(max_rows)
            if table is not None:
                tables.append(table)
            elif drains or reading.offset["watermark"] == MAX_WATERMARK:
                break
    finally:
        reading.reader.stop()
    return _records(tables), reading.offset["watermark"]


def _records(tables: list[pa.Table]) -> list[dict[str, Any]]:
    """Without watermark rows, and without what a batch cannot know, in order."""
    rows = [row for table in tables for row in table.drop_columns(["_late"]).to_pylist()]
    return sorted((row for row in rows if row["_split"] is not None), key=lambda row: (row["_split"], row["_position"]))
