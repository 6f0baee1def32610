"""What a user sees of a slip: the last line says what to do, no line is too long, and all of it fits a screen."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyspark.sql.types
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructType, TimestampType

from streaming_source import (
    DataGeneratorSource,
    FieldTimestampAssigner,
    FileSource,
    WatermarkGenerator,
    WatermarkStrategy,
    advise,
    explain,
    from_source,
    late_records,
    read_stream,
    register,
    required_delay,
    with_exact_watermark,
)
from streaming_source.api import Source
from streaming_source.exceptions import ERROR_IN_TEXT
from streaming_source.spark.before_4_2 import IS_BEFORE_4_2
from tests.spark import reports, unindexed
from tests.spark.reading import data_source, read_all
from tests.spark.support import T0, UTC_US, write_table

assert reports  # it lets classes of `unindexed` travel with the query

LONGEST, SCREEN = 160, 24

NO_SPARK: Any = SimpleNamespace(readStream=None, conf={})
"""What is wrong is raised before a session is needed."""

STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("5 seconds").with_timestamp_assigner("ts")
GOOD = pa.table(
    {
        "ts": pa.array([T0], UTC_US),
        "nothing": pa.array([None], UTC_US),
        "n": [1],
        "b": [True],
        "s": ["somewhere"],
    }
)
NAMED = {"name": "aligned_files"}
GENERATOR = WatermarkStrategy.for_generator(WatermarkGenerator).with_timestamp_assigner("ts")


def load(format_name: str, path: str | None = None, **options: Any) -> None:
    read_stream(NO_SPARK).format(format_name).options(**options).load(path)


def files(**options: Any) -> Callable[[], None]:
    return lambda: load("aligned_files", "/data", **{"eventTimeColumn": "ts", **options})


def kafka(**options: Any) -> Callable[[], None]:
    return lambda: load("aligned_kafka", **{"kafka.bootstrap.servers": "broker:9092", "subscribe": "a", **options})


def of_source(*arguments: Any, **keywords: Any) -> Callable[[], Any]:
    return lambda: from_source(*arguments, **keywords)


SLIPS: dict[str, tuple[Callable[[], Any], str]] = {
    # options: names
    "a name is misspelled": (files(maxRowPerTrigger=5), "did you mean maxRowsPerTrigger?"),
    "a name is near none": (files(zzz=1), "Take one of these, or leave it out"),
    "CSV's nanValue": (files(nanValue="-"), "leave it out"),
    "JSON's lineSep": (files(fileFormat="json", lineSep=";"), "leave it out"),
    "Parquet's mergeSchema": (files(mergeSchema=True), "with option dataSchema, or see schemaEvolution"),
    "Auto Loader's format": (files(**{"cloudFiles.format": "json"}), "it is called fileFormat here"),
    "Auto Loader's others": (files(**{"cloudFiles.useNotifications": True}), "leave it out, and see docs/files.md"),
    "Delta's": (files(ignoreChanges=True), "read them with format aligned_delta; of files leave it out"),
    "the checkpoint": (files(checkpointLocation="/cp"), "it is one of writeStream; give it there"),
    "the watermark": (files(watermark="5 seconds"), "it is called maxOutOfOrderness here"),
    "an option of another format": (files(sep=";"), "leave it out, or set fileFormat"),
    # options: values
    "a duration without a unit": (files(maxOutOfOrderness=5), "such as '5 seconds'"),
    "a duration of months": (files(idleTimeout="1 month"), "give it in days"),
    "a duration of nothing": (files(idleTimeout="0 seconds"), "it must be at least 1 microsecond"),
    "a number below the least": (files(maxRowsPerTrigger=0), "must be at least 1"),
    "a number in words": (files(maxRowsPerTrigger="many"), "must be a whole number, like 10000"),
    "yes": (files(bounded="yes"), "must be true or false"),
    "a choice that there is not": (files(splitBy="hour"), "must be one of auto, directory, file"),
    "another one": (files(late="ignore"), "must be one of keep, drop, fail"),
    "a unit that there is not": (files(timestampUnit="minutes"), "must be one of s, ms, us, ns"),
    "a schema that is none": (files(dataSchema="ts"), "write columns as in t timestamp, n bigint"),
    "a list of names": (files(columns=["a", "b"]), "give it as text, such as 'a,b' for two names"),
    "a dictionary": (kafka(subscribe=None, assign={"a": [0]}), "give it as text, as json.dumps writes it"),
    "a time of the day": (files(dataSchema="ts timestamp, t time"), "write columns as in t timestamp, n bigint"),
    "columns twice": (files(columns="a,a"), "must be different names separated by commas, as in a,b"),
    # options: what goes together
    "a unit of no column": (files(eventTimeColumn=None, timestampUnit="ms"), "it is the unit of that column; name it"),
    "a group without a drift": (files(alignmentGroup="a"), "give it as well"),
    "a query's scope without a group": (files(alignmentScope="query", maxDrift="1 minute"), "of the strategy"),
    "reports of none that reports": (files(reportLocation="/reports"), "give indexing = off as well, or leave it out"),
    "a place of no group": (files(alignmentLocation="/groups", maxDrift="1 minute"), "of the strategy"),
    "more at least than at most": (files(maxRowsPerTrigger=1, minRowsPerTrigger=2), "lower it"),
    "half of TLS": (files(gatewayKey="k.pem"), "give both"),
    "the latest first": (files(latestFirst=True), "give a narrower path or pathGlobFilter"),
    "files without an index": (files(indexing="off"), "use auto, which takes them from statistics"),
    "an archive nowhere": (files(cleanSource="archive"), "a directory needs cleanSource = archive"),
    "a limit of files on logs": (files(splitBy="directory", maxFilesPerTrigger=1), "limited by maxRowsPerTrigger"),
    "no event time": (files(eventTimeColumn=None), "with option eventTimeColumn, or give the strategy a timestamp"),
    "no path": (lambda: load("aligned_files", eventTimeColumn="ts"), "as in .load('/data/flights')"),
    "no brokers": (lambda: load("aligned_kafka", subscribe="a"), "give the brokers, as in 'host1:9092,host2:9092'"),
    "no topic": (kafka(subscribe=None), "give exactly one of subscribe, subscribePattern, assign"),
    "two choices of topics": (kafka(assign='{"a": [0]}'), "give exactly one of subscribe, subscribePattern, assign"),
    "offsets that are none": (kafka(startingOffsets="begin"), "must be JSON of topics, partitions and numbers, like"),
    "a setting that is ours": (kafka(**{"kafka.key.deserializer": "x"}), "see option valueFormat"),
    "no end": (lambda: load("aligned_datagen", bounded=True), "give rowsPerSplit"),
    # the reader
    "another format": (lambda: load("parquet", "/data"), "needs register(spark, MySource) first, or from_source"),
    "no format": (
        lambda: read_stream(NO_SPARK).load("/data"),
        "one of aligned_datagen, aligned_delta, aligned_files",
    ),
    "watermark rows": (lambda: read_stream(NO_SPARK).option("watermarkRows", True), "leave it out"),
    "a schema of another type": (lambda: read_stream(NO_SPARK).schema(3), "must be a StructType or text such as"),  # type: ignore[arg-type]
    "a schema where none is": (lambda: load("aligned_datagen", dataSchema="a int"), "and select columns afterwards"),
    "a name with a space": (lambda: read_stream(NO_SPARK).name("my logs"), "of letters, digits and underscores"),
    "a name that is a number": (lambda: read_stream(NO_SPARK).name(3), "of letters, digits and underscores"),  # type: ignore[arg-type]
    "a format that is a number": (lambda: read_stream(NO_SPARK).format(3), "register(spark, MySource) first"),  # type: ignore[arg-type]
    "a key that is a number": (lambda: read_stream(NO_SPARK).option(3, 4), ".option('maxRowsPerTrigger', 10000)"),  # type: ignore[arg-type]
    "a path that is a number": (lambda: load("aligned_files", 3, eventTimeColumn="ts"), "or a list of them"),  # type: ignore[arg-type]
    "no paths": (lambda: load("aligned_files", [], eventTimeColumn="ts"), "or a list of them"),  # type: ignore[arg-type]
    "two paths": (files(PATH="/other"), "is another path; give one of them"),
    "no session": (lambda: read_stream("local[2]"), "as in read_stream(spark)"),  # type: ignore[arg-type]
    # from_source and register
    "reports by a directory with events": (
        of_source(NO_SPARK, unindexed.AskingLogs("/data"), STRATEGY, "a", indexing="off", report_location="/reports"),
        "leave it out, and see gatewayPort",
    ),
    "source and strategy swapped": (of_source(NO_SPARK, STRATEGY, FileSource("/data"), "a"), "as in from_source(spark"),
    "strategy and name swapped": (of_source(NO_SPARK, FileSource("/data"), "a", STRATEGY), "as in from_source(spark"),
    "the session last": (of_source(FileSource("/data"), STRATEGY, "a", NO_SPARK), "as in from_source(spark"),
    "a keyword misspelled": (
        of_source(NO_SPARK, FileSource("/data"), STRATEGY, "a", max_row_per_trigger=5),
        "did you mean max_rows_per_trigger?",
    ),
    "a keyword of the strategy": (
        of_source(NO_SPARK, FileSource("/data"), STRATEGY, "a", maxDrift="1 minute"),
        "is part of the watermark_strategy here; set it there",
    ),
    "no assigner": (
        of_source(NO_SPARK, FileSource("/data"), WatermarkStrategy.for_monotonous_timestamps(), "a"),
        "with option eventTimeColumn, or give the strategy a timestamp assigner",
    ),
    "an object in place of a class": (lambda: register(NO_SPARK, FileSource("/data")), "as in register(spark, "),  # type: ignore[arg-type]
    "a class without a name": (lambda: register(NO_SPARK, type("Own", (Source,), {})), 'write name = "..."'),
    "the name of another": (lambda: register(NO_SPARK, type("Own", (FileSource,), NAMED)), "choose another name"),
    "a class in place of the session": (lambda: register(FileSource), "as in register(spark, "),  # type: ignore[arg-type]
    # arguments of sources
    "a format by its name": (lambda: FileSource("/data", format="csv"), "such as CsvFormat(header=True)"),  # type: ignore[arg-type]
    "a schema as text": (lambda: FileSource("/data", data_schema="ts timestamp"), "as in pa.schema([('ts', "),
    "columns as text": (lambda: FileSource("/data", columns="ts"), "as in ('a', 'b')"),  # type: ignore[arg-type]
    "a truth as text": (lambda: FileSource("/data", bounded="false"), "not str; give it as such"),  # type: ignore[arg-type]
    "a number as text": (lambda: FileSource("/data", max_files_per_trigger="5"), "not str; give it as such"),  # type: ignore[arg-type]
    "no path at all": (lambda: FileSource(None), "give one such as '/data/logs'"),  # type: ignore[arg-type]
    "generated splits as text": (lambda: DataGeneratorSource(splits="4"), "not str; give it as such"),  # type: ignore[arg-type]
    # what takes a frame, a query or a strategy
    "a path in place of a frame": (lambda: with_exact_watermark("/data"), "give it what load() returned"),  # type: ignore[arg-type]
    "a path to advise on": (lambda: advise("/data"), "run streaming-source advise PATH|TOPIC"),  # type: ignore[arg-type]
    "a checkpoint to explain": (lambda: explain("/checkpoint"), "run streaming-source explain CHECKPOINT"),  # type: ignore[arg-type]
    "a duration in place of a strategy": (lambda: required_delay("5 seconds"), "required_delay(WatermarkStrategy."),  # type: ignore[arg-type]
    # the strategy
    "an assigner of another type": (lambda: STRATEGY.with_timestamp_assigner(3), "or a function of a batch"),  # type: ignore[arg-type]
    "a unit beside an assigner": (
        lambda: STRATEGY.with_timestamp_assigner(FieldTimestampAssigner("ts"), unit="ms"),
        "leave unit out",
    ),
    "a function of one argument": (
        lambda: STRATEGY.with_timestamp_assigner(lambda batch: batch["ts"]),  # type: ignore[arg-type, misc]
        "lambda batch, source_timestamps: batch['ts']",
    ),
    "a number of seconds": (lambda: STRATEGY.with_idleness(5), "or as a datetime.timedelta"),  # type: ignore[arg-type]
    "no group": (lambda: STRATEGY.with_watermark_alignment("", "1 hour"), "must be a name that is not empty"),
    "a generator of all splits": (lambda: STRATEGY.for_generator(object()), "each split needs one of its own"),  # type: ignore[arg-type]
    "a delay that is not known": (lambda: required_delay(GENERATOR), "use the exact watermark"),
}


OURS = re.compile(f"{ERROR_IN_TEXT}|^TypeError: ")
"""Where a sentence of the library begins; Spark may have a prefix before it."""
BELOW = (" SQLSTATE: ", "\tat ") if IS_BEFORE_4_2 else (" SQLSTATE: ",)
"""Beginnings of what Spark adds below: a number and the plan of the query; before 4.2 the calls within the JVM, too."""


@pytest.fixture(autouse=True)
def _as_users_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alignment.exceptions.WIDTH", 110)
    monkeypatch.setattr("streaming_source.spark.registration.register_content", lambda *_: None)


def seen(slip: Callable[[], Any]) -> tuple[list[str], list[str]]:
    """What stands below the user's own lines; and what of that the library says, to its last line."""
    try:
        slip()
    except Exception as error:
        lines = "".join(traceback.format_exception_only(error)).splitlines()
        if isinstance(error, PySparkException):
            end = next((n for n, line in enumerate(lines) if line.startswith(BELOW)), len(lines))
            lines = "\n".join(lines[:end]).rstrip().splitlines()
        at, begin = max((n, found.start()) for n, line in enumerate(lines) if (found := OURS.search(line)))
        return lines, [lines[at][begin:], *lines[at + 1 :]]
    return ["it was taken without a word"], ["it was taken without a word"]


