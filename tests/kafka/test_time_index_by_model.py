"""The index of the brokers beside plain lists: logs with marks of transactions, aborted records and gaps, no broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from alignment.timestamps import NO_TIMESTAMP
from streaming_source.connectors.kafka.admin import FoundRecord, KafkaAdmin
from streaming_source.connectors.kafka.client_config import ClientConfig
from streaming_source.connectors.kafka.faults import BrokerRetries
from streaming_source.connectors.kafka.scanner import Scanner, SeenTimes
from streaming_source.connectors.kafka.split import KafkaSplit
from streaming_source.connectors.kafka.subscription import EARLIEST, LATEST, MAX_TIMESTAMP, Partition
from streaming_source.connectors.kafka.time_index import TimeIndex
from streaming_source.exceptions import DataLossError
from streaming_source.testing import TestingEnumeratorContext
from tests.examples import examples

CONFIG = ClientConfig.of({"bootstrap.servers": "nowhere"})
MS = 1000


@dataclass
class Entry:
    """What lies at one offset: a record, or (`is_record` false) a mark or an aborted record; None is compacted away."""

    time_ms: int
    is_record: bool = True


@dataclass
class Log:
    """A partition as its broker has it; offsets from 0."""

    entries: list[Entry | None] = field(default_factory=list)
    begin: int = 0
    stable: int = 0

    def records(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Offset and event time of the records in `[start, stop)`."""
        entries = enumerate(self.entries[: self.stable])
        return [(i, e.time_ms * MS) for i, e in entries if e is not None and e.is_record and start <= i < stop]


class Broker(KafkaAdmin):
    """Answers as a broker does: from the start of the log, and without a look at what an entry is."""

    def __init__(self, logs: dict[Partition, Log]) -> None:
        super().__init__(CONFIG, BrokerRetries(1))
        self.logs = logs
        self.calls = 0

    def records(
        self, wanted: Mapping[Partition, int], *, readable: bool = True, all_answer: bool = True
    ) -> dict[Partition, FoundRecord | None]:
        self.calls += bool(wanted)
        return {part: self._record(self.logs[part], number, readable) for part, number in wanted.items()}

    def _record(self, log: Log, number: int, readable: bool) -> FoundRecord | None:
        end = log.stable if readable else len(log.entries)
        there = [(i, e) for i, e in enumerate(log.entries) if e is not None and i >= log.begin]
        if number == EARLIEST:
            return FoundRecord(log.begin, -1)
        if number == LATEST:
            return FoundRecord(end, -1)
        if number == MAX_TIMESTAMP:
            found = max(there, key=lambda entry: (entry[1].time_ms, -entry[0]), default=None)
        else:
            found = next((entry for entry in there if entry[1].time_ms >= number), None)
        return FoundRecord(found[0], found[1].time_ms) if found is not None and found[0] < end else None


class Reader(Scanner):
    """Reads records from the lists."""

    def __init__(self, logs: dict[Partition, Log]) -> None:
        super().__init__(CONFIG, fail_on_data_loss=True, patience_s=1)
        self.logs = logs
        self.read = 0

    def times(self, splits: Sequence[KafkaSplit], most: Mapping[str, int]) -> dict[str, SeenTimes]:
        found = {split.split_id: self._records(split)[: most[split.split_id]] for split in splits}
        self.read += sum(map(len, found.values()))
        return {
            i: (np.array([o for o, _ in r], np.int64), np.array([t for _, t in r], np.int64)) for i, r in found.items()
        }

    def first_later(self, splits: Sequence[KafkaSplit], bound_us: int) -> dict[str, tuple[int, int]]:
        found = {}
        for split in splits:
            for offset, time_us in self._records(split):
                self.read += 1
                if time_us > bound_us:
                    found[split.split_id] = offset, time_us
                    break
        return found

    def _records(self, split: KafkaSplit) -> list[tuple[int, int]]:
        assert split.stop is not None
        return self.logs[split.of].records(split.position, split.stop)


class Told(TestingEnumeratorContext[KafkaSplit]):
    """Keeps blocks of both kinds in their order as well, the minimum of those that are asked as unknown."""

    def __init__(self) -> None:
        super().__init__()
        self.order: dict[str, list[tuple[int, int, int]]] = {}

    def add_blocks(self, split_id: str, rows: Any, min_us: Any, max_us: Any) -> None:
        super().add_blocks(split_id, rows, min_us, max_us)
        self.order.setdefault(split_id, []).append((int(rows), int(min_us), int(max_us)))

    def add_opaque_block(self, split_id: str, rows: int, max_us: int) -> None:
        super().add_opaque_block(split_id, rows, max_us)
        self.order.setdefault(split_id, []).append((rows, NO_TIMESTAMP, max_us))


