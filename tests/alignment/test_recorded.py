"""What a query recorded, played with other settings, is what it would have done with these."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from alignment import WatermarkStrategy
from alignment.exceptions import InvalidArgumentError
from alignment.recording import Recorder, replay
from alignment.simulation import RecordedWorkload, Settings, SourceTrace
from alignment.watermarks import Int64Array
from streaming_source.connectors.files import FileSource
from streaming_source.testing import FakeClock, SourceHarness, TestingSource
from tests.alignment.recorded_orders import START_US, record_orders
from tests.examples import one_in

SECOND = 1_000_000

SETTINGS = [
    Settings(
        max_drift_us=drift * SECOND if drift else None, out_of_orderness_us=bound, idle_timeout_us=None, max_rows=rows
    )
    for drift, bound, rows in [(60, 5 * SECOND, 30), (None, 0, 50), (10, SECOND, None), (0, 20 * SECOND, 17)]
]


def files(folder: Path) -> Path:
    chance = np.random.default_rng(3)
    for split, step in (("slow", 1), ("even", 2), ("fast", 5)):
        times = np.arange(100) * step * SECOND - chance.integers(0, 20 * SECOND, 100)
        (folder / split).mkdir(parents=True)
        table = pa.table({"ts": pa.array(times + 100 * SECOND, pa.timestamp("us", "UTC"))})
        pq.write_table(table, folder / split / "part-0.parquet", row_group_size=25)
    return folder


def run(folder: Path, settings: Settings, log: Path | None = None, restart_after: int | None = None) -> list[list[int]]:
    """Rows and late rows of each micro-batch of a source over files, planned and read without Spark."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(f"{settings.out_of_orderness_us} us")
    strategy = strategy.with_timestamp_assigner("ts")
    if settings.max_drift_us is not None:
        strategy = strategy.with_watermark_alignment("all", f"{settings.max_drift_us} us")
    harness = SourceHarness(
        FileSource(str(folder), bounded=True),
        strategy,
        max_rows=settings.max_rows,
        available_now=True,
        recorder=None if log is None else Recorder(log),
    )
    batches = []
    while harness.plan():
        plan = harness.coordinator.runtime.engine.last_plan
        assert plan is not None
        batches.append([plan.rows, int(plan.late.sum())])
        harness.commit(harness.read())
        if len(batches) == restart_after:
            harness.restart()
    harness.close()
    return batches


def batches_of(trace: SourceTrace) -> list[list[int]]:
    return np.column_stack((trace.rows, trace.late)).tolist()


def test_other_settings_give_the_micro_batches_of_a_query_that_has_them(tmp_path: Path) -> None:
    folder = files(tmp_path / "in")
    run(folder, SETTINGS[0], tmp_path / "log")
    workload = RecordedWorkload.of_log(tmp_path / "log")
    assert (workload.settings, workload.records, workload.estimated) == (SETTINGS[0], 300, 0)
    for settings in SETTINGS:
        trace = workload.play(settings)
        assert batches_of(trace) == run(folder, settings)
        assert trace.has_ended
        assert trace.unread == 0


Known = dict[str, tuple[Int64Array, Int64Array]]


