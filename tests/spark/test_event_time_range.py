"""Options eventTimeFrom and eventTimeUntil: a batch read has the records between them, and reads no blocks beside."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from alignment.arrow_times import format_timestamp
from streaming_source import DataGeneratorSource, WatermarkStrategy, from_source, read_stream
from streaming_source.exceptions import OptionError
from streaming_source.spark.datasource import AlignedDataSource
from tests.data_files.samples import SAMPLES, Row, Sample
from tests.delta.tables import append
from tests.examples import examples
from tests.spark.reading import T0, data_source, read_batch
from tests.spark.support import MINUTE, SECOND, write_file

DDL = "t timestamp, n bigint, s string"
FIRST, LAST = T0 - 3 * SECOND, T0 + 63 * SECOND
TIMES = st.one_of(st.none(), st.integers(FIRST // SECOND, LAST // SECOND).map(lambda s: s * SECOND))
"""A bound within the records, before them or behind them."""


def of_range(first: int | None, until: int | None) -> dict[str, str]:
    given = {"eventTimeFrom": first, "eventTimeUntil": until}
    return {name: f"{format_timestamp(us)}" for name, us in given.items() if us is not None}


def is_within(time: int | None, first: int | None, until: int | None) -> bool:
    """As the two options have it; whether a record without an event time is there is decided elsewhere."""
    return time is None or ((first is None or first <= time) and (until is None or time < until))


def rows_read(source: AlignedDataSource) -> int:
    """The rows of the ranges that readers are given."""
    parts = source.batch_reader(source.schema()).partitions()
    splits: list[Any] = [split for part in parts for split in part.splits]
    return sum(piece.stop - piece.start for split in splits for piece in split.ranges)


# ---- without Spark: the data source's own reader ---------------------------------------------------------------------


@pytest.fixture(scope="module", params=SAMPLES, ids=lambda sample: sample.id)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Sample]:
    """Six files in blocks of five rows, a second between records, a little out of order; one has no event time."""
    sample, root = request.param, tmp_path_factory.mktemp("in")
    rng = np.random.default_rng(7)
    for number in range(6):
        times = T0 + (number * 10 + np.arange(10) + rng.integers(-2, 3, 10)) * SECOND
        rows: list[Row] = [(t, i, "x") for i, t in enumerate(times.tolist())]
        if number == 3 and sample.time == "t":
            rows[4] = (None, 4, "x")
        sample.write(root / f"part-{number}{sample.ending}", rows, 5)
    return root, sample


@settings(
    max_examples=examples(15),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)
@given(bounds=st.tuples(TIMES, TIMES), split_by=st.sampled_from(["file", "directory"]))
def test_a_batch_read_has_the_records_of_the_range_in_every_format(
    written: tuple[Path, Sample], bounds: tuple[int | None, int | None], split_by: str
) -> None:
    root, sample = written
    first, until = bounds
    if first is not None and until is not None:
        first, until = min(first, until), max(first, until) + SECOND
    options = {**sample.options, "eventTimeColumn": sample.time, "splitBy": split_by, "timeZone": "UTC"}
    options["invalidTimestamp"] = "null"
    if sample.needs_schema:
        options["dataSchema"] = DDL
    name = "event_time" if sample.time != "t" else "t"
    everything = read_batch(root, **options).column(name).cast(pa.int64()).to_pylist()
    found = read_batch(root, **options, **of_range(first, until)).column(name).cast(pa.int64()).to_pylist()
    expected = [time for time in everything if is_within(time, first, until)]
    assert len(everything) == 60
    assert sorted(found, key=str) == sorted(expected, key=str)


@settings(max_examples=examples(15), deadline=None)
@given(bounds=st.tuples(TIMES, TIMES))
def test_a_batch_read_of_a_delta_table_has_the_records_of_the_range(
    bounds: tuple[int | None, int | None], delta_table: Path
) -> None:
    first, until = bounds
    if first is not None and until is not None:
        first, until = min(first, until), max(first, until) + SECOND

    def times(**options: str) -> list[int | None]:
        given = {"path": str(delta_table), "eventTimeColumn": "ts", "invalidTimestamp": "null", **options}
        source = AlignedDataSource.of_format("aligned_delta", given)
        reader = source.batch_reader(source.schema())
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        return [us for batch in batches for us in batch.column("ts").cast(pa.int64()).to_pylist()]

    everything = times()
    assert len(everything) == 60
    expected = [time for time in everything if is_within(time, first, until)]
    assert sorted(times(**of_range(first, until)), key=str) == sorted(expected, key=str)


@pytest.fixture(scope="module")
def delta_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six commits of ten records; one record has no event time."""
    root = tmp_path_factory.mktemp("table")
    for number in range(6):
        times: list[int | None] = (T0 + (number * 10 + np.arange(10)) * SECOND).tolist()
        if number == 3:
            times[4] = None
        append(root, times, n=list(range(10)))
    return root


