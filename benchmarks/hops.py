"""Three hops over skewed, disordered splits: by claims, by Spark's own watermarks, and by the rule of Kafka Connect."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from itertools import accumulate, compress
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.on_spark import session
from benchmarks.report import Report
from streaming_source.tools.completeness import complete_until

ROUNDS, QUICK_ROUNDS = 7, 4
SPLITS, ROWS = 12, 60
SECOND, T0 = 1_000_000, 1_767_225_600 * 1_000_000
EVERY_S, BEHIND_S = 600, 97
"""A round has ten minutes of each split, and each split is so much further behind than the one before."""

DISORDER_S = 300
"""How far a row may be behind the rows that its split had in earlier rounds."""

SILENT = range(2, 4)
"""Rounds in which the last split has nothing; it goes on where it was."""

_CLOSING_US: Final = T0 + 86_400 * SECOND
"""When the row is that each split has at the end."""
Times = list[list[npt.NDArray[np.int64]]]
"""Event times: of each round, by split, in the order in which they are written."""


def run(report: Report, folder: Path, *, quick: bool) -> None:
    times = made(QUICK_ROUNDS if quick else ROUNDS)
    delay_s = least_delay_s(times)
    spark = session()
    played = {
        "by what the writers claim": Hops(spark, folder, "claims", claimed),
        f"Spark's own, delay of {delay_s} s": Hops(spark, folder, "spark", stock(delay_s)),
        "the same, one file a trigger": Hops(spark, folder, "files", stock(delay_s, 1)),
    }
    for number, of_splits in enumerate(times):
        for split, of_round in enumerate(of_splits):
            if not of_round.size:
                continue
            write(folder / "raw" / f"split={split:02}" / f"{number:02}.parquet", of_round)
        for hops in played.values():
            hops.run()
    # So that the last windows close everywhere.
    for split in range(SPLITS):
        write(folder / "raw" / f"split={split:02}" / "99.parquet", np.array([_CLOSING_US]))
    for hops in played.values():
        hops.run()
    spark.stop()
    rows = np.concatenate([one for of_splits in times for one in of_splits])
    lines = [[name, *hops.cells(rows, best_us(times))] for name, hops in played.items()]
    late, wrong = by_kafka_connect(times)
    lines.append(["Kafka Connect's valid-through", f"{late:,} late", "", f"wrong in {wrong} of {len(times)} rounds"])
    report.table(
        f"Three hops over {SPLITS} splits, {rows.size:,} rows, {len(times)} rounds",
        ["", "rows lost", "not out", "gold's lag"],
        lines,
    )
    lost, not_out = played["by what the writers claim"].lost(rows)
    report.at_most("hops: rows lost", lost + not_out, 0)


def made(rounds: int) -> Times:
    chance = np.random.default_rng(7)

    def times(number: int, split: int) -> npt.NDArray[np.int64]:
        if split == SPLITS - 1:
            if number in SILENT:
                return np.array([], np.int64)
            number -= len(SILENT) if number >= SILENT.stop else 0
        start_s = number * EVERY_S - split * BEHIND_S
        return T0 + start_s * SECOND + chance.integers(0, (EVERY_S + DISORDER_S) * SECOND, ROWS)

    return [[times(number, split) for split in range(SPLITS)] for number in range(rounds)]


def best_us(times: Times) -> list[int]:
    """Return after each round but the last up to when all rows are there: who knows the future could say so."""
    earliest = [min(int(one.min()) for one in of_splits if one.size) for of_splits in times]
    following = [*accumulate(reversed(earliest), min)][::-1]
    return [us - 1 for us in following[1:]]


def least_delay_s(times: Times) -> int:
    """Return the least delay with which Spark's watermark over the raw rows loses none of them."""
    latest = accumulate((max(int(one.max()) for one in of_splits if one.size) for of_splits in times), max)
    return math.ceil(max(us - best for us, best in zip(latest, best_us(times), strict=False)) / SECOND)


def by_kafka_connect(times: Times) -> tuple[int, int]:
    """Return how many rows are late by the smallest of the last times of all splits, and in how many rounds any is."""
    # Of a split that is silent the last time stays.
    last = accumulate(times, lambda known, new: [n if n.size else k for k, n in zip(known, new, strict=True)])
    announced = [*accumulate((min(int(one[-1]) for one in of_splits) for of_splits in last), max)]
    late = [
        sum(int((one <= before).sum()) for one in of_splits)
        for before, of_splits in zip(announced, times[1:], strict=False)
    ]
    return sum(late), sum(count > 0 for count in late)


