"""Reading ahead: how far, in turn, what is caught up with, and what is let go."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from alignment.watermarks import MIN_WATERMARK
from streaming_source.api import Fetching, RecordSplit
from streaming_source.coordinator import SourceState, WorkerPool
from streaming_source.testing import ABORT, EOF, Gap, Pause, TestingAbort, TestingSource
from tests.coordinator.support import (
    WAIT_S,
    FetchSource,
    HeldWorkers,
    Looking,
    ScriptedFetches,
    await_end,
    coordinator,
    worker_threads,
)


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    made = WorkerPool()
    yield made
    made.close()


# ---- how far ---------------------------------------------------------------------------------------------------------


def test_no_split_is_more_than_its_share_and_one_fetch_ahead() -> None:
    source = TestingSource({name: list(range(1000)) for name in "abcd"}, records_per_fetch=7)
    looking = Looking(source, max_rows=100)
    looking.add("a", "b", "c", "d")
    assert looking.run() == dict.fromkeys("abcd", 28)
    for rows in looking.run().values():
        assert 25 <= rows < 25 + 7


def test_as_much_as_was_handed_out_is_looked_at_further() -> None:
    source = TestingSource({name: list(range(1000)) for name in "ab"}, records_per_fetch=5)
    looking = Looking(source, max_rows=20)
    looking.add("a", "b")
    assert looking.run() == {"a": 10, "b": 10}
    looking.read_ahead.commit_plan(["a", "b"], [7, 0])
    assert looking.run() == {"a": 20, "b": 10}
    looking.read_ahead.commit_plan(["a", "b"], [7, 10])
    assert looking.run() == {"a": 20, "b": 20}


def test_with_more_splits_than_rows_each_has_one_fetch() -> None:
    names = [f"s{number}" for number in range(10)]
    looking = Looking(TestingSource({name: list(range(50)) for name in names}, records_per_fetch=3), max_rows=4)
    looking.add(*names)
    assert set(looking.run().values()) == {3}


def test_a_split_that_leaves_makes_room_for_the_others() -> None:
    source = TestingSource({"a": list(range(100)), "b": [1, EOF]}, records_per_fetch=5)
    looking = Looking(source, max_rows=20)
    looking.add("a", "b")
    assert looking.run() == {"a": 10, "b": 1}
    looking.read_ahead.finish_splits(["b"])
    looking.read_ahead.commit_plan(["a"], [1])
    assert looking.run()["a"] == 25


@pytest.mark.parametrize("max_rows", [1, 10, 64])
def test_records_that_wait_for_the_coordinator_count_as_well(max_rows: int) -> None:
    workers, source = HeldWorkers(), FetchSource({"a": [4] * 100})
    looking = Looking(source, workers, max_rows=max_rows)
    looking.add("a")
    # The coordinator does not run: nothing is taken over.
    workers.do_all_due()
    assert source.fetches["a"] == -(-max_rows // 4)
    assert looking.run()["a"] in range(max_rows, max_rows + 4)
    looking.read_ahead.close()


def test_at_rest_is_who_has_seen_all_that_it_may() -> None:
    source = TestingSource({"a": list(range(100)), "b": [1, EOF]}, records_per_fetch=5)
    looking = Looking(source, max_rows=20)
    looking.add("a", "b")
    assert not looking.read_ahead.is_at_rest
    looking.run()
    assert looking.read_ahead.is_at_rest
    looking.read_ahead.commit_plan(["a"], [10])
    assert not looking.read_ahead.is_at_rest


# ---- what is caught up with ------------------------------------------------------------------------------------------


def test_what_found_nothing_is_fetched_again_later_and_later_and_soon_after_it_found_something() -> None:
    source = FetchSource({"a": []})
    looking = Looking(source)
    looking.add("a")
    made = []
    for _ in range(100):
        looking.run()
        made.append(source.fetches["a"])
        source.clock.advance("20 ms")
    assert made[:17] == [1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 4, 5, 5]
    assert made[-1] == 8
    source.steps["a"].append(1)
    while looking.run()["a"] == 0:
        source.clock.advance("20 ms")
    before = source.fetches["a"]
    source.clock.advance("20 ms")
    looking.run()
    assert source.fetches["a"] == before + 1


def test_when_a_split_was_caught_up_with_is_when_the_fetch_began_that_found_nothing() -> None:
    source = TestingSource({"a": [1, Pause("1 second"), 2], "b": [1]})
    looking = Looking(source)
    looking.add("a", "b")
    source.clock.advance("5 us")
    assert not looking.read_ahead.is_warm()
    looking.run()
    assert looking.read_ahead.is_warm()
    assert [looking.planner.engine.idle_clock.probed_us(i) for i in "ab"] == [5, 5]
    source.clock.advance_to(1_000_000)
    looking.calls.run()
    assert looking.seen() == {"a": 2, "b": 1}
    assert [looking.planner.engine.idle_clock.probed_us(i) for i in "ba"] == [1_000_000, 1_000_000]


@pytest.mark.usefixtures("_impatient")
def test_a_fetch_that_blocks_is_woken_and_one_that_was_not_patient_enough_proves_nothing() -> None:
    workers = HeldWorkers()
    source = FetchSource({"a": []})
    # The test is on one thread: it wakes the fetch from inside of it, as another thread would.
    source.steps["a"] = [lambda: (workers.do("_wake"), 0)[-1] for _ in range(4)]
    looking = Looking(source, workers)
    looking.planner.clock.advance("1 us")
    looking.add("a")
    found_nothing = []
    for _ in range(3):
        workers.do("_fetch")
        looking.run()
        found_nothing.append(looking.planner.engine.idle_clock.probed_us("a") == 1)
        workers.do("_retry")
    assert found_nothing == [False, False, True], "woken after 10, 20 and 40 ms; 40 ms is the longest"
    assert source.wakes == 3
    looking.read_ahead.close()


@pytest.mark.usefixtures("_impatient")
def test_a_wake_up_that_came_too_late_does_not_end_what_the_next_fetch_would_have_found() -> None:
    workers = HeldWorkers()
    source = FetchSource({"a": []})
    # The first fetch is woken, and comes back with records all the same: it is the second that returns at once.
    source.steps["a"] = [lambda: (workers.do("_wake"), 2)[-1], 0, 3]
    looking = Looking(source, workers)
    looking.read_ahead.drain(looking.planner.clock.now_us())
    looking.add("a")
    workers.do("_fetch")
    workers.do("_fetch")
    looking.run()
    assert not looking.read_ahead.is_at_rest, "nobody knows whether there is more"
    workers.do("_retry")
    workers.do("_fetch")
    assert looking.run() == {"a": 5}
    workers.do("_fetch")
    looking.run()
    assert looking.read_ahead.is_at_rest
    looking.read_ahead.close()


def test_there_is_one_timer_for_a_split_however_often_it_is_fetched() -> None:
    workers = HeldWorkers()
    source = FetchSource({"a": [1] * 50})
    looking = Looking(source, workers, max_rows=1000)
    looking.add("a")
    for _ in range(50):
        workers.do("_fetch")
        assert workers.count("_wake") == 1
    workers.do("_wake")
    assert (workers.count("_wake"), source.wakes) == (0, 0), "no fetch is under way"
    workers.do("_fetch")
    assert workers.count("_wake") == 1
    looking.read_ahead.close()


def test_a_timer_of_an_earlier_fetch_gives_the_next_one_as_long() -> None:
    workers = HeldWorkers()
    source = FetchSource({"a": []})
    source.steps["a"] = [1, lambda: (workers.do("_wake"), 1)[-1]]
    looking = Looking(source, workers)
    looking.add("a")
    workers.do("_fetch")
    workers.do("_fetch")
    assert source.wakes == 0
    assert workers.count("_wake") == 1
    looking.read_ahead.close()


def test_a_drained_split_is_looked_at_no_further_once_nothing_was_found() -> None:
    source = TestingSource({"a": [1, 2, 3]})
    looking = Looking(source)
    looking.add("a")
    looking.read_ahead.drain(looking.planner.clock.now_us())
    assert not looking.read_ahead.is_settled
    assert looking.run() == {"a": 3}
    assert looking.read_ahead.is_settled
    assert looking.read_ahead.is_at_rest
    source.go_on("a", 4)
    source.clock.advance("1 hour")
    assert looking.run() == {"a": 3}


def test_what_found_nothing_before_the_draining_began_is_looked_at_once_more() -> None:
    source = TestingSource({"a": [1]})
    looking = Looking(source)
    looking.add("a")
    looking.run()
    source.go_on("a", 2)
    looking.read_ahead.drain(looking.planner.clock.now_us())
    assert not looking.read_ahead.is_at_rest
    source.clock.advance("1 second")
    assert looking.run() == {"a": 2}
    source.clock.advance("1 second")
    looking.run()
    assert looking.read_ahead.is_at_rest


def test_a_fetch_that_began_before_the_draining_does_not_end_it() -> None:
    workers = HeldWorkers()
    source = FetchSource({"a": []})
    looking = Looking(source, workers)

    def drain_meanwhile() -> int:
        looking.planner.clock.advance("1 us")
        looking.read_ahead.drain(looking.planner.clock.now_us())
        return 0

    source.steps["a"] = [drain_meanwhile]
    looking.add("a")
    workers.do("_fetch")
    looking.run()
    assert not looking.read_ahead.is_at_rest
    workers.do("_retry")
    workers.do("_fetch")
    looking.run()
    assert looking.read_ahead.is_at_rest
    looking.read_ahead.close()


def test_a_split_that_ends_is_complete() -> None:
    looking = Looking(TestingSource({"a": [1, 2, 3, EOF], "b": [1]}))
    looking.add("a", "b")
    looking.run()
    assert looking.host.engine.complete == {"a"}


def test_records_are_numbered_and_gaps_are_not() -> None:
    looking = Looking(TestingSource({"a": [Gap(5), 1, Gap(10), 2, 3]}))
    looking.add("a")
    assert looking.run() == {"a": 3}
    at = [looking.read_ahead.position_at("a", number) for number in range(4)]
    assert at == [0, 6, 17, 18]


# ---- in turn ---------------------------------------------------------------------------------------------------------


class BlockingFetches(ScriptedFetches):
    """Blocks where it has nothing, until it is woken."""

    def fetch(self) -> Any:
        records = super().fetch()
        if not self.steps.get(self.split.split_id) and self.split.split_id != "busy":
            self.source.blocked.release()
            assert self.woken.wait(WAIT_S)
            self.woken.clear()
        return records


class BlockingSource(FetchSource):
    def __init__(self, steps: Any) -> None:
        super().__init__(steps)
        self.blocked = threading.Semaphore(0)

    def create_split_reader(self, context: Any) -> Any:
        self.columns = context.schema.names
        reader = BlockingFetches(self, self.steps)
        self.readers.append(reader)
        return reader


def test_splits_that_block_do_not_keep_those_waiting_that_bring_records(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming_source.coordinator.event_times.split_scan._FIRST_PATIENCE_S", 0.05)
    source = BlockingSource({"busy": [1] * 300, **{f"blocks-{number}": [] for number in range(30)}})
    looking = Looking(source, pool, max_rows=100_000)
    looking.add(*source.steps)
    while looking.run()["busy"] < 300:
        looking.calls.wait(WAIT_S)
    blocking = sum(count for name, count in source.fetches.items() if name != "busy")
    assert blocking < 200, "in turn with all the others it would have been some thousands"
    looking.read_ahead.close()


@pytest.mark.usefixtures("_impatient")
def test_with_more_splits_that_block_than_workers_each_has_its_turn(pool: WorkerPool) -> None:
    source = BlockingSource({f"blocks-{number}": [] for number in range(20)})
    looking = Looking(source, pool)
    looking.add(*source.steps)
    while not looking.read_ahead.is_warm():
        looking.calls.wait(WAIT_S)
    assert set(source.fetches) == set(source.steps)
    looking.read_ahead.close()


def test_while_all_places_are_taken_discovery_still_has_a_worker(pool: WorkerPool) -> None:
    source = BlockingSource({f"blocks-{number}": [] for number in range(20)})
    looking = Looking(source, pool)
    looking.add(*source.steps)
    for _ in range(5):
        assert source.blocked.acquire(timeout=WAIT_S)
    discovered = threading.Event()
    looking.host.call_async(discovered.set, lambda result, error: None)
    assert discovered.wait(WAIT_S)
    looking.read_ahead.close()


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_an_error_reaches_the_query_with_a_note_of_the_split_and_records_of_others_are_kept() -> None:
    source = TestingSource({"a": [1, ABORT, 2], "b": [1, 2]}, fetching=Fetching.per_split())
    looking = Looking(source)
    looking.add("a", "b")
    with pytest.raises(TestingAbort) as caught:
        looking.run()
    assert caught.value.__notes__ == ["(while the planner read split 'a' ahead)"]
    assert looking.run() == {"a": 1, "b": 2}


def test_an_error_of_a_split_that_nobody_wants_to_know_of_any_more_is_not_heard() -> None:
    workers = HeldWorkers()
    source = FetchSource({"a": []})

    def fail() -> int:
        raise OSError("broken")

    source.steps["a"] = [fail]
    looking = Looking(source, workers)
    looking.add("a")
    workers.do("_fetch")
    looking.read_ahead.restore_splits(SourceState.initial())
    looking.run()
    assert [reader.closed for reader in source.readers] == [1]


def test_records_of_another_split_are_an_error() -> None:
    source = FetchSource({"a": [1]})

    class Confused(ScriptedFetches):
        def fetch(self) -> Any:
            self.split, self.steps = RecordSplit("z"), {"z": [1]}
            return super().fetch()

    source.create_split_reader = lambda context: Confused(source, {})  # type: ignore[method-assign]
    source.columns = ["ts"]
    looking = Looking(source)
    looking.add("a")
    with pytest.raises(Exception, match="fetched records of split 'z' with the reader of 'a'"):
        looking.run()


# ---- readers are let go ----------------------------------------------------------------------------------------------


def test_with_more_than_64_splits_no_reader_stays_open_between_two_fetches() -> None:
    names = [f"s{number:02d}" for number in range(70)]
    source = FetchSource({name: [2, 2, 2] for name in names})
    looking = Looking(source, max_rows=10_000)
    looking.add(*names)
    assert looking.run() == dict.fromkeys(names, 6)
    assert len(source.readers) == 4 * 70
    assert all(reader.closed == 1 for reader in source.readers)
    assert looking.read_ahead.position_at("s00", 6) == 6


def test_with_64_splits_each_has_one_reader_for_all_its_fetches() -> None:
    names = [f"s{number:02d}" for number in range(64)]
    source = FetchSource({name: [2, 2, 2] for name in names})
    looking = Looking(source, max_rows=10_000)
    looking.add(*names)
    assert looking.run() == dict.fromkeys(names, 6)
    assert len(source.readers) == 64
    looking.read_ahead.close()
    assert all(reader.closed == 1 for reader in source.readers)


def test_a_finished_split_is_closed_and_a_split_that_is_let_go_as_well() -> None:
    source = FetchSource({"a": [1], "b": [1]})
    looking = Looking(source)
    looking.add("a", "b")
    looking.run()
    looking.read_ahead.finish_splits(["a"])
    assert sorted(reader.closed for reader in source.readers) == [0, 1]
    looking.read_ahead.restore_splits(SourceState.initial())
    assert [reader.closed for reader in source.readers] == [1, 1]


def test_a_fetch_that_blocks_is_woken_when_its_split_is_let_go_and_its_reader_closed(pool: WorkerPool) -> None:
    before = worker_threads()
    source = BlockingSource({"a": []})
    looking = Looking(source, pool)
    looking.add("a")
    assert source.blocked.acquire(timeout=WAIT_S)
    looking.read_ahead.close()
    pool.close()
    (reader,) = source.readers
    await_end(worker_threads() - before)
    assert reader.closed == 1


@pytest.mark.parametrize("moment", ["before", "in", "after"])
def test_a_reader_is_closed_once_whenever_its_split_is_let_go(moment: str) -> None:
    workers = HeldWorkers()
    source = FetchSource({"a": []})
    looking = Looking(source, workers)

    def let_go() -> int:
        looking.read_ahead.close()
        return 1

    source.steps["a"] = [1, let_go if moment == "in" else 1]
    looking.add("a")
    workers.do("_fetch")
    if moment == "before":
        # Another fetch is submitted, and never begun.
        looking.read_ahead.close()
        workers.close()
    else:
        workers.do("_fetch")
    if moment == "after":
        looking.read_ahead.close()
    looking.run()
    assert [reader.closed for reader in source.readers] == [1]


def test_of_a_split_that_was_let_go_nothing_is_fetched_any_more() -> None:
    workers = HeldWorkers()
    source = FetchSource({name: [1] for name in "abcdefg"})
    looking = Looking(source, workers)
    looking.add(*"abcdefg")
    assert workers.count("_fetch") == 5
    looking.read_ahead.restore_splits(SourceState.initial())
    for _ in range(5):
        workers.do("_fetch")
    assert (source.fetches, source.readers, workers.held) == ({}, [], [])


def test_a_wake_up_that_comes_while_the_reader_is_opened_is_not_lost() -> None:
    workers = HeldWorkers()
    source = FetchSource({"a": [0]})
    looking = Looking(source, workers)
    create = source.create_split_reader

    def slowly(context: Any) -> Any:
        looking.read_ahead.close()
        return create(context)

    source.create_split_reader = slowly  # type: ignore[method-assign]
    looking.add("a")
    workers.do("_fetch")
    assert source.wakes == 1, "or it would block for ever: nobody is left to wake it"
    assert [reader.closed for reader in source.readers] == [1]


def test_a_reader_that_cannot_be_closed_is_logged_and_keeps_no_other_open(caplog: pytest.LogCaptureFixture) -> None:
    source = FetchSource({"a": [1], "b": [1]})
    looking = Looking(source)
    looking.add("a", "b")
    looking.run()

    def fail() -> None:
        raise OSError("cannot close")

    source.readers[0].close = fail  # type: ignore[method-assign]
    looking.read_ahead.close()
    assert "closing a reader that reads ahead failed" in caplog.text
    assert source.readers[1].closed == 1


# ---- ranges ----------------------------------------------------------------------------------------------------------


def test_what_ended_in_the_last_micro_batch_is_still_cut_into_ranges() -> None:
    looking = Looking(TestingSource({"a": [Gap(100), *range(10), EOF]}))
    looking.add("a")
    looking.run()
    begun, ended = RecordSplit("a"), RecordSplit("a").at(looking.read_ahead.position_at("a", 10))
    looking.read_ahead.commit_plan(["a"], [10])
    looking.read_ahead.finish_splits(["a"])
    cut = looking.read_ahead.ranges(begun, ended, 4)
    assert [(part.split.position, part.split.stop, part.rows) for part in cut] == [
        (0, 104, 4),
        (104, 108, 4),
        (108, 110, 2),
    ]
    looking.read_ahead.commit_plan([], [])
    assert [part.rows for part in looking.read_ahead.ranges(begun, ended, 4)] == [110]


# ---- under stress ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("seed", range(3))
def test_with_threads_every_record_is_seen_once_and_no_reader_stays_open(pool: WorkerPool, seed: int) -> None:
    before = worker_threads()
    rng = random.Random(seed)
    names = [f"s{number:02d}" for number in range(rng.choice([3, 20, 70]))]
    steps = {name: [rng.choice([0, 1, 5]) for _ in range(rng.randint(1, 12))] for name in names}
    expected = {name: sum(rows) for name, rows in steps.items()}
    source = BlockingSource({name: list(rows) for name, rows in steps.items()})
    looking = Looking(source, pool, max_rows=len(names) * 3)
    looking.add(*names)
    while (seen := looking.run()) != expected:
        looking.read_ahead.commit_plan(list(seen), list(seen.values()))
        looking.calls.wait(WAIT_S)
        for name, rows in looking.seen().items():
            assert rows <= expected[name], f"seed {seed}"
    looking.read_ahead.close()
    pool.close()
    await_end(worker_threads() - before)
    assert all(reader.closed == 1 for reader in source.readers), f"seed {seed}"


# ---- looking again ---------------------------------------------------------------------------------------------------


def test_a_split_that_has_more_than_is_known_is_fetched_from_at_once() -> None:
    source = FetchSource({"a": [3], "b": [2]})
    looking = Looking(source)
    looking.add("a", "b")
    assert looking.run() == {"a": 3, "b": 2}
    for _ in range(8):
        source.clock.advance("1 second")
        looking.run()
    looking.read_ahead.commit_plan(["a", "b"], [3, 2])
    fetches = dict(source.fetches)
    source.steps["a"].append(4)
    source.clock.advance("1 us")
    is_found = looking.read_ahead.find_expected({"a": 7, "b": 2})
    assert not is_found()
    assert looking.run() == {"a": 7, "b": 2}
    assert is_found()
    assert source.fetches["b"] == fetches["b"], "of this one all is known"
    source.clock.advance("500 ms")
    looking.run()
    assert source.fetches["a"] <= fetches["a"] + 3, "it is not fetched from twice as often from now on"


def test_a_split_whose_end_is_no_record_is_looked_at_and_that_is_enough() -> None:
    source = FetchSource({"a": [3]})
    looking = Looking(source)
    looking.add("a")
    for _ in range(8):
        looking.run()
        source.clock.advance("1 second")
    looking.read_ahead.commit_plan(["a"], [3])
    is_found = looking.read_ahead.find_expected({"a": 5})
    assert not is_found()
    looking.run()
    assert is_found()


# ---- what is there at the start, where none of it may be late --------------------------------------------------------


LATE = 5
"""The event time of one record, far behind those before it."""


@pytest.mark.parametrize("ends", [pytest.param((), id="goes on"), pytest.param((EOF,), id="ends")])
@pytest.mark.parametrize("drains", [False, True])
def test_with_lateness_none_a_backlog_holds_the_watermark_until_it_was_scanned(
    ends: tuple[Any, ...], drains: bool
) -> None:
    """Ten times as many records as are read ahead; without the option the one that is behind is late."""
    backlog = [*range(1_000, 1_900), LATE, *range(1_901, 2_000), *ends]
    late = {}
    for lateness in (None, "none"):
        source = TestingSource({"a": backlog, "b": [1_500, *ends]}, records_per_fetch=20)
        planning = coordinator(source, read_ahead_rows=100, lateness=lateness)
        planning.restore(planning.state)
        if drains:
            planning.drain()
        before, seen = None, []
        while planning.state is not before:
            before = planning.state
            planning.advance(50)
            seen.append((sum(split.position for split in planning.state.splits), planning.state.table.combined))
            source.clock.advance("1 second")
        late[lateness] = sum(planning.state.late)
        if lateness == "none":
            assert {watermark for read, watermark in seen if read < 900} == {MIN_WATERMARK}
        assert planning.state.table.combined >= 1_499
        planning.close()
    assert late == {None: 1, "none": 0}