@pytest.mark.parametrize("split_by", ["file", "directory"])
def test_row_groups_outside_of_the_range_are_not_read(tmp_path: Path, split_by: str) -> None:
    for number in range(4):
        write_file(tmp_path / f"f{number}.parquet", T0 + (number * 100 + np.arange(100)) * SECOND, row_group_size=10)
    options = {"eventTimeColumn": "ts", "splitBy": split_by}
    assert rows_read(data_source(tmp_path, **options)) == 400
    wanted = of_range(T0 + 95 * SECOND, T0 + 121 * SECOND)
    # The row groups with the seconds 90 to 99, and 100 to 129.
    assert rows_read(data_source(tmp_path, **options, **wanted)) == 40
    assert rows_read(data_source(tmp_path, **options, **of_range(T0 + 400 * SECOND, None))) == 0
    found = read_batch(tmp_path, **options, **wanted).column("ts").cast(pa.int64()).to_numpy()
    assert sorted(found.tolist()) == list(range(T0 + 95 * SECOND, T0 + 121 * SECOND, SECOND))


@pytest.mark.parametrize("split_by", ["file", "directory"])
def test_a_pattern_in_the_path_chooses_directories_by_their_columns_and_opens_no_other(
    tmp_path: Path, split_by: str
) -> None:
    for day in range(1, 6):
        write_file(tmp_path / f"day={day}" / "f.parquet", T0 + (day * 100 + np.arange(10)) * SECOND)
    options = {"eventTimeColumn": "ts", "splitBy": split_by}
    everything = read_batch(tmp_path, **options).select(["ts", "day"]).to_pylist()
    for day in (1, 4, 5):
        (tmp_path / f"day={day}" / "f.parquet").write_bytes(b"no Parquet")
    found = read_batch(tmp_path / "day=[23]", **options).select(["ts", "day"]).to_pylist()
    assert len(found) == 20
    assert sorted(found, key=str) == sorted((row for row in everything if row["day"] in (2, 3)), key=str)


def test_a_record_outside_is_not_invalid_and_one_without_an_event_time_is_not_outside(tmp_path: Path) -> None:
    future = 7_000_000_000 * SECOND
    write_file(tmp_path / "a.parquet", [T0, T0 + SECOND, future])
    write_file(tmp_path / "b.parquet", [T0 + SECOND, None])
    options = {"eventTimeColumn": "ts", "maxFutureSkew": "1 day", **of_range(None, T0 + SECOND)}
    found = read_batch(tmp_path, **options, invalidTimestamp="null").column("ts").cast(pa.int64()).to_pylist()
    assert found == [T0, None]
    # As without the range: the file's record of the year 2191 is not there for it.
    with pytest.raises(Exception, match=r"no valid event time in ts = None"):
        read_batch(tmp_path, **options)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"eventTimeFrom": "noon"}, "option eventTimeFrom = 'noon': must be a time such as 2024-01-31T10:00:00Z"),
        ({"eventTimeUntil": "2024-13-01"}, "option eventTimeUntil = '2024-13-01': must be a time"),
        (
            {"eventTimeFrom": "2024-01-02", "eventTimeUntil": "2024-01-02T00:00:00Z", "timeZone": "UTC"},
            "no event time lies between them; let the second be later",
        ),
    ],
)
def test_what_is_no_range_is_refused(tmp_path: Path, options: dict[str, str], error: str) -> None:
    with pytest.raises(OptionError, match=error):
        data_source(tmp_path, eventTimeColumn="ts", **options)


@pytest.mark.parametrize(
    ("text", "hour"),
    [
        ("2024-07-01", -2),
        ("2024-07-01 10:00", 8),
        ("2024-07-01T10:00:00.000000", 8),
        ("2024-07-01T10:00:00Z", 10),
        ("2024-07-01 10:00:00+05:30", 4.5),
    ],
)
def test_a_bound_without_a_zone_is_in_that_of_times_without_one(tmp_path: Path, text: str, hour: float) -> None:
    of_option = data_source(tmp_path, eventTimeColumn="ts", eventTimeFrom=text, timeZone="Europe/Berlin").options.times
    assert of_option.from_us == round((1_719_792_000 + hour * 3600) * SECOND)
    has_zone = text.endswith(("Z", "+05:30"))
    given = {"path": str(tmp_path), "eventTimeColumn": "ts", "eventTimeFrom": text}
    if has_zone:
        AlignedDataSource.of_format("aligned_files", given, zone=None)
    else:
        with pytest.raises(OptionError, match=r"has no zone.*write it with one, as in 2024-01-31T10:00:00Z, or add"):
            AlignedDataSource.of_format("aligned_files", given, zone=None)


