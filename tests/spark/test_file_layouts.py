"""Finite files whose ranges overlap and lie years apart, in no order of names: the batch result, to the row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.examples import each_once
from tests.spark.answers import Windows
from tests.spark.support import SECOND, T0, naive_windows, windows, write_file
from tests.spark.twin import Twin, frame, plain_frame

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


@pytest.mark.parametrize(
    ("order", "mode", "bounded"), each_once(["all in work", "few in work"], ["plain", "exact"], ["true", "false"])
)
def test_58_files_years_apart_give_the_batch_result(
    tmp_path: Path, archive: tuple[Path, Counts], mode: str, bounded: str, order: str
) -> None:
    root, expected = archive
    options: dict[str, Any] = {"splitBy": "file", "bounded": bounded, "maxOutOfOrderness": "40 hours"}
    options |= {"maxRowsPerTrigger": 700} | ({"maxFilesPerTrigger": 7} if order == "few in work" else {})
    loaded = frame(root, **options) if mode == "exact" else plain_frame(root, 40 * 3_600_000, **options)
    twin = Twin(tmp_path / "cp", loaded, answer=Windows(updates=True)).run()
    # The last count of each window that came out: one that lost a row is too small.
    assert {row[:3]: row[3] for row in twin.rows} == expected


def test_58_files_years_apart_close_every_window_where_the_source_is_bounded(
    tmp_path: Path, archive: tuple[Path, Counts]
) -> None:
    root, expected = archive
    loaded = frame(root, splitBy="file", bounded="true", maxOutOfOrderness="40 hours", maxRowsPerTrigger=900)
    twin = Twin(tmp_path / "cp", loaded, answer=Windows()).run()
    assert {row[:3]: row[3] for row in twin.rows} == expected


@pytest.mark.spark
def test_an_archive_is_read_by_spark_read_as_by_a_stream(spark: SparkSession, archive: tuple[Path, Counts]) -> None:
    root, expected = archive
    loaded = spark.read.format("aligned_files").options(eventTimeColumn="ts", splitBy="file").load(str(root))
    counted = windows(loaded).collect()
    assert {(row[0], row[1], row[2]): row[3] for row in counted} == expected
    assert loaded.select(F.count("*")).collect()[0][0] == FILES * 60
