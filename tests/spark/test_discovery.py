"""What comes while a query runs: nothing, files, directories, files out of order, records after a silence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import Loader
from tests.spark.support import (
    SECOND,
    SKEWS,
    T0,
    Run,
    end_offset,
    eventually,
    fails_with,
    last_batch,
    last_offset,
    naive_windows,
    windows,
    write_file,
    write_logs,
)

pytestmark = pytest.mark.spark


def test_with_nothing_new_no_micro_batch_runs_and_the_offset_stays_as_it_is(
    spark: SparkSession, exact: Loader, tmp_path: Path
) -> None:
    write_logs(tmp_path / "in", SKEWS["one-tiny"])
    frame = exact(tmp_path / "in", maxOutOfOrderness="5 seconds", discoveryInterval="50 ms")
    run = Run(spark, windows(frame), tmp_path / "cp")
    run.query.processAllAvailable()
    text, number, runs = last_offset(tmp_path / "cp"), last_batch(tmp_path / "cp"), len(run.progress)
    for _ in range(20):
        # Each waits for a trigger that has looked at the directory, and found nothing.
        run.query.processAllAvailable()
    assert last_batch(tmp_path / "cp") == number
    assert last_offset(tmp_path / "cp") == text
    assert len([p for p in run.progress[runs:] if p["numInputRows"]]) == 0


def test_a_directory_that_appears_while_the_query_runs_joins_it(
    spark: SparkSession, exact: Loader, tmp_path: Path
) -> None:
    logs = {f"s{i}": T0 + np.arange(200) * SECOND + i for i in range(2)}
    write_file(tmp_path / "in" / "s0" / "f.parquet", logs["s0"][:100])
    run = Run(spark, windows(exact(tmp_path / "in", discoveryInterval="50 ms")), tmp_path / "cp", "update")
    run.query.processAllAvailable()
    write_file(tmp_path / "in" / "s1" / "f.parquet", logs["s1"])
    write_file(tmp_path / "in" / "s0" / "g.parquet", logs["s0"][100:])

    def positions() -> dict[str, int]:
        return {entry[0][0]: entry[0][1] for p in run.progress[-1:] for entry in end_offset(p)["splits"]}

    eventually(lambda: positions() == {"s0": 200, "s1": 200}, "both directories to be read", run.query)
    run.caught_up()
    # Records of the new directory that are behind the announced watermark are late: counted by split.
    late = {entry[0][0]: entry[3] for entry in end_offset(run.progress[-1])["splits"] if any(entry[3:4])}
    assert late == {"s1": 99}
    counted = {row[:3]: row[3] for row in run.rows}
    assert {k: n for k, n in counted.items() if k[2] == "s0"} == {
        row[:3]: row[3] for row in naive_windows({"s0": logs["s0"]})
    }


def test_a_file_whose_name_is_earlier_than_one_that_is_there_fails_the_query_and_says_why(
    spark: SparkSession, exact: Loader, tmp_path: Path
) -> None:
    write_file(tmp_path / "in" / "a" / "part-002.parquet", T0 + np.arange(10) * SECOND)
    run = Run(spark, exact(tmp_path / "in", discoveryInterval="50 ms"), tmp_path / "cp")
    run.query.processAllAvailable()
    write_file(tmp_path / "in" / "a" / "part-001.parquet", T0 + np.arange(10) * SECOND)
    with fails_with("a/part-001.parquet appeared after part-002.parquet", "or read with splitBy = file"):
        run.query.awaitTermination(60)


def test_a_silent_split_lets_the_watermark_go_by_a_batch_of_nothing_else_and_what_it_brings_later_is_late(
    spark: SparkSession, exact: Loader, tmp_path: Path
) -> None:
    write_file(tmp_path / "in" / "ahead" / "f.parquet", T0 + np.arange(600) * SECOND)
    write_file(tmp_path / "in" / "behind" / "f.parquet", T0 + np.arange(10) * SECOND)
    frame = exact(tmp_path / "in", idleTimeout="400 ms", discoveryInterval="50 ms", includeMetadata="true")
    run = Run(spark, frame.select("_split", "_position", "_late"), tmp_path / "cp")

    def announced() -> int | None:
        return end_offset(run.progress[-1])["watermark"] if run.progress else None

    eventually(lambda: announced() == T0 + 599 * SECOND - 1, "the watermark to be released", run.query)
    first, *_, released = [p for p in run.progress if p["numInputRows"]]
    assert end_offset(first)["watermark"] == T0 + 9 * SECOND - 1
    assert released["numInputRows"] == 1
    assert {entry[0][0]: entry[2] for entry in end_offset(released)["splits"]}["behind"] == "idle"

    write_file(tmp_path / "in" / "behind" / "g.parquet", T0 + np.array([300, 599, 600, 601]) * SECOND)
    eventually(lambda: len(run.rows) == 614, "the silent split to be read", run.query)
    run.caught_up()
    marks = [row[1:] for row in run.rows if row[0] == "behind"]
    assert marks == [(i, i == 10) for i in range(14)]
    assert [entry[3] for entry in end_offset(run.progress[-1])["splits"] if any(entry[3:4])] == [1]
    # `ahead` is silent still: the one that came back alone says what the watermark is, and it went on.
    assert announced() == T0 + 601 * SECOND - 1
