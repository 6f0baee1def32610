"""Joins, sessions, chains and several watermarks: what Spark's own metrics say where they count single rows."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import streaming_source
from streaming_source.auditing import Audit
from tests.auditing import naive
from tests.auditing.naive import SECOND

pytestmark = pytest.mark.spark

ROWS = 50
POLICY = "spark.sql.streaming.multipleWatermarkPolicy"
Make = Callable[[Callable[[str], DataFrame]], DataFrame]


def write(root: Path) -> None:
    """Two sources: of each a slow directory, and one that runs ahead. No event time twice in a source."""
    for source, speed in (("left", 20), ("right", 60)):
        for part in range(4):
            for directory, step in (("a-slow", 1), ("b-fast", speed)):
                begin = naive.T0 + part * ROWS * step * SECOND
                times = [begin + i * step * SECOND + i + (directory == "b-fast") * 500_000 for i in range(ROWS)]
                path = root / source / directory / f"{part}.parquet"
                path.parent.mkdir(parents=True, exist_ok=True)
                keys = pa.array([f"{directory}{part}{i}" for i in range(ROWS)])
                pq.write_table(pa.table({"ts": pa.array(times, pa.timestamp("us", "UTC")), "k": keys}), path)
                at = 1_600_000_000 + part * 10 + (directory == "b-fast")
                os.utime(path, (at, at))


def joined(load: Callable[[str], DataFrame]) -> DataFrame:
    left, right = load("left"), load("right").selectExpr("ts AS rts", "k AS rk")
    near = "k = rk AND rts BETWEEN ts - INTERVAL 1 HOUR AND ts + INTERVAL 1 HOUR"
    return left.join(right, F.expr(near), "leftOuter").select("k", "rk")


def itself(load: Callable[[str], DataFrame]) -> DataFrame:
    """A stream that is joined with itself: one source of Spark's."""
    rows = load("left")
    return joined(lambda _: rows)


def union(load: Callable[[str], DataFrame]) -> DataFrame:
    """Two watermarks, and a deduplication behind them: it drops by the one that both come to."""
    return load("left").union(load("right")).dropDuplicates(["ts", "k"]).select("k")


def delays(load: Callable[..., DataFrame]) -> DataFrame:
    """A union whose sources have different delays: the state keeps that of the first."""
    return load("right").union(load("left", "25 seconds")).dropDuplicates(["ts", "k"]).select("k")


def sessions(load: Callable[[str], DataFrame]) -> DataFrame:
    return load("left").groupBy(F.session_window("ts", "5 seconds"), "k").count().select("k", "count")


def chain(load: Callable[[str], DataFrame]) -> DataFrame:
    unique = load("left").dropDuplicates(["ts", "k"])
    return unique.groupBy(F.window("ts", "1 minute")).count().select("count")


def run(spark: SparkSession, root: Path, make: Make, policy: str) -> tuple[int, int]:
    """The rows that Spark dropped in the first operator, by its metric, and the rows that came out."""

    def load(source: str, delay: str = "10 seconds") -> DataFrame:
        reader = spark.readStream.schema("ts timestamp, k string").option("maxFilesPerTrigger", 1)
        return reader.option("recursiveFileLookup", True).parquet(str(root / source)).withWatermark("ts", delay)

    spark.conf.set(POLICY, policy)
    try:
        out = make(load).writeStream.format("noop").option("checkpointLocation", str(root / "checkpoint"))
        query = out.trigger(availableNow=True).start()
        assert query.awaitTermination(120)
    finally:
        spark.conf.unset(POLICY)
    progress = [json.loads(one.json) for one in query.recentProgress]
    first = [one["stateOperators"][-1] for one in progress]
    return sum(one["numRowsDroppedByWatermark"] for one in first), sum(one["sink"]["numOutputRows"] for one in progress)


@pytest.mark.parametrize(
    ("make", "policy"),
    [
        (joined, "min"),
        *(
            pytest.param(make, policy, marks=pytest.mark.soak)
            for make, policy in zip(
                (joined, itself, union, union, delays, sessions, chain),
                ("max", "min", "min", "max", "min", "min", "min"),
                strict=True,
            )
        ),
    ],
)
def test_what_an_operator_dropped_is_what_sparks_metric_counts(
    spark: SparkSession, tmp_path: Path, make: Make, policy: str
) -> None:
    write(tmp_path)
    dropped, _ = run(spark, tmp_path, make, policy)

    found: Audit = streaming_source.audit(
        str(tmp_path / "checkpoint"), **({"window": "5 seconds", "mode": "append"} if make is sessions else {})
    )

    assert found.dropped == dropped > 0
    assert found.read == 8 * ROWS * (2 if make in (joined, itself, union, delays) else 1)
    assert found.dropped + found.emitted + found.open + found.unknown == found.read
    assert found.query.downstream == (("windowed aggregation",) if make is chain else ())
    assert {one.directory for one in found.carriers} == {"b-fast"}
    noted = {itself: "Sources 0 and 1 are one stream", delays: "The delays of withWatermark differ"}
    assert [note.partition(",")[0] for note in found.notes] == [noted[one] for one in noted if one is make]
