"""What planning costs: one plan (in processor time), one poll with nothing new, one trigger, and its offset."""

from __future__ import annotations

import gc
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
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
from streaming_source.coordinator.rules import FrameOptions
from streaming_source.spark.datasource import AlignedDataSource

ROWS, STEP_US = 64, 1_000_000
SHAPES = ((1_000, 100), (10_000, 100), (1_000, 10), (10_000, 10), (100_000, 10))
"""Splits, and blocks of each."""

POLLED = (100, 10_000)
TRIGGERS = ((100, 1_000), (10_000, 100_000), (10_000, 100), (100_000, 100))
"""Splits, and rows of each micro-batch: of no more splits than that something changes."""

_POLLS, _ROWS_PER_SPLIT = 300, 125
_PAUSE_S = 0.01
"""Between polls, as Spark makes it: a planner that has nothing to do waits for a part of it, which costs no one."""
_LOADS = 5
"""Plans that load event times, each by an index of its own: an index keeps what it loaded."""


def run(report: Report, folder: Path, *, quick: bool) -> None:
    _report_plans(report, 5 if quick else 15)
    _report_triggers(report, 4 if quick else 10)


def _report_plans(report: Report, rounds: int) -> None:
    plans = {shape: _plan_seconds(*shape, rounds) for shape in SHAPES}
    header = ["splits", "blocks of each", "no limit", "by time", "by rows", "by both", "min, searchsorted", "with load"]
    rows = [[f"{n:,}", str(blocks), *map(_ms, seconds)] for (n, blocks), seconds in plans.items()]
    report.table(f"One plan, in time of processor (blocks of {ROWS} rows)", header, rows)
    for shape, most_ms in {(10_000, 100): 20, (100_000, 10): 200}.items():
        name = f"one plan, {shape[0]:,} splits x {shape[1]} blocks, limit and alignment on"
        report.at_most(name, plans[shape][3] * 1e3, most_ms, " ms")
    growth = plans[(100_000, 10)][3] / plans[(10_000, 10)][3] / 10
    report.at_most("one plan, 10 times as many splits: growth against linear", growth, 1.2)
    sizes = {blocks: _bytes_a_split(10_000, blocks) for blocks in (0, 10, 100)}
    header = [f"{blocks} blocks" for blocks in sizes]
    report.table("Memory of the index, bytes a split", header, [[f"{size:,.0f}" for size in sizes.values()]])
    report.at_most("index of 10 blocks a split: resident a split", sizes[10] / 1024, 1, " KiB")


def _report_triggers(report: Report, rounds: int) -> None:
    polls = {n: _poll_seconds(n) for n in POLLED}
    lines = [[f"{n:,}", _ms(seconds)] for n, seconds in polls.items()]
    report.table(f"One poll with nothing new, {_PAUSE_S * 1e3:.0f} ms after the last", ["splits", "seconds"], lines)
    report.at_most("poll with nothing new, 10,000 splits, every 10 ms", polls[10_000] * 1e3, 0.2, " ms")
    triggers = {shape: _trigger(*shape, rounds) for shape in TRIGGERS}
    header = ["splits", "rows", "our share of a trigger", "of it the offset's JSON", "offset", "bytes a split"]
    lines = [
        [f"{n:,}", f"{rows:,}", _ms(seconds), _ms(writing), f"{size / 1024:,.0f} KiB", f"{size / n:.0f}"]
        for (n, rows), (seconds, writing, size) in triggers.items()
    ]
    report.table("One micro-batch of generated splits: planned, written, cut into partitions, reported", header, lines)
    report.at_most("our share of a trigger, 100 splits", triggers[TRIGGERS[0]][0] * 1e3, 10, " ms")
    report.at_most("our share of a trigger, 10,000 splits", triggers[TRIGGERS[1]][0] * 1e3, 150, " ms")
    report.at_most("offset of 100,000 splits when 100 moved", triggers[TRIGGERS[-1]][2] / 1024, 64, " KiB")


def _index(n: int, blocks: int) -> tuple[EventTimeIndex, SplitTable]:
    """`n` splits of rising event times, begun at different moments, records of all of them mixed."""
    starts = np.random.default_rng(3).integers(0, ROWS * STEP_US, n)
    ids = tuple(f"split-{i:06d}" for i in range(n))

    def load(split_id: str, start: int, stop: int) -> np.ndarray:
        return starts[int(split_id[-6:])] + np.arange(start, stop) * STEP_US

    index = EventTimeIndex(load)
    first = np.arange(blocks) * ROWS * STEP_US
    for i, split_id in enumerate(ids):
        index.add_split(split_id)
        index.append(split_id, np.full(blocks, ROWS), starts[i] + first, starts[i] + first + (ROWS - 1) * STEP_US)
    table = SplitTable(
        split_ids=index.split_ids,
        positions=np.zeros(n, np.int64),
        watermarks=np.full(n, MIN_WATERMARK),
        statuses=np.full(n, SplitStatus.ACTIVE, np.int8),
    )
    return index, table


