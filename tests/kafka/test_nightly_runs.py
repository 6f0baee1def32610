"""Scheduled runs over a topic, without an idleTimeout: a partition that brings nothing in a night."""

from __future__ import annotations

from typing import Any

from tests.kafka.support import reading, to_end
from tests.kafka.topics import Topic
from tests.spark.support import SECOND, T0

HOUR = 3_600 * SECOND


def test_a_partition_that_is_a_night_late_loses_nothing_and_one_that_is_gone_delays_by_one_run(topic: Topic) -> None:
    topic.create(partitions=2)
    offset: dict[str, Any] = {}
    written = 0

    def night(**hours: list[int]) -> tuple[int, int]:
        """Where the watermark is after a run, in hours, and how many records came late so far."""
        nonlocal offset, written
        logs = {int(name[1:]): [T0 + hour * HOUR for hour in of] for name, of in hours.items()}
        topic.write_logs(logs, first=written)
        written += sum(map(len, logs.values()))
        with reading(topic, maxOutOfOrderness="0 seconds", watermarkRows="true") as begun:
            begun.offset = offset or begun.offset
            to_end(begun)
            offset = begun.offset
        return (offset["watermark"] + 1 - T0) // HOUR, sum(sum(entry[3:4]) for entry in offset["splits"])

    assert night(p0=[1, 5], p1=[1, 4]) == (4, 0)
    assert night(p0=[29]) == (4, 0)
    assert night(p0=[53], p1=[28, 52]) == (52, 0)
    assert night(p0=[77]) == (52, 0)
    assert night(p0=[101]) == (101, 0)
    assert night(p1=[76, 100]) == (101, 2)
