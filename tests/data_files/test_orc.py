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


@pytest.mark.parametrize("far", [datetime(9999, 12, 31), datetime(1, 1, 1)])
def test_a_time_that_pyarrow_does_not_read_is_refused_with_its_column_and_the_way_out(
    tmp_path: Path, far: datetime
) -> None:
    columns = {"t": pa.array([0, 1], MOMENT), "until": pa.array([None, far], CLOCK), "n": [1, 2]}
    orc.write_table(pa.table(columns), tmp_path / "1.orc")
    fix = r"column 'until' has a time before 1677 or after 2262.*name the other columns in option columns"
    with pytest.raises(MalformedDataError, match=fix):
        read_all(tmp_path, fileFormat="orc", eventTimeColumn="t")
    assert micros(read_all(tmp_path, fileFormat="orc", eventTimeColumn="t", columns="t,n")) == [0, 1]


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