class Partitions:
    """Logs, the index over them, and what it has added."""

    def __init__(self, n: int, *, few: int = 0, fail_on_data_loss: bool = True) -> None:
        self.logs = {Partition("t", number): Log() for number in range(n)}
        self.context = Told()
        self.broker, self.reader = Broker(self.logs), Reader(self.logs)
        self.index = TimeIndex(self.context, self.broker, self.broker, self.reader, fail_on_data_loss=fail_on_data_loss)
        self.index.FEW = few  # type: ignore[misc]
        self.index.add([KafkaSplit("t", number) for number in range(n)])

    def log(self, number: int = 0) -> Log:
        return self.logs[Partition("t", number)]

    def append(self, *entries: Entry | None, to: int = 0, stable: bool = True) -> None:
        self.log(to).entries += entries
        if stable:
            self.log(to).stable = len(self.log(to).entries)

    def look(self) -> None:
        self.index.take(self.index.look())

    def indexed(self, number: int = 0) -> tuple[list[tuple[int, int]], list[tuple[int, int, int]]]:
        split_id = f"t-{number}"
        return self.context.opaque_blocks.get(split_id, []), self.context.blocks.get(split_id, [])

    def first_later(self, bound_us: int, start: int = 0, number: int = 0) -> tuple[int, int]:
        stop = np.array([self.log(number).stable], np.int64)
        positions, times = self.index.first_later([f"t-{number}"], np.array([start], np.int64), stop, bound_us)
        return int(positions[0]), int(times[0])


def mark(time_ms: int) -> Entry:
    return Entry(time_ms, is_record=False)


# ---- what is added ---------------------------------------------------------------------------------------------------


def test_many_records_are_indexed_by_their_latest_alone() -> None:
    parts = Partitions(3)
    for number in range(3):
        parts.append(*(Entry(100 * number + i) for i in (1, 7, 3, 5)), to=number)
    parts.look()
    assert [parts.indexed(number) for number in range(3)] == [([(4, (100 * n + 7) * MS)], []) for n in range(3)]
    # One record of each was read to confirm it.
    assert parts.reader.read == 3
    calls = parts.broker.calls
    parts.look()
    assert parts.broker.calls - calls == 2, "where nothing is new, only the ends are asked for"


def test_how_often_the_brokers_are_asked_does_not_depend_on_the_partitions() -> None:
    calls = []
    for n in (1, 50):
        parts = Partitions(n)
        for number in range(n):
            parts.append(Entry(1), Entry(2), to=number)
        parts.look()
        stops = np.full(n, 2, np.int64)
        parts.index.first_later([f"t-{number}" for number in range(n)], stops - 2, stops, 1 * MS)
        calls.append(parts.broker.calls)
    assert calls[0] == calls[1] == 4 + 1


def test_few_records_are_read_at_once() -> None:
    parts = Partitions(1, few=5)
    parts.append(Entry(5), None, mark(9), Entry(3), mark(8))
    parts.look()
    # Offsets without a record have the time of the next one; behind the last one there is nothing to tell.
    assert parts.indexed() == ([], [(4, 3 * MS, 5 * MS)])
    assert parts.index.event_times("t-0", 0, 4).tolist() == [5 * MS, 3 * MS, 3 * MS, 3 * MS]
    parts.append(Entry(7))
    parts.look()
    assert parts.indexed()[1][1:] == [(2, 7 * MS, 7 * MS)]
    assert parts.index.event_times("t-0", 4, 6).tolist() == [7 * MS, 7 * MS]


@pytest.mark.parametrize("last", [mark(50), Entry(50, is_record=False)], ids=["mark", "aborted"])
def test_a_latest_that_is_no_record_is_not_believed(last: Entry) -> None:
    parts = Partitions(1)
    parts.append(Entry(1), Entry(9), Entry(4), last)
    parts.look()
    assert parts.indexed() == ([], [(3, 1 * MS, 9 * MS)])


def test_news_with_a_record_from_the_future_are_read_to_find_out_which_one_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = Partitions(1)
    parts.append(Entry(1), Entry(9), Entry(1000), Entry(4))
    monkeypatch.setattr(Told, "event_time_limit_us", 100 * MS)
    parts.look()
    assert parts.indexed() == ([], [(4, 1 * MS, 1000 * MS)])
    monkeypatch.setattr(Told, "event_time_limit_us", 2000 * MS)
    parts.append(Entry(1999), Entry(5))
    parts.look()
    assert parts.indexed()[0] == [(2, 1999 * MS)]


def test_news_behind_a_record_that_is_later_than_all_of_them_are_read() -> None:
    parts = Partitions(1)
    parts.append(Entry(1), Entry(1000))
    parts.look()
    assert parts.indexed()[0] == [(2, 1000 * MS)]
    parts.append(Entry(2), Entry(3))
    parts.look()
    assert parts.indexed() == ([(2, 1000 * MS)], [(2, 2 * MS, 3 * MS)])


