"""Scheduled AvailableNow runs over several sources, some of which bring nothing in some runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from streaming_source import read_stream
from tests.spark.answers import Windows
from tests.spark.support import MINUTE, SECOND, T0, Logs, Run, available_now, end_offset, write_file
from tests.spark.twin import Twin, frame

NAMES = ("a", "b", "c")


def load(spark: SparkSession, folder: Path, name: str, max_rows: int, *, in_group: bool) -> DataFrame:
    reader = read_stream(spark).format("aligned_files").option("eventTimeColumn", "ts")
    reader = reader.options(maxOutOfOrderness="5 seconds", maxRowsPerTrigger=max_rows, numReaders=1)
    if in_group:
        reader = reader.options(alignmentGroup=folder.name, maxDrift="1 minute")
    return reader.load(str(folder / name)).select("ts", "k", "s")


def united(frames: Sequence[DataFrame]) -> DataFrame:
    counted = reduce(DataFrame.union, frames).groupBy(F.window("ts", "1 minute"), "s").count()
    return counted.select(F.unix_micros("window.start"), F.unix_micros("window.end"), "s", "count")


def joined(frames: Sequence[DataFrame]) -> DataFrame:
    """Inner, in a window of the same minute: what matches has come out once all sources are past it."""
    sides = [
        frame.groupBy(F.window("ts", "1 minute")).agg(F.count("*").alias(f"n{number}"))
        for number, frame in enumerate(frames)
    ]
    both = reduce(lambda left, right: left.join(right, "window"), sides)
    return both.select(F.unix_micros("window.start"), *(f"n{number}" for number in range(len(frames))))


SHAPES = {"union": united, "join": joined}


def expected(shape: str, logs: Logs) -> list[tuple[object, ...]]:
    """By counting in plain Python, over the windows that the slowest source has closed."""
    watermark = min(int(times[-1]) for times in logs.values()) - 5 * SECOND - 1
    counts: dict[int, dict[str, int]] = {}
    for name, times in logs.items():
        for t in times.tolist():
            of_window = counts.setdefault(t // MINUTE * MINUTE, {})
            of_window[name] = of_window.get(name, 0) + 1
    closed = {start: found for start, found in counts.items() if start + MINUTE <= watermark}
    if shape == "union":
        return sorted((start, start + MINUTE, name, n) for start, found in closed.items() for name, n in found.items())
    return sorted(
        (start, *(found[name] for name in logs)) for start, found in closed.items() if len(found) == len(logs)
    )


def brought(folder: Path, logs: Logs, number: int, bringing: str, rng: np.random.Generator) -> Logs:
    """The logs of the sources that get records before a run, with these."""
    begin, found = T0 + number * 5 * MINUTE, {}
    for name in bringing:
        times = begin + np.sort(rng.choice(290, int(rng.integers(80, 240)), replace=False)) * SECOND
        write_file(folder / name / "log" / f"{number:02}.parquet", times, name)
        found[name] = np.concatenate([logs[name], times])
    return found


def check_schedule(
    spark: SparkSession,
    folder: Path,
    shape: str,
    sources: int,
    runs: Sequence[str],
    seed: int,
    *,
    in_group: bool,
    max_rows: int = 150,
) -> list[Run]:
    """Run after run; in each some sources get records, and all that closed windows have is in the sink after it.

    Time goes on everywhere, as on a clock: what a source brings lies in the time since the run before.
    """
    rng, names, done = np.random.default_rng(seed), NAMES[:sources], []
    logs: Logs = {name: np.empty(0, np.int64) for name in names}
    for number, bringing in enumerate(runs):
        logs |= brought(folder, logs, number, bringing, rng)
        loaded = SHAPES[shape]([load(spark, folder, name, max_rows, in_group=in_group) for name in names])
        done.append(available_now(spark, loaded, folder / "cp", files=folder / "out"))
        # Not after the last run alone: the slowest source is past the first minutes after each.
        assert done[-1].rows == expected(shape, logs)
    assert done[0].rows
    return done


def test_the_watermark_goes_on_where_each_run_has_records_of_some_sources_alone(tmp_path: Path) -> None:
    """SPARK-50046: with two of three sources in each run, Spark's own watermark stays at 0 for ever."""
    options = {"maxOutOfOrderness": "5 seconds", "maxRowsPerTrigger": 150, "numReaders": 1}
    logs: Logs = {name: np.empty(0, np.int64) for name in NAMES}
    twin = None
    for number, bringing in enumerate(["abc", "ab", "bc", "c", "ab"]):
        logs |= brought(tmp_path, logs, number, bringing, np.random.default_rng(number))
        if twin is None:
            frames = [frame(tmp_path / name, **options) for name in NAMES]
            twin = Twin(tmp_path / "cp", *frames, answer=Windows())
        assert twin.run().rows == expected("union", logs)
    assert twin is not None
    assert twin.rows


@pytest.mark.spark
@pytest.mark.soak
def test_the_members_of_a_group_stay_together_in_an_available_now_run(spark: SparkSession, tmp_path: Path) -> None:
    (run,) = check_schedule(spark, tmp_path, "join", 2, ["ab"], 2, in_group=True, max_rows=1000)
    # The run as a whole is five minutes, and neither is more than one ahead of the other until one has ended.
    reached = [[end_offset(progress, side)["watermark"] for side in (0, 1)] for progress in run.progress]
    apart = [abs(a - b) for a, b in reached if min(a, b) > 0]
    assert len(apart) > 2
    assert max(apart[:-2]) <= MINUTE


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_random_schedules(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape, sources, in_group = ("union", "join")[seed % 2], 2 + seed // 2 % 2, bool(seed // 4 % 2)
    names = NAMES[:sources]
    middle = ["".join(name for name in names if rng.random() < 0.6) for _ in range(int(rng.integers(2, 5)))]
    all_of_them = "".join(names)
    check_schedule(spark, tmp_path, shape, sources, [all_of_them, *middle, all_of_them], seed, in_group=in_group)
