"""Structured Streaming's side: offsets in, offsets out, partitions between two of them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from streaming_source.api import Source
from streaming_source.coordinator import GroupMeeting, ReadRules, SourceCoordinator, SourceState, assign_ranges
from streaming_source.exceptions import OptionError
from streaming_source.spark.offsets import Offset, OffsetCodec
from streaming_source.spark.partitions import MIN_ROWS_PER_READER, AlignedInputPartition, read_splits
from streaming_source.spark.rows import RowShaper
from streaming_source.spark.watermark_rows import watermark_row_time

__all__ = ["AlignedStreamReader"]


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
        self._codec = OffsetCodec(source)
        self._coordinator: SourceCoordinator[Any, Any] | None = None
        # Of the states handed out last: partitions() asks for two of them.
        self._recent: dict[int, SourceState[Any, Any]] = {}
        # When the last micro-batch was planned; the first one does not wait for more.
        self._planned_at: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_coordinator": None, "_recent": {}, "_planned_at": None}

    # ---- in the planner ------------------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:
        """The offset before anything was read; always the same."""
        return self._codec.encode(SourceState.initial())

    def getDefaultReadLimit(self) -> ReadLimit:
        """`maxRowsPerTrigger`, or no limit."""
        max_rows = self._shaper.options.max_rows
        return ReadAllAvailable() if max_rows is None else ReadMaxRows(max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """From now on read to the end of what is there, and no further."""
        self._planning.drain()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """The end of the next micro-batch; `start` itself, unchanged to the letter, when there is nothing to do."""
        coordinator = self._planning
        if not coordinator.restored:
            coordinator.restore(self._state_of(start))
        elif start["n"] != coordinator.state.sequence:
            coordinator.rewind(self._state_of(start))
        max_rows = _rows_of(limit)
        if self._waits_for_more(coordinator):
            return start
        before = coordinator.state
        after = coordinator.advance(max_rows)
        if after is before:
            return start
        self._recent = {before.sequence: before, after.sequence: after}
        self._planned_at = time.monotonic()
        return self._codec.encode(after)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """What to read between two offsets, from them alone."""
        begun, ended = self._state_of(start), self._state_of(end)
        coordinator = self._planning
        if not coordinator.restored:
            coordinator.restore(ended)
        announced = begun.table.combined
        row_us = watermark_row_time(ended.table.combined) if self._shaper.options.watermark_rows else None
        ranges = coordinator.ranges(begun, ended, self._readers, MIN_ROWS_PER_READER)
        parts = [AlignedInputPartition(splits, announced) for splits in assign_ranges(ranges, self._readers)]
        if row_us is not None:
            if not parts:
                parts.append(AlignedInputPartition((), announced))
            parts[0].watermark_row_us = row_us
        for subtask_id, part in enumerate(parts):
            part.subtask_id = subtask_id
            # Without something to read no reader is made: its events wait.
            part.events = tuple(coordinator.take_events(subtask_id)) if part.splits else ()
        return parts

    def commit(self, end: Offset) -> None:
        """A micro-batch is done."""
        if self._coordinator is not None:
            self._coordinator.notify_committed(end["n"])

    def reportLatestOffset(self) -> Offset | None:
        """For each split in work the next position and the one after the last record known to be there."""
        if self._coordinator is None or not self._coordinator.restored:
            return None
        return {
            split_id: {"position": position, "available": end}
            for split_id, (position, end) in self._coordinator.available().items()
        }

    def stop(self) -> None:
        """End discovery; Spark does not always call it."""
        if self._coordinator is not None:
            self._coordinator.close()

    # ---- on an executor ------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of one partition, as Arrow batches."""
        assert isinstance(partition, AlignedInputPartition)
        shaper = self._shaper.at(partition.announced)
        if partition.watermark_row_us is not None:
            yield shaper.watermark_row(partition.watermark_row_us)
        yield from read_splits(
            self._source,
            self._schema,
            shaper,
            partition.splits,
            subtask_id=partition.subtask_id,
            events=partition.events,
        )

    # ---- inside --------------------------------------------------------------------------------------------------

    @property
    def _planning(self) -> SourceCoordinator[Any, Any]:
        if self._coordinator is None:
            self._coordinator = SourceCoordinator(
                self._source, self._rules, self._schema, _now_us, readers=self._readers, meeting=self._meeting()
            )
        return self._coordinator

    def _meeting(self) -> GroupMeeting | None:
        alignment = self._rules.strategy.alignment
        if self._rules.group is None or alignment is None:
            return None
        return GroupMeeting(
            _meeting_place(), self._rules.group, alignment.max_drift_us, alignment.update_interval_us, _now_us
        )

    def _waits_for_more(self, coordinator: SourceCoordinator[Any, Any]) -> bool:
        """Whether there are too few records for a micro-batch, and the time for waiting is not over."""
        options = self._shaper.options
        if options.min_rows is None or self._planned_at is None or coordinator.is_draining:
            return False
        if time.monotonic() - self._planned_at >= options.max_delay_us / 1e6:
            return False
        return coordinator.unread_rows() < options.min_rows

    def _state_of(self, offset: Offset) -> SourceState[Any, Any]:
        # A checkpoint of another source may hold anything.
        known = self._recent.get(offset.get("n", -1)) if isinstance(offset, dict) else None
        return self._codec.decode(offset) if known is None else known


def _now_us() -> int:
    return time.monotonic_ns() // 1000


def _meeting_place() -> Path:
    """A file that all planners of one application find, and no other's: Spark removes it with the application."""
    folders = os.environ.get("SPARK_LOCAL_DIRS")
    if not folders:
        raise OptionError(
            "option alignmentGroup: SPARK_LOCAL_DIRS is not set in Spark's planner process, so the sources of the "
            "group have no place to meet; without alignmentGroup, maxDrift holds together the splits of one source"
        )
    return Path(folders.split(",")[0]) / "watermark-alignment.sqlite"


def _rows_of(limit: ReadLimit) -> int | None:
    if isinstance(limit, ReadAllAvailable):
        return None
    if isinstance(limit, ReadMaxRows):
        return limit.max_rows
    raise OptionError(f"read limit {limit!r}: only a number of rows limits this source; use maxRowsPerTrigger")
