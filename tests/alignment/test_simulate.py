from __future__ import annotations

import random
import time

import numpy as np
import pytest

from alignment.exceptions import InvalidArgumentError
from alignment.simulation.described import simulate
from alignment.simulation.scenario import Faults, Planning, Scenario, SourceScenario
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from tests.alignment import simulated_walk
from tests.examples import examples


def test_random_groups_faults_and_restarts_keep_all_invariants_and_reach_their_end() -> None:
    for _ in range(examples(300)):
        simulated_walk.run(random.randrange(2**32))


@pytest.mark.soak
def test_ten_thousand_runs_reach_their_end(capsys: pytest.CaptureFixture[str]) -> None:
    began = time.perf_counter()
    steps = sum(simulated_walk.run(random.randrange(2**32)).steps for _ in range(10_000))
    with capsys.disabled():
        print(f" 10,000 runs, {steps:,} steps in {time.perf_counter() - began:.0f} s", end="")


def test_sources_of_a_group_go_on_where_one_has_heard_of_its_records_only_after_its_last_micro_batch() -> None:
    # By reports: one of them takes a split on that does not hold the watermark, so that Spark need not hear of it.
    assert simulated_walk.run(3936252210).steps < 1000


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    scenario = simulated_walk.random_scenario(random.Random(7))
    first, again, other = (simulate(scenario, seed) for seed in (1, 1, 2))
    assert _shown(first) == _shown(again)
    assert _shown(first) != _shown(other)


def test_alignment_by_reports_keeps_the_state_small_where_splits_are_skewed() -> None:
    def held(max_drift_us: int | None) -> int:
        source = SourceScenario(records=2000, skew_us=3_000_000, first_rows=20, max_drift_us=max_drift_us, max_rows=500)
        return int(simulate(Scenario(sources=(source,)), 3).sources[0].held_rows.max())

    assert held(100_000) < held(None) / 4


def test_an_index_reads_in_the_order_of_event_time_with_or_without_a_drift() -> None:
    def held(max_drift_us: int | None) -> int:
        source = SourceScenario(
            planning=Planning.INDEXED, records=500, skew_us=3_000_000, max_drift_us=max_drift_us, max_rows=500
        )
        return int(simulate(Scenario(sources=(source,)), 3).sources[0].held_rows.max())

    assert held(100_000) <= 508
    assert held(None) <= 508


def test_a_source_that_is_killed_releases_its_group_and_one_that_hangs_does_after_its_lease() -> None:
    fast = SourceScenario(splits=2, records=400, first_rows=20, group_drift_us=10_000, max_drift_us=10_000)
    slow = SourceScenario(splits=2, records=400, rate=1, group_drift_us=10_000)
    killed = simulate(Scenario(sources=(fast, slow), faults=Faults(death=0.02), lease_us=3_000_000), 12)
    assert killed.steps < 10_000
    hung = simulate(Scenario(sources=(fast, slow), faults=Faults(hang=0.05), lease_us=3_000_000), 5)
    assert hung.has_ended


def test_the_result_says_how_many_are_paused_and_what_is_held() -> None:
    source = SourceScenario(splits=3, records=300, skew_us=500_000, first_rows=10, max_drift_us=20_000)
    trace = simulate(Scenario(sources=(source,)), 1).sources[0]
    assert trace.paused.max() == 2
    assert trace.watermark[0] == MIN_WATERMARK
    assert trace.watermark[-1] == MAX_WATERMARK
    assert trace.watermark.tolist() == sorted(trace.watermark.tolist())
    # The last ones are passed by the last watermark, which Spark applies in the micro-batch behind it.
    assert trace.held_rows[-1] <= 10
    assert trace.held_rows.max() > trace.rows.max()
    assert trace.rows.sum() == 900


@pytest.mark.soak
@pytest.mark.parametrize("planning", Planning)
def test_a_hundred_thousand_splits(planning: Planning, capsys: pytest.CaptureFixture[str]) -> None:
    source = SourceScenario(
        planning=planning,
        splits=100_000,
        records=50,
        spacing_us=1000,
        unevenness=2,
        skew_us=200_000,
        max_drift_us=20_000,
        first_rows=8,
    )
    began = time.perf_counter()
    result = simulate(Scenario(sources=(source,), faults=Faults(lost=0.01, restart=0.05)), 1)
    trace = result.sources[0]
    assert result.has_ended
    assert trace.rows.sum() == 5_000_000
    assert trace.late.sum() == 0
    with capsys.disabled():
        print(f" {planning}: {result.steps} steps in {time.perf_counter() - began:.0f} s", end="")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: SourceScenario(splits=0), "splits = 0: must be at least 1"),
        (lambda: SourceScenario(joining=2), "joining = 2: must be a share"),
        (lambda: SourceScenario(max_rows=0), "max_rows = 0: must be at least 1"),
        (lambda: Faults(lost=1.5), "lost = 1.5: must be a probability"),
        (lambda: Scenario(sources=()), r"sources = \(\): must be at least one"),
        (lambda: Scenario(batch_us=0), "batch_us = 0: must be at least 1"),
    ],
)
def test_what_cannot_be_played_is_refused(wrong: object, message: str) -> None:
    assert callable(wrong)
    with pytest.raises(InvalidArgumentError, match=message):
        wrong()


def _shown(result: object) -> str:
    with np.printoptions(threshold=10**9):
        return repr(result)
