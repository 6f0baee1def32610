"""Random scripts, read by any number of readers with any limits, over restarts: compared with plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from alignment import WatermarkStrategy
from alignment.combine import SplitStatus
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from streaming_source.coordinator import SourceState
from streaming_source.testing import Abort, Gap, Pause, SourceHarness, TestingAbort, TestingSource
from streaming_source.tools.testing.source import EOF, Element
from tests.coordinator.support import available
from tests.examples import examples

_STEPS = ("batch", "batch", "batch", "plan", "second", "restart", "lose", "rewind", "scale", "read twice")
_LAST_S = 40


@dataclass
class Case:
    """A script, and how it is read."""

    splits: dict[str, list[Element]]
    appears: dict[str, str]
    bounded: bool
    bound_us: int
    records_per_fetch: int
    readers: int
    max_rows: int | None
    steps: list[str]
    options: dict[str, Any] = field(default_factory=dict)
    idle_timeout: str | None = None

    def source(self) -> TestingSource:
        return TestingSource(
            self.splits, bounded=self.bounded, appears=self.appears, records_per_fetch=self.records_per_fetch
        )

    def harness(self, source: TestingSource) -> SourceHarness:
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(f"{self.bound_us} us")
        if self.idle_timeout is not None:
            strategy = strategy.with_idleness(self.idle_timeout)
        return SourceHarness(
            source, strategy, clock=source.clock, readers=self.readers, max_rows=self.max_rows, **self.options
        )


@st.composite
def cases(draw: st.DrawFn, *, aborts: bool = False, nulls: bool = False) -> Case:
    marks: list[st.SearchStrategy[Element]] = [
        st.integers(1, 3).map(Gap),
        st.integers(1, 5).map(lambda seconds: Pause(f"{seconds} seconds")),
    ]
    marks += [st.integers(1, 3).map(Abort)] * aborts + [st.none()] * nulls
    bounded = draw(st.booleans())
    splits: dict[str, list[Element]] = {}
    for name in "abcd"[: draw(st.integers(1, 4))]:
        base = draw(st.sampled_from([0, 0, 30, 100]))
        record = st.integers(base, base + 60)
        elements = draw(st.lists(st.one_of(record, record, record, *marks), max_size=12))
        splits[name] = [*elements, EOF] if draw(st.integers(0, 3)) == 0 else elements
    late = () if bounded else draw(st.sets(st.sampled_from(sorted(splits))))
    return Case(
        splits,
        {name: f"{draw(st.integers(1, 9))} seconds" for name in late},
        bounded,
        draw(st.sampled_from([0, 5, 40])),
        draw(st.integers(1, 4)),
        draw(st.integers(1, 4)),
        draw(st.sampled_from([None, 1, 2, 5])),
        draw(st.lists(st.sampled_from(_STEPS), max_size=12)),
    )


class Runner:
    """Takes the steps of a case, and then reads to the end."""

    def __init__(self, case: Case) -> None:
        self.source = case.source()
        self.harness = case.harness(self.source)
        self.case = case
        # State before, state after, and up to which position the planner saw each split that goes on, of each
        # micro-batch that was read.
        self.read: list[tuple[SourceState[Any, Any], SourceState[Any, Any], dict[str, int]]] = []
        self._planned: tuple[SourceState[Any, Any], dict[str, int]] | None = None

    def run(self) -> None:
        for step in self.case.steps:
            self._survive(step)
        for _ in range(_LAST_S):
            while self._survive("batch"):
                pass
            self.source.clock.advance("1 second")
        self.harness.close()

    def _survive(self, step: str) -> bool:
        """Take a step; what fails is what a script aborts, and then the query is started again."""
        try:
            return self._take(step)
        except TestingAbort:
            self.harness.restart(loses_plan=True)
            return True

    def _take(self, step: str) -> bool:
        harness = self.harness
        if step == "second":
            self.source.clock.advance("1 second")
        elif step == "plan":
            self._plan()
        elif step == "rewind" and harness.is_planned:
            harness.rewind()
        elif step in ("restart", "lose"):
            harness.restart(loses_plan=step == "lose")
        elif step == "scale":
            harness.restart(readers=harness.readers % 4 + 1)
        elif step in ("batch", "read twice") and self._plan():
            batch = harness.read()
            if step == "read twice":
                assert harness.read() == batch
            harness.commit(batch)
            assert self._planned is not None
            self.read.append((self._planned[0], harness.state, self._planned[1]))
            return bool(batch.all_records)
        return False

    def _plan(self) -> bool:
        before = self.harness.state
        if not self.harness.is_planned:
            if not self.harness.plan():
                return False
            self._planned = before, {i: end for i, (_, end) in available(self.harness.coordinator).items()}
        return True


@settings(max_examples=examples(60))
@given(cases(aborts=True, nulls=True), st.sampled_from([1, 3, 10_000]))
def test_every_record_is_read_once_and_in_order_whatever_happens(case: Case, read_ahead_rows: int) -> None:
    case.options["read_ahead_rows"] = read_ahead_rows
    runner = Runner(case)
    runner.run()
    expected = runner.source.expected()
    assert runner.harness.records() == {name: records for name, records in expected.items() if records}
    for batch in runner.harness.batches:
        assert case.max_rows is None or len(batch.all_records) <= case.max_rows
    if case.bounded:
        assert runner.harness.watermark == MAX_WATERMARK


@settings(max_examples=examples(50))
@given(cases(aborts=True, nulls=True), st.booleans(), st.sampled_from([None, "0 us", "20 us"]))
def test_with_alignment_what_is_read_is_a_beginning_of_every_split(case: Case, exact: bool, drift: str | None) -> None:
    case.options["exact"] = exact
    runner = Runner(case)
    if drift is not None:
        aligned = runner.harness.strategy.with_watermark_alignment("group", drift)
        runner.harness = SourceHarness(
            runner.source, aligned, clock=runner.source.clock, readers=case.readers, max_rows=case.max_rows, exact=exact
        )
    runner.run()
    read = runner.harness.records()
    for name, records in runner.source.expected().items():
        assert read.get(name, []) == records[: len(read.get(name, []))]
        if case.bounded:
            assert read.get(name, []) == records


@settings(max_examples=examples(60))
@given(cases(), st.sampled_from([None, "3 seconds"]))
def test_the_watermark_is_the_smallest_of_the_splits_that_count(case: Case, idle_timeout: str | None) -> None:
    case.idle_timeout = idle_timeout
    runner = Runner(case)
    runner.run()
    for before, after, seen in runner.read:
        assert after.table.combined == naive_watermark(runner.source, case, before, after, seen)


def naive_watermark(
    source: TestingSource,
    case: Case,
    before: SourceState[Any, Any],
    after: SourceState[Any, Any],
    seen: dict[str, int],
) -> int:
    """What a micro-batch announces, record by record, given where its splits are, what they are, and what was seen."""
    counting, finishing, idle, all_unread = [], [], [], []
    statuses = [SplitStatus(status) for status in after.table.statuses]
    for split, status in zip(after.splits, statuses, strict=True):
        records, end = source.scripts[split.split_id].records, seen.get(split.split_id, split.position)
        read = [record.time_us for record in records if record.position < split.position]
        unread = [record.time_us for record in records if split.position <= record.position < end]
        all_unread += valid(unread)
        own = max(valid(read)) - case.bound_us - 1 if valid(read) else MIN_WATERMARK
        if own == MIN_WATERMARK and unread:
            # Nothing was read of it: it holds the watermark below its first record, and where its records will put it.
            held = min(min(valid(unread)) - 1, max(valid(unread)) - case.bound_us - 1)
        else:
            held = own
        if status is SplitStatus.IDLE:
            idle.append(held)
        elif status is not SplitStatus.FINISHED:
            counting.append(held)
        elif own > MIN_WATERMARK:
            finishing.append(held)
    combined = max(smallest([*counting, *finishing], idle), smallest(counting, idle))
    if all(status is SplitStatus.FINISHED for status in statuses):
        combined = MAX_WATERMARK if case.bounded else max(combined, before.table.furthest, *finishing)
    # What is there is never late.
    return max(before.table.combined, min([combined, *(time - 1 for time in all_unread)]))


def smallest(counting: Sequence[int], idle: Sequence[int]) -> int:
    return min(counting) if counting else max(idle, default=MIN_WATERMARK)


def valid(times: Sequence[int | None]) -> list[int]:
    return [time for time in times if time is not None]


@settings(max_examples=examples(50))
@given(cases(aborts=True, nulls=True))
def test_the_same_script_gives_the_same_batches(case: Case) -> None:
    first, second = Runner(case), Runner(case)
    first.run()
    second.run()
    assert first.harness.batches == second.harness.batches


@settings(max_examples=examples(50))
@given(cases(nulls=True))
def test_late_records_are_counted_as_they_are_read(case: Case) -> None:
    runner = Runner(case)
    runner.run()
    committed = {batch.sequence: batch for batch in runner.harness.batches}
    late: dict[str, int] = {}
    for before, after, _ in runner.read:
        for record in committed[after.sequence].all_records:
            if NO_TIMESTAMP < record.time_us <= before.table.combined:
                late[record.split_id] = late.get(record.split_id, 0) + 1
        counted = dict(zip(after.table.split_ids, after.late.tolist(), strict=True))
        assert counted == {split_id: late.get(split_id, 0) for split_id in after.table.split_ids}
