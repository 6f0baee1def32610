"""Times in ORC: by the clock of the machine that reads, and those that pyarrow has not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import orc
from pyspark.sql import SparkSession

from streaming_source import read_stream
from streaming_source.data_files.formats import orc_stored
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


TWO_DAYS = 2 * 24 * HOUR
FAR = {
    **{us: us for us in (253_402_214_400_000_000, -1, -1_500_000, 1, -12_219_292_800_000_000)},
    None: None,
    # Before 1582 in the Julian calendar, as Java has written them: of the year 1, and the last one.
    -62_135_596_800_000_000: -62_135_596_800_000_000 + TWO_DAYS,
    -62_135_596_799_999_999: -62_135_596_799_999_999 + TWO_DAYS,
    -12_219_292_800_000_001: -12_219_292_800_000_001 - 5 * TWO_DAYS,
}
"""What a file has, and what Spark reads."""
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
        "t": pa.array([*FAR], MOMENT),
        "a.b": pa.array([*FAR], CLOCK),
        "s": pa.array([us and {"x": us, "n": 5} for us in FAR], nested),
        "l": pa.array([us and [us, None, us] for us in FAR], pa.list_(CLOCK)),
        "m": pa.array([us and [("k", us)] for us in FAR], pa.map_(pa.string(), CLOCK)),
        "n": pa.array([SPARKS_LATEST] * len(FAR)),
    }
    many = pa.concat_tables([pa.table(columns)] * 300)
    orc.write_table(many, tmp_path / "1.orc", compression=compression, file_version=version, stripe_size=1 << 16)
    read = read_batch(tmp_path, fileFormat="orc", eventTimeColumn="t", invalidTimestamp="null")
    right = [*FAR.values()] * 300
    assert micros(read) == right
    assert read["a.b"].cast(pa.int64()).to_pylist() == right
    of_structs = read["s"].cast(pa.struct([("x", pa.int64()), ("n", pa.int64())])).to_pylist()
    assert of_structs == [us and {"x": us, "n": 5} for us in right]
    assert read["l"].cast(pa.list_(pa.int64())).to_pylist() == [us and [us, None, us] for us in right]
    assert read["m"].cast(pa.map_(pa.string(), pa.int64())).to_pylist() == [us and [("k", us)] for us in right]
    assert set(read["n"].to_pylist()) == {SPARKS_LATEST}


def test_dates_before_1582_are_those_of_the_julian_calendar(tmp_path: Path) -> None:
    stored = [-719_164, -719_162, -141_428, -141_427, None, 0]
    date = pa.date32()
    columns = {
        "t": pa.array(range(6), MOMENT),
        "d": pa.array(stored, date),
        "l": pa.array([[day] for day in stored], pa.list_(date)),
    }
    orc.write_table(pa.table(columns), tmp_path / "1.orc")
    read = read_batch(tmp_path, fileFormat="orc", eventTimeColumn="t")
    right = [-719_162, -719_160, -141_438, -141_427, None, 0]
    assert read["d"].cast(pa.int32()).to_pylist() == right
    assert read["l"].cast(pa.list_(pa.int32())).to_pylist() == [[day] for day in right]


def test_decimals_of_hive_0_11_are_refused_where_they_are_read(tmp_path: Path) -> None:
    columns = {"t": pa.array([0, 1], MOMENT), "d": pa.array([1, 2], pa.decimal128(38, 6))}
    orc.write_table(pa.table(columns), tmp_path / "written.orc")
    path = tmp_path / "1.orc"
    stream = pa.OSFile(str(tmp_path / "written.orc"))
    tail = orc_stored._Tail.of(stream)
    assert tail is not None
    without_scale = orc_stored._written([(1, orc_stored._DECIMAL)])
    footer = [*tail.footer]
    footer[max(number for number, (field, _) in enumerate(footer) if field == 4)] = (4, without_scale)
    path.write_bytes(replace(tail, footer=footer).file(*tail.stripe(stream, 0), has_seconds=False))
    (tmp_path / "written.orc").unlink()
    with pytest.raises(MalformedDataError, match=r"1\.orc has decimals without a scale, as Hive 0.11 wrote them"):
        read_batch(tmp_path, fileFormat="orc", eventTimeColumn="t")
    assert micros(read_batch(tmp_path, fileFormat="orc", eventTimeColumn="t", columns="t")) == [0, 1]


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
