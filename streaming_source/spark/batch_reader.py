"""`spark.read`: the same source, all that is there now, without watermarks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from alignment.exceptions import AlignmentError
from streaming_source.api import Source
from streaming_source.coordinator import ReadRules, SourceCoordinator, assign_ranges, monotonic_us
from streaming_source.spark.partitions import AlignedInputPartition
from streaming_source.spark.plain_errors import bare, plainly
from streaming_source.spark.rows import RowShaper

__all__ = ["AlignedBatchReader"]


class AlignedBatchReader(DataSourceReader):
    """Reads everything that a source has, in one go.

    Parameters
    ----------
    source, rules
        What to read, and how; the rules neither align nor limit.
    schema
        Columns to read, in the source's types.
    shaper
        Makes rows of records.
    readers
        Tasks.
    """

    def __init__(
        self, source: Source[Any, Any], rules: ReadRules, schema: pa.Schema, shaper: RowShaper, readers: int
    ) -> None:
        self._source = source
        self._rules = rules
        self._schema = schema
        self._shaper = shaper
        self._readers = readers

    @plainly
    def partitions(self) -> Sequence[InputPartition]:
        """What each task reads."""
        coordinator = SourceCoordinator(self._source, self._rules, self._schema, monotonic_us, readers=self._readers)
        before = coordinator.state
        try:
            coordinator.restore(before)
            ranges = coordinator.everything(self._shaper.options.min_rows_per_reader)
        finally:
            coordinator.close()
        shares = assign_ranges(ranges, self._readers, self._shaper.options.max_rows_per_reader)
        # At least one: Spark takes an empty list for one partition of its own.
        return [AlignedInputPartition(tuple(splits), before.table.combined) for splits in shares or [[]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of one partition, as Arrow batches."""
        # Here and not above: a planner makes this object too, and never reads.
        from streaming_source.spark.task import read_splits

        assert isinstance(partition, AlignedInputPartition)
        try:
            yield from read_splits(self._source, self._schema, self._shaper, partition)
        except AlignmentError as error:
            raise bare(error) from None
