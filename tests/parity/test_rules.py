"""The rules by which the readers differ, as docs/parity.md has them: what Spark gives, and what is given here."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
from pyarrow import orc

from tests.parity.oracle import Case, rows_by_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _zeros() -> bytes:
    sink = io.BytesIO()
    orc.write_table(pa.table({"d": [-0.0, 0.0]}), sink)
    return sink.getvalue()


def _text(file_format: str, data: bytes, schema: str, **options: str) -> Case:
    return Case(file_format, file_format, (data,), schema, options)


ANY: Final = object()
"""A value that is there; its like differs from day to day, or from run to run."""

RULES: Final[dict[str, tuple[Case, list[Any], list[Any]]]] = {
    "a time without a date, `10:20`": (_text("csv", b"10:20\n", "t timestamp"), [{"t": ANY}], [{"t": None}]),
    "a JSON number in a timestamp that has no room in int64 microseconds": (
        _text("json", b'{"t":9223372036854775807}\n', "t timestamp"),
        [{"t": -1_000_000}],
        [{"t": None}],
    ),
    "a syntax error within a field of a JSON object": (
        _text("json", b'{"a":1,"b":{"c":}}\n', "a int, b struct<c int>"),
        [{"a": 1, "b": None}],
        [{"a": None, "b": None}],
    ),
    "text without the length of base64 in a `binary` of JSON": (
        _text("json", b'{"b":"1","a":1}\n', "b binary, a int"),
        [{"b": None, "a": None}],
        [{"b": None, "a": 1}],
    ),
    "CSV with `header=true`, columns in another order": (
        _text("csv", b"b,a\n1,2\n", "a int, b int", header="true"),
        [{"a": 1, "b": 2}],
        [{"a": 2, "b": 1}],
    ),
    "`timestampFormat=yyyyMMddHHmmssSSS`": (
        _text("csv", b"20240102030405678\n", "t timestamp", timestampFormat="yyyyMMddHHmmssSSS"),
        [{"t": None}],
        [{"t": 1_704_164_645_678_000}],
    ),
    "`timestampFormat` and a column of type `timestamp_ntz`": (
        _text("csv", b"05.01.2024 10:20\n2024-01-05\n", "t timestamp_ntz", timestampFormat="dd.MM.yyyy HH:mm"),
        [{"t": None}, {"t": 1_704_412_800_000_000}],
        [{"t": 1_704_450_000_000_000}, {"t": 1_704_412_800_000_000}],
    ),
    "ORC: 0.0 and -0.0 in one column": (
        Case("orc", "orc", (_zeros(),)),
        [{"d": "-0.0"}, {"d": "-0.0"}],
        [{"d": "-0.0"}, {"d": "0.0"}],
    ),
}


@pytest.mark.spark
def test_where_the_two_differ_it_is_by_these_rules(spark: SparkSession, tmp_path: Path) -> None:
    wrong = []
    for number, (name, (case, sparks, ours)) in enumerate(RULES.items()):
        root = tmp_path / str(number)
        case.write(root)
        found = [("Spark", case.by_spark(spark, root), sparks)]
        found += [(kind, case.here(root, kind), ours) for kind in ("stream", "batch")]
        for reader, table, right in found:
            rows = rows_by_file(table)[0]
            hidden = {column for column, value in right[0].items() if value is ANY}
            shown = [
                {name: ANY if name in hidden and row[name] is not None else row[name] for name in row} for row in rows
            ]
            if shown != right:
                wrong.append(f"{name}, {reader}: {rows}")
    assert wrong == []


@pytest.mark.spark
def test_bytes_that_are_no_utf_8_are_replaced_in_text(spark: SparkSession, tmp_path: Path) -> None:
    case = _text("text", b"a\xffb\n", "value string")
    case.write(tmp_path / "root")
    assert spark.read.text(str(tmp_path / "root")).selectExpr("hex(value) h").first().h == "61FF62"
    assert rows_by_file(case.here(tmp_path / "root", "batch"))[0] == [{"value": "a\ufffdb"}]


@pytest.mark.spark
def test_the_event_time_in_text_may_have_a_comma_and_a_zone_after_a_minute(spark: SparkSession, tmp_path: Path) -> None:
    from tests.spark.reading import micros, read_batch

    texts = ["2015-10-18 18:01:47,978", "2015-10-18 18:01Z"]
    (tmp_path / "f.txt").write_text("\n".join(texts))
    casts = ", ".join(f"try_cast('{text}' as timestamp)" for text in texts)
    assert list(spark.sql(f"select {casts}").first()) == [None, None]
    read = read_batch(tmp_path, fileFormat="text", eventTimeColumn="value", timeZone="UTC")
    assert micros(read) == [1_445_191_307_978_000, 1_445_191_260_000_000]
