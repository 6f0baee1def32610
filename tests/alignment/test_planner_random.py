"""Random walks of a source from plan to plan, beside the naive planner, with all invariants after every step."""

from __future__ import annotations

from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from alignment.plan import PlanningRules
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK
from tests.alignment.planned_source import Block, PlannedSource
from tests.alignment.source_walk import BOUNDS, EXTREME, MAX_ROWS, SPLIT_IDS, Walk
from tests.examples import examples

MODERATE = st.integers(0, 30)
NONE = st.just(NO_TIMESTAMP)


def blocks(times: st.SearchStrategy[int]) -> st.SearchStrategy[list[Block]]:
    loose = st.sampled_from([0, 0, 0, 1, 8])
    told = st.sampled_from([True, True, True, False])
    block = st.builds(Block, st.lists(times, min_size=1, max_size=5).map(tuple), loose, told)
    return st.lists(block, min_size=1, max_size=3)


TIMES = st.one_of(MODERATE, MODERATE, MODERATE, MODERATE, MODERATE, MODERATE, EXTREME, NONE)
SWITCHES = {"drains_past_caught_up": st.booleans(), "bounded": st.booleans()}
RULES = st.builds(
    PlanningRules,
    out_of_orderness_us=BOUNDS,
    max_drift_us=st.none() | BOUNDS,
    lateness=st.sampled_from(["bounded", "none"]),
    **SWITCHES,
) | st.builds(PlanningRules, out_of_orderness_us=st.none(), max_drift_us=st.none() | BOUNDS, **SWITCHES)


class SourceWalk(Walk[PlannedSource]):
    """Splits join, get records, fall idle, come back, end; the source restarts; plans are made all along."""

    SOURCE: ClassVar[type[PlannedSource]] = PlannedSource

    @initialize(rules=RULES, splits=st.sets(SPLIT_IDS, max_size=3), first=st.lists(blocks(TIMES), max_size=3))
    def start(self, rules: PlanningRules, splits: set[str], first: list[list[Block]]) -> None:
        self.source = self.SOURCE(rules)
        for split_id in sorted(splits):
            self.source.join(split_id)
        for split_id, several in zip(sorted(splits), first, strict=False):
            self.source.append(split_id, several)

    def split(self, split_id: str) -> str | None:
        return split_id if split_id in self.source.naive else None

    @rule(split_id=SPLIT_IDS, several=blocks(TIMES))
    def records_arrive(self, split_id: str, several: list[Block]) -> None:
        if split_id not in self.source.naive:
            if self.source.no_more_splits:
                return
            self.source.join(split_id)
        if not self.source.naive[split_id].complete:
            self.source.append(split_id, several)
            self.source.naive[split_id].idle = False

    @rule(split_id=SPLIT_IDS)
    def a_split_joins_empty(self, split_id: str) -> None:
        if split_id not in self.source.naive and not self.source.no_more_splits:
            self.source.join(split_id)

    @rule(split_id=SPLIT_IDS)
    def a_caught_up_split_falls_idle(self, split_id: str) -> None:
        if split_id in self.source.naive and not self.source.naive[split_id].unread:
            self.source.naive[split_id].idle = True

    @rule(split_id=SPLIT_IDS)
    def a_split_is_complete(self, split_id: str) -> None:
        if split_id in self.source.naive:
            self.source.naive[split_id].complete = True

    @rule()
    def what_was_read_is_forgotten(self) -> None:
        self.source.forget_read()

    @rule(max_rows=MAX_ROWS, group_limit=st.just(MAX_WATERMARK) | st.integers(-5, 35))
    def plan_with_limits(self, max_rows: int | None, group_limit: int) -> None:
        self.source.plan(max_rows, group_limit)

    @rule(max_rows=MAX_ROWS, horizon=st.integers(-5, 35) | EXTREME)
    def plan_up_to_a_horizon(self, max_rows: int | None, horizon: int) -> None:
        self.source.plan(max_rows, horizon=horizon)

    @rule(max_rows=MAX_ROWS)
    def plan(self, max_rows: int | None) -> None:
        self.source.plan(max_rows)


TestPlansAgreeWithTheNaivePlanner = SourceWalk.TestCase
TestPlansAgreeWithTheNaivePlanner.settings = settings(max_examples=examples(150), stateful_step_count=25, deadline=None)
