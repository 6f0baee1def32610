"""Parquet as Spark reads it: times in INT96, and types that are Spark's under other names."""

from __future__ import annotations

import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from streaming_source import read_stream
from tests.examples import one_in
from tests.spark.reading import SECOND, T0, micros, put, read_all, read_batch, stamps

US_PER_DAY = 86_400_000_000
FAR = [-62_135_596_800_000_000, -16_728_000_000_000_000, 19_894_000_000_000_000, 253_402_214_400_000_000]
"""0001-01-01, in 1439, in 2600, 9999-12-31: outside of the nanoseconds of 64 bits."""


def write_int96(path: Path, columns: dict[str, list[Any]], schema: pa.Schema) -> None:
    """Write times as INT96: nanoseconds of a day, and its Julian number. Arrow's writer would wrap far ones.

    So those that it writes have a mark of 2000-01-01 and their number, which is replaced in the file.
    """
    marks: list[int] = []

    def marked(value: Any) -> Any:
        if isinstance(value, int):
            marks.append(value)
            return 946_684_800_000_000 + len(marks)
        if isinstance(value, dict):
            return {name: marked(inner) for name, inner in value.items()}
        return [marked(inner) for inner in value] if isinstance(value, list) else value

    rows = {name: marked(values) for name, values in columns.items()}
    table = pa.table([pa.array(rows[field.name], field.type) for field in schema], schema=schema)
    pq.write_table(
        table, path, use_deprecated_int96_timestamps=True, compression="none", use_dictionary=False, store_schema=False
    )
    content = path.read_bytes()
    for number, value in enumerate(marks, 1):
        days, micros = divmod(value, US_PER_DAY)
        mark = struct.pack("<qi", number * 1000, 2_451_545)
        assert content.count(mark) == 1
        content = content.replace(mark, struct.pack("<qi", micros * 1000, 2_440_588 + days))
    path.write_bytes(content)


@pytest.mark.parametrize("read", [read_all, read_batch])
def test_int96_has_all_times_of_spark(tmp_path: Path, read: Any) -> None:
    time = pa.timestamp("us")
    schema = pa.schema([("t", time), ("v", time), ("l", pa.list_(time)), ("s", pa.struct([("l", pa.list_(time))]))])
    times = [T0 + number for number in range(len(FAR))]
    nested = [[value, None] for value in FAR]
    columns = {"t": times, "v": FAR, "l": nested, "s": [{"l": inner} for inner in nested]}
    write_int96(tmp_path / "f.parquet", columns, schema)
    table = read(tmp_path, eventTimeColumn="t")
    moment = pa.timestamp("us", "UTC")
    assert table.schema.types == [moment, moment, pa.list_(moment), pa.struct([("l", pa.list_(moment))])]
    assert table.column("v").cast(pa.int64()).to_pylist() == FAR
    assert table.column("l").cast(pa.list_(pa.int64())).to_pylist() == nested


def test_event_times_in_int96_are_not_wrapped(tmp_path: Path) -> None:
    write_int96(tmp_path / "f.parquet", {"t": [T0, *FAR]}, pa.schema([("t", pa.timestamp("us"))]))
    assert sorted(micros(read_all(tmp_path, eventTimeColumn="t", maxRowsPerTrigger=2))) == sorted([T0, *FAR])


@pytest.mark.parametrize("read", [read_all, read_batch])
def test_types_that_spark_has_under_other_names_are_read_as_spark_reads_them(tmp_path: Path, read: Any) -> None:
    columns = {
        "u8": pa.array([200, None], pa.uint8()),
        "u16": pa.array([2**16 - 1, None], pa.uint16()),
        "u32": pa.array([2**32 - 1, None], pa.uint32()),
        "u64": pa.array([2**64 - 1, None], pa.uint64()),
        "text": pa.array(["x", None], pa.string_view()),
        "bytes": pa.array([b"x", None], pa.binary_view()),
        "json": pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a":1}', None])),
        "list": pa.array([[2**64 - 1, None], None], pa.list_(pa.uint64())),
        "struct": pa.array([{"u": 255}, None], pa.struct([("u", pa.uint8())])),
        "two": pa.array([[1, 2], None], pa.list_(pa.uint32(), 2)),
    }
    put(tmp_path / "f.parquet", {"t": stamps(0, 1, zone="UTC"), **columns})
    table = read(tmp_path, eventTimeColumn="t")
    big = pa.decimal128(20, 0)
    assert table.select([*columns]).schema.types == [
        *(pa.int16(), pa.int32(), pa.int64(), big, pa.string(), pa.binary(), pa.string()),
        *(pa.list_(big), pa.struct([("u", pa.int16())]), pa.list_(pa.int64())),
    ]
    expected = {**{name: array.to_pylist() for name, array in columns.items()}, "json": ['{"a":1}', None]}
    expected |= {"u64": [Decimal(2**64 - 1), None], "list": [[Decimal(2**64 - 1), None], None]}
    assert table.select([*columns]).to_pydict() == expected


