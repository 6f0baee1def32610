"""From state to state: restoring, going back, draining, reading at once, what is idle and what is there."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any

import pytest

from alignment.combine import SplitStatus
from alignment.event_time_range import EventTimeRange, Overlap
from alignment.explain import Cause
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from streaming_source.api import DiscoveringSplitEnumerator, ReaderInfo, RecordSplit
from streaming_source.connectors.datagen import DataGeneratorSource
from streaming_source.coordinator import ReadRules, SourceCoordinator, WorkerPool
from streaming_source.exceptions import SourceError
from streaming_source.monitoring.causes.answer import cause_of, sentence
from streaming_source.testing import EOF, FakeClock, Gap, InlineWorkers, Pause, SourceHarness, TestingSource
from tests.coordinator.support import STRATEGY, available, await_end, coordinator, ids, worker_threads


class RememberingSource(TestingSource):
    """Its enumerators note which readers were registered, and with what."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.registered: list[ReaderInfo] = []

    def _noting(self, enumerator: DiscoveringSplitEnumerator[RecordSplit], context: Any) -> Any:
        def add_reader(subtask_id: int) -> None:
            self.registered.append(context.registered_readers()[subtask_id])

        enumerator.add_reader = add_reader  # type: ignore[method-assign]
        return enumerator

    def create_enumerator(self, context: Any) -> Any:
        return self._noting(super().create_enumerator(context), context)

    def restore_enumerator(self, context: Any, checkpoint: Any) -> Any:
        return self._noting(super().restore_enumerator(context, checkpoint), context)

    def taken(self) -> list[ReaderInfo]:
        taken, self.registered = self.registered, []
        return taken


def planning_indexed() -> SourceCoordinator[Any, Any]:
    """Of a source that has an index: three splits of five records."""
    source: Any = DataGeneratorSource(splits=3, rows_per_split=5, bounded=True)
    like = coordinator(TestingSource({}))
    clock = FakeClock()
    rules: ReadRules = like._rules
    planning: SourceCoordinator[Any, Any] = SourceCoordinator(
        source, rules, source.schema(), clock.now_us, readers=2, workers=InlineWorkers(clock)
    )
    planning.restore(planning.state)
    return planning


def restored(source: TestingSource, **options: Any) -> SourceCoordinator[Any, Any]:
    planning = coordinator(source, **options)
    planning.restore(planning.state)
    return planning


# ---- restoring -------------------------------------------------------------------------------------------------------


def test_cd_02_once_planning_has_started_no_state_is_restored() -> None:
    planning = restored(TestingSource({"a": [1]}))
    first = planning.state
    state = planning.advance()
    with pytest.raises(SourceError) as caught:
        planning.restore(first)
    assert str(caught.value) == (
        "cannot restore state 0: planning has started, and is at state 1; go on from an earlier state with rewind()"
    )
    assert planning.state is state
    planning.close()


def test_before_planning_has_begun_another_state_may_be_restored() -> None:
    planning = restored(TestingSource({"a": [1]}))
    planning.restore(planning.state)
    assert planning.advance().sequence == 1
    planning.close()


def test_cd_26_restored_splits_are_reported_with_their_readers_and_not_assigned_again() -> None:
    source = RememberingSource({name: [1, 2, 3] for name in "abc"})
    reading = SourceHarness(source, STRATEGY, clock=source.clock, readers=2, max_rows=4)
    reading.run_batch()
    assert source.taken() == [ReaderInfo(0), ReaderInfo(1)]
    reading.restart(readers=2)
    reading.run_batch()
    assert source.taken() == [ReaderInfo(0, restored_splits=("a", "c")), ReaderInfo(1, restored_splits=("b",))]
    reading.run()
    assert reading.records() == source.expected()


@pytest.mark.parametrize("readers", [1, 3, 8])
def test_with_another_number_of_readers_splits_in_work_are_shared_out_anew(readers: int) -> None:
    source = RememberingSource({name: [1, 2] for name in "abcde"}, bounded=True)
    reading = SourceHarness(source, STRATEGY, clock=source.clock, readers=2, max_rows=3)
    reading.run_batch()
    source.taken()
    reading.restart(readers=readers)
    reading.run()
    infos = source.taken()
    assert [info.subtask_id for info in infos] == list(range(readers))
    in_work = [split for info in infos for split in info.restored_splits]
    assert sorted(in_work) == ["a", "b", "c", "d", "e"]
    assert reading.watermark == MAX_WATERMARK
    assert reading.records() == source.expected()


