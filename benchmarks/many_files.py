"""A great many finite files: planning time of a micro-batch from the first to the last, offset, and memory."""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from alignment.plan import PlanningRules
from alignment.strategy import WatermarkStrategy
from alignment.timestamps import FieldTimestampAssigner
from benchmarks.report import Report
from streaming_source.coordinator import ReadRules, SourceCoordinator
from streaming_source.coordinator.rules import FrameOptions
from streaming_source.spark.offsets import OffsetCodec
from tests.files.simulated import SECOND, ManyFiles, simulated_source

FILES, QUICK_FILES = 1_000_000, 100_000
BOUND_S = 20
ORDERS = ("eventTime", "name", "modificationTime")


def run(report: Report, folder: Path, *, quick: bool) -> None:
    files = QUICK_FILES if quick else FILES
    rows = []
    for order in ORDERS:
        # In a process of its own each: memory that was in use once is not given back.
        code = f"from benchmarks.many_files import measure; measure({files}, {order!r})"
        told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        found = json.loads(told.splitlines()[-1])
        first, last = found["first_ms"], found["last_ms"]
        rows.append(
            [
                order,
                f"{found['first_look_s']:.0f} s",
                str(found["batches"]),
                f"{first:.0f} ms",
                f"{last:.0f} ms",
                f"{last / first:.2f}",
                f"{found['offset_bytes']:,}",
                f"{found['rss_mib']:.0f} MiB",
            ]
        )
    report.table(
        f"{files:,} finite files of 10 records, simulated below the real planner (processor time a batch)",
        ["fileOrder", "first plan", "batches", "first tenth", "last tenth", "ratio", "largest offset", "memory grown"],
        rows,
    )


def measure(files: int, order: str) -> None:
    """Consume them, and print what it took as JSON."""
    before_mib = _rss_mib()
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as log:
        # Event times follow no order of names or of modification where they need not.
        by_event_time = order == "eventTime"
        arguments: dict[str, Any] = {"file_order": order, "state_location": log if by_event_time else None}
        found = _consume(ManyFiles(files, shuffled=by_event_time), arguments)
    print(json.dumps({**found, "rss_mib": _rss_mib() - before_mib}))


def _consume(files: ManyFiles, arguments: dict[str, Any]) -> dict[str, float]:
    source = simulated_source(files, **arguments)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(f"{BOUND_S} seconds")
    strategy = strategy.with_timestamp_assigner(FieldTimestampAssigner("t", "us"))
    planning = PlanningRules(out_of_orderness_us=BOUND_S * SECOND, bounded=True)
    rules = ReadRules(strategy, planning, FrameOptions(watermark_rows=True))
    planner = SourceCoordinator(source, rules, source.schema(), lambda: time.monotonic_ns() // 1000, readers=2)
    codec, state = OffsetCodec(source), planner.state
    began = time.perf_counter()
    planner.restore(state)
    planner.start()
    first_look_s = time.perf_counter() - began
    taken, largest = [], 0
    while True:
        start = time.process_time()
        after = planner.advance()
        if after is state:
            break
        offset = json.dumps(codec.encode(after), separators=(",", ":"))
        planner.ranges(state, after, 2, 32_768)
        planner.notify_committed(state.sequence)
        taken.append(time.process_time() - start)
        largest, state = max(largest, len(offset)), after
    planner.close()
    tenth = max(len(taken) // 10, 1)
    return {
        "first_look_s": first_look_s,
        "batches": len(taken),
        "first_ms": statistics.median(taken[:tenth]) * 1e3,
        "last_ms": statistics.median(taken[-tenth:]) * 1e3,
        "offset_bytes": largest,
    }


def _rss_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
