"""What planning costs: one plan (in processor time), one poll with nothing new, and the offset's bytes a split."""

from __future__ import annotations

import gc
import json
import resource
import statistics
import time
from pathlib import Path

import numpy as np

from alignment.combine import SplitStatus
from alignment.index import EventTimeIndex
from alignment.plan import PlanConditions, PlanningRules, SplitTable
from alignment.plan.by_index import plan_micro_batch
from alignment.strategy import WatermarkStrategy
from alignment.watermarks import MIN_WATERMARK
from benchmarks.report import Report
from streaming_source.connectors.datagen import DataGeneratorSource
from streaming_source.spark.datasource import AlignedDataSource
from streaming_source.spark.options import FrameOptions

ROWS, STEP_US = 64, 1_000_000
SHAPES = ((1_000, 100), (10_000, 100), (1_000, 10), (10_000, 10), (100_000, 10))
"""Splits, and blocks of each."""

POLLED = (100, 10_000, 100_000)
_POLLS = 1_000


def run(report: Report, folder: Path, *, quick: bool) -> None:
    rounds = 5 if quick else 15
    plans = {shape: _plan_seconds(*shape, rounds) for shape in SHAPES}
    header = ["splits", "blocks of each", "no limit", "cut by time", "cut by rows", "by both", "bytes a split"]
    rows = [
        [f"{n:,}", str(blocks), *(f"{s * 1e3:.1f} ms" for s in seconds), f"{size:,.0f}"]
        for (n, blocks), (seconds, size) in plans.items()
    ]
    report.table(f"One plan, in time of processor (blocks of {ROWS} rows)", header, rows)
    for shape, most_ms in {(10_000, 100): 20, (100_000, 10): 200}.items():
        seconds, size = plans[shape]
        name = f"one plan, {shape[0]:,} splits x {shape[1]} blocks"
        report.at_most(f"{name}, limit and alignment on", seconds[-1] * 1e3, most_ms, " ms")
        report.at_most(f"{name}: resident a split", size / 1024, 1, " KiB")
    growth = plans[(100_000, 10)][0][-1] / plans[(10_000, 10)][0][-1] / 10
    report.at_most("one plan, 10 times as many splits: growth against linear", growth, 1.2)
    polls = {n: _poll(n) for n in POLLED}
    header = ["splits", "one poll", "one micro-batch", "offset bytes a split"]
    rows = [[f"{n:,}", f"{p * 1e3:.3f} ms", f"{b * 1e3:.1f} ms", f"{size:.0f}"] for n, (p, b, size) in polls.items()]
    title = "Nothing new; a micro-batch of all splits, with its offset as JSON (generated splits)"
    report.table(title, header, rows)
    report.at_most("poll with nothing new, 10,000 splits", polls[10_000][0] * 1e3, 0.2, " ms")
    report.at_most("our share of a trigger, 100 splits", polls[100][1] * 1e3, 10, " ms")
    report.at_most("our share of a trigger, 10,000 splits", polls[10_000][1] * 1e3, 150, " ms")


def _index(n: int, blocks: int) -> tuple[EventTimeIndex, SplitTable]:
    """`n` splits of rising event times, begun at different moments, records of all of them mixed."""
    starts = np.random.default_rng(3).integers(0, ROWS * STEP_US, n)
    ids = tuple(f"split-{i:06d}" for i in range(n))
    number = {split_id: i for i, split_id in enumerate(ids)}

    def load(split_id: str, start: int, stop: int) -> np.ndarray:
        return starts[number[split_id]] + np.arange(start, stop) * STEP_US

    index = EventTimeIndex(load)
    first = np.arange(blocks) * ROWS * STEP_US
    for i, split_id in enumerate(ids):
        index.add_split(split_id)
        index.append(split_id, np.full(blocks, ROWS), starts[i] + first, starts[i] + first + (ROWS - 1) * STEP_US)
    table = SplitTable(
        index.split_ids,
        np.zeros(n, np.int64),
        np.full(n, MIN_WATERMARK),
        np.full(n, SplitStatus.ACTIVE, np.int8),
    )
    return index, table


def _plan_seconds(n: int, blocks: int, rounds: int) -> tuple[list[float], float]:
    """Median seconds of a plan of each kind, and bytes of the index a split."""
    before = _resident_bytes()
    index, table = _index(n, blocks)
    size = (_resident_bytes() - before) / n
    rules = PlanningRules(out_of_orderness_us=5 * STEP_US)
    middle, most = int(blocks * ROWS * STEP_US * 0.4), n * ROWS * blocks // 3
    kinds = [
        PlanConditions(),
        PlanConditions(group_limit_us=middle),
        PlanConditions(max_rows=most),
        PlanConditions(group_limit_us=middle, max_rows=most),
    ]
    seconds = []
    for conditions in kinds:
        plan_micro_batch(table, index, rules, conditions)
        taken = []
        for _ in range(rounds):
            began = time.process_time()
            plan_micro_batch(table, index, rules, conditions)
            taken.append(time.process_time() - began)
        seconds.append(statistics.median(taken))
    return seconds, size


def _poll(n: int) -> tuple[float, float, float]:
    """Seconds of one `latestOffset` where nothing is new, and of a micro-batch; bytes of its offset a split."""
    source = DataGeneratorSource(splits=n, rows_per_second=1e-6)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_idleness("1 hour")
    aligned = AlignedDataSource(source, strategy, FrameOptions(watermark_rows=True))
    reader = aligned.stream_reader(aligned.schema())
    limit = reader.getDefaultReadLimit()
    before, start = None, reader.initialOffset()
    while before != start:
        before, start = start, reader.latestOffset(start, limit)
    began = time.perf_counter()
    for _ in range(_POLLS):
        reader.latestOffset(start, limit)
    each = (time.perf_counter() - began) / _POLLS
    reader.stop()
    return each, _micro_batch_seconds(n), len(json.dumps(start)) / n


def _micro_batch_seconds(n: int) -> float:
    """Median seconds of what the planner does for a micro-batch in which each split has news."""
    options = {"splits": n, "rowsPerSplit": 1_000, "bounded": True, "maxOutOfOrderness": "1 second"}
    options |= {"maxDrift": "1 minute", "maxRowsPerTrigger": 10 * n, "watermarkRows": "emitted"}
    aligned = AlignedDataSource.of_format("aligned_datagen", {name: str(value) for name, value in options.items()})
    reader = aligned.stream_reader(aligned.schema())
    limit, start, taken = reader.getDefaultReadLimit(), reader.initialOffset(), []
    for _ in range(12):
        began = time.process_time()
        end = reader.latestOffset(start, limit)
        json.dumps(end)
        reader.partitions(start, end)
        reader.commit(end)
        taken.append(time.process_time() - began)
        assert end != start
        start = end
    reader.stop()
    return statistics.median(taken[2:])


def _resident_bytes() -> float:
    gc.collect()
    return float(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
