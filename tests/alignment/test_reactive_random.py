"""Random walks of a source that has only reports, beside the naive planner, with all invariants after every step."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from alignment.plan import PlanningRules
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK
from tests.alignment.reported_source import ReportedSource
from tests.alignment.source_walk import BOUNDS, EXTREME, MAX_ROWS, SPLIT_IDS, Walk
from tests.examples import examples

MODERATE = st.integers(0, 60)
TIMES = st.lists(st.one_of(*[MODERATE] * 9, EXTREME, st.just(NO_TIMESTAMP)), min_size=1, max_size=12) | st.lists(
    MODERATE, min_size=1, max_size=20
).map(sorted)
RULES = st.builds(
    PlanningRules,
    out_of_orderness_us=BOUNDS,
    max_drift_us=st.none() | BOUNDS,
    drains_past_caught_up=st.booleans(),
    bounded=st.booleans(),
)
PIECES = st.integers(1, 3)


class ReportsWalk(Walk[ReportedSource]):
    """Splits join, get records, idle, end; reports come late, twice or never; the planner restarts, or goes back."""

    @initialize(
        rules=RULES,
        first_rows=st.integers(1, 4),
        growth=st.integers(2, 4),
        first=st.dictionaries(SPLIT_IDS, TIMES, max_size=3),
    )
    def start(self, rules: PlanningRules, first_rows: int, growth: int, first: dict[str, list[int]]) -> None:
        self.source = ReportedSource(rules, first_rows, growth)
        for split_id, times in first.items():
            self.source.join(split_id, times)

    @rule(split_id=SPLIT_IDS, times=TIMES | st.just([]))
    def records_arrive(self, split_id: str, times: list[int]) -> None:
        log = self.source.logs.get(split_id)
        if split_id not in self.source.splits:
            finished = log is not None and log.complete
            if not (self.source.no_more_splits or finished):
                self.source.join(split_id, times)
        elif log is not None and not log.complete:
            self.source.append(split_id, times)

    @rule(split_id=SPLIT_IDS)
    def a_caught_up_split_falls_idle(self, split_id: str) -> None:
        if split_id in self.source.splits and self.source.is_caught_up(split_id):
            self.source.splits[split_id].idle = True

    @rule(split_id=SPLIT_IDS)
    def a_split_is_complete(self, split_id: str) -> None:
        if split_id in self.source.splits:
            self.source.logs[split_id].complete = True

    @rule()
    def all_reports_arrive(self) -> None:
        self.source.deliver_all()

    @rule(which=st.integers(0, 100), again=st.booleans())
    def a_report_arrives(self, which: int, again: bool) -> None:
        flying = self.source.in_flight
        if flying:
            report = flying[which % len(flying)] if again else flying.pop(which % len(flying))
            self.source.deliver(report)

    @rule(which=st.integers(0, 100))
    def a_report_is_lost(self, which: int) -> None:
        if self.source.in_flight:
            self.source.in_flight.pop(which % len(self.source.in_flight))

    @rule(back=st.integers(1, 3))
    def planning_goes_back(self, back: int) -> None:
        if len(self.source.history) > back:
            self.source.rewind(back)

    @rule(max_rows=MAX_ROWS, group_limit=st.just(MAX_WATERMARK) | st.integers(-5, 65), pieces=PIECES)
    def plan_with_limits(self, max_rows: int | None, group_limit: int, pieces: int) -> None:
        self.source.plan(max_rows, group_limit, pieces=pieces)

    @rule(max_rows=MAX_ROWS, horizon=st.integers(-5, 65) | EXTREME)
    def plan_up_to_a_horizon(self, max_rows: int | None, horizon: int) -> None:
        self.source.plan(max_rows, horizon=horizon)

    @rule(pieces=PIECES)
    def plan_read_and_report(self, pieces: int) -> None:
        self.source.plan(pieces=pieces)
        self.source.deliver_all()

    @rule(pieces=PIECES)
    def plan(self, pieces: int) -> None:
        self.source.plan(pieces=pieces)


TestPlansAgreeWithTheNaiveReactivePlanner = ReportsWalk.TestCase
TestPlansAgreeWithTheNaiveReactivePlanner.settings = settings(
    max_examples=examples(250), stateful_step_count=30, deadline=None
)