def live(seed: int, settings: Settings, log: Path | None = None) -> tuple[list[list[int]], Known]:
    """Rows and late rows of each micro-batch of a query that keeps up with what comes; the records of each split.

    Splits are out of order in several ways, and now and then one is silent and then brings what it owes.
    """
    chance, clock = np.random.default_rng(seed), FakeClock()
    clock.advance_to(START_US)
    names = [f"split-{number}" for number in range(chance.integers(2, 5))]
    source = TestingSource({name: [] for name in names}, clock=clock, bounded=False, records_per_fetch=1000)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(f"{settings.out_of_orderness_us} us")
    if settings.idle_timeout_us is not None:
        strategy = strategy.with_idleness(f"{settings.idle_timeout_us} us")
    if settings.max_drift_us is not None:
        strategy = strategy.with_watermark_alignment("all", f"{settings.max_drift_us} us")
    harness = SourceHarness(
        source, strategy, clock=clock, max_rows=settings.max_rows, recorder=None if log is None else Recorder(log)
    )
    batches, owed = [], {name: [] for name in names}
    silent = {name: range(*sorted(chance.integers(0, 120, 2).tolist())) for name in names}
    far, rows = chance.choice([1, 5, 30], len(names)), {name: [] for name in names}
    for second in range(120):
        clock.advance("1 second")
        for name, reach in zip(names, far.tolist(), strict=True):
            times = START_US + second * SECOND - chance.integers(0, reach * SECOND, chance.integers(0, 6))
            owed[name] += times.tolist()
            if second not in silent[name]:
                source.go_on(name, *owed[name])
                rows[name] += owed[name]
                owed[name] = []
        while second % 5 == 4 and harness.plan():
            plan = harness.coordinator.runtime.engine.last_plan
            assert plan is not None
            batches.append([plan.rows, int(plan.late.sum())])
            harness.commit(harness.read())
    harness.close()
    return batches, {name: (np.arange(len(times)), np.array(times, np.int64)) for name, times in rows.items()}


def drawn_settings(chance: np.random.Generator) -> Settings:
    return Settings(
        max_drift_us=[None, 10 * SECOND, 60 * SECOND][chance.integers(3)],
        out_of_orderness_us=int(chance.choice([0, 1, 5, 20])) * SECOND,
        idle_timeout_us=[None, 10 * SECOND, 60 * SECOND][chance.integers(3)],
        max_rows=[None, 17, 50, 200][chance.integers(4)],
    )


SEEDS = one_in(100, range(100))


@pytest.mark.parametrize("seed", SEEDS)
def test_late_records_are_a_bound_where_event_times_are_estimated_and_exact_with_those_of_the_data(
    tmp_path: Path, seed: int
) -> None:
    chance = np.random.default_rng(seed)
    _, known = live(seed, drawn_settings(chance), tmp_path / "log")
    logged, with_data = RecordedWorkload.of_log(tmp_path / "log"), RecordedWorkload.of_log(tmp_path / "log", known)
    assert with_data.estimated == 0
    for other in (drawn_settings(chance), drawn_settings(chance), replace(logged.settings, max_rows=17)):
        real, _ = live(seed, other)
        late = sum(late for _, late in real)
        trace = logged.play(other)
        found = int(trace.late.sum())
        assert found == late if trace.is_exact else found <= late, f"seed {seed}"
        exact = with_data.play(other)
        assert batches_of(exact) == real or not exact.is_exact, f"seed {seed}"
        assert exact.late.sum() <= late, f"seed {seed}"


def test_data_that_are_not_as_the_query_saw_them_are_not_believed(tmp_path: Path) -> None:
    folder = files(tmp_path / "in")
    run(folder, SETTINGS[0], tmp_path / "log")
    lines = [line for line in (tmp_path / "log").read_text().splitlines() if json.loads(line)["type"] != "Loaded"]
    (tmp_path / "log").write_text("\n".join(lines))
    times = pq.read_table(folder / "slow" / "part-0.parquet")["ts"].cast("int64").to_numpy()
    # The second of four blocks has other event times, and the last one is not whole any more.
    changed = np.concatenate([times[:25], times[25:50] + 1, times[50:90]])
    workload = RecordedWorkload.of_log(tmp_path / "log", {"slow": (np.arange(90), changed), "gone": (times, times)})
    assert workload.estimated == 300 - 50
    assert "≥ " in str(workload.compare(max_rows=[17]))


