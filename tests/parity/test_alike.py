"""Files at random, read by Spark's own reader and by ours: the same columns, types and values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.parity.soak import KINDS, found_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SEEDS = examples(25) // 2
"""Of each kind, with ten files each: under the profile `soak` these are 10,000 files."""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=SEEDS, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32))
def test_files_of_odd_values_are_read_as_spark_reads_them(spark: SparkSession, kind: str, seed: int) -> None:
    case, found = found_of(spark, kind, seed)
    assert found == [], f"{case.schema}, {dict(case.options)}"
