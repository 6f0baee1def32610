"""Idleness in runs that end by themselves, where the user decides nothing: two runs in a row that bring nothing."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignment import WatermarkStrategy
from alignment.combine import SplitStatus
from alignment.explain import Explanation
from alignment.recording import Recorder, replay
from alignment.simulation import RecordedWorkload
from alignment.watermarks import MIN_WATERMARK
from streaming_source.monitoring.causes.answer import sentence
from streaming_source.testing import SourceHarness, TestingSource
from tests.coordinator.support import STRATEGY
from tests.docs.pages import ROOT, blocks
from tests.examples import examples

ACTIVE, IDLE = SplitStatus.ACTIVE, SplitStatus.IDLE
HOUR_US = 3_600_000_000


@dataclass
class Nights:
    """A job that is started every night over splits that may bring nothing; event times are hours."""

    strategy: WatermarkStrategy = STRATEGY
    exact: bool = True
    by_reports: bool = False
    max_rows: int | None = None
    recorder: Recorder | None = None
    source: TestingSource = field(default_factory=lambda: TestingSource({}))

    def __post_init__(self) -> None:
        self.reading = self._reading(available_now=True)

    def _reading(self, *, available_now: bool) -> SourceHarness:
        return SourceHarness(
            self.source,
            self.strategy,
            clock=self.source.clock,
            exact=self.exact,
            available_now=available_now,
            max_rows=self.max_rows,
            readers=1,
            reports=list if self.by_reports else None,
            recorder=self.recorder,
        )

    def deliver(self, **hours: Sequence[int]) -> None:
        for split_id, times in hours.items():
            self.source.go_on(split_id, *[hour * HOUR_US for hour in times])

    def night(self, **hours: Sequence[int]) -> None:
        """A run over what came since the last one, to its end, and a day until the next."""
        self.deliver(**hours)
        self.reading.run()
        self.source.clock.advance("1 day")
        self.reading.restart()

    def kill(self, batches: int, *, loses_plan: bool) -> None:
        """After so many micro-batches of this run, while the next one is at work or planned; not behind its end."""
        for _ in range(batches):
            self.reading.run_batch()
        if self.reading.plan():
            self.reading.restart(loses_plan=loses_plan)

    def stream(self) -> None:
        """The query goes on as a stream with the same checkpoint."""
        before, self.reading = self.reading, self._reading(available_now=False)
        self.reading.state = before.state
        self.reading.restart()
        self.reading.run()

    @property
    def late(self) -> int:
        return int(self.reading.state.late.sum())

    @property
    def hour(self) -> int:
        return (self.reading.watermark + 1) // HOUR_US

    def statuses(self) -> dict[str, SplitStatus]:
        table = self.reading.state.table
        return {split: SplitStatus(status) for split, status in zip(table.split_ids, table.statuses, strict=True)}

    def explanation(self) -> Explanation:
        explanation = self.reading.coordinator.explain()
        assert explanation is not None
        return explanation


def test_a_split_that_is_a_night_late_loses_nothing_and_one_that_is_gone_delays_by_one_run() -> None:
    nights = Nights()
    nights.night(a=[1, 5], b=[1, 4])
    assert nights.hour == 4
    nights.night(a=[10])
    assert nights.hour == 4
    nights.night(a=[15], b=[6, 9])
    assert (nights.hour, nights.late) == (9, 0)
    nights.night(a=[20])
    assert nights.statuses() == {"a": ACTIVE, "b": ACTIVE}
    nights.night(a=[25])
    assert nights.statuses() == {"a": ACTIVE, "b": IDLE}
    assert nights.hour == 25
    nights.night(b=[21])
    assert nights.late == 1


def test_without_alignment_or_watermark_rows_nothing_waits_and_no_run_is_counted() -> None:
    nights = Nights(exact=False, strategy=WatermarkStrategy.no_watermarks())
    nights.night(a=[1], b=[2])
    assert nights.reading.state.run is None
    assert len(nights.reading.batches) == 1


def test_runs_that_read_nothing_count_and_after_two_there_is_nothing_to_do() -> None:
    nights = Nights()
    nights.night(a=[5], b=[4])
    batches = []
    for _ in range(4):
        before = nights.reading.state.sequence
        nights.night()
        batches.append(nights.reading.state.sequence - before)
    assert nights.statuses() == {"a": IDLE, "b": IDLE}
    assert nights.hour == 5
    # The watermark is announced again by each run.
    assert batches[-1] == 1


def test_a_run_of_many_micro_batches_is_one_run() -> None:
    nights = Nights(max_rows=1)
    nights.night(a=[1, 2, 3], b=[1, 2])
    nights.night(a=range(4, 12))
    assert nights.statuses() == {"a": ACTIVE, "b": ACTIVE}
    nights.night(a=[12], b=[5])
    assert (nights.statuses()["b"], nights.late) == (ACTIVE, 0)


@pytest.mark.parametrize("loses_plan", [True, False], ids=["not written down", "read again"])
@pytest.mark.parametrize("at", range(4))
def test_a_run_that_is_killed_and_started_again_is_one_run_wherever_it_was(at: int, loses_plan: bool) -> None:
    nights = Nights(max_rows=2)
    nights.night(a=[1, 5], b=[1, 4])
    nights.deliver(a=[10, 11, 12])
    for _ in range(3):
        nights.kill(at, loses_plan=loses_plan)
    nights.night()
    assert nights.statuses() == {"a": ACTIVE, "b": ACTIVE}
    nights.night(b=[6])
    assert nights.late == 0


def test_the_last_micro_batch_that_is_read_again_belongs_to_its_run() -> None:
    """It is that in which Spark closes windows: a sink that fails in it lets a job start again and again."""
    nights = Nights()
    nights.night(a=[1, 5], b=[1, 4])
    nights.deliver(a=[10])
    while not (nights.reading.plan() and (run := nights.reading.state.run) and run.has_ended):
        nights.reading.run_batch()
    for _ in range(3):
        nights.reading.restart()
    nights.night()
    assert nights.statuses()["b"] is ACTIVE
    nights.night(a=[12])
    assert nights.statuses()["b"] is IDLE


def test_minutes_count_where_they_are_given_and_in_a_stream() -> None:
    given = Nights(strategy=STRATEGY.with_idleness("1 hour"))
    given.night(a=[5], b=[4])
    given.night(a=[10])
    assert given.statuses()["b"] is IDLE
    assert given.reading.state.run is None
    nights = Nights(strategy=replace(STRATEGY, idle_timeout_us=HOUR_US))
    nights.night(a=[5], b=[4])
    nights.night(a=[10])
    assert nights.statuses()["b"] is ACTIVE
    nights.stream()
    assert nights.statuses()["b"] is IDLE
    assert nights.reading.state.run is None


def test_a_split_that_never_had_a_record_holds_nobody_and_none_is_never_idle() -> None:
    nights = Nights(strategy=STRATEGY.with_idleness("none"))
    nights.night(a=[5], b=[4], empty=[])
    for _ in range(4):
        nights.night(a=[10])
    assert nights.statuses() == {"a": ACTIVE, "b": ACTIVE, "empty": IDLE}


def test_a_state_of_a_version_that_counted_no_runs_waits_for_one_run_more() -> None:
    nights = Nights()
    nights.night(a=[5], b=[4])
    nights.reading.state = replace(nights.reading.state, run=None)
    nights.reading.restart()
    nights.night(a=[10])
    nights.night(a=[11])
    assert nights.statuses()["b"] is IDLE


def test_each_run_says_what_brought_nothing_and_the_first_late_record_that_its_split_was_idle(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nights, said = Nights(), []

    def night(**hours: Sequence[int]) -> str:
        caplog.clear()
        nights.deliver(**hours)
        nights.reading.run()
        said.append(" ".join(record.getMessage() for record in caplog.records))
        text = sentence(nights.explanation())
        nights.night()
        return text

    with caplog.at_level(logging.WARNING, "streaming_source"):
        night(a=[5, 24], b=[24])
        waits = night(a=[30])
    what = "'b' brought nothing in this run: windows from 1970-01-02 on wait for it until the next one."
    assert said == ["", what]
    assert what in waits
    nights.night(a=[60])
    nights.night(a=[90])
    assert nights.statuses()["b"] is IDLE
    with caplog.at_level(logging.WARNING, "streaming_source"):
        text = night(b=[25, 26])
    assert "2 late records" in said[-1]
    (printed,) = [one.text for one in blocks(ROOT / "docs" / "nightly-runs.md") if "had been idle" in one.text]
    assert " ".join(printed.split()).replace("'LGA'", "'b'") in said[-1]
    assert text.endswith("2 records came late, of 'b'; 'b' had been idle.")


# ---- by a naive model ------------------------------------------------------------------------------------------------


@dataclass
class NaiveSplit:
    """Counts by hand the runs in a row that have brought nothing."""

    latest: int = -1
    missed: int = 0

    def run(self, hours: Sequence[int]) -> None:
        self.latest = max(self.latest, *hours, self.latest)
        self.missed = 0 if hours else self.missed + 1

    @property
    def is_idle(self) -> bool:
        return self.missed >= 2 or self.latest < 0


NIGHT = st.lists(st.lists(st.integers(0, 5), max_size=3), min_size=3, max_size=3)


def naive_hour(splits: Sequence[NaiveSplit], before: int) -> int:
    counting = [split.latest for split in splits if not split.is_idle]
    return max(before, min(counting) if counting else max(split.latest for split in splits))


@settings(max_examples=examples(60))
@given(st.lists(NIGHT, min_size=2, max_size=8), st.booleans(), st.sampled_from([None, 1, 3]))
def test_statuses_and_watermark_are_those_of_a_model_that_counts_by_hand(
    runs: list[list[list[int]]], by_reports: bool, max_rows: int | None
) -> None:
    nights, model, hour = Nights(by_reports=by_reports, max_rows=max_rows), [NaiveSplit() for _ in range(3)], 0
    for number, brought in enumerate(runs):
        hours = {name: [number * 6 + t for t in sorted(times)] for name, times in zip("abc", brought, strict=True)}
        nights.night(**hours)
        for split, name in zip(model, "abc", strict=True):
            split.run(hours[name])
        if any(split.latest >= 0 for split in model):
            hour = naive_hour(model, hour)
            assert nights.hour == hour
        else:
            assert nights.reading.watermark == MIN_WATERMARK
        assert [status is IDLE for status in nights.statuses().values()] == [split.is_idle for split in model]


@settings(max_examples=examples(60))
@given(st.lists(NIGHT, min_size=2, max_size=6), st.data())
def test_kills_make_no_split_idle_before_its_time(runs: list[list[list[int]]], data: st.DataObject) -> None:
    nights, model, hour = Nights(max_rows=2), [NaiveSplit() for _ in range(3)], 0
    for number, brought in enumerate(runs):
        hours = {name: [number * 6 + t for t in sorted(times)] for name, times in zip("abc", brought, strict=True)}
        nights.deliver(**hours)
        for _ in range(data.draw(st.integers(0, 3))):
            nights.kill(data.draw(st.integers(0, 3)), loses_plan=data.draw(st.booleans()))
        nights.night()
        for split, name in zip(model, "abc", strict=True):
            split.run(hours[name])
        if any(split.latest >= 0 for split in model):
            hour = naive_hour(model, hour)
            assert nights.hour <= hour
        statuses = zip(nights.statuses().values(), model, strict=True)
        assert all(split.is_idle for status, split in statuses if status is IDLE)


# ---- a log of it -----------------------------------------------------------------------------------------------------


def test_a_log_of_such_runs_plans_the_same_again(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    nights = Nights(recorder=Recorder(path))
    nights.night(a=[5], b=[4])
    nights.night(a=[10])
    nights.deliver(a=[15])
    nights.reading.run()
    assert nights.hour == 15
    with path.open() as lines:
        plans = list(replay(lines))
    assert len(plans) > 4
    assert all(plan.recorded == plan.replayed for plan in plans)
    log = RecordedWorkload.of_log(path)
    assert log.play(log.settings).watermark[-1] == nights.reading.watermark
