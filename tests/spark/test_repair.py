"""Late records repair their windows: once quiet, the target is the batch over all records."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from streaming_source import repair
from streaming_source.exceptions import OptionError
from tests.spark.conftest import Loader
from tests.spark.repaired_query import FAR_S, Folders, Postgres, Query, Sqlite, Target, by_minute, by_session
from tests.spark.support import SECOND, T0

pytestmark = pytest.mark.spark

WRITERS = ["sqlite", *(pytest.param(name, marks=pytest.mark.soak) for name in ("postgres", "folders"))]


@pytest.fixture(params=WRITERS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    with ExitStack() as stack:
        if request.param == "postgres":
            pytest.importorskip("psycopg")
            if shutil.which("pg_ctl") is None or os.getuid() != 0:
                pytest.skip("no server of PostgreSQL, or no rights to start one")
            # Its user must reach the folder.
            yield stack.enter_context(Postgres(Path(stack.enter_context(TemporaryDirectory(dir="/var/tmp")))))
        else:
            yield (Sqlite if request.param == "sqlite" else Folders)(tmp_path)


def sliding(frame: DataFrame) -> DataFrame:
    spans = F.window("ts", "1 minute", "20 seconds", "5 seconds")
    return frame.where("v != 3").groupBy(spans, "key").agg(F.count("*").alias("n"), F.sum("v").alias("v"))


def test_windows_are_those_of_the_batch_once_their_late_records_are_repaired_whatever_fails(
    spark: SparkSession, tmp_path: Path, target: Target
) -> None:
    by_folder = isinstance(target, Folders)
    query = Query(spark, tmp_path, target, keys=() if by_folder else ("key",))
    query.put_late()
    assert target.rows() != query.expected

    for fails_at in ("before", "within", "after"):

        def fails(step: str, fails_at: str = fails_at) -> None:
            if step == fails_at:
                raise RuntimeError(f"killed {fails_at} it has written")

        with pytest.raises(StreamingQueryException, match=f"killed {fails_at} it has written"):
            query.repair(fails)
    assert target.rows() == query.expected
    query.repair()
    assert target.rows() == query.expected
    # The same again, under the same name; the windows of the late records alone.
    assert len(query.repairs) == 3
    assert all(again == query.repairs[0] for again in query.repairs)
    repaired, rows = query.repairs[0]
    starts = [0, 0, 60, 60, 240, 240] if by_folder else [0, 60, 60, 240]
    assert [(row[0] - T0) // SECOND for row in rows] == starts
    assert [[(at.timestamp() - T0 / SECOND) for at in span] for span in repaired.windows] == [[0, 120], [240, 300]]
    query.repair()
    assert len(query.repairs) == 3


@pytest.mark.soak
@pytest.mark.parametrize("keys", [["key"], []])
def test_sliding_windows_are_repaired_as_a_whole_with_keys_and_without(
    spark: SparkSession, tmp_path: Path, keys: list[str]
) -> None:
    query = Query(spark, tmp_path, compute=sliding)
    query.put_late()
    query.repair(slide="20 seconds", start="5 seconds", keys=keys)
    assert query.target.rows() == query.expected
    ((_, rows),) = query.repairs
    # Each late record is in three windows, two of them in the same: of their keys, or of both.
    assert len(rows) == (12 if keys else 18)


@pytest.mark.soak
@pytest.mark.parametrize(
    "given",
    [
        {"window": "30 seconds", "slide": "20 seconds", "start": "5 seconds"},
        {"window": "2 minutes", "slide": "20 seconds", "start": "5 seconds"},
        {"window": "1 minute", "start": "5 seconds"},
        {"window": "1 minute", "slide": "20 seconds"},
    ],
)
def test_windows_that_are_not_those_of_the_function_are_refused_and_none_is_written(
    spark: SparkSession, tmp_path: Path, given: dict[str, str]
) -> None:
    query = Query(spark, tmp_path, compute=sliding)
    query.put_late()
    before = query.target.rows()
    with pytest.raises(StreamingQueryException, match=f"window = '{given['window']}'.*windows of the function are oth"):
        query.repair(**given)
    assert query.target.rows() == before


@pytest.mark.soak
def test_a_micro_batch_that_was_planned_before_joins_could_be_repaired_is_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    def fails(step: str) -> None:
        raise RuntimeError("killed")

    query = Query(spark, tmp_path)
    query.put_late()
    with pytest.raises(StreamingQueryException, match="killed"):
        query.repair(fails)
    (planned,) = (tmp_path / "repairs/offsets").glob("[0-9]*")
    *head, offset = planned.read_text().splitlines()
    of_query = json.loads(offset)
    (of_query["note"]["offset"],) = of_query["note"].pop("offsets")
    planned.write_text("\n".join([*head, json.dumps(of_query)]))
    planned.with_name(f".{planned.name}.crc").unlink()
    query.repair()
    assert query.target.rows() == query.expected


@pytest.mark.soak
def test_sessions_that_late_records_join_are_repaired(spark: SparkSession, tmp_path: Path) -> None:
    query = Query(spark, tmp_path, compute=by_session)
    query.put_late()
    wrong = query.target.rows()
    sessions = {"window": None, "gap": "15 seconds", "longest": "10 minutes"}
    query.repair(**sessions)
    assert query.target.rows() == query.expected
    # One session has taken the place of two.
    assert len(query.expected) < len(wrong)


@pytest.mark.soak
@pytest.mark.parametrize("gap", ["14 seconds", "1 second"])
def test_a_gap_that_is_less_than_the_functions_is_refused_and_nothing_is_written(
    spark: SparkSession, tmp_path: Path, gap: str
) -> None:
    query = Query(spark, tmp_path, compute=by_session)
    query.put_late()
    before = query.target.rows()
    with pytest.raises(StreamingQueryException, match=f"gap = '{gap}', and the function's session_window .* of 15 sec"):
        query.repair(window=None, gap=gap, longest="10 minutes")
    assert query.target.rows() == before


@pytest.mark.soak
def test_a_session_that_the_query_may_have_open_is_not_written(spark: SparkSession, tmp_path: Path) -> None:
    query = Query(spark, tmp_path, compute=by_session)
    query.put("a", range(0, 300, 10))
    query.run()
    # The late record is in a session with records on both sides of the watermark.
    query.put("b", [285])
    query.put("z", [292])
    query.run()
    query.run()
    before = query.target.rows()
    with pytest.raises(StreamingQueryException, match="longest = '1 second', and a session goes from 2023"):
        query.repair(window=None, gap="15 seconds", longest="1 second")
    assert query.target.rows() == before


@pytest.mark.soak
def test_a_join_of_streams_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    query = Query(spark, tmp_path)
    query.put_late()
    other = query.frame.select(F.col("ts").alias("other_ts"), F.col("key").alias("other_key"))
    query.compute = lambda frame: by_minute(frame.join(other, (F.col("key") == other.other_key)))
    with pytest.raises(StreamingQueryException, match=r"joins its frame with another stream.*let it join with a table"):
        query.repair()


@pytest.mark.soak
def test_late_records_that_are_too_old_repair_nothing(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(spark, tmp_path)
    query.put_late()
    query.repair(within=f"{FAR_S - 250} seconds")
    ((_, rows),) = query.repairs
    assert [(row[0] - T0) // SECOND for row in rows] == [240]
    assert "3 late records repair nothing: they are further than within" in caplog.text


def test_what_cannot_be_repaired_is_refused_by_name(exact: Loader, tmp_path: Path) -> None:
    query = Query.__new__(Query)
    query.logs = tmp_path
    query.put("a", [0])
    frame, write = exact(tmp_path, late="route", lateLocation="/log"), (lambda windows, repair: None)
    with pytest.raises(OptionError, match=r"repair: keys \['user'\] are no columns of the frame"):
        repair(frame, "/cp", by_minute, write, window="1 minute", keys=["user"])
    with pytest.raises(OptionError, match="repair: slide = '1 month' is ambiguous: a month has no fixed length"):
        repair(frame, "/cp", by_minute, write, window="1 day", slide="1 month")
    for given in ({}, {"gap": "1 minute"}, {"window": "1 minute", "gap": "1 minute", "longest": "1 hour"}):
        with pytest.raises(OptionError, match=r"repair: give window, .* or gap and longest for sessions"):
            repair(frame, "/cp", by_minute, write, **given)
    with pytest.raises(OptionError, match=r"late = 'keep'.*give it late = route"):
        repair(exact(tmp_path), "/cp", by_minute, write, window="1 minute")
    with pytest.raises(OptionError, match=r"repair needs a frame as load\(\) gave it"):
        repair(frame.where("v > 0"), "/cp", by_minute, write, window="1 minute")
