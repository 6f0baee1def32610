"""What a real broker answers, and what is made of it: its index knows marks and aborted records as well."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from alignment.timestamps import NO_TIMESTAMP
from streaming_source.connectors.kafka.admin import KafkaAdmin
from streaming_source.connectors.kafka.client_config import ClientConfig
from streaming_source.connectors.kafka.faults import BrokerRetries
from streaming_source.connectors.kafka.log_ends import LogEnd
from streaming_source.connectors.kafka.scanner import Scanner
from streaming_source.connectors.kafka.split import KafkaSplit
from streaming_source.connectors.kafka.subscription import MAX_TIMESTAMP
from streaming_source.connectors.kafka.time_index import TimeIndex
from streaming_source.testing import TestingEnumeratorContext
from tests.kafka.support import reading, records, to_end
from tests.kafka.topics import MS, Record, Topic, wait_until
from tests.memory import traced
from tests.spark.support import SECOND, T0

T0_MS = T0 // MS


class Index:
    """An index over a topic, and what it has told."""

    def __init__(self, topic: Topic, few: int, **settings: str) -> None:
        config = ClientConfig.of({"bootstrap.servers": topic.broker.bootstrap, **settings})
        self.topic = topic
        self.context: TestingEnumeratorContext[KafkaSplit] = TestingEnumeratorContext()
        self.admin = KafkaAdmin(config, BrokerRetries(30))
        self.scanner = Scanner(config, fail_on_data_loss=True, patience_s=30)
        self.index = TimeIndex(self.context, self.admin, self.admin, self.scanner, fail_on_data_loss=True)
        self.index.FEW = few  # type: ignore[misc]
        self.index.add([KafkaSplit(topic.name, partition) for partition in topic.partitions])

    def look(self) -> Index:
        self.index.take(self.index.look())
        return self

    def asked(self, partition: int = 0) -> list[tuple[int, int]]:
        return self.context.opaque_blocks.get(f"{self.topic.name}-{partition}", [])

    def read(self, partition: int = 0) -> list[tuple[int, int, int]]:
        return self.context.blocks.get(f"{self.topic.name}-{partition}", [])

    def first_later(self, bound_us: int, starts: dict[int, int], stop: int) -> dict[int, tuple[int, int]]:
        begins = np.array(list(starts.values()), np.int64)
        ids = [f"{self.topic.name}-{partition}" for partition in starts]
        found = self.index.first_later(ids, begins, np.full(begins.size, stop, np.int64), bound_us)
        return dict(zip(starts, zip(*(column.tolist() for column in found), strict=True), strict=True))


@contextmanager
def index_of(topic: Topic, few: int = 0, **settings: str) -> Iterator[Index]:
    begun = Index(topic, few, **settings)
    try:
        yield begun
    finally:
        begun.scanner.close()


def steady(n: int, partition: int = 0) -> list[Record]:
    return [Record(T0_MS + 10 * i, b"%d" % i, partition=partition) for i in range(n)]


def test_the_first_record_later_than_a_time_is_found_in_all_partitions_at_once(topic: Topic) -> None:
    topic.create(partitions=8).write(record for partition in range(8) for record in steady(300, partition))
    with index_of(topic) as begun:
        begun.look()
        assert all(begun.asked(partition) == [(300, T0 + 2990 * MS)] for partition in range(8))
        found = begun.first_later(T0 + 1234 * MS, dict.fromkeys(range(8), 0), 300)
        assert found == dict.fromkeys(range(8), (124, T0 + 1240 * MS))
        found = begun.first_later(T0 + 2990 * MS, dict.fromkeys(range(8), 0), 300)
        assert found == dict.fromkeys(range(8), (300, NO_TIMESTAMP))


def test_marks_of_transactions_are_later_than_all_records_and_are_not_believed(topic: Topic) -> None:
    topic.create()
    topic.transaction(steady(20), end="commit")
    topic.transaction(steady(20), end="abort")
    topic.write(steady(40))
    with index_of(topic) as begun:
        part = KafkaSplit(topic.name, 0).of
        latest = begun.admin.records({part: MAX_TIMESTAMP})[part]
        assert latest is not None
        assert latest.time_ms > T0_MS + 365 * 86_400_000, "a mark has the time at which it was written"
        begun.look()
        assert begun.asked() == []
        assert begun.read() == [(20 + 1 + 20 + 1 + 40, T0, T0 + 390 * MS)]
        # Behind the first mark the brokers know nothing but that mark.
        assert begun.first_later(T0 + 200 * MS, {0: 0}, 82) == {0: (42 + 21, T0 + 210 * MS)}
        assert begun.first_later(T0 + 100 * MS, {0: 0}, 82) == {0: (11, T0 + 110 * MS)}


def test_behind_a_far_future_record_that_was_read_the_others_are_read_ahead(topic: Topic) -> None:
    topic.create().write([*steady(5), Record(T0_MS + 10**9)])
    with index_of(topic) as begun:
        begun.look()
        assert begun.asked() == [(6, T0 + 10**9 * MS)]
        topic.write(steady(50))
        begun.look()
        assert begun.asked()[1:] == []
        assert begun.read() == [(50, T0, T0 + 490 * MS)]
        assert begun.first_later(T0 + 100 * MS, {0: 6}, 56) == {0: (6 + 11, T0 + 110 * MS)}


def test_the_time_of_appending_is_indexed_too(topic: Topic) -> None:
    topic.create(message_timestamp_type="LogAppendTime").write(steady(50))
    times = [record.time_us for record in topic.read()[0]]
    with index_of(topic) as begun:
        begun.look()
        assert begun.asked() == [(50, max(times))]
        assert begun.first_later(times[0] - 1, {0: 0}, 50) == {0: (0, times[0])}


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_an_open_transaction_ends_what_can_be_asked_for(topic: Topic, level: str) -> None:
    topic.create().write(steady(20))
    left_open = topic.transaction([Record(T0_MS + 10**6, b"open")], end="open")
    with index_of(topic, few=1000, **{"isolation.level": level}) as begun:
        begun.look()
        waits = level == "read_committed"
        assert begun.index.blocked_splits == ({f"{topic.name}-0": 1} if waits else {})
        assert begun.read() == [(20, T0, T0 + 190 * MS) if waits else (21, T0, T0 + 10**6 * MS)]
        topic.end(left_open, "commit")

        def released() -> bool:
            return not begun.look().index.blocked_splits

        wait_until(released, "the transaction to be over")
        assert sum(rows for rows, _, _ in begun.read()) == 21


def test_a_plan_asks_once_or_twice_however_many_partitions_it_cuts(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimeIndex, "FEW", 0)
    asked: list[int] = []
    answer = TimeIndex.first_later

    def counted(self: TimeIndex, split_ids: Any, *rest: Any) -> Any:
        asked.append(len(split_ids))
        return answer(self, split_ids, *rest)

    monkeypatch.setattr(TimeIndex, "first_later", counted)
    topic.create(partitions=6).write(record for partition in range(6) for record in steady(400, partition))
    with reading(topic, bounded="true", maxRowsPerTrigger="300", watermarkRows="true") as begun:
        tables = to_end(begun)
    assert sum(len(records(table)) for table in tables) == 6 * 400
    assert max(asked) == 6
    # The first one also asks for the first records.
    assert len(asked) <= 2 + 2 * len(tables)
    assert all(len(records(table)) >= 150 for table in tables[:-2])


def test_offsets_of_micro_batches_follow_event_time_and_not_partitions(topic: Topic) -> None:
    topic.create(partitions=2).write([*steady(1000), *(Record(T0_MS + 1000 * i, partition=1) for i in range(10))])
    with reading(topic, bounded="true", maxRowsPerTrigger="200", maxOutOfOrderness="1 second") as begun:
        tables = to_end(begun)
    latest = [max(record.time_us for record in records(table)) for table in tables if records(table)]
    earliest = [min(record.time_us for record in records(table)) for table in tables if records(table)]
    assert all(before < after for before, after in zip(latest, earliest[1:], strict=False))
    assert latest[-1] == T0 + 9990 * MS
    assert SECOND == 1000 * MS


# ---- gaps ------------------------------------------------------------------------------------------------------------


class SparseLog:
    """Brokers and scanner in one: a partition with few records far apart, behind a record of the far future."""

    def __init__(self, times: dict[int, int], end: int) -> None:
        self.records_us = times
        self.end = end
        self.looks = 0

    def ends(self, parts: list[Any]) -> dict[Any, LogEnd]:
        return {part: LogEnd(self.end, self.end) for part in parts}

    def offsets(self, wanted: dict[Any, int]) -> dict[Any, int]:
        return dict.fromkeys(wanted, 0)

    def records(self, wanted: dict[Any, int]) -> dict[Any, None]:
        return dict.fromkeys(wanted)

    def topics(self, subscription: Any) -> list[Any]:
        return []

    def times(self, splits: list[KafkaSplit], most: dict[str, int]) -> dict[str, tuple[Any, Any]]:
        self.looks += len(splits)
        found = {}
        for split in splits:
            there = [at for at in sorted(self.records_us) if split.position <= at < (split.stop or 0)]
            there = there[: most[split.split_id]]
            times = [self.records_us[at] for at in there]
            found[split.split_id] = np.array(there, np.int64), np.array(times, np.int64)
        return found

    def first_later(self, splits: list[KafkaSplit], bound_us: int) -> dict[str, tuple[int, int]]:
        return {}


GAP = 50_000_000


def look_twice_at_a_gap(invalid: bool) -> tuple[list[int], TestingEnumeratorContext[KafkaSplit], list[int]]:
    """How often the log was looked at in each of two looks, what was told, and the times around the gap."""
    log = SparseLog({0: T0, 1: T0 + 5, GAP: NO_TIMESTAMP if invalid else T0 + 7, GAP + 1: T0 + 9}, GAP + 2)
    context: TestingEnumeratorContext[KafkaSplit] = TestingEnumeratorContext()
    brokers: Any = log
    index = TimeIndex(context, brokers, brokers, brokers, fail_on_data_loss=True)
    index.add([KafkaSplit("t", 0)])
    looks = []
    for _ in range(2):
        index.take(index.look())
        looks.append(log.looks)
    return looks, context, index.event_times("t-0", 2, 3).tolist() if invalid else []


@pytest.mark.parametrize("invalid", [False, True], ids=["valid", "one-without-a-time"])
def test_a_gap_of_fifty_million_offsets_is_one_block_and_one_look(invalid: bool) -> None:
    (looks, context, times), _, peak = traced(look_twice_at_a_gap, invalid)
    assert peak < 2_000_000
    assert looks == [1, 1]
    if invalid:
        rows = [rows for rows, _, _ in context.blocks["t-0"]]
        assert rows == [1, 1, GAP - 1, 1]
        assert times == [NO_TIMESTAMP]
    else:
        assert context.opaque_blocks["t-0"] == [(GAP + 2, T0 + 9)]


def test_of_partitions_that_are_gone_nothing_is_kept_once_their_splits_have_left() -> None:
    context: TestingEnumeratorContext[KafkaSplit] = TestingEnumeratorContext()
    brokers: Any = SparseLog({0: T0}, 1)
    index = TimeIndex(context, brokers, brokers, brokers, fail_on_data_loss=True)
    index.add([KafkaSplit("t", 0)])
    index.leave(["t-0", "never-known-0"])
    index.remove("t-0")
    assert (index._deleted, index._splits, index._lost) == (set(), {}, set())


def test_records_close_together_stay_exact_and_are_read_so_many_at_a_time() -> None:
    log = SparseLog({3 * i: T0 + i for i in range(1000)}, 3000)
    context: TestingEnumeratorContext[KafkaSplit] = TestingEnumeratorContext()
    brokers: Any = log
    index = TimeIndex(context, brokers, brokers, brokers, fail_on_data_loss=True)
    index.AT_ONCE = 400  # type: ignore[misc]
    index.add([KafkaSplit("t", 0)])
    for _ in range(4):
        index.take(index.look())
    assert log.looks == 3
    assert context.blocks["t-0"] == [
        (1198, T0, T0 + 399),
        (1200, T0 + 400, T0 + 799),
        (600, T0 + 800, T0 + 999),
    ]
    assert index.event_times("t-0", 0, 1198).tolist() == [T0 + -(-i // 3) for i in range(1198)]


def test_what_lies_behind_a_large_transaction_that_was_aborted_is_one_block(topic: Topic) -> None:
    topic.create().write([*steady(5), Record(T0_MS + 10**9)])
    topic.transaction((Record(T0_MS, b"x") for _ in range(20_000)), end="abort")
    topic.write([Record(T0_MS + 10**9 - 1), Record(T0_MS + 10**9 - 2)])
    with index_of(topic) as begun:
        begun.look()
        begun.look()
        (end,) = {known.seen_to for known in begun.index._splits.values()}
        assert end == 6 + 20_001 + 2
        # What is before the gap may have been read by itself.
        assert sum(rows for rows, _, _ in begun.read()) <= 6
        assert begun.asked()[-1] in ((end, T0 + 10**9 * MS), (20_003, T0 + (10**9 - 1) * MS))
        assert len(begun.asked()) <= 2
    with reading(topic, bounded="true", watermarkRows="true") as run:
        assert sum(len(records(table)) for table in to_end(run)) == 8
    # A read limit counts records: the gap, once it was found, is crossed by one micro-batch.
    with reading(topic, bounded="true", watermarkRows="true") as run:
        sizes = [len(records(table)) for table in to_end(run, 50)]
    assert sum(sizes) == 8
    assert len(sizes) <= 6
