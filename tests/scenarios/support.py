"""Sources of one alignment group, each with a planner of its own, in time that a test moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from alignment import WatermarkStrategy
from alignment.combine import SplitStatus
from alignment.plan import PlanningRules
from streaming_source.api import Boundedness
from streaming_source.coordinator import ReadRules, SourceCoordinator, SourceState
from streaming_source.coordinator.group_exchange import GroupExchange
from streaming_source.coordinator.group_location import GroupFile
from streaming_source.coordinator.rules import FrameOptions
from streaming_source.testing import FakeClock, InlineWorkers, TestingSource
from streaming_source.tools.testing.source import Element

SECOND = 1_000_000


class Planned:
    """One source and its planner. Nothing is read: a state says what would have been.

    Its watermark is one microsecond below the latest event time.
    """

    def __init__(
        self,
        group: Group,
        splits: Mapping[str, Sequence[Element]],
        *,
        drift: str = "10 us",
        idle: str | None = None,
        bounded: bool = False,
        max_rows: int | None = None,
        min_rows: int | None = None,
        max_delay_us: int = 0,
        available_now: bool = False,
        in_one_query: bool = False,
    ) -> None:
        self.source = TestingSource(splits, clock=group.clock, bounded=bounded, records_per_fetch=1000)
        strategy = WatermarkStrategy.for_bounded_out_of_orderness("0 us")
        strategy = strategy.with_watermark_alignment("pair", drift, "1 second")
        self._strategy = strategy if idle is None else strategy.with_idleness(idle)
        self._group = group
        self._max_rows = max_rows
        self._min_rows, self._max_delay_us = min_rows, max_delay_us
        self._available_now = available_now
        self._in_one_query = in_one_query
        self._positions: dict[str, int] = {}
        self._begin(SourceState.initial())

    def plan(self) -> bool:
        """One micro-batch; whether there was anything to do."""
        before = self.state
        after = self.planning.advance(self._max_rows)
        self._positions.update((split.split_id, split.position) for split in after.splits)
        return after is not before

    def plan_all(self) -> None:
        """All micro-batches there are by now."""
        while self.plan():
            pass

    def work(self) -> None:
        """Have done what is due on workers, while the planner's own thread is not asked for anything."""
        while self._workers.do_one(due=True):
            pass

    def restart(self, state: SourceState[Any, Any] | None = None) -> None:
        """Stop without a word, and come back from a state: by default the last."""
        # A process that is killed says no good-bye; the group finds out by its number.
        self._group.end(self.exchange.membership.source_id)
        self._workers.close()
        self._begin(state or self.state)

    def close(self) -> None:
        self.planning.close()

    @property
    def state(self) -> SourceState[Any, Any]:
        return self.planning.state

    @property
    def watermark(self) -> int:
        return self.state.table.combined

    @property
    def statuses(self) -> dict[str, SplitStatus]:
        table = self.state.table
        return {split: SplitStatus(status) for split, status in zip(table.split_ids, table.statuses, strict=True)}

    @property
    def read(self) -> list[int]:
        """Event times of the records that are in micro-batches, in order."""
        scripts = self.source.scripts
        times = (
            record.time_us
            for split_id, position in self._positions.items()
            for record in scripts[split_id].records
            if record.position < position and record.time_us is not None
        )
        return sorted(times)

    def _begin(self, state: SourceState[Any, Any]) -> None:
        alignment = self._strategy.alignment
        assert alignment is not None
        planning = PlanningRules(
            self._strategy.out_of_orderness_us,
            max_drift_us=alignment.max_drift_us,
            drains_past_caught_up=True,
            bounded=self.source.boundedness is Boundedness.BOUNDED,
        )
        rules = ReadRules(
            self._strategy,
            planning,
            FrameOptions(
                watermark_rows=True,
                min_rows_per_trigger=self._min_rows,
                max_trigger_delay_us=self._max_delay_us,
                alignment_scope="query" if self._in_one_query else "application",
            ),
            read_ahead_rows=1000,
        )
        self.exchange = self._group.exchange(
            alignment.max_drift_us, alignment.update_interval_us, in_one_query=self._in_one_query
        )
        self._workers = InlineWorkers(self._group.clock)
        self.planning: SourceCoordinator[Any, Any] = SourceCoordinator(
            self.source,
            rules,
            self.source.schema(),
            self._group.clock.now_us,
            workers=self._workers,
            group=self.exchange,
        )
        if self._available_now:
            self.planning.drain()
        self.planning.join_group()
        self.planning.restore(state)


class Group:
    """Sources of one alignment group: the folder of their reports, and their clock."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.folder = folder
        self.members: list[Planned] = []

    def source(self, splits: Mapping[str, Sequence[Element]], **options: Any) -> Planned:
        """A new member."""
        member = Planned(self, splits, **options)
        self.members.append(member)
        return member

    def exchange(self, max_drift_us: int, interval_us: int, *, in_one_query: bool = False) -> GroupExchange:
        place = GroupFile(self.folder / "group")
        return GroupExchange(place, "pair", max_drift_us, interval_us, self.clock.now_us, in_one_query=in_one_query)

    def end(self, source_id: str) -> None:
        """What the next exchange does when a member's process is gone; here all are one process."""
        exchange = self.exchange(0, SECOND)
        exchange.membership.source_id = source_id
        exchange.leave()

    def plan_all(self) -> None:
        """Ask each in turn, again and again, until none has anything to do."""
        while sum(member.plan() for member in self.members):
            pass

    def next_plan(self, member: Planned) -> None:
        """Move the clock until one member has something to do, and let it plan once."""
        while not member.plan():
            self.clock.advance("500 ms")
            member.work()

    def let_pass(self, duration_s: float, step_s: float = 0.5) -> None:
        """Move the clock in steps, and have done what is due, on workers and by the planners."""
        for _ in range(round(duration_s / step_s)):
            self.clock.advance_to(self.clock.now_us() + round(step_s * SECOND))
            for member in self.members:
                member.work()
            self.plan_all()

    def close(self) -> None:
        for member in self.members:
            member.close()
