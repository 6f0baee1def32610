"""Finite files whose ranges overlap and lie years apart, in no order of names: the batch result, to the row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from streaming_source import with_exact_watermark
from tests.spark.conftest import Loader
from tests.spark.support import SECOND, T0, available_now, naive_windows, windows, write_file

pytestmark = pytest.mark.spark

YEAR = 365 * 24 * 3600 * SECOND
FILES = 58
Counts = dict[tuple[int, int, str], int]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Counts]:
    """58 files of some years, each of a few minutes or a few weeks; some overlap, most lie far apart."""
    rng = np.random.default_rng(58)
    root = tmp_path_factory.mktemp("archive")
    logs = {}
    names = rng.permutation(FILES).tolist()
    for number, name in enumerate(names):
        # Files come in groups of up to five that begin within a minute; the groups lie within twelve years.
        begin = T0 - 12 * YEAR + (number // 5) * YEAR + int(rng.integers(0, 60)) * SECOND
        step = int(rng.choice([SECOND, 20 * SECOND, 3600 * SECOND]))
        times = np.sort(begin + rng.integers(0, 200, 60) * step)
        times[10:12] = times[11], times[10]
        path = root / f"{'abc'[name % 3]}" / f"part-{name:02d}.parquet"
        write_file(path, times, f"s{number}", row_group_size=20)
        logs[f"s{number}"] = times
    counts: Counts = {(start, end, split): n for start, end, split, n in naive_windows(logs)}
    return root, counts


def last_counts(frame: DataFrame, checkpoint: Path) -> Counts:
    """Run to the end; of each window the last count that came out: one that lost a row is too small."""
    counts: Counts = {}

    def keep(batch: DataFrame, _: int) -> None:
        counts.update({(row[0], row[1], row[2]): row[3] for row in batch.collect()})

    writer = frame.writeStream.outputMode("update").foreachBatch(keep).option("checkpointLocation", str(checkpoint))
    assert writer.trigger(availableNow=True).start().awaitTermination(240)
    return counts


@pytest.mark.parametrize(
    ("order", "mode", "bounded"),
    [
        pytest.param("all in work", "plain", "true", marks=pytest.mark.soak),
        ("few in work", "exact", "false"),
        pytest.param("all in work", "plain", "false", marks=pytest.mark.soak),
        pytest.param("all in work", "exact", "true", marks=pytest.mark.soak),
        pytest.param("all in work", "exact", "false", marks=pytest.mark.soak),
        pytest.param("few in work", "plain", "true", marks=pytest.mark.soak),
        pytest.param("few in work", "plain", "false", marks=pytest.mark.soak),
        pytest.param("few in work", "exact", "true", marks=pytest.mark.soak),
    ],
)
def test_58_files_years_apart_give_the_batch_result(
    stream: Loader, tmp_path: Path, archive: tuple[Path, Counts], mode: str, bounded: str, order: str
) -> None:
    root, expected = archive
    options: dict[str, Any] = {
        "splitBy": "file",
        "bounded": bounded,
        "maxOutOfOrderness": "40 hours",
        "maxRowsPerTrigger": 700,
    }
    if order == "few in work":
        options["maxFilesPerTrigger"] = 7
    if mode == "exact":
        frame = with_exact_watermark(stream(root, **options))
    else:
        frame = stream(root, **options).withWatermark("ts", "40 hours")
    assert last_counts(windows(frame), tmp_path / "cp") == expected


def test_58_files_years_apart_close_every_window_where_the_source_is_bounded(
    spark: SparkSession, exact: Loader, tmp_path: Path, archive: tuple[Path, Counts]
) -> None:
    root, expected = archive
    frame = windows(exact(root, splitBy="file", bounded="true", maxOutOfOrderness="40 hours", maxRowsPerTrigger=900))
    run = available_now(spark, frame, tmp_path / "cp")
    assert {(row[0], row[1], row[2]): row[3] for row in run.rows} == expected


def test_an_archive_is_read_by_spark_read_as_by_a_stream(spark: SparkSession, archive: tuple[Path, Counts]) -> None:
    root, expected = archive
    frame = spark.read.format("aligned_files").options(eventTimeColumn="ts", splitBy="file").load(str(root))
    counted = windows(frame).collect()
    assert {(row[0], row[1], row[2]): row[3] for row in counted} == expected
    assert frame.select(F.count("*")).collect()[0][0] == FILES * 60
