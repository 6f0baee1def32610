"""What it costs to be watched: a windowed count with a listener and without, and what is made of each micro-batch."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import streaming_source
from alignment import WatermarkStrategy
from benchmarks.data import write_parquet
from benchmarks.on_spark import drain, session
from benchmarks.report import Report, in_turn, median_ratio, ratio
from streaming_source.monitoring.history import History
from streaming_source.monitoring.report import WatermarkReport
from streaming_source.spark.offsets import OffsetCodec
from streaming_source.testing import SourceHarness, TestingSource

BATCHES = 16


def run(report: Report, folder: Path, *, quick: bool) -> None:
    rows = 8_000_000 if quick else 32_000_000
    rounds = 3 if quick else 7
    spark = session()
    data = folder / "watched"
    write_parquet(data, rows, "narrow")
    listener = streaming_source.AlignmentListener()

    def windowed() -> Any:
        from pyspark.sql import functions as F

        reader = streaming_source.read_stream(spark).format("aligned_files").option("eventTimeColumn", "ts")
        reader = reader.option("maxOutOfOrderness", "5 seconds").option("maxRowsPerTrigger", str(rows // BATCHES))
        return reader.option("bounded", "true").load(str(data)).groupBy(F.window("ts", "1 minute"), "key").count()

    def unwatched() -> float:
        return drain(windowed(), folder, "triggerExecution")

    def watched() -> float:
        spark.streams.addListener(listener)
        try:
            return unwatched()
        finally:
            spark.streams.removeListener(listener)

    seconds = in_turn({"listener": watched, "none": unwatched}, rounds)
    batch_s = statistics.median(seconds["none"]) / BATCHES
    medians = {name: f"{statistics.median(taken):.2f} s" for name, taken in seconds.items()}
    lines = [[name, median, ratio(seconds[name], seconds["none"])] for name, median in medians.items()]
    title = f"Windowed count of {rows:,} rows ({rounds} rounds in turn)"
    report.table(title, ["with", "median", "of that without"], lines)
    report.at_most("watched by a listener, against unwatched", median_ratio(seconds["listener"], seconds["none"]), 1.03)
    spark.stop()
    header = ["splits", "reasons in the offset", "report in the progress", "history", f"of {batch_s * 1e3:.0f} ms"]
    lines = [_written(splits, batch_s) for splits in (8, 100, 1_000)]
    report.table("Made of each micro-batch, in time of processor", header, lines)


def _written(splits: int, batch_s: float) -> list[str]:
    """Seconds of what is made of each micro-batch beside its state, in planner and driver."""
    source = TestingSource({f"split-{number}": [0, 1_000_000] for number in range(splits)})
    harness = SourceHarness(source, WatermarkStrategy.for_bounded_out_of_orderness("5 seconds"))
    harness.run_batch()
    state, codec, history = harness.coordinator.state, OffsetCodec(source), History()
    explained = harness.coordinator.explain()
    assert explained is not None
    report = WatermarkReport(source.name, 1, explained).to_json()
    progress = {
        "batchId": 0,
        "timestamp": "2026-01-01T00:00:00.000Z",
        "eventTime": {},
        "durationMs": {"addBatch": 1},
        "batchDuration": 1,
        "stateOperators": [],
        "observedMetrics": {},
        "sources": [
            {"startOffset": None, "endOffset": None, "latestOffset": json.dumps(report), "numInputRows": splits}
        ],
    }
    whole = _median(lambda: codec.encode(state, harness.coordinator.explain()))
    parts = [
        whole - _median(lambda: codec.encode(state)),
        _median(lambda: json.dumps(WatermarkReport(source.name, 1, harness.coordinator.explain()).to_json())),
        _median(lambda: history.add_progress(progress)),
    ]
    harness.close()
    return [f"{splits:,}", *(f"{part * 1e3:.2f} ms" for part in parts), f"{sum(parts) / batch_s:.2%}"]


def _median(call: Callable[[], object]) -> float:
    """Seconds of processor."""
    taken = []
    for _ in range(50):
        began = time.process_time()
        call()
        taken.append(time.process_time() - began)
    return statistics.median(taken)