def write(path: Path, times: npt.NDArray[np.int64]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"ts": pa.array(times, pa.timestamp("us", "UTC"))}), path)


Reading = Callable[["Hops", str, str], Any]
"""Reads what a hop has written, by an event-time column, with a watermark."""


class Hops:
    """Three queries that are run one after the other, each to the end of what is there."""

    def __init__(self, spark: Any, folder: Path, name: str, read: Reading) -> None:
        self.spark, self.folder, self.root, self._read = spark, folder, folder / name, read
        self.until_us: list[int | None] = []

    def run(self) -> None:
        from pyspark.sql import functions as F

        raw = self._read(self, "raw", "ts").select("ts")
        self._write("bronze", raw)
        rows = self._read(self, "bronze", "ts")
        self._write("silver", rows.groupBy(F.window("ts", "1 minute")).agg(F.count("*").alias("n")))
        minutes = self._read(self, "silver", "window.start")
        self._write("gold", minutes.groupBy(F.window("event_time", "10 minutes")).agg(F.sum("n").alias("n")))
        self.until_us.append(complete_until(str(self.root / "gold"), str(self.root / "cp/gold")).until_us)

    def _write(self, name: str, frame: Any) -> None:
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(self.root / "cp" / name))
        writer.option("path", str(self.root / name)).trigger(availableNow=True).start().awaitTermination()

    def lost(self, rows: npt.NDArray[np.int64]) -> tuple[int, int]:
        """How many rows are lost of the windows that are out, and how many are in windows that are not.

        Counted window by window: what one has too many does not hide what another one lacks, and is an error.
        """
        gold = pq.read_table(self.root / "gold")
        starts = pc.struct_field(gold["window"], "start").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        found = dict(zip(starts.to_pylist(), gold["n"].to_pylist(), strict=True))
        windows, counts = np.unique(rows // (600 * SECOND) * 600 * SECOND, return_counts=True)
        last_out = max(start for start in found if start <= windows.max())
        lacking = [int(n) - found.get(int(start), 0) for start, n in zip(windows, counts, strict=True)]
        is_out = windows <= last_out
        assert len(found) == gold.num_rows, "a window came twice"
        assert min(lacking) >= 0, "a window has rows of another one"
        return sum(compress(lacking, is_out)), int(counts[~is_out].sum())

    def cells(self, rows: npt.NDArray[np.int64], best: list[int]) -> list[str]:
        """Rows lost, and not out, and how far gold is behind what could be known."""
        lags = [(us - found) / SECOND for us, found in zip(best, self.until_us, strict=False) if found is not None]
        return [
            *(f"{count:,}" for count in self.lost(rows)),
            f"{statistics.median(lags):,.0f} s (at most {max(lags):,.0f})",
        ]


def claimed(hops: Hops, name: str, column: str) -> Any:
    """Hop 1 knows how far a split is out of order; the others name the checkpoint of the hop before."""
    from streaming_source import read_stream

    reader = read_stream(hops.spark).format("aligned_files").option("eventTimeColumn", column)
    if name == "raw":
        reader = reader.option("splitBy", "directory").option("idleTimeout", "none")
        return reader.option("maxOutOfOrderness", f"{DISORDER_S} seconds").load(str(hops.folder / name))
    return reader.option("watermarkFrom", str(hops.root / "cp" / name)).load(str(hops.root / name))


def stock(delay_s: int, files: int | None = None) -> Reading:
    """Spark's file source and `withWatermark`: with a delay over rows, and none over windows, which come in order."""

    def read(hops: Hops, name: str, column: str) -> Any:
        from pyspark.sql import functions as F

        schemas = {"silver": "window struct<start: timestamp, end: timestamp>, n long"}
        path = hops.folder / name if name == "raw" else hops.root / name
        reader = hops.spark.readStream.schema(schemas.get(name, "ts timestamp"))
        reader = reader if files is None else reader.option("maxFilesPerTrigger", files)
        frame = reader.parquet(str(path))
        if name == "silver":
            return frame.withColumn("event_time", F.col(column)).withWatermark("event_time", "0 seconds")
        return frame.withWatermark(column, f"{delay_s} seconds")

    return read
