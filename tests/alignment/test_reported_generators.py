"""Generators of the user's own whose readers report: what holds between a record and its report."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from alignment import WatermarkGenerator, WatermarkOutput
from alignment.combine import SplitStatus
from alignment.engine import Engine
from alignment.events import BlocksIndexed, Probed, Restored
from alignment.index import EventTimeIndex
from alignment.plan import PlanningRules, SplitTable
from alignment.plan.by_reports import ReactivePlanner
from alignment.split_generators import UserGenerators
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import Int64Array

SECOND = 1_000_000
TIMEOUT_US = 60 * SECOND


class Latest(WatermarkGenerator):
    def on_batch(self, records: pa.RecordBatch, times: Int64Array, output: WatermarkOutput) -> None:
        output.emit_watermark(int(times.max()))

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Nothing."""

    def snapshot_state(self) -> None:
        """The watermark is all it knows."""


def no_records(split_id: str, start: int, stop: int) -> Int64Array:
    raise AssertionError("readers report: nothing is loaded")


def restored_idle() -> Engine:
    """One split, idle at a restart, whose records before position 5 were read."""
    rules = PlanningRules(None)
    engine = Engine(
        rules,
        EventTimeIndex(no_records),
        idle_timeout_us=TIMEOUT_US,
        reactive=ReactivePlanner(rules),
        generators=UserGenerators(Latest, SECOND, lambda *_: ()),
    )
    table = SplitTable(
        split_ids=("a",),
        positions=np.array([5]),
        watermarks=np.array([100]),
        statuses=np.array([SplitStatus.IDLE], np.int8),
        combined=100,
    )
    zeros = np.zeros(1, np.int64)
    engine.apply(Restored(table, zeros, zeros, np.array([NO_TIMESTAMP]), 0))
    return engine


def status_after(engine: Engine, now_us: int) -> SplitStatus:
    engine.apply(Probed(now_us, ("a",)))
    plan = engine.plan(now_us)
    engine.commit(plan)
    engine.validate()
    return SplitStatus(int(plan.after.statuses[0]))


def test_a_split_whose_report_is_lost_becomes_idle_after_the_timeout_and_not_before() -> None:
    engine = restored_idle()
    assert status_after(engine, SECOND) is SplitStatus.IDLE
    no_time = np.array([NO_TIMESTAMP])
    engine.apply(BlocksIndexed("a", np.array([1]), no_time, no_time))
    engine.commit(engine.plan(2 * SECOND))
    assert status_after(engine, 6 * SECOND) is SplitStatus.ACTIVE
    assert status_after(engine, 2 * SECOND + TIMEOUT_US - 1) is SplitStatus.ACTIVE
    assert status_after(engine, 2 * SECOND + TIMEOUT_US) is SplitStatus.IDLE
