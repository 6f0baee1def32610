"""Sources that name the same alignment group are aligned with each other, whichever query they are in."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark import groups

pytestmark = pytest.mark.spark


def test_of_two_joined_sources_neither_runs_ahead_and_the_join_is_that_of_the_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    groups.check_that_neither_of_two_joined_sources_runs_ahead(spark, tmp_path)


@pytest.mark.parametrize(
    "group", [None, *(pytest.param(one, marks=pytest.mark.soak) for one in ("the splits of this source", "none"))]
)
def test_any_name_is_a_group_of_the_sources_of_a_query_and_none_is_no_group(
    spark: SparkSession, tmp_path: Path, group: str | None
) -> None:
    groups.check_whether_the_sources_of_a_query_are_aligned(spark, tmp_path, group)


@pytest.mark.parametrize(
    "end",
    [pytest.param(end, marks=[pytest.mark.soak] if end in ("stopped", "finished") else []) for end in groups.ENDS],
)
def test_a_source_that_is_gone_or_has_nothing_more_to_say_lets_the_other_go_on(
    spark: SparkSession, tmp_path: Path, end: str
) -> None:
    groups.check_that_one_goes_on_when_the_other_is_gone(spark, tmp_path, end)
