"""JSON in records of a topic at random: read as Spark's `from_json` reads the column `value`."""

from __future__ import annotations

import json
import random
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
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
PARTS = re.compile(r"""("(?:[^"\\]|\\.)*")|'((?:[^'\\]|\\.)*)'|([+-]?\b(?:Infinity|INF|NaN)\b)""")


@pytest.mark.spark
@pytest.mark.slow
@settings(max_examples=SEEDS, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32))
@example(seed=24)
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
    assert _anew(found) == _anew(expected), f"{columns}, {options}"


def test_an_object_in_a_string_is_as_it_is_in_the_record() -> None:
    fields = schema_of_ddl("valueSchema", "a string, b string")
    texts: list[bytes | None] = [b'{"a": {"x":  \'y\'}, "b": [1, 2.50]}']
    (found,) = JsonValues(fields).column(texts, Partition("t", 0), np.arange(1)).to_pylist()
    assert found == {"a": "{\"x\":  'y'}", "b": "[1, 2.50]"}


def _anew(value: Any) -> Any:
    """Return a value whose texts are what they say as JSON, if they are JSON: Spark writes such texts anew."""
    if isinstance(value, dict):
        return {name: _anew(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_anew(part) for part in value]
    if not isinstance(value, str):
        return value
    try:
        return json.loads(PARTS.sub(_strict, value), strict=False, object_pairs_hook=list, parse_int=float)
    except ValueError:
        return value


def _strict(found: re.Match[str]) -> str:
    double, single, word = found.groups()
    if double is not None:
        return str(double)
    return f'"{word}"' if single is None else '"' + single.replace('"', r"\"") + '"'


def _or_null(record: str, value: pa.Scalar) -> Any:
    """Return the value as it is here: null as a whole where a field of it is malformed, or it is no object."""
    read = plain(value)
    is_object = record.strip(" \t\r\n").startswith("{")
    return None if read is None or read.pop(CORRUPT) is not None or not is_object else read
