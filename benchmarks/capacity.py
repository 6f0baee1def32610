"""Whether a running query is where Little's law says: its triggers and its latency at three rates."""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from alignment.simulation import Load, capacity
from benchmarks.on_spark import session
from benchmarks.report import Report

SPLITS = 4
UTILISATIONS = (0.2, 0.4, 0.6)
CALIBRATION_RATE = 1_000.0


def run(report: Report, folder: Path, *, quick: bool) -> None:
    """Measure what a micro-batch and a row take, and compare three runs with what follows from these."""
    spark, seconds = session(), 10 if quick else 30
    row_us = _row_us(spark, folder, 2_000_000 if quick else 8_000_000)
    lines = []
    for used in UTILISATIONS:
        rate = used / (row_us / 1e6) / SPLITS
        # Beside each run: on a machine that others use as well it differs from minute to minute.
        overhead_s = _observed(spark, folder, CALIBRATION_RATE, seconds / 2)[1]
        known = capacity(Load(splits=SPLITS, rate=rate, overhead_s=overhead_s, emit_row_us=row_us))
        rows, trigger_s, latency_s = _observed(spark, folder, rate, seconds)
        for what, said, measured in (
            ("rows a trigger", known.rows_per_trigger, rows),
            ("trigger, s", known.trigger_s, trigger_s),
            ("latency, s", known.latency_s, latency_s),
        ):
            given = f"{SPLITS * rate:,.0f}", f"{overhead_s:.3f}"
            lines.append([*given, what, f"{said:,.3f}", f"{measured:,.3f}", f"{measured / said:.2f}"])
    title = f"capacity: {row_us:.3f} us a row"
    report.table(title, ["rows a second", "overhead, s", "", "Little's law", "measured", "measured / law"], lines)


def _frame(spark: Any, **options: Any) -> Any:
    import streaming_source

    reader = streaming_source.read_stream(spark).format("aligned_datagen").options(splits=SPLITS, **options)
    return reader.option("discoveryInterval", "10 ms").load()


def _start(frame: Any, folder: Path, **trigger: Any) -> Any:
    checkpoint = folder / f"checkpoint-{time.monotonic_ns()}"
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    return (writer.trigger(**trigger) if trigger else writer).start()


def _observed(spark: Any, folder: Path, rate: float, seconds: float) -> tuple[float, float, float]:
    """Medians of a query at a rate a split: rows of a trigger, what it takes, latency of its records as a mean."""
    query = _start(_frame(spark, rowsPerSecond=rate), folder)
    while query.lastProgress is None:
        time.sleep(0.1)
    # Until what came while it started is read.
    time.sleep(seconds)
    before = query.lastProgress["batchId"]
    time.sleep(seconds)
    progress = [json.loads(p.json) for p in query.recentProgress]
    query.stop()
    settled = [p for p in progress if p["batchId"] > before and p["numInputRows"] > 1]
    took = [p["durationMs"]["triggerExecution"] / 1e3 for p in settled]
    rows = [p["numInputRows"] - 1 for p in settled]
    latency = [_latency_s(p, rate, trigger_s) for p, trigger_s in zip(settled, took, strict=True)]
    return statistics.median(rows), statistics.median(took), statistics.median(latency)


def _latency_s(progress: dict[str, Any], rate: float, trigger_s: float) -> float:
    source = progress["sources"][0]
    offsets = [json.loads(at) if isinstance(at, str) else at for at in (source["startOffset"], source["endOffset"])]
    epoch_s = offsets[1]["enumerator"][1]["arrival_epoch_us"] / 1e6
    positions = [_mean_position(offset) for offset in offsets]
    end_s = datetime.fromisoformat(progress["timestamp"]).timestamp() + trigger_s
    return end_s - (epoch_s + statistics.mean(positions) / rate)


def _mean_position(offset: dict[str, Any]) -> float:
    return statistics.mean(split[1] for split, *_ in offset["splits"])


def _row_us(spark: Any, folder: Path, rows: int) -> float:
    """What one more row takes, in microseconds: by two runs, one of them over eight times as many rows."""
    taken = {}
    for count in (rows // 8, rows, rows // 8, rows):
        frame = _frame(spark, bounded=True, rowsPerSplit=count // SPLITS)
        query = _start(frame, folder, availableNow=True)
        query.awaitTermination()
        progress = [json.loads(p.json) for p in query.recentProgress]
        taken[count] = sum(p["durationMs"]["triggerExecution"] for p in progress) * 1e3
    return float((taken[rows] - taken[rows // 8]) / (rows - rows // 8))


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="benchmarks-"))
    try:
        run(Report(), folder, quick=False)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
