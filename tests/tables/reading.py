"""Rows of tables for tests, and what was read of them, whatever the format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from alignment import WatermarkStrategy
from streaming_source.api import SourceReaderContext, SplitsAddition
from streaming_source.connectors.tables.source import TableSource
from streaming_source.exceptions import DataLossError, OptionError
from streaming_source.testing import SourceHarness

__all__ = ["SECOND", "STRATEGY", "outcome_of", "read_all", "rows", "times"]

SECOND = 1_000_000

STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("5 seconds").with_timestamp_assigner("ts")


def rows(times_us: Sequence[int | None], kind: pa.DataType | None = None, **columns: Any) -> pa.Table:
    """A column `ts`, and others: a list, or one value for all."""
    given = {name: value if isinstance(value, list) else [value] * len(times_us) for name, value in columns.items()}
    return pa.table({"ts": pa.array(times_us, kind or pa.timestamp("us", "UTC")), **given})


def times(done: SourceHarness) -> list[int]:
    """Event times of all records that a query has read, sorted."""
    return sorted(time for records in done.records().values() for _, time in records)


def outcome_of(read: Callable[[], object]) -> object:
    """What was read, or the error in its place."""
    try:
        return read()
    except (DataLossError, OptionError) as error:
        return error


def read_all(source: TableSource, strategy: WatermarkStrategy = STRATEGY) -> pa.Table:
    """All rows of a table, as a batch of this library reads them."""
    source = source.for_batch()
    schema = source.schema()
    done = SourceHarness(source, strategy, schema=schema)
    tasks = done.coordinator.everything(1)
    reader = source.create_split_reader(SourceReaderContext(schema, 0, lambda: None, lambda event: None))
    reader.handle_splits_changes(SplitsAddition([part.split for part in tasks]))
    found: list[pa.RecordBatch] = []
    left = len({part.split.split_id for part in tasks})
    while left:
        records = reader.fetch()
        while records.next_split() is not None:
            while (block := records.next_record_from_split()) is not None:
                found.append(block.batch)
        left -= len(records.finished_splits)
    done.close()
    return pa.Table.from_batches(found, schema=schema)
