"""Directories beside the data: where groups meet (`alignmentLocation`) and late records are written down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from alignment.groups import SourceReport
from streaming_source import late_records, read_stream
from streaming_source.coordinator.group_location import member_from_json
from tests.docs.pages import ROOT
from tests.files.stores import SECRET, Store, open_store, s3_store
from tests.spark.support import SECOND, T0, Run, available_now, end_offset, eventually, write_file

pytestmark = pytest.mark.spark

DRIFT = 60 * SECOND


def login() -> dict[str, str]:
    """The keys of the store, by option `credentials`."""
    return {"storage.access_key": "somebody", "storage.secret_key": SECRET}


def reports(location: Path) -> list[SourceReport]:
    """What is in the directory of a group."""
    texts = [file.read_text() for file in location.glob("*/*.json") if not file.name.startswith("_")]
    return [member_from_json(json.loads(text)["member"]).report for text in texts]


_OTHER_APPLICATION = """
import sys
from pyspark.sql import SparkSession
from streaming_source import read_stream

root, location = sys.argv[1:]
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
reader = read_stream(spark).format("aligned_files").options(eventTimeColumn="ts", idleTimeout="none")
reader = reader.options(alignmentGroup="pair", alignmentLocation=location, maxDrift="1 minute", timeZone="UTC")
frame = reader.load(root + "/behind")
writer = frame.writeStream.format("noop").option("checkpointLocation", root + "/cp-behind")
query = writer.trigger(processingTime="0 seconds").start()
print("started", flush=True)
query.awaitTermination()
"""


@pytest.mark.soak
def test_sources_of_two_applications_meet_until_one_of_them_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    location, begin = tmp_path / "groups", T0 - 3600 * SECOND
    write_file(tmp_path / "behind" / "log" / "f.parquet", begin + np.arange(10) * SECOND)
    write_file(tmp_path / "ahead" / "log" / "f.parquet", begin + np.arange(0, 600, 10) * SECOND)
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    with subprocess.Popen(
        [sys.executable, "-c", _OTHER_APPLICATION, str(tmp_path), str(location)],
        env=environment,
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as other:
        try:
            reached = begin + 9 * SECOND - 1
            eventually(lambda: any(one.watermark == reached for one in reports(location)), "it to have read", None)
            reader = read_stream(spark).format("aligned_files").options(eventTimeColumn="ts", maxRowsPerTrigger=5)
            reader = reader.options(alignmentGroup="pair", alignmentLocation=str(location), maxDrift="1 minute")
            frame = reader.load(str(tmp_path / "ahead"))
            run = Run(spark, frame.groupBy().agg(F.count("*")), tmp_path / "cp-ahead", "complete")

            def watermark() -> int:
                return max((end_offset(progress)["watermark"] or 0 for progress in run.progress), default=0)

            eventually(lambda: watermark() > reached, "it to read up to the limit", run.query)
            eventually(lambda: any(one.next_us is not None for one in reports(location)), "it to wait", run.query)
            assert watermark() <= reached + DRIFT
        finally:
            os.killpg(other.pid, 9)
    eventually(lambda: watermark() == begin + 590 * SECOND - 1, "it to go on", run.query)


# ---- in any store, with keys that a function gives -------------------------------------------------------------------


def load(spark: SparkSession, store: Store, below: str, **options: str) -> DataFrame:
    given = {name: value for name, value in store.options.items() if name not in login()}
    if given:
        given["credentials"] = "tests.spark.test_places:login"
    reader = read_stream(spark).format("aligned_files").options(**given, eventTimeColumn="t", timeZone="UTC", **options)
    return reader.load(f"{store.uri}/{below}")


@pytest.mark.parametrize("kind", ["local", pytest.param("s3", marks=pytest.mark.soak)])
def test_the_sources_of_a_query_meet_in_a_directory(
    spark: SparkSession, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    store = open_store(kind, tmp_path, request)
    store.write("behind/log/f.parquet", [float(s) for s in range(10)])
    store.write("ahead/log/f.parquet", [3600.0 + s for s in range(10)])
    options = {"alignmentGroup": "pair", "alignmentLocation": f"{store.uri}/groups", "maxDrift": "2 seconds"}
    frames = [load(spark, store, name, **options) for name in ("behind", "ahead")]
    run = available_now(spark, frames[0].union(frames[1]), tmp_path / "cp")
    assert len(run.rows) == 20
    # The second source is an hour ahead, and waits for the first one.
    assert end_offset(run.progress[0], 1)["watermark"] < 3600 * SECOND
    # They hold none back that come later, also where it cannot be seen that their processes have ended.
    files = [name for name in store.names("groups") if name.endswith(".json")]
    texts = [store.filesystem.open_input_stream(f"{store.path}/{name}").read() for name in files]
    assert [member_from_json(json.loads(text)["member"]).report.watermark for text in texts] == [None] * len(files)


@pytest.mark.soak
def test_late_records_are_written_down_and_read_in_an_object_store(
    spark: SparkSession, s3_endpoint: str, tmp_path: Path
) -> None:
    store = s3_store(s3_endpoint)

    def frame() -> DataFrame:
        return load(spark, store, "in", idleTimeout="1 ms", late="route", lateLocation=f"{store.uri}/late")

    def run(rows: DataFrame, name: str) -> list[tuple[object, ...]]:
        return available_now(spark, rows.select("n"), tmp_path / f"cp-{name}", files=tmp_path / name).rows

    def put(split: str, seconds: range) -> None:
        store.write(f"in/{split}/f.parquet", [float(s) for s in seconds], n=pa.array([*seconds], pa.int64()))

    put("a", range(100, 120))
    run(frame(), "kept")
    put("b", range(90, 130))
    kept = run(frame(), "kept")
    assert len([name for name in store.names("late") if name.endswith(".json")]) == 1
    late = run(late_records(frame(), str(tmp_path / "cp-kept")), "late")
    assert Counter(kept + late) == Counter((n,) for seconds in (range(100, 120), range(90, 130)) for n in seconds)
    assert {n for (n,) in late} >= set(range(90, 119))
    # The query that reads them takes the entry away once it has committed them: with its next run.
    assert run(late_records(frame(), str(tmp_path / "cp-kept")), "late") == late
