"""JSON in records of a topic at random: read as Spark's `from_json` reads the column `value`."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streaming_source.api.ddl import schema_of_ddl
from streaming_source.connectors.kafka.json_values import JsonValues
from streaming_source.connectors.kafka.subscription import Partition
from streaming_source.data_files.formats import JsonFormat
from tests.parity.oracle import plain
from tests.parity.test_alike import SEEDS
from tests.parity.texts import json_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORRUPT = "_corrupt_record"


@pytest.mark.spark
@pytest.mark.slow
@settings(max_examples=SEEDS, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32))
def test_json_in_a_topic_is_read_as_from_json_reads_it(spark: SparkSession, seed: int) -> None:
    records, columns, options = json_records(random.Random(seed))
    frame = spark.createDataFrame(list(enumerate(records)), "n int, text string")
    frame.createOrReplaceTempView("texts")
    parsed = ", ".join(f"'{name}', '{value}'" for name, value in {"mode": "PERMISSIVE", **options}.items())
    by_spark = spark.sql(
        f"select from_json(text, '{columns}, {CORRUPT} string', map({parsed})) v from texts order by n"
    ).toArrow()["v"]
    written = {"timestamp_format": options.get("timestampFormat"), "date_format": options.get("dateFormat")}
    values = JsonValues(schema_of_ddl("valueSchema", columns), "null", JsonFormat(**written, time_zone="UTC"))
    texts = [record.encode() for record in records]
    ours = values.column([*texts], Partition("t", 0), np.arange(len(texts)))
    expected = [_or_null(record, value) for record, value in zip(records, by_spark, strict=True)]
    found = [plain(value) for value in ours]
    assert found == expected, f"{columns}, {options}"


def _or_null(record: str, value: pa.Scalar) -> Any:
    """Return the value as it is here: null as a whole where a field of it is malformed, or it is no object."""
    read = plain(value)
    is_object = record.strip(" \t\r\n").startswith("{")
    return None if read is None or read.pop(CORRUPT) is not None or not is_object else read
