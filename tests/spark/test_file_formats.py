"""Each format of files under Spark: the windows of a stream over skewed splits are those of the batch result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import streaming_source
from alignment import WatermarkStrategy
from streaming_source.connectors.files import CsvFormat, FileSource
from tests.data_files.samples import SAMPLES, SCHEMA, Sample
from tests.examples import one_in
from tests.spark.answers import Windows
from tests.spark.support import MINUTE, SKEWS, Logs, Run, available_now
from tests.spark.twin import Twin, frame

CHOSEN = ("parquet", "arrow file", "arrow stream", "orc", "csv", "csv gzip", "json", "text")
FORMATS = [sample for sample in SAMPLES if sample.id in CHOSEN]
DDL = "t timestamp, n bigint, s string"
LOGS = SKEWS["one-ahead"]


def write(root: Path, logs: Logs, sample: Sample) -> None:
    for split, times in logs.items():
        for number, part in enumerate(np.array_split(times, 3)):
            path = root / split / f"part-{number}{sample.ending}"
            path.parent.mkdir(parents=True, exist_ok=True)
            sample.write(path, [(t, i, split) for i, t in enumerate(part.tolist())], 50)


def counted(frame: DataFrame) -> DataFrame:
    start = F.unix_micros("window.start").alias("start")
    event_time = "event_time" if "event_time" in frame.columns else "t"
    return frame.groupBy(F.window(event_time, "1 minute")).count().select(start, "count")


def naive(logs: Logs) -> list[tuple[int, int]]:
    starts, counts = np.unique(np.concatenate(list(logs.values())) // MINUTE * MINUTE, return_counts=True)
    return list(zip(starts.tolist(), counts.tolist(), strict=True))


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.parametrize("sample", FORMATS, ids=lambda sample: sample.id)
def test_windows_of_a_stream_are_those_of_the_batch_result_on_spark(
    spark: SparkSession, sample: Sample, tmp_path: Path
) -> None:
    options = written(tmp_path / "in", sample)
    batch = spark.read.format("aligned_files").options(**options).load(str(tmp_path / "in"))
    assert sorted(map(tuple, counted(batch).collect())) == naive(LOGS)
    reader = streaming_source.read_stream(spark).format("aligned_files").options(**options, **LIMITS)
    run = available_now(spark, counted(reader.load(str(tmp_path / "in"))), tmp_path / "cp")
    assert run.rows == naive(LOGS)


@pytest.mark.parametrize("split_by", one_in(2, ["directory", "file"]))
@pytest.mark.parametrize("sample", FORMATS, ids=lambda sample: sample.id)
def test_windows_of_a_stream_are_those_of_all_records(sample: Sample, split_by: str, tmp_path: Path) -> None:
    options = written(tmp_path / "in", sample) | {"splitBy": split_by}
    twin = Twin(tmp_path / "cp", frame(tmp_path / "in", **options, **LIMITS), answer=Windows(MINUTE, None)).run()
    assert [(start, count) for start, _, _, count in twin.rows] == naive(LOGS)
    assert len([batch for batch in twin.batches if len(batch.read[0])]) >= 3


LIMITS = {"maxOutOfOrderness": "5 seconds", "bounded": "true", "maxRowsPerTrigger": "400"}


def written(root: Path, sample: Sample) -> dict[str, str]:
    """The options that read the files of a sample, once they are there."""
    write(root, LOGS, sample)
    options = {**sample.options, "eventTimeColumn": sample.time, "splitBy": "directory", "timeZone": "UTC"}
    return {**options, "dataSchema": DDL} if sample.needs_schema else options


@pytest.mark.spark
def test_a_source_in_python_may_bring_its_format_and_schema(spark: SparkSession, tmp_path: Path) -> None:
    sample = next(sample for sample in SAMPLES if sample.id == "csv without header, by semicolon, with CRLF")
    write(tmp_path / "in", LOGS, sample)
    source = FileSource(
        str(tmp_path / "in"), bounded=True, format=CsvFormat(sep=";"), data_schema=SCHEMA, columns=("t",)
    )
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("5 seconds").with_timestamp_assigner("t")
    frame = streaming_source.from_source(spark, source, strategy, "csv_in_python")
    assert frame.columns == ["t"]
    run = Run(spark, counted(frame), tmp_path / "cp", trigger={"availableNow": True}).finished()
    assert run.rows == naive(LOGS)