@pytest.mark.parametrize("kind", [pa.uint32(), pa.uint64()])
@pytest.mark.parametrize("indexing", ["auto", "scan"])
def test_event_times_may_be_unsigned_numbers(tmp_path: Path, kind: pa.DataType, indexing: str) -> None:
    seconds = [T0 // SECOND, 2**31 + 5]
    put(tmp_path / "f.parquet", {"t": pa.array(seconds, kind)})
    table = read_all(tmp_path, eventTimeColumn="t", timestampUnit="s", indexing=indexing, maxRowsPerTrigger=1)
    assert micros(table, "event_time") == [second * SECOND for second in seconds]


@pytest.mark.spark
def test_a_geometry_is_read_as_its_bytes(spark: SparkSession, tmp_path: Path) -> None:
    written, point = str(tmp_path / "written"), "0101000000000000000000F03F0000000000000040"
    made = spark.sql(f"select timestamp'2024-01-01' t, st_geomfromwkb(X'{point}') g, st_geogfromwkb(X'{point}') h")
    made.coalesce(1).write.parquet(written)
    found = read_batch(written, eventTimeColumn="t")
    assert found.select(["g", "h"]).to_pylist() == [dict.fromkeys("gh", bytes.fromhex(point))]
    by_spark = spark.read.parquet(written).selectExpr("st_asbinary(g) g", "st_asbinary(h) h").first()
    assert by_spark is not None
    assert {bytes(value).hex().upper() for value in by_spark} == {point}


@pytest.mark.spark
@pytest.mark.parametrize("shredded", one_in(2, [True, False]))
def test_a_variant_is_one_also_within_others_and_where_its_parts_are_columns(
    spark: SparkSession, tmp_path: Path, shredded: bool
) -> None:
    written, texts = str(tmp_path / "written"), [f'{{"a":{n},"b":[1.5,"x",null],"c":{{"d":"{n}"}}}}' for n in range(5)]
    texts += ["null", '"x"', '[{"a":1},2]', "12345678901234567890.5"]
    spark.createDataFrame(list(enumerate(texts)), "n int, text string").createOrReplaceTempView("texts")
    made = spark.sql(
        "select timestamp'2024-01-01' t, n, if(n = 3, null, parse_json(text)) v, array(parse_json(text)) l, "
        "named_struct('x', parse_json(text)) s, map('k', parse_json(text)) m from texts"
    )
    setting = "spark.sql.variant.writeShredding.enabled"
    spark.conf.set(setting, str(shredded).lower())
    made.coalesce(1).write.parquet(written)
    spark.conf.unset(setting)
    columns = ["n", "to_json(v)", "to_json(l)", "to_json(s)", "to_json(m)", "variant_get(v, '$.a', 'int')"]
    by_spark = spark.read.parquet(written)
    expected = sorted(map(tuple, by_spark.selectExpr(*columns).collect()))
    frame = read_stream(spark).format("aligned_files").options(eventTimeColumn="t", bounded=True).load(written)
    assert frame.select("v", "l", "s", "m").dtypes == by_spark.select("v", "l", "s", "m").dtypes
    query = frame.selectExpr(*columns).writeStream.format("memory").queryName("variants")
    query.trigger(availableNow=True).start().awaitTermination(60)
    assert sorted(map(tuple, spark.table("variants").collect())) == expected
    batch = spark.read.format("aligned_files").options(eventTimeColumn="t", timeZone="UTC").load(written)
    assert sorted(map(tuple, batch.selectExpr(*columns).collect())) == expected