def test_a_record_that_comes_between_two_queries_is_indexed_with_the_others() -> None:
    parts = Partitions(1)
    parts.append(Entry(1), Entry(2))
    answer = parts.broker.records

    def late(wanted: Mapping[Partition, int], **options: bool) -> dict[Partition, FoundRecord | None]:
        if MAX_TIMESTAMP in wanted.values():
            parts.append(Entry(3), Entry(1))
        return answer(wanted, **options)

    parts.broker.records = late  # type: ignore[method-assign, assignment]
    parts.look()
    assert parts.indexed()[0] == [(3, 3 * MS)]


def test_what_an_open_transaction_holds_back_is_not_indexed() -> None:
    parts = Partitions(2)
    parts.append(Entry(1), Entry(2))
    parts.append(Entry(9), Entry(10), stable=False)
    parts.look()
    # The latest record cannot be read yet, so that the brokers tell none.
    assert parts.indexed() == ([], [(2, 1 * MS, 2 * MS)])
    assert parts.index.blocked_splits == {"t-0": 2}
    parts.append(mark(11))
    parts.look()
    assert parts.indexed()[1][1:] == [(2, 9 * MS, 10 * MS)]
    assert parts.index.blocked_splits == {}


def test_a_partition_of_which_the_brokers_say_nothing_is_held_back() -> None:
    parts = Partitions(2)
    parts.append(Entry(1), Entry(2))
    parts.look()
    answer = parts.broker.records
    parts.append(Entry(3), stable=False)
    parts.broker.records = lambda wanted, **options: {  # type: ignore[method-assign]
        part: found for part, found in answer(wanted, **options).items() if part.number
    }
    parts.look()
    assert parts.index.unindexed_splits == {"t-0"}
    parts.index.leave(["t-0"])
    parts.look()
    assert parts.index.unindexed_splits == set()
    assert parts.index.blocked_splits == {}


def test_a_look_up_whose_records_were_indexed_meanwhile_adds_nothing_twice() -> None:
    parts = Partitions(1)
    parts.append(Entry(1), Entry(2))
    first, second = parts.index.look(), parts.index.look()
    parts.index.take(first)
    parts.index.take(second)
    assert parts.indexed()[0] == [(2, 2 * MS)]


def test_records_that_wait_for_the_next_look_are_not_those_of_a_transaction() -> None:
    parts = Partitions(1)
    parts.append(Entry(1), Entry(2))
    first = parts.index.look()
    parts.append(Entry(3))
    second = parts.index.look()
    parts.index.take(first)
    parts.index.take(second)
    assert parts.indexed()[0] == [(2, 2 * MS)], "the second look began before the first was taken"
    assert parts.index.unindexed_splits == {"t-0"}
    assert parts.index.blocked_splits == {}
    parts.look()
    assert parts.indexed()[0] == [(2, 2 * MS), (1, 3 * MS)]
    assert parts.index.unindexed_splits == set()


def test_records_that_are_deleted_before_they_are_indexed_are_lost() -> None:
    parts = Partitions(1)
    parts.append(*(Entry(i) for i in range(5)))
    parts.log().begin = 3
    with pytest.raises(DataLossError, match=r"'t-0': offset 0 is not there.*begins at 3.*failOnDataLoss"):
        parts.look()
    tolerant = Partitions(1, fail_on_data_loss=False)
    tolerant.append(*(Entry(i) for i in range(5)))
    tolerant.log().begin = 3
    tolerant.look()
    assert tolerant.indexed()[0] == [(5, 4 * MS)]


def test_a_log_that_has_become_shorter_is_found_with_its_end() -> None:
    parts = Partitions(1)
    parts.append(*(Entry(i) for i in range(5)))
    parts.look()
    parts.log().entries = parts.log().entries[:2]
    parts.log().stable = 2
    observed = parts.index.look()
    assert observed.shorter == {"t-0": (5, 2)}


def test_what_was_read_uncommitted_is_not_lost_while_its_transaction_is_open() -> None:
    parts = Partitions(1)
    parts.append(*(Entry(i) for i in range(5)))
    parts.look()
    parts.log().stable = 3
    parts.look()
    assert parts.index.blocked_splits == {"t-0": 2}
    parts.append(Entry(7))
    parts.look()
    assert parts.indexed()[0] == [(5, 4 * MS), (1, 7 * MS)]
    assert parts.index.blocked_splits == {}


