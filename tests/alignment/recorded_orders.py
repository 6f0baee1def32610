"""The event log of a query over three partitions, one of which is silent for minutes and then brings what it owes."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from alignment import WatermarkStrategy
from alignment.recording import Recorder
from streaming_source.testing import FakeClock, SourceHarness, TestingSource

SECOND = 1_000_000
START_US = 1_767_261_600 * SECOND
"""2026-01-01 10:00:00 UTC."""

_TRIGGER_S = 5
_SILENT = range(60, 200)


def record_orders(log: Path, *, idle: str | None, delay: str, seconds: int = 300) -> list[list[int]]:
    """Run it for five minutes, by a clock that stands still; rows and late rows of each micro-batch."""
    written, batches = _recorded(idle, delay, seconds)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(written)
    log.chmod(0o600)
    return batches


@cache
def _recorded(idle: str | None, delay: str, seconds: int) -> tuple[bytes, list[list[int]]]:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        batches = _run(log, idle, delay, seconds)
        return log.read_bytes(), batches


def _run(log: Path, idle: str | None, delay: str, seconds: int) -> list[list[int]]:
    clock = FakeClock()
    clock.advance_to(START_US)
    source = TestingSource({f"orders-{n}": [] for n in range(3)}, clock=clock, bounded=False, records_per_fetch=1000)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(delay)
    strategy = strategy if idle is None else strategy.with_idleness(idle)
    harness = SourceHarness(source, strategy, clock=clock, recorder=Recorder(log))
    batches: list[list[int]] = []
    owed: list[int] = []
    for second in range(seconds):
        clock.advance("1 second")
        now_us = START_US + second * SECOND
        # Some orders are on their way for up to four seconds.
        source.go_on("orders-0", now_us - (second % 7 == 0) * (second % 5) * SECOND)
        source.go_on("orders-1", now_us)
        owed.append(now_us)
        if second not in _SILENT:
            source.go_on("orders-2", *owed)
            owed.clear()
        if second % _TRIGGER_S == _TRIGGER_S - 1:
            while harness.plan():
                plan = harness.coordinator.runtime.engine.last_plan
                assert plan is not None
                batches.append([plan.rows, int(plan.late.sum())])
                harness.commit(harness.read())
    harness.close()
    return batches
