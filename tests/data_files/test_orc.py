"""Times in ORC: by the clock of the machine that reads, and those that pyarrow has not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import orc
from pyspark.sql import SparkSession

from streaming_source import read_stream
from streaming_source.data_files.formats.orc import machine_zone
from streaming_source.exceptions import MalformedDataError, OptionError, SourceError
from tests.spark.reading import micros, read_all, read_batch

HOUR = 3_600_000_000
NOON = 1_719_835_200_000_000
"""2024-07-01 12:00:00 in UTC."""
CLOCK, MOMENT = pa.timestamp("us"), pa.timestamp("us", "UTC")


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize("read", [read_all, read_batch])
def test_times_are_by_the_clock_of_the_machine_that_reads_as_in_spark(tmp_path: Path, read: Any) -> None:
    # Berlin's clocks show two hours more in July.
    clock, winter = NOON + 2 * HOUR, NOON - 180 * 24 * HOUR + HOUR
    nested = pa.struct([("t", CLOCK), ("m", MOMENT)])
    columns = {
        "t": pa.array([clock, winter, None, clock], CLOCK),
        "instant": pa.array([NOON, None, NOON, NOON], MOMENT),
        "s": pa.array([{"t": clock, "m": NOON}, {"t": None, "m": None}, None, {"t": clock, "m": None}], nested),
        "l": pa.array([[clock, None], None, [], [winter]], pa.list_(CLOCK)),
        "m": pa.array([[("k", clock)], None, [], [("k", None)]], pa.map_(pa.string(), CLOCK)),
    }
    orc.write_table(pa.table(columns), tmp_path / "1.orc")
    table = read(tmp_path, fileFormat="orc", eventTimeColumn="t", invalidTimestamp="null")
    winter -= HOUR
    assert micros(table) == [NOON, winter, None, NOON]
    assert table.column("instant").cast(pa.int64()).to_pylist() == [NOON, None, NOON, NOON]
    plain = pa.struct([("t", pa.int64()), ("m", pa.int64())])
    assert table.column("s").cast(plain).to_pylist() == [
        *({"t": NOON, "m": NOON}, {"t": None, "m": None}, None, {"t": NOON, "m": None})
    ]
    assert table.column("l").cast(pa.list_(pa.int64())).to_pylist() == [[NOON, None], None, [], [winter]]
    items = table.column("m").combine_chunks()
    assert items.cast(pa.map_(pa.string(), pa.int64())).to_pylist() == [[("k", NOON)], None, [], [("k", None)]]


@pytest.mark.usefixtures("berlin")
def test_a_time_that_the_clock_shows_twice_is_refused_with_its_column(tmp_path: Path) -> None:
    twice = datetime(2024, 10, 27, 2, 30)
    orc.write_table(pa.table({"t": pa.array([0, 1], MOMENT), "v": pa.array([None, twice], CLOCK)}), tmp_path / "1.orc")
    with pytest.raises(MalformedDataError, match=r"column 'v' has the time 2024-10-27 02:30:00.*, which a clock in "):
        read_all(tmp_path, fileFormat="orc", eventTimeColumn="t")
    assert micros(read_all(tmp_path, fileFormat="orc", eventTimeColumn="t", columns="t")) == [0, 1]


def test_the_zone_of_a_machine_must_be_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, zone in (("Europe/Berlin", "Europe/Berlin"), (":Asia/Tokyo", "Asia/Tokyo"), ("GMT", "UTC")):
        monkeypatch.setenv("TZ", name)
        assert machine_zone() == zone
    monkeypatch.setenv("TZ", "No/Where")
    with pytest.raises(SourceError, match="TZ is 'No/Where'; set TZ to a zone such as Europe/Berlin"):
        machine_zone()


FAR = [
    253_402_214_400_000_000,
    None,
    -62_135_596_800_000_000,
    0,
    -1,
    -1_500_000,
    123_456_789_012,
    -62_135_596_799_999_999,
]
SPARKS_LATEST = 2**63 - 1


def test_times_without_a_zone_are_found_as_spark_writes_them(tmp_path: Path) -> None:
    as_number = pa.field("v", pa.int64(), metadata={"spark.sql.catalyst.type": "timestamp_ntz"})
    schema = pa.schema([("t", MOMENT), as_number, ("s", pa.struct([as_number])), ("n", pa.int64())])
    columns = [pa.array([NOON], MOMENT), [NOON], [{"v": NOON}], [NOON]]
    orc.write_table(pa.table(columns, schema=schema), tmp_path / "1.orc")
    found = read_batch(tmp_path, fileFormat="orc", eventTimeColumn="t").schema
    assert [*found.types] == [MOMENT, CLOCK, pa.struct([("v", CLOCK)]), pa.int64()]
    given = read_batch(tmp_path, fileFormat="orc", eventTimeColumn="t", dataSchema="t timestamp, v bigint")
    assert given["v"].to_pylist() == [NOON]


@pytest.mark.parametrize("compression", ["uncompressed", "zlib", "snappy", "zstd", "lz4"])
@pytest.mark.parametrize("version", ["0.11", "0.12"])
def test_times_beyond_nanoseconds_are_read_in_any_column(tmp_path: Path, compression: str, version: str) -> None:
    nested = pa.struct([("x", CLOCK), ("n", pa.int64())])
    columns = {
        "t": pa.array(FAR, MOMENT),
        "a.b": pa.array(FAR, CLOCK),
        "s": pa.array([None if us is None else {"x": us, "n": 5} for us in FAR], nested),
        "l": pa.array([None if us is None else [us, None, us] for us in FAR], pa.list_(CLOCK)),
        "m": pa.array([None if us is None else [("k", us)] for us in FAR], pa.map_(pa.string(), CLOCK)),
        "n": pa.array([SPARKS_LATEST] * len(FAR)),
    }
    many = pa.concat_tables([pa.table(columns)] * 300)
    orc.write_table(many, tmp_path / "1.orc", compression=compression, file_version=version, stripe_size=1 << 16)
    read = read_batch(tmp_path, fileFormat="orc", eventTimeColumn="t", invalidTimestamp="null")
    assert micros(read) == FAR * 300
    assert read["a.b"].cast(pa.int64()).to_pylist() == FAR * 300
    for name, kind in (("s", pa.struct([("x", MOMENT), ("n", pa.int64())])), ("l", pa.list_(MOMENT))):
        assert read[name].equals(many[name].cast(kind))
    assert read["m"].equals(many["m"].cast(pa.map_(pa.string(), MOMENT)))
    assert set(read["n"].to_pylist()) == {SPARKS_LATEST}


def test_a_time_beyond_those_of_spark_is_refused(tmp_path: Path) -> None:
    far = pa.array([0, 2**62], pa.timestamp("s", "UTC"))
    orc.write_table(pa.table({"t": pa.array([0, 1], MOMENT), "far": far}), tmp_path / "1.orc")
    with pytest.raises(MalformedDataError, match=r"has a time beyond those of Spark.*name the other columns in option"):
        read_batch(tmp_path, fileFormat="orc", eventTimeColumn="t")
    assert micros(read_batch(tmp_path, fileFormat="orc", eventTimeColumn="t", columns="t")) == [0, 1]


@pytest.mark.spark
@pytest.mark.usefixtures("berlin")
def test_a_jvm_outside_of_utc_writes_what_spark_and_we_read_alike(spark: SparkSession, tmp_path: Path) -> None:
    zones, path = spark._jvm.java.util.TimeZone, str(tmp_path / "written")
    before = zones.getDefault()
    try:
        zones.setDefault(zones.getTimeZone("Europe/Berlin"))
        written = "select timestamp'2024-07-01 12:00:00Z' t union all select timestamp'1900-01-01 12:00:00Z'"
        spark.sql(written).coalesce(1).write.orc(path)
        right = [row.t for row in spark.read.orc(path).selectExpr("unix_micros(t) t").collect()]
        read_stream(spark).format("aligned_files").options(fileFormat="orc", eventTimeColumn="t").load(path)
    finally:
        zones.setDefault(before)
    assert sorted(micros(read_all(path, fileFormat="orc", eventTimeColumn="t"))) == sorted(right)
    with pytest.raises(OptionError, match="the machine, which is in Europe/Berlin, and that of Spark's JVM in UTC"):
        read_stream(spark).format("aligned_files").options(fileFormat="orc", eventTimeColumn="t").load(path)
