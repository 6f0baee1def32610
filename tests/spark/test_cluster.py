"""The same on a standalone cluster: a master, workers, executors as processes of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import streaming_source
from tests.spark import groups, reports
from tests.spark.cluster import Cluster, Driver
from tests.spark.support import SKEWS, available_now, naive_windows, state_rows, write_logs

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.soak]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    started = Cluster(tmp_path_factory.mktemp("cluster"), workers=2)
    yield started
    started.close()


@pytest.fixture(scope="session")
def driver(cluster: Cluster) -> Iterator[Driver]:
    with Driver(cluster) as started:
        yield started


@pytest.fixture(autouse=True)
def _stopped() -> None:
    """There is no session of these tests here."""


def windows_and_where(spark: SparkSession, folder: Path) -> tuple[list[tuple[int, int, str, int]], set[str], int]:
    """Windowed counts of skewed files, the executors' directories that their records came through, the state left."""
    options = {"eventTimeColumn": "ts", "bounded": "true", "numReaders": "2"}
    reader = streaming_source.read_stream(spark).format("aligned_files").options(**options)
    frame = reader.option("maxOutOfOrderness", "5 seconds").load(str(folder / "in"))
    here = F.udf(lambda _: os.getcwd(), "string")
    counted = frame.groupBy(F.window("ts", "1 minute"), "s").agg(
        F.count("*").alias("count"), F.collect_set(here("k")).alias("where")
    )
    start, end = F.unix_micros("window.start").alias("start"), F.unix_micros("window.end").alias("end")
    run = available_now(spark, counted.select(start, end, "s", "count", "where"), folder / "cp")
    rows = [(row[0], row[1], row[2], row[3]) for row in run.rows]
    return rows, {place for row in run.rows for place in row[4]}, state_rows(run)


@pytest.mark.parametrize("skew", ["one-ahead"])
def test_windows_of_skewed_files_are_those_of_the_batch_with_executors_on_both_workers(
    cluster: Cluster, driver: Driver, tmp_path: Path, skew: str
) -> None:
    write_logs(tmp_path / "in", SKEWS[skew])
    rows, where, left = driver.call(windows_and_where, tmp_path)
    assert rows == naive_windows(SKEWS[skew])
    assert left == 0
    workers = {Path(place).relative_to(cluster.folder).parts[0] for place in where}
    assert workers == {"worker-0", "worker-1"}


def test_of_two_joined_sources_neither_runs_ahead_and_the_join_is_that_of_the_batch(
    driver: Driver, tmp_path: Path
) -> None:
    driver.call(groups.check_that_neither_of_two_joined_sources_runs_ahead, tmp_path)


@pytest.mark.parametrize("end", groups.ENDS)
def test_a_source_that_is_gone_or_has_nothing_more_to_say_lets_the_other_go_on(
    driver: Driver, tmp_path: Path, end: str
) -> None:
    driver.call(groups.check_that_one_goes_on_when_the_other_is_gone, tmp_path, end)


def test_readers_on_executors_report_to_the_driver_and_windows_are_those_of_the_batch(
    driver: Driver, tmp_path: Path
) -> None:
    driver.call(reports.check_that_windows_are_those_of_the_batch, tmp_path)
