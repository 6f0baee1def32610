"""An idle source does not hold its query, where the sources of the query know each other: equal to the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from streaming_source import read_stream
from tests.spark.groups import kill_some_planners
from tests.spark.support import (
    MINUTE,
    SECOND,
    T0,
    Logs,
    Run,
    available_now,
    end_offset,
    eventually,
    naive_windows,
    windows,
    write_file,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BOUND = 2 * SECOND
SCHEMA = "ts timestamp, k string, s string"


def load(spark: SparkSession, folder: Path, name: str, **options: str) -> DataFrame:
    (folder / name / "log").mkdir(parents=True, exist_ok=True)
    reader = read_stream(spark).format("aligned_files").name(name).schema(SCHEMA)
    reader = reader.options(eventTimeColumn="ts", maxOutOfOrderness="2 seconds", idleTimeout="1 second", numReaders=1)
    reader = reader.options(alignmentGroup=folder.name, alignmentScope="query", maxDrift="1 minute")
    return reader.options(**options).load(str(folder / name))


def write(folder: Path, logs: Logs, number: int = 0) -> None:
    for name, times in logs.items():
        write_file(folder / name / "log" / f"{number}.parquet", times, name)


def union(spark: SparkSession, folder: Path, names: Sequence[str], **options: str) -> DataFrame:
    return windows(reduce(DataFrame.union, [load(spark, folder, name, **options) for name in names]))


def deduplicated(spark: SparkSession, folder: Path, names: Sequence[str]) -> DataFrame:
    frames = [load(spark, folder, name) for name in names]
    return reduce(DataFrame.union, frames).dropDuplicates(["ts"]).select(F.unix_micros("ts"))


def joined(spark: SparkSession, folder: Path, names: Sequence[str]) -> DataFrame:
    """Each record of the first one, with those of the same second of the second one, if there are any."""
    left, right = (load(spark, folder, name) for name in names)
    left = left.select(F.col("ts").alias("lt"), F.col("k").alias("lk"))
    right = right.select(F.col("ts").alias("rt"), F.col("k").alias("rk"))
    near = F.expr("lt = rt and rt between lt - interval 1 second and lt")
    return left.join(right, near, "left_outer").select(F.unix_micros("lt"), F.unix_micros("rt"))


def closed(logs: Logs, watermark: int) -> list[tuple[int, int, str, int]]:
    return [window for window in naive_windows(logs) if window[1] <= watermark]


def late(run: Run, source: int = 0) -> int:
    return sum(one[3] for one in end_offset(run.progress[-1], source)["splits"] if len(one) > 3)


def seconds(begin: int, end: int, step: int = 1) -> np.ndarray:
    return T0 + np.arange(begin, end, step, dtype=np.int64) * SECOND


@pytest.mark.parametrize(
    ("names", "split_by"),
    [
        ("ab", "directory"),
        *(pytest.param("abc", split_by, marks=pytest.mark.soak) for split_by in ("directory", "file")),
    ],
)
@pytest.mark.soak
def test_a_union_with_an_empty_source_counts_all_records_in_two_runs(
    spark: SparkSession, tmp_path: Path, names: str, split_by: str
) -> None:
    """One source more has no file. The first run ends at the slowest; the second, when all are idle, at the end."""
    logs = {name: seconds(7 * i, 600) for i, name in enumerate(names)}
    logs["b"] = logs["b"][:-90]
    write(tmp_path, logs)
    runs = []
    for _ in range(2):
        frame = union(spark, tmp_path, [*logs, "empty"], splitBy=split_by)
        runs.append(available_now(spark, frame, tmp_path / "cp", files=tmp_path / "out").rows)
    ends = [int(times[-1]) - BOUND - 1 for times in logs.values()]
    assert runs[0] == closed(logs, min(ends))
    assert runs[1] == closed(logs, max(ends))


@pytest.mark.soak
def test_with_processing_time_a_later_source_goes_on_behind_a_silent_one_and_what_that_brings_late_is_counted(
    spark: SparkSession, tmp_path: Path
) -> None:
    logs = {"silent": seconds(0, 30), "later": seconds(0, 600)}
    write(tmp_path, logs)
    run = Run(spark, union(spark, tmp_path, ["silent", "later"]), tmp_path / "cp")
    end = int(logs["later"][-1]) - BOUND - 1
    # All are idle in the end: the largest.
    eventually(lambda: end_offset(run.progress[-1], 0)["watermark"] == end if run.progress else False, "it", run.query)
    run.query.processAllAvailable()
    assert run.rows == closed(logs, end)
    # From behind: late, and counted; what is on time is in the result.
    write(tmp_path, {"silent": seconds(100, 110)}, 1)
    write(tmp_path, {"later": seconds(600, 800)}, 1)
    eventually(
        lambda: sum(len(one) > 3 and one[3] for one in end_offset(run.progress[-1], 0)["splits"]), "late records"
    )
    (late,) = [one[3] for one in end_offset(run.progress[-1], 0)["splits"]]
    assert late == 10
    end = int(seconds(600, 800)[-1]) - BOUND - 1
    eventually(lambda: end_offset(run.progress[-1], 0)["watermark"] == end, "it to be idle once more", run.query)
    run.caught_up()
    on_time = {"silent": logs["silent"], "later": seconds(0, 800)}
    assert run.rows == closed(on_time, end)


@pytest.mark.soak
@pytest.mark.parametrize("operator", [joined, deduplicated])
def test_the_state_of_a_join_and_of_a_deduplication_ends_where_one_side_is_silent(
    spark: SparkSession, tmp_path: Path, operator: Callable[[SparkSession, Path, Sequence[str]], DataFrame]
) -> None:
    logs = {"left": seconds(0, 300), "right": seconds(0, 40)}
    write(tmp_path, logs)
    for _ in range(2):
        run = available_now(
            spark, operator(spark, tmp_path, ["left", "right"]), tmp_path / "cp", files=tmp_path / "out"
        )
    if operator is deduplicated:
        assert run.rows == [(t,) for t in sorted(set(logs["left"].tolist()))]
    else:
        end = int(logs["left"][-1]) - BOUND - 1
        right = set(logs["right"].tolist())
        pairs = [(t, t if t in right else None) for t in logs["left"].tolist()]
        # Rows of the outer side come out once the watermark is past the second in which a match may come.
        assert [row for row in run.rows if row[0] < end - SECOND] == [row for row in pairs if row[0] < end - SECOND]
    assert sum(one["numRowsTotal"] for one in run.progress[-1]["stateOperators"]) <= 10


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(12))
def test_killed_planners_and_restarts_give_the_batch_over_what_is_on_time(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    """Four sources: one without a file, one that ends early. Planners are killed while the others go on."""
    rng = np.random.default_rng(seed)
    logs = {name: np.sort(T0 + rng.integers(0, 900, 400) * SECOND) for name in "abc"}
    logs["b"] = logs["b"][logs["b"] < T0 + 5 * MINUTE]
    names, trigger = [*logs, "empty"], {"availableNow": True} if seed % 2 else None
    write(tmp_path, logs)
    for _ in range(4):
        frame = union(spark, tmp_path, names, maxRowsPerTrigger="60")
        run = Run(spark, frame, tmp_path / "cp", trigger=trigger, files=tmp_path / "out")
        kill_some_planners(spark, run, int(rng.integers(0, 5)), rng)
    for _ in range(3):
        run = available_now(spark, union(spark, tmp_path, names), tmp_path / "cp", files=tmp_path / "out")
    end = max(int(times[-1]) for times in logs.values()) - BOUND - 1
    assert run.rows == closed(logs, end)
    offsets = [end_offset(run.progress[-1], i) for i in range(4)]
    assert {offset["watermark"] for offset in offsets} == {end}
    assert sum(late(run, i) for i in range(4)) == 0
