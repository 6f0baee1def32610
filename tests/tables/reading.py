"""Reading all rows of a table by its source, whatever its format."""

from __future__ import annotations

import pyarrow as pa

from alignment import WatermarkStrategy
from streaming_source.api import SourceReaderContext, SplitsAddition
from streaming_source.connectors.tables.source import TableSource
from streaming_source.testing import SourceHarness

__all__ = ["STRATEGY", "read_all"]

STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("5 seconds").with_timestamp_assigner("ts")


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