def unclear(slips: Mapping[str, tuple[Callable[[], Any], str]]) -> str:
    """Those whose message is not as it should be, with the message; for a user to read it as well."""
    found = []
    # Half of the time is Spark's waiting for itself. More at once would start more processes than two cores start in
    # the time that Spark gives a worker.
    with ThreadPoolExecutor(2) as several:
        told = several.map(seen, [slip for slip, _ in slips.values()])
    for (what, (_, fix)), (lines, said) in zip(slips.items(), told, strict=True):
        longest = max(map(len, said))
        if fix not in said[-1] or longest > LONGEST or len(lines) > SCREEN:
            why = f"{fix!r} must be in the last line; at most {longest} characters a line, {len(lines)} lines"
            found.append("\n".join([f"--- {what}: {why}", *lines]))
    return "\n".join(found)


def test_the_last_line_of_each_slip_says_what_to_do() -> None:
    assert len(SLIPS) >= 60
    assert not unclear(SLIPS)


def folder(path: Path, file_name: str, content: str = "") -> Path:
    (path / "a").mkdir(parents=True)
    (path / "a" / file_name).write_text(content)
    return path


def test_so_does_that_of_a_slip_in_the_data(tmp_path: Path) -> None:
    def opened(path: Path, **options: Any) -> Callable[[], Any]:
        return lambda: data_source(path, **{"eventTimeColumn": "ts", **options}).schema()

    def read(path: Path, **options: Any) -> Callable[[], Any]:
        return lambda: read_all(path, **{"eventTimeColumn": "ts", **options})

    good, other = tmp_path / "good", StructType().add("ts", TimestampType()).add("x", LongType())
    write_table(good / "a" / "1.parquet", GOOD)
    csv = folder(tmp_path / "csv", "1.csv", "ts,n\n2024-01-01T00:00:00Z,1\n")
    slips = {
        "an empty directory": (
            opened(folder(tmp_path / "empty", "_unfinished")),
            "add one, or give readStream a schema",
        ),
        "another column": (opened(good, eventTimeColumn="tss"), "did you mean 'ts'?"),
        "a number without a unit": (opened(good, eventTimeColumn="n"), "one of s, ms, us, ns"),
        "a truth as a time": (opened(good, eventTimeColumn="b"), "ISO-8601 text, or numbers since the epoch"),
        "a header": (read(csv, fileFormat="csv", dataSchema="ts timestamp, n bigint"), "set option header = true"),
        "a header as text": (read(csv, fileFormat="csv", dataSchema="ts string, n string"), "set option header = true"),
        "a schema with another column": (read(good, schema=other), "leave them out of the schema"),
    }
    assert not unclear(slips)