# ---- on Spark --------------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_files_outside_are_not_read_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(3):
        write_file(tmp_path / "in" / f"f{number}.parquet", T0 + (number * 100 + np.arange(100)) * SECOND)
    reader = spark.read.format("aligned_files").options(eventTimeColumn="ts", **of_range(T0 + 90 * SECOND, None))
    reader = reader.options(**of_range(None, T0 + 150 * SECOND))
    frame, everything = reader.load(str(tmp_path / "in")), spark.read.parquet(str(tmp_path / "in"))
    wanted = everything.where(F.unix_micros("ts").between(T0 + 90 * SECOND, T0 + 150 * SECOND - 1))
    expected = sorted(wanted.select("ts", "k", "s").collect())
    assert len(expected) == 60
    assert sorted(frame.select("ts", "k", "s").collect()) == expected
    # Nothing is left of the third file but the footer, which has its bounds.
    damaged = tmp_path / "in" / "f2.parquet"
    content = damaged.read_bytes()
    footer = 8 + int.from_bytes(content[-8:-4], "little")
    damaged.write_bytes(b"PAR1" + b"\0" * (len(content) - 4 - footer) + content[-footer:])
    assert sorted(reader.load(str(tmp_path / "in")).select("ts", "k", "s").collect()) == expected
    with pytest.raises(Exception, match=r"f2\.parquet"):
        spark.read.format("aligned_files").option("eventTimeColumn", "ts").load(str(tmp_path / "in")).count()


@pytest.mark.spark
def test_generated_records_and_those_of_a_source_are_chosen_too(spark: SparkSession) -> None:
    source = DataGeneratorSource(splits=2, rows_per_split=100, bounded=True)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("1 minute").with_timestamp_assigner("ts")

    def times(**options: Any) -> list[int]:
        frame = from_source(spark, source, strategy, "generated", batch=True, **options)
        return sorted(us for (us,) in frame.select(F.unix_micros("ts")).collect())

    everything = times()
    middle, last = everything[60], everything[150]
    chosen = times(event_time_from=format_timestamp(middle), event_time_until=format_timestamp(last))
    assert 0 < len(chosen) < len(everything) == 200
    assert chosen == [us for us in everything if middle <= us < last]


@pytest.mark.spark
def test_a_stream_does_not_take_a_range(spark: SparkSession, tmp_path: Path) -> None:
    write_file(tmp_path / "f.parquet", [T0])
    options = {"eventTimeColumn": "ts", **of_range(T0 + MINUTE, None)}
    with pytest.raises(OptionError, match=r"batch reads take them .*leave them out, or filter the frame"):
        read_stream(spark).format("aligned_files").options(**options).load(str(tmp_path))


class Shared(DataSource):
    """One record, `t` = 5; `planned` has the filters that its plan was made with."""

    @classmethod
    def name(cls) -> str:
        return "shared_plan"

    def schema(self) -> str:
        return "t int, planned string"

    def reader(self, schema: StructType) -> DataSourceReader:
        class Reader(DataSourceReader):
            filters = ""

            def pushFilters(self, filters: list[Filter]) -> list[Filter]:
                self.filters = ", ".join(map(str, filters))
                return filters

            def partitions(self) -> list[InputPartition]:
                return [InputPartition(self.filters)]

            def read(self, partition: InputPartition) -> Iterator[tuple[int, str]]:
                yield 5, str(partition.value)

        return Reader()


@pytest.mark.spark
def test_filters_of_spark_prune_nothing_because_spark_gives_all_reads_of_a_frame_one_plan(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A source that pruned by its filters would lose rows of every other read. Should it fail, Spark was mended."""
    write_file(tmp_path / "day=1" / "f.parquet", T0 + np.arange(10) * SECOND)
    write_file(tmp_path / "day=2" / "f.parquet", T0 + np.arange(10, 30) * SECOND)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        spark.dataSource.register(Shared)
        shared = spark.read.format("shared_plan").load()
        (filtered,) = shared.where("t > 3").collect()
        assert "GreaterThan(attribute=('t',), value=3)" in filtered.planned
        # Nothing was filtered here.
        assert shared.collect() == [filtered]
        both = shared.where("t > 4").union(shared.where("t < 9")).select("planned").distinct().collect()
        assert len(both) == 1
        frame = spark.read.format("aligned_files").option("eventTimeColumn", "ts").load(str(tmp_path))
        early, one_day = frame.where(F.unix_micros("ts") < T0 + 5 * SECOND), frame.where("day = 1")
        at = f"timestamp_micros({T0 + 5 * SECOND})"
        assert (frame.where(f"ts < {at}").count(), early.count(), one_day.count(), frame.count()) == (5, 5, 10, 30)
        assert frame.where(f"ts < {at}").union(frame.where("day = 2")).union(frame).count() == 55
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
