"""The exact watermark is one act: what a user may write around it is right, or refused with the fix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructType, TimestampNTZType, TimestampType

import streaming_source
from streaming_source import (
    AlignmentListener,
    WatermarkStrategy,
    advise,
    explain,
    from_source,
    read_stream,
    with_exact_watermark,
)
from streaming_source.connectors import FileSource
from streaming_source.exceptions import OptionError, SchemaError
from streaming_source.monitoring.explained import explain_checkpoint
from streaming_source.monitoring.query_advice import ALLOW_MULTIPLE
from tests.examples import one_in
from tests.spark.conftest import Loader
from tests.spark.support import (
    SECOND,
    SKEWS,
    T0,
    Run,
    available_now,
    fails_with,
    naive_windows,
    state_rows,
    windows,
    write_file,
    write_logs,
    write_table,
)

pytestmark = pytest.mark.spark

LOGS = SKEWS["one-tiny"]
OPTIONS = {"eventTimeColumn": "ts", "maxOutOfOrderness": "5 seconds", "bounded": "true", "maxRowsPerTrigger": "500"}


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    write_logs(tmp_path / "in", LOGS)
    return tmp_path / "in"


def first_light(path: Path) -> Path:
    """One small log, where what is in it does not matter."""
    write_file(path / "a" / "f.parquet", T0 + np.arange(3) * SECOND)
    return path


# ---- the reader ----------------------------------------------------------------------------------------------------


def test_read_stream_gives_the_batch_result_and_the_options_are_those_of_spark(
    spark: SparkSession, logs: Path, tmp_path: Path
) -> None:
    reader = read_stream(spark).format("Aligned_Files").option("MAXROWSPERTRIGGER", 1).options(**OPTIONS)
    frame = reader.option("bounded", False).option("BOUNDED", True).option("numReaders", None).load(str(logs))
    assert frame.columns == ["ts", "k", "s"]
    run = available_now(spark, windows(frame), tmp_path / "cp")
    assert run.rows == naive_windows(LOGS)
    assert state_rows(run) == 0


def test_the_schema_of_read_stream_is_the_data_schema(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in" / "log"
    folder.mkdir(parents=True)
    (folder / "f.csv").write_text("2024-01-01T00:00:00,1,x,7\n2024-01-01T00:00:01,2,y,8\n")
    place = StructType().add("p q", LongType())
    schema = StructType().add("At", TimestampNTZType()).add("n", LongType()).add("s", StringType()).add("m", LongType())
    for given in (schema, "At timestamp_ntz, n bigint, s string, m bigint"):
        reader = read_stream(spark).schema(given).format("aligned_files").options(fileFormat="csv", bounded=True)
        frame = reader.option("eventTimeColumn", "at").name("from_text").load(str(tmp_path / "in"))
        # Without a zone it is UTC; Spark takes watermarks from timestamps alone.
        assert [field.dataType for field in frame.schema] == [TimestampType(), LongType(), StringType(), LongType()]
    run = available_now(spark, frame.selectExpr("unix_seconds(At) % 86400", "n", "s", "m"), tmp_path / "cp")
    assert run.rows == [(0, 1, "x", 7), (1, 2, "y", 8)]
    assert sum(p["observedMetrics"]["from_text"]["rows"] for p in run.progress) == 2
    # Nested types and names that need quotes too.
    write_table(
        tmp_path / "nested" / "a" / "f.parquet",
        pa.table({"ts": pa.array([T0], pa.timestamp("us")), "at": [{"p q": 1}]}),
    )
    reader = read_stream(spark).format("aligned_files").schema(StructType().add("ts", TimestampType()).add("at", place))
    assert reader.option("eventTimeColumn", "ts").load(str(tmp_path / "nested")).schema["at"].dataType == place


def test_read_stream_says_what_it_does_not_take(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="format 'parquet': read_stream reads aligned_datagen, aligned_delta"):
        read_stream(spark).format("parquet")
    with pytest.raises(OptionError, match="option watermarkRows: read_stream gives the exact watermark without it"):
        read_stream(spark).option("watermarkrows", True)
    with pytest.raises(OptionError, match="needs a format: one of aligned_datagen"):
        read_stream(spark).load(str(tmp_path))
    with pytest.raises(OptionError, match="the columns of aligned_datagen are known, so it has no option dataSchema"):
        read_stream(spark).schema("ts timestamp").format("aligned_datagen").load()
    with pytest.raises(OptionError, match="schema = 3: must be a StructType or text"):
        read_stream(spark).schema(3)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="letters, digits and underscores"):
        read_stream(spark).name("my source")


# ---- what used to go wrong in silence --------------------------------------------------------------------------------


def test_with_watermark_on_a_frame_with_watermark_rows(spark: SparkSession, stream: Loader, tmp_path: Path) -> None:
    frame = stream(first_light(tmp_path / "in"), watermarkRows="true").withWatermark("ts", "5 seconds")
    told = "watermarkRows = true without with_exact_watermark"
    with fails_with(told, "read_stream(spark)", "call with_exact_watermark right after load()"):
        available_now(spark, windows(frame), tmp_path / "cp")


def test_the_format_that_from_source_makes_without_from_source(spark: SparkSession, tmp_path: Path) -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("5 seconds").with_timestamp_assigner("ts")
    source = FileSource(str(first_light(tmp_path / "in")), bounded=True)
    assert from_source(spark, source, strategy, "half").columns == ["ts", "k", "s"]
    assert spark.read.format("aligned_source_half").load().count() == 3
    with fails_with("the frame has no exact watermark", "a Source of your own with from_source"):
        available_now(spark, spark.readStream.format("aligned_source_half").load(), tmp_path / "cp")


STEPS: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "where": (lambda df: df.where("k is not null"), "this one has Filter on it"),
    "dropna": (lambda df: df.dropna(), "this one has Filter on it"),
    "explode": (lambda df: df.select("ts", F.explode(F.array("k"))), "this one has Generate, Project on it"),
    "join": (lambda df: df.join(df.sparkSession.range(3), F.col("id") == 1), "this one has Join on it"),
    "from_json and filter": (
        lambda df: df.withColumn("j", F.from_json("k", "a int")).where("j.a > 0"),
        "this one has Project, Filter on it",
    ),
    "select": (lambda df: df.select("ts"), "this one has Project on it"),
    "withWatermark": (lambda df: df.withWatermark("ts", "5 seconds"), "this one has EventTimeWatermark on it"),
    "with_exact_watermark": (with_exact_watermark, "carries the exact watermark already"),
}


@pytest.mark.parametrize("rows", ["true", "false"])
def test_something_before_with_exact_watermark(stream: Loader, tmp_path: Path, rows: str) -> None:
    frame = stream(first_light(tmp_path), watermarkRows=rows)
    for step, told in STEPS.values():
        before = step(frame)
        with pytest.raises(OptionError, match=told) as error:
            with_exact_watermark(before)
        assert "Call it right after load()" in str(error.value) or "leave the call out" in str(error.value)


def test_with_exact_watermark_after_read_stream(spark: SparkSession, tmp_path: Path) -> None:
    frame = read_stream(spark).format("aligned_files").options(**OPTIONS).load(str(first_light(tmp_path)))
    with pytest.raises(OptionError, match="carries the exact watermark already"):
        with_exact_watermark(frame)


def test_with_exact_watermark_on_what_has_none(spark: SparkSession, batch: Loader, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="needs a streaming frame"):
        with_exact_watermark(batch(first_light(tmp_path)))
    with pytest.raises(OptionError, match=r"needs a frame of aligned_datagen, .* this one is of rate"):
        with_exact_watermark(spark.readStream.format("rate").load())
    files = spark.readStream.schema("ts timestamp").parquet(str(tmp_path / "a"))
    with pytest.raises(OptionError, match="needs a frame of aligned_datagen, aligned_delta, aligned_files"):
        with_exact_watermark(files)


def test_with_exact_watermark_needs_no_option_and_finds_the_column(stream: Loader, tmp_path: Path) -> None:
    for rows in ("true", "TRUE", "false"):
        frame = with_exact_watermark(stream(first_light(tmp_path), watermarkRows=rows), "TS")
        assert frame.columns == ["ts", "k", "s"]
    with pytest.raises(SchemaError, match="event_time = 'when': the event time of this frame is 'ts'; leave it out"):
        with_exact_watermark(stream(tmp_path), "when")


@pytest.mark.soak
def test_drop_duplicates_within_watermark(spark: SparkSession, exact: Loader, tmp_path: Path) -> None:
    # Each record is in both logs, four seconds apart; one log is read long before the other.
    times = T0 + np.arange(400) * SECOND
    for split, later, first in (("a", 0, 0), ("b", 4, 30)):
        ids = pa.array(range(first, 400))
        write_file(tmp_path / "in" / split / "f.parquet", times[first:] + later * SECOND, row_group_size=20, id=ids)
    frame = exact(tmp_path / "in", maxOutOfOrderness="5 seconds", maxRowsPerTrigger=150, bounded="true")
    run = available_now(spark, frame.dropDuplicatesWithinWatermark(["id"]).select("id"), tmp_path / "cp")
    assert run.rows == [(i,) for i in range(400)]
    assert 0 < max(sum(o["numRowsTotal"] for o in p["stateOperators"]) for p in run.progress) < 200
    assert state_rows(run) == 0


def test_a_schema_before_with_exact_watermark(spark: SparkSession, logs: Path, tmp_path: Path) -> None:
    # Some columns, in another order, of another type, and such as Spark would not let be null.
    schema = StructType().add("s", StringType()).add("ts", TimestampNTZType(), False)
    plain = spark.readStream.schema(schema).format("aligned_files").options(**OPTIONS).load(str(logs))
    frame = with_exact_watermark(plain)
    assert plain.columns == frame.columns == ["s", "ts"]
    assert available_now(spark, windows(frame), tmp_path / "cp").rows == naive_windows(LOGS)


def test_a_schema_without_the_event_time(spark: SparkSession, logs: Path, tmp_path: Path) -> None:
    plain = spark.readStream.schema("s string").format("aligned_files").options(**OPTIONS).load(str(logs))
    # Nothing needs it there.
    assert len(available_now(spark, plain, tmp_path / "cp").rows) == sum(map(len, LOGS.values()))
    with pytest.raises(SchemaError, match="the schema has no column 'ts', which is the event time: add it"):
        with_exact_watermark(plain)


def test_a_schema_of_a_text_that_is_the_event_time(spark: SparkSession, tmp_path: Path) -> None:
    texts = ["2023-11-14T22:14:00Z", "2023-11-14T22:14:01Z"]
    write_table(tmp_path / "in" / "a" / "f.parquet", pa.table({"t": texts, "s": ["x", "y"]}))
    options = {"eventTimeColumn": "T", "bounded": "true", "timeZone": "UTC"}
    plain = spark.readStream.schema("t string").format("aligned_files").options(**options).load(str(tmp_path / "in"))
    frame = with_exact_watermark(plain)
    assert frame.columns == ["t", "event_time"]
    run = available_now(spark, frame.select("t", F.unix_micros("event_time")), tmp_path / "cp")
    assert run.rows == [(texts[0], T0), (texts[1], T0 + SECOND)]


def test_event_times_before_1970_close_no_window_and_are_in_none(
    spark: SparkSession, exact: Loader, tmp_path: Path
) -> None:
    early = np.arange(-300, 300, 5) * SECOND
    write_file(tmp_path / "in" / "a" / "f.parquet", early)
    dropped = exact(tmp_path / "in", invalidTimestamp="drop", bounded="true", maxRowsPerTrigger="50")
    run = available_now(spark, windows(dropped), tmp_path / "drop")
    assert run.rows == naive_windows({"a": early[early >= 0]})


# ---- the column keeps its name ---------------------------------------------------------------------------------------


def test_the_event_time_is_the_users_own_column_and_no_second_one_travels(stream: Loader, tmp_path: Path) -> None:
    naive = {"Ts": pa.array([T0], pa.timestamp("us")), "t": ["2023-11-14"], "e": [{"at": T0}]}
    write_table(tmp_path / "a" / "f.parquet", pa.table(naive))
    utc = {"timeZone": "UTC"}
    given: list[tuple[dict[str, str], list[str]]] = [
        ({"eventTimeColumn": "tS"}, ["Ts", "t", "e"]),
        ({"eventTimeColumn": "ts", "eventTimeAs": "TS"}, ["Ts", "t", "e"]),
        ({"eventTimeColumn": "ts", "eventTimeAs": "at"}, ["Ts", "t", "e", "at"]),
        ({"eventTimeColumn": "T"}, ["Ts", "t", "e", "event_time"]),
        ({"eventTimeColumn": "E.AT", "timestampUnit": "us", "eventTimeAs": "at"}, ["Ts", "t", "e", "at"]),
    ]
    for options, columns in given:
        for frame in (stream(tmp_path, **options, **utc), with_exact_watermark(stream(tmp_path, **options, **utc))):
            assert frame.columns == columns
    assert stream(tmp_path, **utc).schema["Ts"].dataType == TimestampType()
    with fails_with("has a column 't', which is also the name of the column with the event time"):
        stream(tmp_path, eventTimeAs="T", **utc)


def started(frame: DataFrame) -> None:
    if frame.isStreaming:
        frame.writeStream.format("memory").queryName("no_zone").trigger(availableNow=True).start().awaitTermination(60)
    else:
        frame.collect()


@pytest.mark.parametrize("column", one_in(2, ["ts", "t"]))
def test_a_zone_that_nobody_has_said_is_not_guessed(spark: SparkSession, tmp_path: Path, column: str) -> None:
    write_table(tmp_path / "a" / "f.parquet", pa.table({"ts": pa.array([T0], pa.timestamp("us")), "t": ["2023-11-14"]}))
    for reader in (spark.readStream, spark.read):
        with fails_with("option timeZone is missing", "or load with read_stream"):
            reader.format("aligned_files").option("eventTimeColumn", column).load(str(tmp_path))
        # With a schema of the user's Spark does not call for that of the source.
        with fails_with("option timeZone is missing", "or load with read_stream"):
            frame = reader.schema("ts timestamp, t string").format("aligned_files").option("eventTimeColumn", column)
            started(frame.load(str(tmp_path)))


def test_connectors_and_names_are_found_where_a_user_looks_for_them() -> None:
    from streaming_source.connectors import DataGeneratorSource, FileSource, KafkaSource

    assert (DataGeneratorSource.__name__, FileSource.__name__) == ("DataGeneratorSource", "FileSource")
    assert KafkaSource.__module__.startswith("streaming_source.connectors.kafka")
    assert {"read_stream", "from_source", "WatermarkStrategy", "NO_TIMESTAMP"} <= {*dir(streaming_source)}
    assert streaming_source.MAX_WATERMARK == 2**63 - 1


# ---- columns of the data that are called as metadata ---------------------------------------------------------------


@pytest.mark.parametrize("value", one_in(2, [1, True]))
def test_columns_of_the_data_that_are_called_as_metadata_are_the_users(
    spark: SparkSession, tmp_path: Path, value: object
) -> None:
    names = ("_late", "_split", "_position", "_source_timestamp")
    columns = {name: pa.array([value] * 3) for name in names}
    write_file(tmp_path / "in" / "a" / "f.parquet", T0 + np.arange(3) * SECOND, **columns)
    reader = read_stream(spark).format("aligned_files").options(**OPTIONS)
    run = available_now(spark, reader.name("mine").load(str(tmp_path / "in")).select(*names), tmp_path / "cp")
    assert run.rows == [(value,) * 4] * 3
    assert run.progress[0]["observedMetrics"]["mine"].keys() == {"rows", "invalid", "latest"}
    # The scan behind `advise` has its own columns of these names.
    (split,) = advise(reader.load(str(tmp_path / "in"))).splits
    assert (split.split_id, split.rows) == ("a", 3)


# ---- a second watermark ----------------------------------------------------------------------------------------------


def test_a_second_watermark_is_refused_with_the_fix_or_seen_where_spark_takes_it(
    spark: SparkSession, logs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def frame() -> DataFrame:
        return read_stream(spark).format("aligned_files").options(**OPTIONS).load(str(logs))

    def second() -> DataFrame:
        return windows(frame().where("k is not null").withWatermark("ts", "5 seconds"))

    with pytest.raises(OptionError, match=r"withWatermark\('ts', '5 seconds'\).*give the delay as maxOutOfOrderness"):
        frame().withWatermark("ts", "5 seconds")
    refused = Run(spark, second(), tmp_path / "refused", trigger={"availableNow": True})
    with fails_with("Redefining watermark is disallowed"):
        refused.query.awaitTermination()
    explained = " ".join(str(explain(refused.query)).split())
    assert "Advice (query): Remove each withWatermark on a frame of read_stream" in explained
    assert "with false the last windows never close" in explained

    spark.conf.set(ALLOW_MULTIPLE, "false")
    try:
        with caplog.at_level("WARNING", "streaming_source"):
            taken = available_now(spark, second(), tmp_path / "taken")
        right = available_now(spark, windows(frame()), tmp_path / "right")
    finally:
        spark.conf.unset(ALLOW_MULTIPLE)
    assert "leave the setting at true" in caplog.text
    # What is lost is not lost in silence.
    assert len(taken.rows) < len(naive_windows(LOGS))
    (advice,) = explain(taken.query).advice
    assert "Spark's own watermark is at" in advice.text
    assert "Remove each withWatermark" in advice.text
    assert "every window is closed" not in str(explain(taken.query))
    # Its checkpoint alone shows it, too.
    assert explain_checkpoint(str(tmp_path / "taken")).advice == (advice,)
    assert explain_checkpoint(str(tmp_path / "right")).advice == ()
    listener = AlignmentListener()
    for _ in range(2):
        listener.onQueryProgress(SimpleNamespace(progress=taken.query.recentProgress[-1]))  # type: ignore[arg-type]
    assert [record.levelname for record in caplog.records if advice.text in record.getMessage()] == ["WARNING"]
    assert right.rows == naive_windows(LOGS)
    assert explain(right.query).advice == ()