def test_a_long_log_that_must_be_read_is_read_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TimeIndex, "AT_ONCE", 3)
    parts = Partitions(1)
    parts.append(*(Entry(i) for i in range(8)), mark(99))
    parts.look()
    assert parts.indexed()[1] == [(3, 0, 2 * MS)]
    assert parts.index.unindexed_splits == {"t-0"}, "not idle before all was observed at"
    assert parts.index.blocked_splits == {}
    parts.index.extend_snapshot()
    assert len(parts.indexed()[1]) == 1, "what was indexed is not read yet"
    parts.index.commit_plan("t-0", 3)
    parts.index.extend_snapshot()
    assert parts.indexed()[1][1:] == [(3, 3 * MS, 5 * MS)]


def test_what_is_read_ahead_has_a_limit_over_all_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TimeIndex, "AHEAD", 60)
    parts = Partitions(20)
    for number in range(20):
        parts.append(*(Entry(i) for i in range(10)), mark(99), to=number)
    unknown = Partitions(0)
    unknown.logs.update(parts.logs)
    unknown.index.look([KafkaSplit("t", number) for number in range(20)])
    assert unknown.reader.read == 60
    parts.look()
    for number in range(20):
        parts.index.commit_plan(f"t-{number}", 3)
    before = parts.reader.read
    parts.index.extend_snapshot()
    assert (before, parts.reader.read - before) == (60, 60)


# ---- where it is cut -------------------------------------------------------------------------------------------------


def test_a_cut_is_at_a_record_and_not_at_a_mark() -> None:
    parts = Partitions(1)
    parts.append(Entry(1), Entry(2), mark(50), Entry(3), None, Entry(60), Entry(4))
    assert parts.first_later(2 * MS) == (3, 3 * MS)
    assert parts.first_later(3 * MS) == (5, 60 * MS)
    assert parts.first_later(60 * MS) == (7, NO_TIMESTAMP)
    # Finer than a millisecond.
    assert parts.first_later(3 * MS - 1) == (3, 3 * MS)
    assert parts.first_later(3 * MS + 999) == (5, 60 * MS)


def test_behind_a_record_that_was_read_and_is_later_the_others_are_looked_at_one_by_one() -> None:
    parts = Partitions(1)
    parts.append(Entry(1), Entry(1000), Entry(2), Entry(3), Entry(4))
    assert parts.first_later(2 * MS, start=2) == (3, 3 * MS)
    assert parts.first_later(NO_TIMESTAMP, start=2) == (2, 2 * MS)


ENTRIES = st.lists(
    st.none() | st.builds(Entry, st.integers(0, 40), st.sampled_from([True, True, True, True, False])), max_size=8
)


class LogWalk(RuleBasedStateMachine):
    """Logs grow, and are compacted; look-ups are taken or not; the index must have the records, and cut as they do."""

    @initialize(few=st.sampled_from([0, 3, 100]), at_once=st.sampled_from([2, 1000]))
    def begin(self, few: int, at_once: int) -> None:
        self.parts = Partitions(2, few=few)
        self.parts.index.AT_ONCE = at_once  # type: ignore[misc]
        self.at = [0, 0]

    @rule(number=st.integers(0, 1), entries=ENTRIES, stable=st.booleans())
    def records_come(self, number: int, entries: list[Entry | None], stable: bool) -> None:
        self.parts.append(*entries, to=number, stable=stable)

    @rule()
    def it_is_looked(self) -> None:
        self.parts.look()

    @rule()
    def all_is_read(self) -> None:
        for number in range(2):
            self.at[number] = sum(rows for rows, *_ in self._indexed(number))
            self.parts.index.commit_plan(f"t-{number}", self.at[number])
        self.parts.index.extend_snapshot()

    @rule(number=st.integers(0, 1), start=st.integers(0, 30), bound=st.integers(-1, 41), finer=st.integers(0, 1))
    def it_is_cut(self, number: int, start: int, bound: int, finer: int) -> None:
        log = self.parts.log(number)
        start = min(start, log.stable)
        bound_us = bound * MS + finer
        later = [entry for entry in log.records(start, log.stable) if entry[1] > bound_us]
        expected = later[0] if later else (log.stable, NO_TIMESTAMP)
        assert self.parts.first_later(bound_us, start, number) == expected

    @invariant()
    def what_is_told_is_there(self) -> None:
        if not hasattr(self, "parts"):
            return
        for number in range(2):
            begin = 0
            for rows, low, high in self._indexed(number):
                assert rows > 0
                times = [time for _, time in self.parts.log(number).records(begin, begin + rows)]
                assert max(times) == high
                assert low in (NO_TIMESTAMP, min(times))
                begin += rows
            assert begin <= self.parts.log(number).stable

    def _indexed(self, number: int) -> list[tuple[int, int, int]]:
        """Blocks of both kinds in the order of their offsets."""
        return self.parts.context.order.get(f"t-{number}", [])


TestLogs = LogWalk.TestCase
TestLogs.settings = settings(max_examples=examples(150), stateful_step_count=30, deadline=None)
