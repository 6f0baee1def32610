"""Sources that name the same alignment group are aligned with each other, whichever query they are in."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from alignment import WatermarkStrategy
from streaming_source.connectors.files import FileSource
from tests.spark import groups
from tests.spark.answers import Rows
from tests.spark.support import SECOND, T0, write_file
from tests.spark.twin import Twin, source_frame

GROUPS = [None, "the splits of this source", "none"]


@pytest.mark.spark
def test_of_two_joined_sources_neither_runs_ahead_and_the_join_is_that_of_the_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    groups.check_that_neither_of_two_joined_sources_runs_ahead(spark, tmp_path)


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.parametrize("group", GROUPS)
def test_any_name_is_a_group_of_the_sources_of_a_query_and_none_is_no_group_on_spark(
    spark: SparkSession, tmp_path: Path, group: str | None
) -> None:
    groups.check_whether_the_sources_of_a_query_are_aligned(spark, tmp_path, group)


@pytest.mark.parametrize("group", GROUPS)
def test_any_name_is_a_group_of_the_sources_of_a_query_and_none_is_no_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str | None
) -> None:
    (tmp_path / "local").mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "local"))
    frames = []
    for name, begin in (("behind", T0 - 3600 * SECOND), ("ahead", T0)):
        write_file(tmp_path / name / "log" / "f.parquet", begin + np.arange(10) * SECOND)
        ordered = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("ts")
        aligned = ordered.with_watermark_alignment(group, timedelta(seconds=2))
        frames.append(source_frame(FileSource(str(tmp_path / name), bounded=True), aligned, max_rows_per_trigger=5))
    twin = Twin(tmp_path / "cp", *frames, answer=Rows("ts")).run()
    assert len(twin.rows) == 20
    # In a group the second source waits for the first one, which is an hour behind it.
    first = {name: next(n for n, batch in enumerate(twin.batches) if len(batch.read[name])) for name in (0, 1)}
    assert (first[0] < first[1]) == (group is not None)


@pytest.mark.spark
@pytest.mark.parametrize(
    "end",
    [pytest.param(end, marks=[] if end == "killed" else [pytest.mark.soak]) for end in groups.ENDS],
)
def test_a_source_that_is_gone_or_has_nothing_more_to_say_lets_the_other_go_on(
    spark: SparkSession, tmp_path: Path, end: str
) -> None:
    groups.check_that_one_goes_on_when_the_other_is_gone(spark, tmp_path, end)