def test_so_06_what_is_stopped_before_its_first_state_ends_without_an_error() -> None:
    for plans in (0, 1):
        planning = coordinator(TestingSource({}))
        planning.close()
        planning = restored(TestingSource({"a": [Pause("1 hour"), 1]}))
        for _ in range(plans):
            planning.advance()
        planning.close()
        planning.close()


# ---- going back ------------------------------------------------------------------------------------------------------


def test_what_was_handed_out_and_not_taken_is_planned_again(caplog: pytest.LogCaptureFixture) -> None:
    source = RememberingSource({"a": [1, 2, 3, 4], "b": [10, Pause("1 second"), 11], "z": [5, EOF]})
    planning = restored(source, readers=2)
    first = planning.advance(2)
    source.taken()
    source.clock.advance("2 seconds")
    later = planning.advance()
    assert SplitStatus.FINISHED in later.table.statuses
    with caplog.at_level(logging.WARNING, "streaming_source"):
        planning.rewind(first)
    assert "planning goes on from state 1 instead of 2" in caplog.text
    assert source.taken() == [ReaderInfo(0, restored_splits=("a", "z")), ReaderInfo(1, restored_splits=("b",))]
    source.clock.advance("2 seconds")
    again = planning.advance()
    assert again.sequence == 2
    assert again.splits == later.splits
    assert again.table.combined == later.table.combined
    planning.close()


def test_splits_that_were_assigned_since_are_found_and_assigned_again() -> None:
    source = TestingSource({"a": [1]})
    planning = restored(source)
    first = planning.advance()
    source.go_on("b", 2)
    source.clock.advance("2 seconds")
    assert ids(planning.advance().splits) == ["a", "b"]
    planning.rewind(first)
    assert ids(planning.state.splits) == ["a"]
    source.clock.advance("1 second")
    assert ids(planning.advance().splits) == ["a", "b"]
    planning.close()


def test_going_back_behind_the_end_of_a_split_reads_its_end_again() -> None:
    source = TestingSource({"a": [1, 2, EOF]})
    planning = restored(source)
    first = planning.advance(1)
    planning.advance()
    planning.advance()
    assert available(planning) == {}
    planning.rewind(first)
    end = planning.advance()
    (part,) = planning.ranges(first, end, 1, 1)
    assert (part.split.position, part.split.stop, part.rows) == (1, 2, 1)
    planning.close()


def test_what_was_seen_to_the_end_and_is_not_any_more_is_not_taken_for_finished() -> None:
    source = TestingSource({"a": [1, 2, 3, 4, EOF]})
    planning = restored(source, read_ahead_rows=2)
    first = planning.advance(1)
    planning.advance(1)
    assert planning.runtime.engine.complete == {"a"}
    planning.rewind(first)
    ends = {"a": first.splits[0].position}
    before = first
    while (state := planning.advance()) is not before:
        before = state
        ends.update((split.split_id, split.position) for split in state.splits)
    assert ends == {"a": 4}
    planning.close()


def test_what_was_assigned_and_not_planned_is_assigned_once_after_going_back() -> None:
    source = TestingSource({"a": [1, 2, 3]})
    planning = restored(source)
    first = planning.advance(1)
    planning.advance(1)
    source.go_on("b", 2)
    source.clock.advance("2 seconds")
    planning.host.run()
    assert ids(planning.host.added) == ["b"]
    planning.rewind(first)
    source.clock.advance("2 seconds")
    planning.advance()
    assert ids(planning.advance().splits) == ["a", "b"]
    planning.close()


def test_cd_22_with_an_index_of_its_own_the_enumerator_is_another_and_has_no_readers_yet() -> None:
    planning = planning_indexed()
    first = planning.state
    state = planning.advance(4)
    before = planning.host
    planning.rewind(first)
    assert planning.host is not before
    assert planning.host.enumerator is not before.enumerator
    assert planning.host.registered_readers() == {}
    again = planning.advance(4)
    assert sorted(planning.host.registered_readers()) == [0, 1]
    assert (again.splits, again.sequence) == (state.splits, state.sequence)
    planning.close()


def test_the_watermark_is_announced_again_after_going_back() -> None:
    source = TestingSource({"a": [1, 2]})
    planning = restored(source)
    first = planning.advance()
    assert planning.advance() is first
    planning.rewind(first)
    again = planning.advance()
    assert (again.sequence, again.table.combined) == (2, first.table.combined)
    assert planning.advance() is again
    planning.close()


