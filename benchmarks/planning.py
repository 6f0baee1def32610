"""What planning costs: one plan (in processor time), one poll with nothing new, and the offset's bytes a split."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import numpy as np

from alignment.combine import SplitStatus
from alignment.index import EventTimeIndex
from alignment.plan import PlanConditions, PlanningRules, SplitTable
from alignment.plan.by_index import plan_micro_batch
from alignment.strategy import WatermarkStrategy
from alignment.watermarks import MIN_WATERMARK
from benchmarks.report import table
from streaming_source.connectors.datagen import DataGeneratorSource
from streaming_source.spark.datasource import AlignedDataSource
from streaming_source.spark.options import FrameOptions

BLOCKS, ROWS, STEP_US = 4, 64, 1_000_000
SIZES = (1_000, 10_000, 100_000)
_POLLS = 1_000


def run(*, quick: bool) -> None:
    rounds = 3 if quick else 7
    plans = {n: _plan_seconds(n, rounds) for n in SIZES}
    rows = [
        [
            f"{n:,}",
            *(f"{seconds * 1e3:.1f} ms" for seconds in plans[n]),
            *(f"{after / before:.1f}" for after, before in zip(plans[n], plans[SIZES[0]], strict=True)),
        ]
        for n in SIZES
    ]
    limit = SIZES[-1] / SIZES[0] * np.log(SIZES[-1]) / np.log(SIZES[0])
    table(
        f"One plan ({BLOCKS} blocks of {ROWS} rows a split; n log n would allow {limit:.0f} in the last line)",
        ["splits", "no limit", "cut by time", "cut by rows", "x no limit", "x by time", "x by rows"],
        rows,
    )
    polls = [[f"{n:,}", *_poll(n)] for n in SIZES]
    table(
        "Nothing new, and the offset (generated splits, each with one record read)",
        ["splits", "one poll", "offset bytes a split"],
        polls,
    )


def _index(n: int) -> tuple[EventTimeIndex, SplitTable]:
    """`n` splits of rising event times, begun at different moments, records of all of them mixed."""
    starts = np.random.default_rng(3).integers(0, ROWS * STEP_US, n)
    ids = tuple(f"split-{i:06d}" for i in range(n))
    number = {split_id: i for i, split_id in enumerate(ids)}

    def load(split_id: str, start: int, stop: int) -> np.ndarray:
        return starts[number[split_id]] + np.arange(start, stop) * STEP_US

    index = EventTimeIndex(load)
    first = np.arange(BLOCKS) * ROWS * STEP_US
    for i, split_id in enumerate(ids):
        index.add_split(split_id)
        index.append(split_id, np.full(BLOCKS, ROWS), starts[i] + first, starts[i] + first + (ROWS - 1) * STEP_US)
    table = SplitTable(
        index.split_ids,
        np.zeros(n, np.int64),
        np.full(n, MIN_WATERMARK),
        np.full(n, SplitStatus.ACTIVE, np.int8),
    )
    return index, table


def _plan_seconds(n: int, rounds: int) -> list[float]:
    index, table = _index(n)
    rules = PlanningRules(out_of_orderness_us=5 * STEP_US)
    middle = int(BLOCKS * ROWS * STEP_US * 0.4)
    kinds: list[Callable[[], object]] = [
        lambda: plan_micro_batch(table, index, rules),
        lambda: plan_micro_batch(table, index, rules, PlanConditions(group_limit_us=middle)),
        lambda: plan_micro_batch(table, index, rules, PlanConditions(max_rows=n * ROWS * BLOCKS // 3)),
    ]
    seconds = []
    for plan in kinds:
        plan()
        taken = []
        for _ in range(rounds):
            began = time.process_time()
            plan()
            taken.append(time.process_time() - began)
        seconds.append(statistics.median(taken))
    return seconds


def _poll(n: int) -> tuple[str, str]:
    """One `latestOffset` of the stream reader when nothing has changed, over a source of `n` splits."""
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
    return f"{each * 1e6:.1f} us", f"{len(json.dumps(start)) / n:.0f}"
