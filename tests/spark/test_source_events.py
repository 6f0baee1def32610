"""Events of an enumerator on their way to the readers of a stream."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from alignment import WatermarkStrategy
from streaming_source.api import (
    DataclassEventSerializer,
    DiscoveredSplits,
    DiscoveringSplitEnumerator,
    RecordSplit,
    SourceEvent,
    SourceReaderContext,
    SplitEnumeratorContext,
)
from streaming_source.coordinator.rules import FrameOptions
from streaming_source.exceptions import UnsupportedOperationError
from streaming_source.gateway import GatewayAddress, GatewayClient, TaskMessages
from streaming_source.spark import readers
from streaming_source.spark.before_4_2 import ReadAllAvailable
from streaming_source.spark.datasource import AlignedDataSource
from streaming_source.spark.offsets import Offset
from streaming_source.spark.readers import AlignedStreamReader, ReaderChannel
from streaming_source.testing import Pause, TestingSource


@dataclass(frozen=True)
class Greeting(SourceEvent):
    """Says which reader it is for."""

    reader: int


class GreetingEnumerator(DiscoveringSplitEnumerator[RecordSplit]):
    """Greets every reader as it is registered."""

    def add_reader(self, subtask_id: int) -> None:
        self._context.send_event_to_source_reader(subtask_id, Greeting(subtask_id))


class GreetingSource(TestingSource):
    def create_enumerator(self, context: SplitEnumeratorContext[RecordSplit]) -> GreetingEnumerator:
        return GreetingEnumerator(context, self.discover, period_seconds=1.0)

    def restore_enumerator(
        self, context: SplitEnumeratorContext[RecordSplit], checkpoint: DiscoveredSplits[RecordSplit]
    ) -> GreetingEnumerator:
        return GreetingEnumerator(context, self.discover, period_seconds=1.0, checkpoint=checkpoint)


class AnsweringEnumerator(DiscoveringSplitEnumerator[RecordSplit]):
    """Greets who asks."""

    def handle_source_event(self, subtask_id: int, event: SourceEvent) -> None:
        self._context.send_event_to_source_reader(subtask_id, event)


class AnsweringSource(TestingSource):
    source_event_serializer = DataclassEventSerializer(Greeting)

    def create_enumerator(self, context: SplitEnumeratorContext[RecordSplit]) -> AnsweringEnumerator:
        return AnsweringEnumerator(context, self.discover, period_seconds=1.0)

    def restore_enumerator(
        self, context: SplitEnumeratorContext[RecordSplit], checkpoint: DiscoveredSplits[RecordSplit]
    ) -> AnsweringEnumerator:
        return AnsweringEnumerator(context, self.discover, period_seconds=1.0, checkpoint=checkpoint)


def stream_reader(source: TestingSource) -> AlignedStreamReader:
    data_source = AlignedDataSource(
        source, WatermarkStrategy.for_monotonous_timestamps(), FrameOptions(watermark_rows=True, num_readers=1)
    )
    return data_source.stream_reader(data_source.schema())


def next_offset(reader: AlignedStreamReader, start: Offset) -> Offset:
    """As Spark asks for it: again and again, until there is something."""
    while (end := reader.latestOffset(start, ReadAllAvailable())) == start:
        time.sleep(0.01)
    return end


def test_an_event_waits_for_a_micro_batch_in_which_its_reader_has_something_to_read() -> None:
    source = GreetingSource({"a": [1_000_000, 2_000_000, Pause("1 minute"), 3_000_000]})
    before = stream_reader(source)
    start = before.initialOffset()
    # On a busy machine the first micro-batch may come before any record was looked at.
    while not (parts := before.partitions(start, read := next_offset(before, start))):
        start = read
    assert [part.events for part in parts] == [(Greeting(0),)]
    before.stop()

    # After a restart the watermark is announced again, by a batch of nothing else: no reader is made for it.
    restarted = stream_reader(source)
    announced = next_offset(restarted, read)
    assert [(part.splits, part.events) for part in restarted.partitions(read, announced)] == [((), ())]
    source.clock.advance("1 minute")
    more = next_offset(restarted, announced)
    assert [part.events for part in restarted.partitions(announced, more)] == [(Greeting(0),)]
    restarted.stop()


def test_a_reader_of_a_micro_batch_that_is_read_again_after_a_restart_is_answered() -> None:
    source = AnsweringSource({"a": [1_000_000, 2_000_000]})
    before = stream_reader(source)
    read = next_offset(before, before.initialOffset())
    before.stop()

    # As Spark does: no offset is asked for before that micro-batch is done.
    restarted = stream_reader(source)
    (part,) = restarted.partitions(restarted.initialOffset(), read)
    assert part.gateway is not None
    messages = GatewayClient.of(part.gateway).for_task(part.batch, 0, 0, source.source_event_serializer)
    messages.send_event(Greeting(7))
    assert messages.take_events() == [Greeting(7)]
    assert [split.split_id for split in part.splits] == ["a"]
    assert restarted.latestOffset(read, ReadAllAvailable()) == read
    restarted.stop()


def test_a_reader_of_a_source_without_a_serializer_is_told_what_to_override_though_it_reports() -> None:
    class SendingSource(TestingSource):
        def create_reader(self, context: SourceReaderContext) -> Any:
            context.send_source_event_to_coordinator(Greeting(7))

    reader = stream_reader(SendingSource({"a": [1_000_000, 2_000_000]}))
    (part,) = reader.partitions(reader.initialOffset(), next_offset(reader, reader.initialOffset()))
    reports = replace(part, gateway=GatewayAddress("127.0.0.1", 1, "0123456789abcdef", "token"))
    with pytest.raises(UnsupportedOperationError, match=r"Greeting cannot be sent .* Source.source_event_serializer"):
        list(reader.read(reports))
    reader.stop()


def test_a_reader_that_is_polled_often_does_not_ask_for_events_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(readers, "time", SimpleNamespace(monotonic=lambda: now))

    class Messages:
        asked = 0

        def send_event(self, event: SourceEvent) -> bool:
            return True

        def take_events(self) -> list[SourceEvent]:
            self.asked += 1
            return [Greeting(self.asked)]

    messages = Messages()
    channel = ReaderChannel(cast("TaskMessages", messages))
    assert (channel.take_events(), messages.asked) == ([], 0)
    channel.send_event(Greeting(0))
    assert channel.take_events() == [Greeting(1)]
    assert all(channel.take_events() == [] for _ in range(100))
    assert messages.asked == 1
    now += ReaderChannel.ANSWERS_S
    assert channel.take_events() == [Greeting(2)]
