"""How long unread records stay in their logs: measured, logged, in the progress; and an error once they are gone."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from streaming_source.connectors.kafka.log_ends import NextOffset, RetentionWatch
from streaming_source.connectors.kafka.subscription import Partition
from streaming_source.exceptions import DataLossError
from tests.kafka.support import reading
from tests.kafka.topics import Record, Topic, wait_until
from tests.spark.support import T0

HOUR_S = 3600.0


class Logs:
    """Logs whose starts a test moves, a clock, and the watch over them."""

    def __init__(self, *, fails: bool = True, **next_offsets: int) -> None:
        self.now = 0.0
        self.starts = dict.fromkeys(next_offsets, 0)
        self.next = {i: NextOffset(Partition(i, 0), offset) for i, offset in next_offsets.items()}
        self.calls = 0
        self.watch = RetentionWatch(self._look_up, fails=fails, clock=lambda: self.now)

    def _look_up(self, parts: Any) -> dict[Partition, int | None]:
        self.calls += 1
        return {part: self.starts[part.topic] for part in parts}

    def after(self, seconds: float, **starts: int) -> float | None:
        self.now += seconds
        self.starts.update(starts)
        self.watch.look(lambda: self.next)
        return self.watch.left_s


def test_the_time_left_is_that_of_the_partition_whose_start_comes_first_at_its_pace() -> None:
    logs = Logs(a=1000, b=1000)
    assert logs.after(0) is None
    assert logs.after(HOUR_S, a=100) == 9 * HOUR_S
    assert logs.after(HOUR_S, a=100, b=500) == 2 * HOUR_S
    # What was read is behind: its start no longer comes nearer.
    logs.next["b"] = logs.next["b"]._replace(offset=5000)
    assert logs.after(HOUR_S) == 900 * 3 * HOUR_S / 100


def test_brokers_are_asked_once_a_minute() -> None:
    logs = Logs(a=10)
    for _ in range(10):
        logs.after(10)
    assert logs.calls == 2


def test_a_warning_comes_a_day_before_and_again_at_half_of_what_was_left(caplog: pytest.LogCaptureFixture) -> None:
    logs = Logs(a=1000)
    with caplog.at_level(logging.WARNING):
        logs.after(0)
        logs.after(HOUR_S, a=20)
        assert not caplog.records
        logs.after(HOUR_S, a=200)
        assert (
            "passes offset 1000 of partition 0, which is still to be read, in 8 hours at the present pace"
            in caplog.text
        )
        assert "Raise retention.ms or retention.bytes of the topic, or let the query read faster" in caplog.text
        logs.after(HOUR_S, a=300)
        assert len(caplog.records) == 1
        logs.after(HOUR_S, a=700)
        assert len(caplog.records) == 2


def test_what_is_gone_is_an_error_or_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    logs = Logs(a=100)
    logs.after(0, a=100)
    with pytest.raises(DataLossError, match=r"offset 100, .* has moved the start of the log to 101"):
        logs.after(HOUR_S, a=101)
    tolerant = Logs(a=100, fails=False)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            tolerant.after(HOUR_S, a=101)
    assert len(caplog.records) == 1


def test_a_partition_that_waits_for_the_history_and_is_cut_off_fails_before_it_is_read(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records are in no micro-batch yet; the planner looks up the start of its log."""
    monkeypatch.setattr("streaming_source.connectors.kafka.log_ends._PERIOD_S", 0.0)
    monkeypatch.setattr("streaming_source.connectors.kafka.log_ends._LOOKS", 2)
    topic.create(partitions=1).write([Record(T0 // 1000 + i, b"v") for i in range(1000)])
    with reading(topic, maxRowsPerTrigger="100", watermarkRows="true") as begun:
        assert begun.next() is not None
        enumerator: Any = begun.reader._planning._coordinator.host.enumerator
        starts = iter(range(1, 100))

        def is_measured() -> bool:
            topic.delete_records({0: next(starts)})
            enumerator._look()
            return "retentionSecondsLeft" in enumerator.metrics()

        wait_until(is_measured, "the time left")
        topic.delete_records({0: 500})

        def look() -> None:
            enumerator._look()
            # One in the background may have been the first to see it.
            begun.next()

        with pytest.raises(DataLossError, match=r"failOnDataLoss"):
            look()
