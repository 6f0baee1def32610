"""A history in files, and the topic that goes on: records lost and doubled, and the time, in one query and in two.

The history was written from the topic, as a bronze table is, up to another time in each partition. Beside the union of
this library stand Spark's two jobs, a batch over the history and a stream over the topic from one time on: the latest
of the history, or that up to which it has all partitions. Flink's HybridSource reads the same history as text, a file a
partition, and the topic from one time on, as its documentation shows, or from offsets; with a subtask a file, or with
one for two. Records are counted in windows of an hour: one that is in no window is lost, one in several is doubled.

Seconds are by the clock, the median of three rounds, in processes that have run the way before. Start-up is the same
over two records of each partition.

Then a topic that does not end, behind a history of two files: of two partitions, and of one, which leaves one of two
subtasks of Flink's job without a split (FLINK-39586). Counted are the records in windows that the watermark closes, and
that have not come out.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import flink
from benchmarks.broker import start_broker
from benchmarks.history import on_flink, on_spark
from benchmarks.history.inputs import HistoryAndTopic, write
from benchmarks.history.picture import PICTURE, draw
from benchmarks.history.ways import Way
from benchmarks.on_spark import session
from benchmarks.report import Report
from tests.kafka.broker import KafkaBroker

__all__ = ["run"]

PARTITIONS, RECORDS, QUICK_RECORDS = 4, 200_000, 20_000
OURS = "one union of ours, cut by offset"
MICRO_BATCHES = 3
"""Of the union: the first plans, in which both sides learn of each other; all records; and the windows that close."""


def run(report: Report, folder: Path, *, quick: bool) -> None:
    records = QUICK_RECORDS if quick else RECORDS
    with ExitStack() as stack:
        started = start_broker(stack, folder / "kafka-of-history")
        if started is None:
            return
        broker, connector = started
        given = write(broker, folder / "all", records, PARTITIONS)
        few = write(broker, folder / "few", 2 * PARTITIONS, PARTITIONS)
        spark = session(*connector)
        ways: dict[str, Way] = {
            OURS: on_spark.union(spark, folder),
            "Spark's two jobs, from the latest time": on_spark.two_jobs(spark, folder, from_latest=True),
            "Spark's two jobs, from the earliest end": on_spark.two_jobs(spark, folder, from_latest=False),
        }
        hybrid = on_flink.start(stack, folder)
        if hybrid is not None:
            ways |= {
                "Flink's HybridSource, from the latest time": hybrid.by_timestamp(PARTITIONS),
                "Flink's HybridSource, by offset": hybrid.by_offset(PARTITIONS),
                "Flink's HybridSource, by offset, two subtasks": hybrid.by_offset(PARTITIONS // 2),
            }
        _measure(report, ways, given, few, quick=quick)
        _without_end(report, spark, hybrid, broker, folder, records // 2)
        spark.stop()


def _measure(
    report: Report, ways: dict[str, Way], given: HistoryAndTopic, few: HistoryAndTopic, *, quick: bool
) -> None:
    rows, drawn = [], {}
    for name, way in ways.items():
        way(few)
        start_up, rounds = way(few).seconds, [way(given) for _ in range(1 if quick else 3)]
        seconds = statistics.median(found.seconds for found in rounds)
        lost, doubled = [found.lost(given.records) for found in rounds], [found.doubled() for found in rounds]
        micro_batches = rounds[-1].micro_batches
        taken = [f"{seconds:.1f} s", f"{max(seconds - start_up, 0):.1f} s"]
        rows.append([name, _range(lost), _range(doubled), *taken, "" if micro_batches is None else str(micro_batches)])
        drawn[name] = max(lost), max(doubled)
        if name == OURS:
            report.at_most("history: records that the union loses or doubles", max(lost) + max(doubled), 0)
            report.at_most("history: micro-batches of the union", micro_batches or 0, MICRO_BATCHES)
    report.table(
        f"{given.records:,} records, half of them in the history: windows of an hour, Flink {flink.VERSION}",
        ["way", "records lost", "doubled", "time", "beyond start-up", "micro-batches"],
        rows,
    )
    if not quick:
        draw(drawn, given.records)
        print(f"\nwritten: {PICTURE}", flush=True)


def _range(counts: list[int]) -> str:
    least, most = min(counts), max(counts)
    return f"{most:,}" if least == most else f"{least:,} to {most:,}"


def _without_end(
    report: Report, spark: Any, hybrid: on_flink.HybridSource | None, broker: KafkaBroker, folder: Path, records: int
) -> None:
    """A history of two files, one for each subtask, and a topic of one partition or two, which does not end."""
    rows = []
    for partitions in (2, 1):
        given = write(broker, folder / f"without-end-{partitions}", records, partitions, files=2 // partitions)
        ways = {"ours": on_spark.union(spark, folder, bounded=False)}
        if hybrid is not None:
            ways["Flink's HybridSource, two subtasks"] = hybrid.without_end(2)
        rows += [
            [name, str(partitions), f"{given.closed:,}", f"{way(given).awaited(given):,}"] for name, way in ways.items()
        ]
    report.table(
        "A topic that does not end, behind a history of two files: records in windows that its watermark closes",
        ["way", "partitions", "records", "that have not come out"],
        rows,
    )