@pytest.mark.spark
def test_so_does_that_of_a_slip_which_spark_finds(spark: SparkSession, tmp_path: Path) -> None:
    def plain(path: str, **options: Any) -> DataFrame:
        return spark.readStream.format("aligned_files").options(**{"eventTimeColumn": "ts", **options}).load(path)

    def exact(path: str, **options: Any) -> DataFrame:
        return read_stream(spark).format("aligned_files").options(**{"eventTimeColumn": "ts", **options}).load(path)

    def run(frame: DataFrame) -> None:
        checkpoint = str(tmp_path / f"checkpoint-{uuid4().hex}")
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        # Before 4.2 a run is one micro-batch, which has no records where a busy machine has found none yet.
        query = (writer if IS_BEFORE_4_2 else writer.trigger(availableNow=True)).start()
        query.awaitTermination(120)
        query.stop()

    def numbers() -> WatermarkStrategy:
        return STRATEGY.with_timestamp_assigner(lambda batch, source_timestamps: batch["n"])

    write_table(tmp_path / "good" / "a" / "1.parquet", GOOD)
    good = str(tmp_path / "good")
    for name in ("broken", "other"):
        write_table(tmp_path / name / "a" / "1.parquet", GOOD)
    corrupt = plain(str(tmp_path / "broken"))
    (tmp_path / "broken" / "a" / "1.parquet").write_bytes(b"no Parquet")
    kept = from_source(spark, FileSource(good), STRATEGY, "one_name")
    unindexed.write_logs(tmp_path / "logs", {"a": np.arange(T0, T0 + 10)})
    into_main = from_source(spark, unindexed.MainOutputLogs(str(tmp_path / "logs")), STRATEGY, "into_main")
    day = GOOD.append_column("t", pa.array([1], pa.time64("us"))).append_column(
        "wide", pa.array([1], pa.decimal256(50))
    )
    write_table(tmp_path / "delta" / "part=a" / "1.parquet", GOOD)
    (tmp_path / "delta" / "_delta_log").mkdir()
    write_table(tmp_path / "day" / "a" / "1.parquet", day.drop(["wide"]))
    write_table(tmp_path / "wide" / "a" / "1.parquet", day.drop(["t"]))
    # Spark has a type for times of the day since 4.1.
    no_type = "" if hasattr(pyspark.sql.types, "TimeType") else "or write it in another type"
    slips: dict[str, tuple[Callable[[], Any], str]] = {
        "a Delta table": (lambda: exact(str(tmp_path / "delta")), "or give a path without tables"),
        "the same, plainly": (lambda: plain(str(tmp_path / "delta")), "or give a path without tables"),
        "the same in a batch": (
            lambda: spark.read.format("aligned_files").option("eventTimeColumn", "ts").load(str(tmp_path / "delta")),
            "or give a path without tables",
        ),
        "a time of the day": (lambda: exact(str(tmp_path / "day")), no_type or "or leave the column out"),
        "its column as event time": (
            lambda: exact(str(tmp_path / "day"), eventTimeColumn="t"),
            no_type or "since the epoch",
        ),
        "too many digits": (lambda: exact(str(tmp_path / "wide")), "or write it in another type"),
        "late records of no checkpoint": (
            lambda: late_records(exact(good, late="route", lateLocation=str(tmp_path / "late")), None),  # type: ignore[arg-type]
            "checkpointLocation of the query whose late records these are",
        ),
        "a misspelled option": (lambda: plain(good, eventTimeColum="ts"), "did you mean eventTimeColumn?"),
        "a path that there is not": (lambda: plain(f"{good}s"), "give an existing directory in option path"),
        "the same, exactly": (lambda: exact(f"{good}s"), "give an existing directory in option path"),
        "text that is no time": (lambda: run(exact(good, eventTimeColumn="s")), "drop leaves them out"),
        "a corrupt file": (lambda: run(corrupt), "rename it when it is complete"),
        "records of no split": (lambda: run(into_main), "or on the output that emit_record is given"),
        "a batch of it": (lambda: spark.read.format("aligned_files").load(good), "option eventTimeColumn"),
        "a filter before the watermark": (
            lambda: with_exact_watermark(plain(good).where("n > 0")),
            "and filter, select and join afterwards",
        ),
        "rows of watermarks alone": (lambda: run(plain(good, watermarkRows=True)), "or leave watermarkRows out"),
        "a watermark for a batch": (lambda: with_exact_watermark(spark.range(1)), "leave it out"),
        "a function of numbers": (
            lambda: run(from_source(spark, FileSource(good), numbers(), "of_numbers")),
            "or return timestamps",
        ),
        "two sources of one name": (
            lambda: kept.join(from_source(spark, FileSource(str(tmp_path / "other")), STRATEGY, "one_name"), "ts"),
            "give this source another name",
        ),
    }
    found = unclear(slips)
    print(found)
    assert not found
