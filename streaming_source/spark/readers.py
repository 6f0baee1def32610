"""What Spark calls: of a stream offsets in, offsets out, partitions between two of them; of a batch all there is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from alignment.exceptions import AlignmentError
from streaming_source.api import Source
from streaming_source.coordinator import (
    ReadRules,
    SourceCoordinator,
    SourceState,
    assign_ranges,
    monotonic_us,
    wall_clock_us,
)
from streaming_source.exceptions import OptionError
from streaming_source.spark.offsets import Offset, OffsetCodec
from streaming_source.spark.plain_errors import bare, plainly
from streaming_source.spark.planning import AlignedInputPartition, StreamPlanning
from streaming_source.spark.rows import RowShaper

__all__ = ["AlignedBatchReader", "AlignedStreamReader"]


@dataclass(eq=False)
class AlignedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans in Spark's planner process, reads on its executors.

    Spark builds it in several processes and pickles it between them: what plans is made on first use, and stays where
    it is. `schema` has the columns to read, in the source's types; `readers` is the number of tasks.
    """

    source: Source[Any, Any]
    rules: ReadRules
    schema: pa.Schema
    shaper: RowShaper
    readers: int
    _made: StreamPlanning | None = field(default=None, init=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": None}

    # ---- in the planner ------------------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:
        return OffsetCodec(self.source).encode(SourceState.initial())

    def getDefaultReadLimit(self) -> ReadLimit:
        max_rows = self.shaper.options.max_rows
        return ReadAllAvailable() if max_rows is None else ReadMaxRows(max_rows)

    @plainly
    def prepareForTriggerAvailableNow(self) -> None:
        self._planning.drain()

    @plainly
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        return self._planning.latest_offset(start, _rows_of(limit))

    @plainly
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return self._planning.partitions(start, end)

    @plainly
    def commit(self, end: Offset) -> None:
        if self._made is not None:
            self._made.committed(end)

    def reportLatestOffset(self) -> Offset | None:
        return None if self._made is None else self._made.report()

    def stop(self) -> None:
        """End discovery; Spark does not always call it."""
        if self._made is not None:
            self._made.close()

    @property
    def _planning(self) -> StreamPlanning:
        if self._made is None:
            options = self.shaper.options
            self._made = StreamPlanning(self.source, self.rules, self.schema, options, self.readers)
        return self._made

    # ---- on an executor ------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Here and not above: a planner makes this object too, and never reads.
        from streaming_source.spark.task import read_splits

        assert isinstance(partition, AlignedInputPartition)
        shaper = self.shaper.at(partition)
        if partition.watermark_row_us is not None:
            yield shaper.watermark_row(partition.watermark_row_us)
        try:
            strategy = self.rules.strategy if self.rules.reports else None
            yield from read_splits(self.source, self.schema, shaper, partition, strategy)
        except AlignmentError as error:
            raise bare(error) from None


@dataclass(eq=False)
class AlignedBatchReader(DataSourceReader):
    """Reads everything that a source has, in one go, without watermarks; the rules neither align nor limit."""

    source: Source[Any, Any]
    rules: ReadRules
    schema: pa.Schema
    shaper: RowShaper
    readers: int

    @plainly
    def partitions(self) -> Sequence[AlignedInputPartition]:
        coordinator = SourceCoordinator(self.source, self.rules, self.schema, monotonic_us, readers=self.readers)
        before = coordinator.state
        try:
            coordinator.restore(before)
            ranges = coordinator.everything(self.shaper.options.min_rows_per_reader)
        finally:
            coordinator.close()
        limit_us = self.rules.time_limit_at(wall_clock_us())
        shares = assign_ranges(ranges, self.readers, self.shaper.options.max_rows_per_reader)
        # At least one: Spark takes an empty list for one partition of its own.
        return [
            AlignedInputPartition(tuple(splits), before.table.combined, time_limit_us=limit_us)
            for splits in shares or [[]]
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Here and not above: a planner makes this object too, and never reads.
        from streaming_source.spark.task import read_splits

        assert isinstance(partition, AlignedInputPartition)
        try:
            yield from read_splits(self.source, self.schema, self.shaper.at(partition), partition)
        except AlignmentError as error:
            raise bare(error) from None


def _rows_of(limit: ReadLimit) -> int | None:
    if isinstance(limit, ReadAllAvailable):
        return None
    if isinstance(limit, ReadMaxRows):
        return limit.max_rows
    raise OptionError(f"read limit {limit!r}: only a number of rows limits this source; use maxRowsPerTrigger")