def test_a_restart_is_played_from_the_state_that_it_restored(tmp_path: Path) -> None:
    folder = files(tmp_path / "in")
    recorded = run(folder, SETTINGS[0], tmp_path / "log", restart_after=4)
    workload = RecordedWorkload.of_log(tmp_path / "log")
    assert workload.records == 300 - sum(rows for rows, _ in recorded[:4])
    # The first micro-batch announces the watermark once more.
    assert batches_of(workload.play(workload.settings))[-6:] == recorded[-6:]
    wider = workload.play(replace(workload.settings, out_of_orderness_us=20 * SECOND))
    assert (wider.rows.sum(), wider.late.sum()) == (workload.records, 0)


def test_event_times_that_are_not_in_the_log_are_estimated_and_it_says_so(tmp_path: Path) -> None:
    recorded = run(files(tmp_path / "in"), SETTINGS[0], tmp_path / "log")
    lines = [line for line in (tmp_path / "log").read_text().splitlines() if json.loads(line)["type"] != "Loaded"]
    (tmp_path / "log").write_text("\n".join(lines))
    workload = RecordedWorkload.of_log(tmp_path / "log")
    assert workload.estimated == 300
    trace = workload.play(workload.settings)
    assert trace.rows.sum() == sum(rows for rows, _ in recorded)
    assert trace.has_ended
    assert "300 recorded records of 3 splits, the event times of 300 estimated" in str(workload.compare())


def test_a_silent_split_is_idle_after_another_timeout_although_the_query_did_not_plan_then(tmp_path: Path) -> None:
    recorded = record_orders(tmp_path / "log", idle="1 minute", delay="2 seconds")
    workload = RecordedWorkload.of_log(tmp_path / "log")
    assert batches_of(workload.play(workload.settings)) == recorded
    for idle in ("30 seconds", "2 minutes", None):
        (_, other) = workload.compare(idle_timeout=[idle]).outcomes
        expected = record_orders(tmp_path / f"{idle}", idle=idle, delay="2 seconds")
        assert sum(late for _, late in expected) == other.trace.late.sum()
        assert sum(rows for rows, _ in expected) == other.trace.rows.sum()


@pytest.mark.parametrize(
    ("started", "why"),
    [
        ({"by_reports": True}, "indexing=off, which learns event times as it reads: record one without"),
        ({"generates": True}, "whose watermarks no maxOutOfOrderness gives"),
        ({}, "planned nothing: let it read"),
    ],
)
def test_a_log_that_does_not_say_enough_is_refused(started: dict[str, Any], why: str, tmp_path: Path) -> None:
    run(files(tmp_path / "in"), SETTINGS[0], tmp_path / "log")
    first, *lines = (tmp_path / "log").read_text().splitlines()
    lines = [json.dumps({**json.loads(first), **started}), *(lines if started else lines[:3])]
    (tmp_path / "log").write_text("\n".join(lines))
    with pytest.raises(InvalidArgumentError, match=why):
        RecordedWorkload.of_log(tmp_path / "log")


def test_a_folder_must_have_one_log(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="has no event log; give the file of one run"):
        RecordedWorkload.of_log(tmp_path)
    for name in ("aligned_files-1.jsonl", "aligned_files-2.jsonl"):
        (tmp_path / name).touch()
    with pytest.raises(
        InvalidArgumentError, match=r"has 2 event logs \(aligned_files-1.jsonl, aligned_files-2.jsonl\)"
    ):
        RecordedWorkload.of_log(tmp_path)
    with pytest.raises(InvalidArgumentError, match="is empty"):
        RecordedWorkload.of_log(tmp_path / "aligned_files-1.jsonl")


def test_a_log_of_a_version_that_wrote_perfect_for_lateness_none_is_replayed(tmp_path: Path) -> None:
    run(files(tmp_path / "data"), SETTINGS[0], tmp_path / "now.jsonl")
    entries = [json.loads(line) for line in (tmp_path / "now.jsonl").read_text(encoding="utf-8").splitlines()]
    rules = entries[0]["rules"]
    assert rules.pop("lateness") == "none"
    rules["perfect"] = True
    replayed = list(replay(map(json.dumps, entries)))
    assert replayed
    assert all(one.recorded == one.replayed for one in replayed)
