"""What a task does on an executor: reads the ranges of its partition, and makes rows of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import wait
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext

from alignment.strategy import WatermarkStrategy
from streaming_source.api import InputStatus, Source, SourceEvent, SourceReaderContext, SourceSplit
from streaming_source.exceptions import UnsupportedOperationError
from streaming_source.reader import create_reader
from streaming_source.spark.planning import AlignedInputPartition
from streaming_source.spark.rows import FrameOutput, RowShaper

if TYPE_CHECKING:
    from streaming_source.gateway import GatewayAddress
    from streaming_source.spark.channel import ReaderChannel

__all__ = ["read_splits"]


def read_splits(
    source: Source[Any, Any],
    schema: pa.Schema,
    shaper: RowShaper,
    partition: AlignedInputPartition,
    strategy: WatermarkStrategy | None = None,
) -> Iterator[pa.RecordBatch]:
    """Rows of the ranges of a partition, through the source's reader. Where there is nothing yet it waits for that.

    With a strategy the planner is told the event times of the records.
    """
    channel = None
    context = SourceReaderContext(
        schema,
        partition.subtask_id,
        send_split_request=_nothing_more,
        send_source_event_to_coordinator=_no_serializer,
    )
    if partition.gateway is not None:
        channel = _channel(source, partition, partition.gateway, strategy)
        context = replace(context, send_source_event_to_coordinator=channel.send_event)
        shaper = shaper.observed_by(channel.observed)
    remaining, events = list(partition.splits), partition.events
    while remaining:
        # A reader knows a split by its id; further ranges of the same split are read by a further reader.
        now: dict[str, SourceSplit] = {}
        later: list[SourceSplit] = []
        for split in remaining:
            if split.split_id in now:
                later.append(split)
            else:
                now[split.split_id] = split
        yield from _read(source, context, shaper, list(now.values()), events, channel)
        if channel is not None:
            channel.report(list(now.values()))
        remaining, events = later, ()


def _read(
    source: Source[Any, Any],
    context: SourceReaderContext,
    shaper: RowShaper,
    splits: Sequence[SourceSplit],
    events: Sequence[SourceEvent],
    channel: ReaderChannel | None,
) -> Iterator[pa.RecordBatch]:
    reader = create_reader(source, context)
    try:
        reader.add_splits(splits)
        reader.notify_no_more_splits()
        reader.start()
        for event in events:
            reader.handle_source_events(event)
        output = FrameOutput(shaper)
        while (status := reader.poll_next(output)) is not InputStatus.END_OF_INPUT:
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


def _channel(
    source: Source[Any, Any],
    partition: AlignedInputPartition,
    gateway: GatewayAddress,
    strategy: WatermarkStrategy | None,
) -> ReaderChannel:
    # Few queries have one: a worker process need not load sockets and TLS.
    from streaming_source.gateway import GatewayClient
    from streaming_source.spark.channel import ObservedTimes, ReaderChannel

    task = TaskContext.get()
    attempt = 0 if task is None else task.taskAttemptId()
    serializer = source.source_event_serializer
    messages = GatewayClient.of(gateway).for_task(partition.batch, partition.subtask_id, attempt, serializer)
    return ReaderChannel(messages, None if strategy is None else ObservedTimes(strategy, partition.generators))


def _nothing_more() -> None:
    """A request for a split after "no more splits", as it is with any coordinator: without effect."""


def _no_serializer(event: SourceEvent) -> None:
    raise UnsupportedOperationError(
        f"{type(event).__name__} cannot be sent to the enumerator: the source has no serializer for events; override "
        "Source.source_event_serializer"
    )