# ---- all there is ----------------------------------------------------------------------------------------------------


def test_a_bounded_source_without_an_index_is_read_at_once_as_its_splits_are() -> None:
    source = TestingSource({"a": [1, 2], "b": [Gap(5), 3]}, bounded=True)
    planning = restored(source, readers=3)
    parts = planning.everything(1)
    assert [(part.split.split_id, part.split.position, part.split.stop) for part in parts] == [
        ("a", 0, None),
        ("b", 0, None),
    ]
    planning.close()


def test_of_a_source_that_does_not_end_what_is_there_is_read_at_once() -> None:
    source = TestingSource({"a": [1, 2, 3, Pause("1 hour"), 4], "b": [Gap(5), 3], "c": []})
    planning = restored(source, read_ahead_rows=2)
    read = dict.fromkeys("abc", 0)
    for part in planning.everything(1):
        read[part.split.split_id] += part.rows
    assert read == {"a": 3, "b": 1, "c": 0}
    assert source.clock.now_us() < 3_600_000_000
    planning.close()


def test_with_an_index_all_is_read_at_once_in_ranges() -> None:
    planning = planning_indexed()
    parts = planning.everything(1)
    assert sum(part.rows for part in parts) == 15
    assert {part.split.split_id for part in parts} == set(ids(planning.state.splits))
    planning.close()


def test_a_planner_that_was_not_restored_says_so() -> None:
    planning = coordinator(TestingSource({"a": [1]}))
    with pytest.raises(SourceError, match=r"call restore\(\) first, with the state of an offset or"):
        planning.advance()
    planning.close()


# ---- what is there ---------------------------------------------------------------------------------------------------


def test_what_is_available_is_told_in_positions_of_the_splits() -> None:
    source = TestingSource({"a": [Gap(10), 1, Gap(10), 2, 3], "b": [5]})
    planning = restored(source)
    assert available(planning) == {}
    planning.advance(1)
    assert available(planning) == {"a": (11, 23), "b": (0, 1)}
    planning.advance()
    assert available(planning) == {"a": (23, 23), "b": (1, 1)}
    planning.close()


def with_a_split_since_the_last_plan() -> SourceCoordinator[Any, Any]:
    source = TestingSource({"a": [1]})
    planning = restored(source)
    planning.advance()
    source.go_on("b", 2)
    source.clock.advance("2 seconds")
    planning.host.run()
    return planning


def test_a_split_that_was_assigned_since_the_last_plan_is_explained_as_the_others_are() -> None:
    planning = with_a_split_since_the_last_plan()
    explanation = planning.explain()
    assert explanation is not None
    assert [(split.split_id, split.position) for split in explanation.splits] == [("a", 1), ("b", 0)]
    planning.close()


def test_a_split_that_was_assigned_since_the_last_plan_is_not_available_yet() -> None:
    planning = with_a_split_since_the_last_plan()
    assert available(planning) == {"a": (1, 1)}
    planning.advance()
    assert available(planning) == {"a": (1, 1), "b": (0, 0)}, "it counts, and was not looked at yet"
    planning.advance()
    assert available(planning) == {"a": (1, 1), "b": (1, 1)}
    planning.close()


@pytest.mark.parametrize(
    ("overlap", "nothing", "cause"),
    [("drop", [], Cause.EMPTY), ("keep", [], Cause.NOTHING), ("drop", [None], Cause.INVALID)],
)
def test_records_before_the_range_of_event_times_are_not_said_to_have_none(
    overlap: Overlap, nothing: list[None], cause: Cause
) -> None:
    source = TestingSource({"history": nothing or [1, 2], "live": [20, 30]})
    like = coordinator(source)._rules
    times = EventTimeRange(10, overlap=overlap)
    rules = replace(like, planning=replace(like.planning, times=times))
    planning: SourceCoordinator[Any, Any] = SourceCoordinator(
        source, rules, source.schema(), source.clock.now_us, workers=InlineWorkers(source.clock)
    )
    planning.restore(planning.state)
    planning.advance()
    source.clock.advance("20 seconds")
    planning.advance()
    explanation = planning.explain()
    assert explanation is not None
    assert (cause_of(explanation), explanation.held_by) == (cause, ("history",))
    if cause is Cause.EMPTY:
        assert "split 'history' has never had a record with an event time in the range, and" in sentence(explanation)
        assert "2 records lie outside of the range of event times" in sentence(explanation)
    planning.close()


