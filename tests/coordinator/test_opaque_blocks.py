"""A source of which only questions can be asked, planned by the coordinator: cuts, idleness, reading to the end."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from alignment.combine import SplitStatus
from alignment.plan import PlanningRules
from alignment.strategy import WatermarkStrategy
from alignment.timestamps import NO_TIMESTAMP
from streaming_source.api import RecordSplit, SplitEnumerator, SplitRange, SupportsEventTimeIndex
from streaming_source.coordinator import ReadRules, SourceCoordinator
from streaming_source.exceptions import UnsupportedOperationError
from streaming_source.testing import FakeClock, InlineWorkers, TestingSource

BOUND = 5


class Log(SupportsEventTimeIndex[RecordSplit], SplitEnumerator[RecordSplit, None]):
    """Assigns all splits at once, tells each by asked blocks of at most `portion` records, and answers from lists."""

    def __init__(self, context: Any, times: dict[str, list[int]], portion: int) -> None:
        self.context = context
        self.times = times
        self.portion = portion
        self.indexed = dict.fromkeys(times, 0)
        self.read = dict.fromkeys(times, 0)
        self.held: set[str] = set()
        self.bounds: list[int] = []
        self.looks_on = 0

    def start(self) -> None:
        self.context.call_async(lambda: None, self._on_looked, period_seconds=1.0)

    def handle_split_request(self, subtask_id: int, requester_hostname: str | None = None) -> None:
        pass

    def snapshot_state(self, checkpoint_id: int) -> None:
        return None

    def restore_splits(self, splits: Sequence[RecordSplit]) -> None:
        pass

    def event_times(self, split_id: str, start: int, stop: int) -> npt.NDArray[np.int64]:
        raise AssertionError("an opaque block is not loaded")

    def split_at(self, split_id: str, position: int) -> RecordSplit:
        self.read[split_id] = position
        return RecordSplit(split_id, position, start=0)

    def ranges(self, start: RecordSplit, end: RecordSplit, rows_per_range: int) -> list[SplitRange[RecordSplit]]:
        return [SplitRange(start.until(end.position), end.position - start.position)]

    def finish_split(self, split_id: str) -> None:
        pass

    def blocked_splits(self) -> Collection[str]:
        return self.held

    def extend_snapshot(self) -> None:
        self.looks_on += 1
        self.index_next([i for i, position in self.read.items() if position == self.indexed[i]])

    def first_later(
        self, split_ids: Sequence[str], starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64], bound_us: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        self.bounds.append(bound_us)
        positions, found = stops.copy(), np.full(stops.size, NO_TIMESTAMP, np.int64)
        for i, split_id in enumerate(split_ids):
            for position in range(int(stops[i]) - 1, int(starts[i]) - 1, -1):
                if self.times[split_id][position] > bound_us:
                    positions[i], found[i] = position, self.times[split_id][position]
        return positions, found

    def index_next(self, split_ids: Collection[str]) -> None:
        for split_id in split_ids:
            part = self.times[split_id][self.indexed[split_id] :][: self.portion]
            if part:
                self.indexed[split_id] += len(part)
                self.context.add_opaque_block(split_id, len(part), max(part))

    def _on_looked(self, result: None, error: BaseException | None) -> None:
        if not self.context.added:
            new = [split_id for split_id in self.times if split_id not in self.context.engine.index]
            for split_id in new:
                self.context.assign_split(RecordSplit(split_id), 0)
        self.index_next(list(self.times))


class Planning:
    """A coordinator over such a source."""

    def __init__(
        self,
        times: dict[str, list[int]],
        *,
        drift: int | None = None,
        portion: int = 1000,
        idle: str | None = None,
        drains: bool = False,
    ) -> None:
        self.clock = FakeClock()
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(f"{BOUND} us")
        if idle is not None:
            strategy = strategy.with_idleness(idle)
        source: Any = TestingSource({})
        source.create_enumerator = lambda context: self._enumerator(context, times, portion)
        rules = ReadRules(strategy, PlanningRules(BOUND, drift))
        self.coordinator: SourceCoordinator[Any, Any] = SourceCoordinator(
            source, rules, source.schema(), self.clock.now_us, workers=InlineWorkers(self.clock)
        )
        self.coordinator.restore(self.coordinator.state)
        if drains:
            self.coordinator.drain()

    def _enumerator(self, context: Any, times: dict[str, list[int]], portion: int) -> Log:
        self.log = Log(context, times, portion)
        return self.log

    def plan(self, max_rows: int | None = None) -> dict[str, int]:
        """Positions after the next micro-batch."""
        return {split.split_id: split.position for split in self.coordinator.advance(max_rows).splits}

    def statuses(self) -> dict[str, SplitStatus]:
        table = self.coordinator.state.table
        return dict(zip(table.split_ids, map(SplitStatus, table.statuses.tolist()), strict=True))


def test_every_split_is_cut_at_one_time_by_one_question() -> None:
    planning = Planning({"a": [10, 12, 14], "b": [11, 40, 12, 100]}, drift=20)
    # The smallest reach is that of a, 14 - 5 - 1.
    assert planning.plan() == {"a": 3, "b": 1}
    assert planning.log.bounds == [28]
    state = planning.coordinator.state
    # b: its next record is later than 28. a: its latest record is known.
    assert state.table.watermarks.tolist() == [14 - BOUND - 1, 28 - BOUND - 1]
    assert state.table.combined == 14 - BOUND - 1


def test_of_a_split_that_is_abandoned_nothing_more_is_planned_and_it_holds_nobody_back() -> None:
    planning = Planning({"a": [10, 11, 12, 13, 14], "b": [10, 50, 51]}, portion=4)
    assert planning.plan(2) == {"a": 1, "b": 1}
    planning.log.context.abandon_split("a")
    planning.log.index_next(["a"])
    assert planning.plan() == {"a": 1, "b": 3}
    assert planning.statuses() == {"a": SplitStatus.FINISHED, "b": SplitStatus.ACTIVE}
    assert planning.coordinator.state.table.combined == 51 - BOUND - 1
    before = planning.coordinator.state
    assert planning.coordinator.advance() is before


def test_a_limit_on_rows_is_kept() -> None:
    planning = Planning({"a": list(range(0, 100, 2)), "b": list(range(1, 101, 2))})
    read = 0
    while read < 100:
        now = sum(planning.plan(10).values())
        assert read + min(5, 100 - read) <= now <= read + 10
        read = now


def test_what_is_held_back_is_not_idle() -> None:
    planning = Planning({"a": [1], "b": [2]}, idle="10 seconds")
    planning.plan()
    planning.log.held = {"b"}
    planning.clock.advance("1 minute")
    planning.plan()
    planning.clock.advance("1 minute")
    planning.plan()
    assert planning.statuses() == {"a": SplitStatus.IDLE, "b": SplitStatus.ACTIVE}
    planning.log.held = set()
    planning.clock.advance("1 minute")
    planning.plan()
    planning.clock.advance("1 minute")
    planning.plan()
    assert planning.statuses() == {"a": SplitStatus.IDLE, "b": SplitStatus.IDLE}


def test_a_run_of_available_now_extends_the_snapshot_where_not_all_was_indexed() -> None:
    planning = Planning({"a": list(range(10)), "b": list(range(4))}, portion=3, drains=True)
    before, seen = None, []
    while (positions := planning.plan()) != before:
        before = positions
        seen.append(positions)
    assert seen[-1] == {"a": 10, "b": 4}
    assert len(seen) == 4
    assert planning.log.looks_on > 0


def test_a_source_that_is_not_drained_is_not_asked_for_more() -> None:
    planning = Planning({"a": list(range(10))}, portion=3)
    assert planning.plan() == {"a": 3}
    assert planning.plan() == {"a": 3}
    assert planning.log.looks_on == 0


def test_an_enumerator_that_cannot_answer_says_so() -> None:
    planning = Planning({"a": [1]})
    with pytest.raises(UnsupportedOperationError, match=r"Log adds opaque blocks and does not override first_later"):
        SupportsEventTimeIndex.first_later(planning.log, ["a"], np.zeros(1, np.int64), np.ones(1, np.int64), 0)
