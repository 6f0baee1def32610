"""Structured Streaming's side: offsets in, offsets out, partitions between two of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from alignment.exceptions import AlignmentError
from streaming_source.api import Source
from streaming_source.coordinator import ReadRules, SourceState
from streaming_source.exceptions import OptionError
from streaming_source.spark.offsets import Offset, OffsetCodec
from streaming_source.spark.partitions import AlignedInputPartition
from streaming_source.spark.plain_errors import bare, plainly
from streaming_source.spark.planning import StreamPlanning
from streaming_source.spark.rows import RowShaper

__all__ = ["AlignedStreamReader", "FailedStreamReader"]


class AlignedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans in Spark's planner process, reads on its executors.

    Spark builds it in several processes and pickles it between them: what plans is made on first use, and stays where
    it is.

    Parameters
    ----------
    source, rules
        What to read, and how.
    schema
        Columns to read, in the source's types.
    shaper
        Makes rows of records.
    readers
        Tasks a micro-batch.
    """

    def __init__(
        self, source: Source[Any, Any], rules: ReadRules, schema: pa.Schema, shaper: RowShaper, readers: int
    ) -> None:
        self._source = source
        self._rules = rules
        self._schema = schema
        self._shaper = shaper
        self._readers = readers
        self._made: StreamPlanning | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": None}

    # ---- in the planner ------------------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:
        """The offset before anything was read; always the same."""
        return OffsetCodec(self._source).encode(SourceState.initial())

    def getDefaultReadLimit(self) -> ReadLimit:
        """`maxRowsPerTrigger`, or no limit."""
        max_rows = self._shaper.options.max_rows
        return ReadAllAvailable() if max_rows is None else ReadMaxRows(max_rows)

    @plainly
    def prepareForTriggerAvailableNow(self) -> None:
        """From now on read to the end of what is there, and no further."""
        self._planning.drain()

    @plainly
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """The end of the next micro-batch; `start` itself, unchanged to the letter, when there is nothing to do."""
        return self._planning.latest_offset(start, _rows_of(limit))

    @plainly
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """What to read between two offsets, from them alone."""
        return self._planning.partitions(start, end)

    @plainly
    def commit(self, end: Offset) -> None:
        """A micro-batch is done."""
        if self._made is not None:
            self._made.committed(end)

    def reportLatestOffset(self) -> Offset | None:
        """Where the watermark stands and why, and how far each split in work is; see `StreamPlanning.report`."""
        return None if self._made is None else self._made.report()

    def stop(self) -> None:
        """End discovery; Spark does not always call it."""
        if self._made is not None:
            self._made.close()

    @property
    def _planning(self) -> StreamPlanning:
        if self._made is None:
            options = self._shaper.options
            self._made = StreamPlanning(self._source, self._rules, self._schema, options, self._readers)
        return self._made

    # ---- on an executor ------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of one partition, as Arrow batches."""
        # Here and not above: a planner makes this object too, and never reads.
        from streaming_source.spark.task import read_splits

        assert isinstance(partition, AlignedInputPartition)
        shaper = self._shaper.at(partition)
        if partition.watermark_row_us is not None:
            yield shaper.watermark_row(partition.watermark_row_us)
        try:
            strategy = self._rules.strategy if self._rules.reports else None
            yield from read_splits(self._source, self._schema, shaper, partition, strategy)
        except AlignmentError as error:
            raise bare(error) from None


class FailedStreamReader(DataSourceStreamReader):
    """Raises at Spark's first call why there is no reader.

    What `DataSource.streamReader` raises itself is followed by an UnboundLocalError of PySpark's, whose last line says
    nothing.

    Parameters
    ----------
    error
        What was raised in making the reader.
    """

    def __init__(self, error: Exception) -> None:
        self._error = error

    @property
    def latestOffset(self) -> NoReturn:
        """Spark looks at this method before it calls any."""
        raise self._error

    def read(self, partition: InputPartition) -> NoReturn:
        """Never called."""
        raise self._error


def _rows_of(limit: ReadLimit) -> int | None:
    if isinstance(limit, ReadAllAvailable):
        return None
    if isinstance(limit, ReadMaxRows):
        return limit.max_rows
    raise OptionError(f"read limit {limit!r}: only a number of rows limits this source; use maxRowsPerTrigger")