def test_a_last_micro_batch_is_cut_into_ranges_like_any_other() -> None:
    source = TestingSource({"a": list(range(40))}, bounded=True, records_per_fetch=5)
    reading = SourceHarness(source, STRATEGY, clock=source.clock, readers=4)
    (batch, *_) = reading.run()
    assert [len(records) for records in batch.records] == [10, 10, 10, 10]


# ---- idleness --------------------------------------------------------------------------------------------------------


def test_a_split_is_idle_when_the_time_has_passed_between_its_last_record_and_a_look_that_found_nothing() -> None:
    source = TestingSource({"a": [1], "b": [2, Pause("30 seconds"), 3]})
    planning = restored(source, strategy=STRATEGY.with_idleness("10 seconds"))
    planning.advance()
    source.clock.advance_to(9_999_999)
    assert planning.advance().table.statuses.tolist() == [SplitStatus.ACTIVE] * 2
    source.clock.advance_to(10_999_999)
    state = planning.advance()
    assert state.table.statuses.tolist() == [SplitStatus.IDLE] * 2
    assert state.table.combined == 1, "all are idle: the maximum"
    source.clock.advance_to(31_000_000)
    state = planning.advance()
    assert state.table.statuses.tolist() == [SplitStatus.IDLE, SplitStatus.ACTIVE]
    assert state.table.combined == 2
    planning.close()


def test_nobody_is_idle_of_whom_it_was_not_looked_whether_there_is_more() -> None:
    source = TestingSource({"a": [1], "b": [2]})
    planning = restored(source, strategy=STRATEGY.with_idleness("10 seconds"))
    state = planning.advance()
    # Time passes, and no fetch is made in it.
    workers = planning._workers
    assert isinstance(workers, InlineWorkers)
    held, workers._work = workers._work, []
    source.clock.advance("1 hour")
    assert planning.advance() is state
    workers._work = held
    assert planning.advance().table.statuses.tolist() == [SplitStatus.IDLE] * 2
    planning.close()


def test_while_a_snapshot_is_read_nobody_becomes_idle() -> None:
    source = TestingSource({"a": [1], "b": list(range(2, 8))})
    planning = coordinator(source, STRATEGY.with_idleness("1 second"), read_ahead_rows=2)
    planning.drain()
    planning.restore(planning.state)
    statuses: set[int] = set()
    before = planning.state
    while (state := planning.advance(1)) is not before:
        before = state
        statuses.update(state.table.statuses.tolist())
        source.clock.advance("10 seconds")
    assert statuses <= {SplitStatus.ACTIVE, SplitStatus.PAUSED}
    assert [split.position for split in state.splits] == [1, 6]
    planning.close()


def test_a_split_of_which_nothing_is_known_holds_the_watermark() -> None:
    source = TestingSource({"a": [5, 6], "b": [Pause("5 seconds"), 7]})
    planning = restored(source, strategy=STRATEGY.with_idleness("1 minute"))
    assert planning.advance().table.combined == MIN_WATERMARK
    source.clock.advance("6 seconds")
    assert planning.advance().table.combined == 5
    planning.close()


# ---- the end ---------------------------------------------------------------------------------------------------------


def test_tens_of_thousands_of_readers_are_registered_in_a_moment() -> None:
    began = time.monotonic()
    planning = restored(TestingSource({"a": [1]}), readers=30_000)
    assert planning.advance().table.split_ids == ("a",)
    # Half a minute, where each request looks at those of all others.
    assert time.monotonic() - began < 10
    planning.close()


def test_an_enumerator_that_cannot_be_closed_leaves_no_thread() -> None:
    before = worker_threads()
    source = TestingSource({"a": [1]})
    planning = restored(source, workers=WorkerPool(), now_us=lambda: 0)
    while planning.advance().sequence == 0:
        pass

    def fail() -> None:
        raise OSError("cannot close")

    planning.host.enumerator.close = fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="cannot close"):
        planning.close()
    await_end(worker_threads() - before)


def test_with_threads_all_is_planned_and_none_is_left() -> None:
    source = TestingSource({name: list(range(200)) for name in "abcdefghij"}, bounded=True, records_per_fetch=7)
    planning = restored(source, workers=WorkerPool(), read_ahead_rows=300)
    while planning.state.table.combined < MAX_WATERMARK:
        planning.advance(97)
    assert planning.state.sequence >= 2000 / 97
    planning.close()
