"""Files of columns, written by Spark and by pyarrow, read by Spark's own reader and by ours."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.parity.oracle import differences
from tests.parity.tables import tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

random = settings(
    max_examples=examples(20),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


@random
@given(
    tables(),
    st.booleans(),
    st.sampled_from(["1.0", "2.4", "2.6"]),
    st.sampled_from(["none", "snappy", "zstd"]),
    st.sampled_from(["1.0", "2.0"]),
)
def test_parquet_that_pyarrow_writes(
    spark: SparkSession, table: pa.Table, store_schema: bool, version: str, codec: str, pages: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f.parquet"
        options = {"store_schema": store_schema, "version": version, "compression": codec, "data_page_version": pages}
        pq.write_table(table, path, row_group_size=2, **options)
        assert differences(spark, Path(folder), "parquet") == []


@random
@given(tables(), st.sampled_from(["INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"]), st.booleans())
def test_parquet_that_spark_writes(spark: SparkSession, table: pa.Table, times: str, is_legacy: bool) -> None:
    settings = {
        "spark.sql.parquet.outputTimestampType": times,
        "spark.sql.parquet.writeLegacyFormat": str(is_legacy).lower(),
    }
    before = {name: spark.conf.get(name) for name in settings}
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(table, Path(folder) / "f.parquet")
        written = str(Path(folder) / "written")
        for name, value in settings.items():
            spark.conf.set(name, value)
        try:
            spark.read.parquet(f"{folder}/f.parquet").coalesce(1).write.parquet(written)
        finally:
            for name, value in before.items():
                spark.conf.set(name, str(value))
        assert differences(spark, Path(written), "parquet") == []