def _plan_seconds(n: int, blocks: int, rounds: int) -> list[float]:
    """Median seconds of a plan of each kind, of the least that a plan must do, and of one that loads event times."""
    rules = PlanningRules(out_of_orderness_us=5 * STEP_US)
    middle, most = int(blocks * ROWS * STEP_US * 0.5), n * ROWS * blocks // 3
    kinds = [
        PlanConditions(),
        PlanConditions(group_limit_us=middle),
        PlanConditions(max_rows=most),
        PlanConditions(group_limit_us=middle, max_rows=most),
    ]
    loading = []
    for _ in range(_LOADS):
        index, table = _begun(n, blocks, rules)
        loading.append(_processor_seconds(partial(plan_micro_batch, table, index, rules, kinds[-1])))
    planned = [_seconds(lambda kind=kind: plan_micro_batch(table, index, rules, kind), rounds) for kind in kinds]
    times, reach = np.arange(n * ROWS), index.latest_times(table.positions)
    keys = np.random.default_rng(3).integers(0, times.size, n)
    least = _seconds(lambda: (reach.min(), np.searchsorted(times, keys)), rounds)
    return [*planned, least, statistics.median(loading)]


def _begun(n: int, blocks: int, rules: PlanningRules) -> tuple[EventTimeIndex, SplitTable]:
    """An index and a table of splits of which a first plan took a tenth: the next one begins inside of blocks."""
    index, table = _index(n, blocks)
    table = plan_micro_batch(table, index, rules, PlanConditions(max_rows=n * ROWS * blocks // 10)).after
    index.forget_before(table.positions)
    return index, table


def _seconds(run: Callable[[], object], rounds: int) -> float:
    """Median seconds of processor of so many runs behind one that does not count."""
    return statistics.median([_processor_seconds(run) for _ in range(rounds + 1)][1:])


def _processor_seconds(run: Callable[[], object]) -> float:
    began = time.process_time()
    run()
    return time.process_time() - began


def _bytes_a_split(n: int, blocks: int) -> float:
    gc.collect()
    tracemalloc.start()
    index, _ = _index(n, blocks)
    index.ends()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size / n


def _poll_seconds(n: int) -> float:
    """Mean seconds of one `latestOffset` where nothing is new."""
    source = DataGeneratorSource(splits=n, rows_per_second=1e-6)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_idleness("1 hour")
    aligned = AlignedDataSource(source, strategy, FrameOptions(watermark_rows=True))
    reader = aligned.stream_reader(aligned.schema())
    limit = reader.getDefaultReadLimit()
    before, start = None, reader.initialOffset()
    while before != start:
        before, start = start, reader.latestOffset(start, limit)
    taken = 0.0
    for _ in range(_POLLS):
        time.sleep(_PAUSE_S)
        began = time.perf_counter()
        reader.latestOffset(start, limit)
        taken += time.perf_counter() - began
    reader.stop()
    return taken / _POLLS


def _trigger(n: int, rows: int, rounds: int) -> tuple[float, float, int]:
    """Median seconds of processor of all that is called for a micro-batch of so many rows; of JSON; its bytes."""
    options = {"splits": n, "rowsPerSplit": _ROWS_PER_SPLIT, "bounded": True, "maxOutOfOrderness": "1 second"}
    options |= {"maxDrift": "1 minute", "maxRowsPerTrigger": rows, "watermarkRows": "emitted"}
    aligned = AlignedDataSource.of_format("aligned_datagen", {name: str(value) for name, value in options.items()})
    reader = aligned.stream_reader(aligned.schema())
    limit, start = reader.getDefaultReadLimit(), reader.initialOffset()
    taken, written = [], json.dumps(start)
    for _ in range(rounds + 2):
        clock = [time.process_time()]
        end = reader.latestOffset(json.loads(written), limit)
        clock.append(time.process_time())
        before, written = written, json.dumps(end)
        # As PySpark's runner does: it reads the offsets again for each call.
        start, end, done = json.loads(before), json.loads(written), json.loads(written)
        clock.append(time.process_time())
        reader.partitions(start, end)
        json.dumps(reader.reportLatestOffset())
        reader.commit(done)
        clock.append(time.process_time())
        taken.append((clock[3] - clock[0], clock[2] - clock[1]))
        assert end != start
    reader.stop()
    seconds, writing = (statistics.median(column) for column in zip(*taken[2:], strict=True))
    return seconds, writing, len(written)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
