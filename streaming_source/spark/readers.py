"""The readers that Spark calls: in its planner for offsets and partitions, on executors to read a partition."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from alignment.exceptions import AlignmentError
from alignment.strategy import WatermarkStrategy
from streaming_source.api import InputStatus, Source, SourceEvent, SourceReaderContext, SourceSplit
from streaming_source.coordinator import (
    ReadRules,
    assign_ranges,
    monotonic_us,
    one_range_each,
    wall_clock_us,
)
from streaming_source.exceptions import OptionError, UnsupportedOperationError, plainly, without_trace
from streaming_source.spark.before_4_2 import (
    STEPS,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    read_steps,
)
from streaming_source.spark.input_partition import AlignedInputPartition
from streaming_source.spark.rows import FrameOutput, RowShaper
from streaming_source.spark.watermark_rows import check_policy

if TYPE_CHECKING:
    from streaming_source.gateway import TaskMessages
    from streaming_source.spark.observed_times import ObservedTimes
    from streaming_source.spark.offsets import Offset
    from streaming_source.spark.planning import StreamPlanning
    from streaming_source.spark.report_directory import ReportFiles

_NO_LIMIT: Final = 2**62


@dataclass(eq=False)
class AlignedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans in Spark's planner process, reads on its executors.

    Spark builds it in several processes and pickles it between them: the planning object is created on first use, and
    is not pickled. `schema` has the columns to read, in the source's types.
    """

    source: Source[Any, Any]
    rules: ReadRules
    schema: pa.Schema
    shaper: RowShaper
    _made: StreamPlanning | None = field(default=None, init=False)
    _has_named_limit: bool = field(default=False, init=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": None, "_has_named_limit": False}

    # ---- in the planner ------------------------------------------------------------------------------------------

    @plainly
    def initialOffset(self) -> Offset:
        return self._planning.initial_offset()

    @plainly
    def getDefaultReadLimit(self) -> ReadLimit:
        if self.rules.in_one_query:
            # Spark calls this method of each source of a query before it plans any of them.
            self._planning.join_group()
        max_rows = self.shaper.options.max_rows_per_trigger
        self._has_named_limit = True
        # Always one, so that a run with Trigger.Once is known: Spark asks for all that there is in place of it.
        return ReadMaxRows(_NO_LIMIT if max_rows is None else max_rows)

    @plainly
    def prepareForTriggerAvailableNow(self) -> None:
        self._planning.drain()

    @plainly
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        once = self._has_named_limit and isinstance(limit, ReadAllAvailable)
        return self._planning.latest_offset(start, _rows_of(limit), once=once)

    @plainly
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        if STEPS in end and start != end:  # planned on Spark before 4.2
            return read_steps(self, start, end)
        return self._planning.partitions(start, end)

    @plainly
    def commit(self, end: Offset) -> None:
        if self._made is not None:
            self._made.committed(end)

    def reportLatestOffset(self) -> Offset | None:
        return None if self._made is None else self._made.report()

    def stop(self) -> None:
        """Stop discovery; Spark does not always call this."""
        if self._made is not None:
            self._made.close()

    @property
    def _planning(self) -> StreamPlanning:
        if self._made is None:
            # Imported here: Spark makes this object in processes that plan nothing, too.
            from streaming_source.spark.planning import StreamPlanning, start_planner_process

            start_planner_process()
            self._made = StreamPlanning(self.source, self.rules, self.schema, self.shaper)
        return self._made

    # ---- on an executor ------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, AlignedInputPartition)
        task = TaskContext.get()
        if self.shaper.options.watermark_rows and task is not None:
            # Of the query as it runs: set when it was started, or by its checkpoint.
            check_policy(task.getLocalProperty)
        if partition.watermark_row_us is not None:
            yield self.shaper.watermark_row(partition.watermark_row_us)
        strategy = self.rules.strategy if self.rules.options.reports else None
        yield from read_splits(self.source, self.schema, self.shaper, partition, strategy)
        if task is not None:
            _keep_what_is_loaded()


class FailedStreamReader(DataSourceStreamReader):
    """Raises, at Spark's first call, the error that prevented creating a reader.

    If `DataSource.streamReader` raises the error itself, PySpark raises an UnboundLocalError after it, which hides it.
    """

    def __init__(self, error: Exception) -> None:
        self._error = error

    @property
    def latestOffset(self) -> NoReturn:
        """Raise the error; Spark inspects this method before it calls any."""
        raise self._error

    def partitions(self, start: Offset, end: Offset) -> NoReturn:
        """Raise it: before 4.2 this is the first call at a restart."""
        raise self._error

    def read(self, partition: InputPartition) -> NoReturn:
        raise self._error


@dataclass(eq=False)
class AlignedBatchReader(DataSourceReader):
    """Reads all current data of a source at once, without watermarks, alignment or row limits.

    `known` are the columns of the data, if `schema` has only some of them: others are new, and reported as such. With
    an offset `at` of a stream over `source` this reads what that stream had read there.
    """

    source: Source[Any, Any]
    rules: ReadRules
    schema: pa.Schema
    shaper: RowShaper
    known: pa.Schema | None = None
    at: Offset | None = None

    @plainly
    def partitions(self) -> Sequence[AlignedInputPartition]:
        # Imported here: tasks plan nothing.
        from streaming_source.coordinator import SourceCoordinator
        from streaming_source.spark.offsets import OffsetCodec

        source, at = self.source, None
        if self.at is not None:
            at = OffsetCodec(source).decode(self.at)
            source, checkpoint = source.for_batch_at(at.checkpoint)
            at = replace(at, checkpoint=checkpoint)

        options, tasks = self.shaper.options, self.shaper.options.tasks
        columns = self.schema if self.known is None else self.known
        coordinator = SourceCoordinator(source, self.rules, columns, monotonic_us, readers=tasks)
        before = coordinator.state
        try:
            coordinator.restore(before)
            ranges = coordinator.everything(options.min_rows_per_reader, at)
        finally:
            coordinator.close()
        limit_us = self.rules.time_limit_at(wall_clock_us())
        shares = assign_ranges(ranges, tasks, options.max_records_per_partition)
        # At least one: for an empty list Spark makes a partition of its own.
        return [
            AlignedInputPartition(tuple(splits), before.table.combined, time_limit_us=limit_us)
            for splits in shares or [[]]
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, AlignedInputPartition)
        yield from read_splits(self.source, self.schema, self.shaper, partition)


@cache
def _keep_what_is_loaded() -> None:
    """Let searches for garbage pass over what this worker has loaded by now, nearly all of it modules, which stay.

    Spark's worker makes such a search after each task. Among all objects it takes as long as a small partition does.
    """
    gc.collect()
    gc.freeze()


def _rows_of(limit: ReadLimit) -> int | None:
    if isinstance(limit, ReadAllAvailable):
        return None
    if isinstance(limit, ReadMaxRows):
        return None if limit.max_rows == _NO_LIMIT else limit.max_rows
    raise OptionError(f"read limit {limit!r}: only a number of rows limits this source; use maxRowsPerTrigger")


def read_splits(
    source: Source[Any, Any],
    schema: pa.Schema,
    shaper: RowShaper,
    partition: AlignedInputPartition,
    strategy: WatermarkStrategy | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield rows of the ranges of a partition, through the source's reader, and wait for those to come.

    With a strategy, the event times of the records are reported to the planner.
    """
    channel, shaper = None, shaper.at(partition)
    context = SourceReaderContext(
        schema,
        partition.subtask_id,
        # After "no more splits" a request for a split has no effect, as with any coordinator.
        send_split_request=lambda: None,
        send_source_event_to_coordinator=_no_serializer,
        timestamp_assigner=shaper.assigner,
    )
    if partition.gateway is not None or partition.report_run is not None:
        channel = _channel(source, partition, shaper.options.report_location, strategy)
        shaper = replace(shaper, observed=channel.observed)
        if source.source_event_serializer is not None:
            context = replace(context, send_source_event_to_coordinator=channel.send_event)
    events = partition.events
    try:
        for splits in one_range_each(partition.splits):
            yield from _read(source, context, shaper, splits, events, channel)
            if channel is not None:
                channel.report(splits)
            events = ()
    except Exception as error:
        if partition.note is not None:
            # Imported here: few tasks fail.
            from streaming_source.monitoring.planner_note import leave_error

            leave_error(partition.note, error)
        if isinstance(error, AlignmentError):
            raise without_trace(error) from None
        raise


def _read(
    source: Source[Any, Any],
    context: SourceReaderContext,
    shaper: RowShaper,
    splits: Sequence[SourceSplit],
    events: Sequence[SourceEvent],
    channel: ReaderChannel | None,
) -> Iterator[pa.RecordBatch]:
    # Imported here: planners import this module too, and do not read.
    from streaming_source.reader import create_reader

    reader = create_reader(source, context)
    try:
        reader.add_splits(splits)
        reader.notify_no_more_splits()
        reader.start()
        for event in events:
            reader.handle_source_events(event)
        output = FrameOutput(shaper)
        while (status := reader.poll_next(output)) is not InputStatus.END_OF_INPUT:
            if output.rows:
                yield from output.take()
            answers_s = None
            if channel is not None and channel.awaits_events:
                answers_s = channel.ANSWERS_S
                for event in channel.take_events():
                    reader.handle_source_events(event)
            if status is InputStatus.NOTHING_AVAILABLE:
                wait([reader.is_available()], answers_s)
        yield from output.take()
    finally:
        reader.close()


class ReaderChannel:
    """The reader's connection to its planner. Without `observed`, event times are not reported."""

    ANSWERS_S: ClassVar = 0.1
    """Interval at which a reader that has sent an event polls for the enumerator's answers."""

    def __init__(
        self, messages: TaskMessages | None, observed: ObservedTimes | None = None, files: ReportFiles | None = None
    ) -> None:
        self._messages = messages
        self._reports = messages if files is None else files
        self.observed = observed
        # Whether an event was sent that the enumerator may answer.
        self.awaits_events = False
        self._asks_at = 0.0

    def report(self, ranges: Sequence[SourceSplit]) -> None:
        if self.observed is not None and self._reports is not None and ranges:
            self._reports.send_reports(self.observed.take(ranges))

    def send_event(self, event: SourceEvent) -> None:
        """Send an event to the enumerator; a lost event is no error, as in Flink."""
        if self._messages is not None:
            self.awaits_events = True
            self._messages.send_event(event)

    def take_events(self) -> list[SourceEvent]:
        """Return the enumerator's new answers; empty if the last request was less than the interval ago."""
        now = time.monotonic()
        if self._messages is None or not self.awaits_events or now < self._asks_at:
            return []
        self._asks_at = now + self.ANSWERS_S
        return self._messages.take_events()


def _channel(
    source: Source[Any, Any],
    partition: AlignedInputPartition,
    report_location: str | None,
    strategy: WatermarkStrategy | None,
) -> ReaderChannel:
    task = TaskContext.get()
    attempt = 0 if task is None else task.taskAttemptId()
    observed = None
    if strategy is not None:
        # Imported here: few tasks report event times.
        from streaming_source.spark.observed_times import ObservedTimes

        observed = ObservedTimes(strategy, partition.generators)
    if partition.gateway is None:
        from streaming_source.spark.report_directory import ReportFiles, report_journal

        assert report_location is not None
        assert partition.report_run is not None
        journal = report_journal(source, report_location)
        files = ReportFiles(journal, partition.report_run, partition.batch, partition.subtask_id, attempt)
        return ReaderChannel(None, observed, files)
    # Imported here: few queries have a gateway, and other worker processes need not load sockets and TLS.
    from streaming_source.gateway import GatewayClient

    client, serializer = GatewayClient.of(partition.gateway), source.source_event_serializer
    return ReaderChannel(client.for_task(partition.batch, partition.subtask_id, attempt, serializer), observed)


def _no_serializer(event: SourceEvent) -> None:
    raise UnsupportedOperationError(
        f"{type(event).__name__} cannot be sent to the enumerator: the source has no serializer for events; override "
        "Source.source_event_serializer"
    )
