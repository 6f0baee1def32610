"""Reading ahead in several splits with one client: who is paused, who is not, and that nobody starves."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from streaming_source.api import Fetching, RecordSplit
from streaming_source.coordinator import SourceState, WorkerPool
from streaming_source.exceptions import UnsupportedOperationError
from tests.coordinator.one_client import OneClient
from tests.coordinator.support import WAIT_S, Looking
from tests.examples import examples

SECOND = 1_000_000
DRIFT_US = 10 * SECOND


def ahead_of(source: OneClient, workers: Any = None, max_rows: int = 1000, **options: Any) -> Looking:
    return Looking(source, workers, max_rows, **options)


def seconds(start: int, stop: int, pace: int = 1) -> list[int]:
    return [second * SECOND for second in range(start, stop, pace)]


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    made = WorkerPool()
    yield made
    made.close()


def test_all_splits_are_fetched_with_as_many_clients_as_the_source_asks_for() -> None:
    for fetching, clients in [(Fetching.single_thread(), 1), (Fetching.fixed_size(3), 3), (Fetching.per_split(), 100)]:
        source = OneClient({f"s{n:02d}": seconds(0, 9) for n in range(100)})
        source.fetching = fetching  # type: ignore[misc]
        scanning = ahead_of(source, max_rows=10_000)
        scanning.add(*source.logs)
        assert set(scanning.run().values()) == {9}
        # Where each split has one there are more than may stay open: each is opened again for each fetch.
        assert len({id(client) for client in source.clients}) == clients or fetching.kind == "per_split"
        scanning.read_ahead.close()
        assert all(client.closed == 1 for client in source.clients)


def test_a_split_is_paused_where_it_is_ahead_in_event_time_and_goes_on_when_the_slowest_does() -> None:
    source = OneClient({"fast": seconds(0, 1000, 5), "slow": seconds(0, 4)})
    scanning = ahead_of(source, max_drift_us=DRIFT_US)
    scanning.add("fast", "slow")
    scanning.calls.workers.do_one(due=True)  # type: ignore[attr-defined]
    source.logs["slow"] += seconds(4, 40)
    assert scanning.run()["slow"] == 40
    # The slow one has nothing more, so it does not bound the fast one any longer.
    assert scanning.seen()["fast"] == 200
    source = OneClient({"fast": seconds(0, 1000, 5), "slow": seconds(0, 40)}, policy="first")
    scanning = ahead_of(source, max_rows=60, max_drift_us=DRIFT_US)
    scanning.add("fast", "slow")
    assert scanning.run() == {"fast": 9, "slow": 30}, "the slow one is at its share, the fast one 10 s later"
    assert source.clients[0].paused <= {"fast", "slow"}
    scanning.read_ahead.commit_plan(["slow"], [9])
    assert scanning.run() == {"fast": 12, "slow": 39}
    scanning.read_ahead.commit_plan(["fast"], [12])
    assert scanning.run() == {"fast": 15, "slow": 39}, "what has nothing unread is never paused"


def test_a_time_that_is_invalid_for_being_too_late_takes_no_split_ahead() -> None:
    source = OneClient({"odd": [0, 10**17, *seconds(1, 40)], "slow": seconds(0, 40)})
    scanning = ahead_of(source, max_rows=60, max_drift_us=30 * SECOND)
    scanning.host._rules = replace(scanning.host._rules, time_limit_us=10**16)
    scanning.add("odd", "slow")
    assert scanning.run() == {"odd": 30, "slow": 30}


def test_a_split_that_is_resumed_is_fetched_though_the_fetch_under_way_blocks(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming_source.coordinator.event_times.split_scan._FIRST_PATIENCE_S", 2 * WAIT_S)
    source = OneClient({"full": seconds(0, 100), "empty": []}, blocks=True)
    scanning = ahead_of(source, pool, max_rows=6)
    scanning.add("full", "empty")
    while scanning.run().get("full") != 3:
        scanning.calls.wait(WAIT_S)
    assert source.clients[0].is_blocked.wait(WAIT_S), "of the empty one alone"
    scanning.read_ahead.commit_plan(["full", "empty"], [3, 0])
    while scanning.run()["full"] != 6:
        scanning.calls.wait(WAIT_S)
    source.logs["new"] = seconds(0, 2)
    assert source.clients[0].is_blocked.wait(WAIT_S)
    scanning.add("new")
    while scanning.run()["new"] != 2:
        scanning.calls.wait(WAIT_S)
    scanning.read_ahead.close()


def test_an_idle_split_is_seen_to_be_idle_beside_one_that_always_has_something() -> None:
    source = OneClient({"busy": seconds(0, 100_000), "idle": [0]}, policy="first")
    scanning = ahead_of(source, max_rows=10_000)
    scanning.add("busy", "idle")
    while scanning.planner.engine.idle_clock.probed_us("idle") is None or scanning.seen()["idle"] == 0:
        scanning.calls.wait()
    assert scanning.seen()["busy"] < 200
    assert scanning.seen()["idle"] == 1
    scanning.read_ahead.close()


def test_a_reader_of_several_splits_that_cannot_pause_is_refused_before_it_fetches_unless_that_is_allowed() -> None:
    refused = OneClient({"a": seconds(0, 9), "b": seconds(0, 9)}, can_pause=False)
    scanning = ahead_of(refused)
    scanning.add("a", "b")
    with pytest.raises(UnsupportedOperationError, match=r"pause_or_resume_splits.*per_split.*allowUnaligned"):
        scanning.run()
    scanning.read_ahead.close()
    assert [client.closed for client in refused.clients] == [1]
    allowed = OneClient({"a": seconds(0, 90), "b": seconds(0, 90, 10)}, can_pause=False, policy="all")
    scanning = ahead_of(allowed, max_rows=60, allow_unaligned=True)
    scanning.add("a", "b")
    assert scanning.run() == {"a": 90, "b": 9}, "more than its share, since the other has less"


def test_a_split_that_is_let_go_and_comes_back_is_read_from_where_it_is_then() -> None:
    source = OneClient({"a": seconds(0, 9), "b": seconds(0, 9)})
    scanning = ahead_of(source)
    scanning.add("a", "b")
    scanning.run()
    scanning.read_ahead.finish_splits(["a"])
    scanning.run()
    scanning.read_ahead.add_splits([RecordSplit("a", 5)])
    source.logs["b"] += seconds(9, 12)
    source.clock.advance("1 second")
    scanning.run()
    assert {name: split.position for name, split in source.clients[0].splits.items()} == {"a": 9, "b": 12}
    assert scanning.read_ahead.event_times("a", 5, 8).tolist() == seconds(5, 8)
    scanning.read_ahead.restore_splits(SourceState.initial())
    assert [client.closed for client in source.clients] == [1]


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("seed", range(3))
def test_with_threads_and_fetches_that_block_every_record_is_seen_once(pool: WorkerPool, seed: int) -> None:
    chance = random.Random(seed)
    names = [f"s{number:02d}" for number in range(chance.choice([3, 30]))]
    source = OneClient({name: [] for name in names}, chance.choice(["all", "next", "first"]), blocks=True)
    source.fetching = chance.choice([Fetching.single_thread(), Fetching.fixed_size(4)])  # type: ignore[misc]
    left = {name: chance.randrange(40) for name in names}
    expected = dict(left)
    scanning = ahead_of(source, pool, max_rows=5 * len(names), max_drift_us=DRIFT_US)
    scanning.add(*names)
    planned: dict[str, int] = {}
    while (seen := scanning.run()) != expected:
        planned = {name: rows if chance.random() < 0.9 else planned.get(name, 0) for name, rows in seen.items()}
        scanning.read_ahead.commit_plan(list(planned), list(planned.values()))
        for name in chance.sample(names, 2):
            log, more = source.logs[name], min(left[name], chance.randrange(8))
            log += seconds(len(log), len(log) + more, 1)
            left[name] -= more
            for client in source.clients:
                # What has come ends a fetch that blocks.
                client.woken.set()
        scanning.calls.wait(0.005)
    for name, rows in expected.items():
        assert scanning.read_ahead.position_at(name, rows) == rows, f"seed {seed}"
    scanning.read_ahead.close()
    pool.close()
    for client in source.clients:
        for _ in range(int(WAIT_S * 100)):
            if client.closed:
                break
            time.sleep(0.01)
        assert client.closed == 1, f"seed {seed}"


class OneClientMachine(RuleBasedStateMachine):
    """Splits of one client are appended to, planned, added and let go at random; a naive model says who may be read.

    The model looks at every fetch: no split of which enough was scanned by then may be in it.
    """

    @initialize(
        policy=st.sampled_from(["all", "next", "first"]),
        rows=st.integers(1, 4),
        max_rows=st.integers(1, 30),
        drift_s=st.none() | st.integers(0, 8),
    )
    def begin(self, policy: str, rows: int, max_rows: int, drift_s: int | None) -> None:
        self.source = OneClient({name: [] for name in "abcd"}, policy, rows)
        self.max_rows = max_rows
        self.drift_us = None if drift_s is None else drift_s * SECOND
        self.scanning = ahead_of(self.source, max_rows=max_rows, max_drift_us=self.drift_us)
        # By split in work: records fetched, records planned, latest event time, and whether it had nothing when it was
        # looked for last.
        self.fetched: dict[str, int] = {}
        self.planned: dict[str, int] = {}
        self.front: dict[str, int] = {}
        self.empty: dict[str, bool] = {}
        create = self.source.create_split_reader

        def checking(context: Any) -> Any:
            client: Any = create(context)
            client.on_fetched = lambda blocks: self.check(client.splits.keys() - client.paused, blocks)
            return client

        self.source.create_split_reader = checking  # type: ignore[method-assign]

    def check(self, read: set[str], blocks: dict[str, Any]) -> None:
        assert read <= self.fetched.keys(), "it was let go"
        limit = None
        open_fronts = [self.front[name] for name in self.fetched if not self.empty[name]]
        if self.drift_us is not None and open_fronts:
            limit = min(open_fronts) + self.drift_us
        for name in read:
            rows = self.fetched[name] - self.planned[name]
            assert rows < max(self.max_rows // len(self.fetched), 1), "it had its share"
            assert limit is None or not rows or self.front[name] <= limit, "it was far ahead in event time"
        for name, (block,) in blocks.items():
            self.fetched[name] += block.batch.num_rows
            self.front[name] = max(self.front[name], int(block.source_timestamps.max()))
            self.empty[name] = False
        if not blocks:
            self.empty.update(dict.fromkeys(read, True))

    @rule(name=st.sampled_from("abcd"))
    def add(self, name: str) -> None:
        if name not in self.fetched and name not in self.scanning.index:
            self.planned[name] = self.fetched[name] = 0
            self.front[name], self.empty[name] = -(2**63) + 1, False
            self.scanning.add(name)

    @rule(name=st.sampled_from("abcd"), times=st.lists(st.integers(0, 60), min_size=1, max_size=9))
    def append(self, name: str, times: list[int]) -> None:
        self.source.logs[name] += [second * SECOND for second in times]

    @rule(ms=st.sampled_from([0, 1, 20, 600]))
    def run(self, ms: int) -> None:
        self.source.clock.advance(f"{ms} ms")
        self.scanning.run()

    @precondition(lambda self: getattr(self, "fetched", None))
    @rule(share=st.floats(0, 1))
    def plan(self, share: float) -> None:
        seen = self.scanning.seen()
        self.planned = {name: done + round(share * (seen[name] - done)) for name, done in self.planned.items()}
        self.scanning.read_ahead.commit_plan(list(self.planned), list(self.planned.values()))

    @precondition(lambda self: getattr(self, "fetched", None))
    @rule(name=st.sampled_from("abcd"))
    def let_go(self, name: str) -> None:
        if name in self.fetched:
            self.scanning.read_ahead.finish_splits([name])
            for known in (self.fetched, self.planned, self.front, self.empty):
                known.pop(name)  # type: ignore[attr-defined]

    @invariant()
    def what_is_known_is_what_is_there(self) -> None:
        for name, planned in getattr(self, "planned", {}).items():
            seen = self.scanning.read_ahead._scans[name].seen
            blocks = [seen.times(end - len(block), end) for block, end in zip(seen._blocks, seen._ends, strict=True)]
            times = [int(time) for block in blocks for time in block]
            assert times == self.source.logs[name][seen.end - len(times) : seen.end]
            assert seen.end - len(times) <= planned

    def teardown(self) -> None:
        if not hasattr(self, "scanning"):
            return
        for _ in range(300):
            if all(self.planned[name] == len(self.source.logs[name]) for name in self.planned):
                break
            self.run(600)
            self.plan(1.0)
        else:
            raise AssertionError("a split starves")
        for _ in range(20):
            self.run(600)
        assert all(self.empty.values()), "a split is not known to have nothing more"
        self.scanning.read_ahead.close()
        assert all(client.closed == 1 for client in self.source.clients)


TestOneClient = OneClientMachine.TestCase
TestOneClient.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
