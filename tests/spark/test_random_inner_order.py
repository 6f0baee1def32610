"""Files with rows in any order, in queries of several sources or with late records routed: equal to the batch.

What is there is never late: with a bound of nothing, no row of a union, a join, a group or a history is lost or routed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from streaming_source import late_records, read_stream
from tests.examples import one_in
from tests.spark.answers import Windows
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
from tests.spark.twin import Twin, frame

EACH = 300


def shuffled(seed: int, *names: str, rows: int = EACH) -> Logs:
    """Event times of splits that begin minutes apart, in no order at all."""
    rng = np.random.default_rng(seed)
    return {
        name: T0 + rng.permutation(np.arange(rows)) * SECOND * int(rng.integers(1, 4)) + number * 2 * MINUTE
        for number, name in enumerate(names)
    }


def write(folder: Path, logs: Logs, number: int = 0) -> None:
    for name, times in logs.items():
        write_file(folder / name / "log" / f"{number}.parquet", times, name, row_group_size=70)


def load(spark: SparkSession, folder: Path, name: str, **options: Any) -> DataFrame:
    reader = read_stream(spark).format("aligned_files").name(name).option("eventTimeColumn", "ts")
    given: Mapping[str, Any] = {"bounded": True, "maxRowsPerTrigger": 80, "splitBy": "directory", **options}
    return reader.schema("ts timestamp, k string, s string").options(**given).load(str(folder / name))


def dropped(run: Run) -> int:
    return sum(one["numRowsDroppedByWatermark"] for p in run.progress for one in p["stateOperators"])


@pytest.mark.parametrize("seed", one_in(3, range(6)))
@pytest.mark.parametrize("group", [{}, {"alignmentScope": "query", "maxDrift": "1 minute"}], ids=["alone", "group"])
def test_a_union_counts_all_rows(tmp_path: Path, seed: int, group: Mapping[str, str]) -> None:
    logs = shuffled(seed, "a", "b")
    write(tmp_path, logs)
    of_group = {**group, "alignmentGroup": "g", "alignmentLocation": tmp_path / "group"} if group else {}
    given = {"bounded": True, "maxRowsPerTrigger": 80, **of_group}
    frames = [frame(tmp_path / name, splitBy=by, **given) for name, by in (("a", "directory"), ("b", "file"))]
    twin = Twin(tmp_path / "checkpoint", *frames, answer=Windows()).run()
    assert twin.rows == naive_windows(logs)
    assert len(twin.batches) > 3


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_a_join_has_all_pairs(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    logs = shuffled(seed, "left", "right")
    write(tmp_path, logs)
    left, right = (load(spark, tmp_path, name) for name in logs)
    left = left.select(F.col("ts").alias("lt"), F.col("k").alias("lk"))
    right = right.select(F.col("ts").alias("rt"), F.col("k").alias("rk"))
    near = F.expr("rt = lt and rt between lt - interval 1 second and lt")
    joined = left.join(right, near, "left_outer").select(F.unix_micros("lt"), F.unix_micros("rt"))

    run = available_now(spark, joined, tmp_path / "checkpoint")

    both = set(logs["right"].tolist())
    expected = [(t, t if t in both else None) for t in logs["left"].tolist()]
    assert sorted(run.rows, key=str) == sorted(expected, key=str)


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_routed_of_what_is_there_and_the_rest_is_the_input(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    logs = shuffled(seed, "a")
    write(tmp_path, logs)
    given = {"late": "route", "lateLocation": str(tmp_path / "late_log"), "bounded": False}
    given |= {"maxOutOfOrderness": "10 seconds", "splitBy": "file"}
    frame = load(spark, tmp_path, "a", **given)
    kept = frame.select(F.unix_micros("ts"), "k")

    def run() -> Run:
        return available_now(spark, kept, tmp_path / "checkpoint", files=tmp_path / "kept")

    assert sorted(t for t, _ in run().rows) == sorted(logs["a"].tolist())
    # What comes later may be behind by the bound; further behind it is late.
    latest = int(logs["a"].max())
    write(tmp_path, {"a": np.array([latest - 60 * SECOND, latest - 5 * SECOND, latest + SECOND])}, 1)

    rows = run().rows
    late = late_records(frame, str(tmp_path / "checkpoint")).select(F.unix_micros("ts"), "k")
    routed = available_now(spark, late, tmp_path / "late", files=tmp_path / "routed").rows

    assert [t for t, _ in routed] == [latest - 60 * SECOND]
    assert len({*rows, *routed}) == len(rows) + len(routed) == EACH + 3


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_a_history_then_what_comes_counts_all_that_is_on_time(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """The history ends; the live side gets files while the query runs, each in any order and later than the last."""
    rng = np.random.default_rng(seed)
    history = shuffled(seed, "history")
    start = int(history["history"].max()) + SECOND
    write(tmp_path, history)
    parts = [start + rng.permutation(np.arange(60)) * SECOND + number * MINUTE for number in range(6)]
    write(tmp_path, {"live": parts[0]})
    live = load(spark, tmp_path, "live", bounded=False, idleTimeout="1 second")
    run = Run(spark, windows(load(spark, tmp_path, "history").union(live)), tmp_path / "checkpoint")
    for number, part in enumerate(parts[1:], 1):
        run.query.processAllAvailable()
        write(tmp_path, {"live": part}, number)
    end = int(parts[-1].max()) - 1
    eventually(lambda: run.progress and end_offset(run.progress[-1], 1)["watermark"] >= end, "the end", run.query)
    run.caught_up()

    closed = [row for row in naive_windows({**history, "live": np.concatenate(parts)}) if row[1] <= end]
    assert (run.rows, dropped(run)) == (closed, 0)
