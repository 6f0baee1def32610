"""Micro-batches that wait for more records: what waits is records, not the plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from alignment import WatermarkStrategy
from alignment.combine import SplitStatus
from alignment.explain import Cause
from alignment.plan import PlanningRules
from alignment.recording import Recorder, replay
from alignment.watermarks import MAX_WATERMARK
from streaming_source.api import Boundedness
from streaming_source.coordinator import ReadRules, SourceCoordinator
from streaming_source.coordinator.rules import FrameOptions
from streaming_source.monitoring.causes.answer import cause_of, sentence
from streaming_source.testing import InlineWorkers, Pause, TestingSource
from streaming_source.tools.testing.source import Element
from tests.scenarios.support import SECOND, Group

IDLE = WatermarkStrategy.for_bounded_out_of_orderness("0 us").with_idleness("10 seconds")
MIN_ROWS = 3
DELAY_S = 60


def planner(
    splits: dict[str, Sequence[Element]],
    *,
    bounded: bool = False,
    reports: bool = False,
    read_ahead_rows: int = 1000,
    log: Path | None = None,
) -> tuple[TestingSource, SourceCoordinator[Any, Any]]:
    source = TestingSource(splits, bounded=bounded)
    rules = ReadRules(
        IDLE,
        PlanningRules(0, drains_past_caught_up=True, bounded=source.boundedness is Boundedness.BOUNDED),
        FrameOptions(
            watermark_rows=True,
            indexing="off" if reports else "auto",
            min_rows_per_trigger=MIN_ROWS,
            max_trigger_delay_us=DELAY_S * SECOND,
        ),
        read_ahead_rows=read_ahead_rows,
    )
    planning: SourceCoordinator[Any, Any] = SourceCoordinator(
        source,
        rules,
        source.schema(),
        source.clock.now_us,
        workers=InlineWorkers(source.clock),
        recorder=None if log is None else Recorder(log),
    )
    planning.restore(planning.state)
    return source, planning


def advance(planning: SourceCoordinator[Any, Any], max_rows: int | None = None) -> int | None:
    """Records of the next micro-batch; None where there is nothing to do."""
    before = planning.state
    after = planning.advance(max_rows)
    if after is before:
        return None
    return sum(part.rows for part in planning.ranges(before, after, 1, 1))


def let_pass(source: TestingSource, planning: SourceCoordinator[Any, Any], seconds: int) -> list[int]:
    """Plan each second; the records of each micro-batch."""
    planned = []
    for _ in range(seconds):
        source.clock.advance("1 second")
        while (rows := advance(planning)) is not None:
            planned.append(rows)
    return planned


def test_a_bounded_source_does_not_wait_for_records_that_cannot_come() -> None:
    _, planning = planner({"a": [1, 2, 3, 4]}, bounded=True)
    assert [advance(planning, 3), advance(planning, 3)] == [3, 1]
    while advance(planning) is not None:
        pass
    assert planning.state.table.combined == MAX_WATERMARK


@pytest.mark.parametrize("reports", [False, True], ids=["read ahead", "reported"])
def test_a_split_becomes_idle_and_the_watermark_advances_while_records_wait(reports: bool) -> None:
    source, planning = planner(
        {"a": [10 * SECOND], "b": [20 * SECOND, Pause("5 seconds"), 21 * SECOND, Pause("40 seconds"), 22 * SECOND]},
        reports=reports,
    )
    assert advance(planning) == 2
    assert let_pass(source, planning, 20) == [0]
    statuses = dict(zip(planning.state.table.split_ids, planning.state.table.statuses.tolist(), strict=True))
    assert statuses == {"a": SplitStatus.IDLE, "b": SplitStatus.ACTIVE}
    if not reports:
        assert planning.state.table.combined == 20 * SECOND - 1


def test_micro_batches_without_records_do_not_prolong_the_delay() -> None:
    source, planning = planner({"a": [10 * SECOND], "b": [20 * SECOND, Pause("5 seconds"), 21 * SECOND]})
    assert advance(planning) == 2
    assert let_pass(source, planning, DELAY_S - 1) == [0]
    assert let_pass(source, planning, 1) == [1]


def test_the_cause_is_the_wait_for_more_records() -> None:
    source, planning = planner({"a": [10 * SECOND, Pause("5 seconds"), 21 * SECOND]})
    assert advance(planning) == 1
    assert let_pass(source, planning, 20) == []
    explanation = planning.explain()
    assert explanation is not None
    assert cause_of(explanation) is Cause.MIN_ROWS
    assert explanation.reads_at_us == DELAY_S * SECOND
    text = sentence(explanation)
    assert "waits until minRowsPerTrigger = 3" in text.replace("that wait", "waits")
    assert "(maxTriggerDelay)" in text


def test_records_are_read_at_once_where_more_than_is_seen_may_be_there() -> None:
    _, planning = planner({"a": [1, 2, 3, 4]}, read_ahead_rows=1)
    assert [advance(planning), advance(planning)] == [2, 2]


def test_a_source_does_not_wait_for_more_while_another_one_of_its_group_waits_for_it(tmp_path: Path) -> None:
    group = Group(tmp_path)
    late = [10 * SECOND, Pause("5 seconds"), 11 * SECOND]
    waiting = group.source({"a": late}, drift="4 seconds", min_rows=MIN_ROWS, max_delay_us=3600 * SECOND)
    other = group.source({"b": [10 * SECOND, 14_500_000]}, drift="4 seconds")
    group.plan_all()
    assert (waiting.read, other.read) == ([10 * SECOND], [10 * SECOND])
    group.let_pass(10)
    assert (waiting.read, other.read) == ([10 * SECOND, 11 * SECOND], [10 * SECOND, 14_500_000])
    group.close()


def test_a_log_of_waits_replays_to_the_same_plans(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    source, planning = planner({"a": [10 * SECOND], "b": [20 * SECOND, Pause("5 seconds"), 21 * SECOND]}, log=log)
    advance(planning)
    let_pass(source, planning, DELAY_S + 1)
    plans = list(replay(log.read_text().splitlines()))
    assert any(plan.recorded["limited_by"] == "minRows" for plan in plans)
    assert all(plan.recorded == plan.replayed for plan in plans)
