"""The log of what drove an engine, applied to a fresh engine, gives the same plans."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from alignment import WatermarkStrategy
from alignment.exceptions import InvalidArgumentError
from alignment.recording import Recorder, replay
from streaming_source.api import Source
from streaming_source.connectors.files import FileSource
from streaming_source.testing import EOF, FakeClock, Pause, SourceHarness, TestingSource

STRATEGY = (
    WatermarkStrategy.for_bounded_out_of_orderness("5 us")
    .with_idleness("1 second")
    .with_watermark_alignment("splits", "20 us")
)


def scripted(_: Path) -> TestingSource:
    fast, slow = list(range(0, 400, 4)), [*range(50), Pause("2 seconds"), *range(50, 100)]
    return TestingSource({"fast": [*fast, EOF], "slow": slow}, records_per_fetch=7)


def files(folder: Path) -> FileSource:
    for log, step in (("slow", 1), ("fast", 4)):
        for part in range(3):
            times = [step * (part * 50 + i) for i in range(50)]
            (folder / "in" / log).mkdir(parents=True, exist_ok=True)
            table = pa.table({"ts": pa.array(times, pa.timestamp("us", "UTC"))})
            pq.write_table(table, folder / "in" / log / f"part-{part}.parquet", row_group_size=20)
    return FileSource(str(folder / "in"), bounded=True)


CASES: dict[str, tuple[Callable[[Path], Source[Any, Any]], dict[str, Any]]] = {
    "read ahead": (scripted, {}),
    "by reports": (scripted, {"reports": lambda reports: reports[1:]}),
    "indexed": (files, {}),
    "indexed, with a limit on rows": (files, {"max_rows": 13}),
    "available now": (scripted, {"available_now": True, "max_rows": 9}),
}


def recorded(path: Path, source: Source[Any, Any], options: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a source over a restart and a plan that is given up; what was written."""
    strategy = STRATEGY.with_timestamp_assigner("ts")
    clock = getattr(source, "clock", None) or FakeClock()
    harness = SourceHarness(source, strategy, clock=clock, recorder=Recorder(path), **options)
    for step in range(12):
        if step == 2 and harness.plan():
            harness.rewind()
        if step == 4:
            harness.restart()
        harness.run()
        harness.clock.advance("300 ms")
    harness.close()
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("case", CASES)
def test_a_log_replays_to_the_same_plans(case: str, tmp_path: Path) -> None:
    make, options = CASES[case]
    entries = recorded(tmp_path / "log", make(tmp_path), options)
    plans = list(replay((tmp_path / "log").read_text().splitlines()))
    assert len(plans) == sum(entry["type"] == "MicroBatchPlan" for entry in entries)
    assert sum(plan.recorded["rows"] for plan in plans) >= 150
    for plan in plans:
        assert plan.replayed == plan.recorded


def test_a_log_that_was_changed_does_not(tmp_path: Path) -> None:
    entries = recorded(tmp_path / "log", scripted(tmp_path), {})
    blocks = [entry for entry in entries if entry["type"] == "BlocksIndexed"]
    blocks[3]["max_us"]["values"][-1] += 1000
    # Either another plan comes of it, or one that needs event times that were not loaded then.
    with contextlib.suppress(InvalidArgumentError):
        assert any(plan.replayed != plan.recorded for plan in replay(map(json.dumps, entries)))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["no JSON"], "line 1 is none of an event log"),
        (['{"type": "Surprise"}'], "line 1 is none of an event log: KeyError"),
        (['{"type": "NoMoreSplits"}'], "begins with EngineStarted, not with NoMoreSplits"),
    ],
)
def test_what_is_no_log_is_refused(lines: list[str], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        list(replay(lines))
