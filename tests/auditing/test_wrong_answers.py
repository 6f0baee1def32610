"""What a user tells an audit may be wrong, and a query may not be what it seems: right, unknown or an error."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import streaming_source
from streaming_source.auditing import Audit
from streaming_source.exceptions import CheckpointError, OptionError
from tests.auditing import naive
from tests.auditing.naive import SECOND, Query, Time
from tests.auditing.test_on_spark import MINUTE, Files, Sink, assert_counted, load, logged_batches, run, skewed, write

pytestmark = pytest.mark.spark

QUERY = Query(10_000, MINUTE, MINUTE)
ZONE = "America/New_York"


def audit(root: Path, **given: object) -> Audit:
    return streaming_source.audit(str(root / "checkpoint"), **{"mode": "append", **given})  # type: ignore[arg-type]


def assert_unknown(found: Audit, why: str) -> None:
    assert why in str(found.query.undecided)
    assert (found.dropped, found.emitted, found.open, found.unknown) == (0, 0, 0, found.read)
    assert str(found).startswith(f"What was dropped is unknown of all {found.read:,} rows: ")
    assert "No row was dropped" not in str(found)


# ---- zones -----------------------------------------------------------------------------------------------------------


def local_text(t: Time) -> str | None:
    """A time as a log has it: by the clock on the wall, whole seconds."""
    if t is None:
        return None
    return datetime.fromtimestamp(t // SECOND, ZoneInfo(ZONE)).strftime("%Y-%m-%d %H:%M:%S")


def write_zoneless(root: Path, files: Files, ending: str) -> None:
    for number, (name, times) in enumerate(files.items()):
        path = root / f"{name}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if ending == "json":
            path.write_text("".join(json.dumps({"ts": local_text(t), "k": f"{i}"}) + "\n" for i, t in enumerate(times)))
        else:
            path.write_text("".join(["ts,k\n", *(f"{local_text(t) or ''},{i}\n" for i, t in enumerate(times))]))
        os.utime(path, (1_600_000_000 + number,) * 2)


@pytest.fixture
def in_new_york(spark: SparkSession) -> Iterator[SparkSession]:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", ZONE)
    yield spark
    spark.conf.set("spark.sql.session.timeZone", str(before))


@pytest.mark.parametrize("ending", ["json", pytest.param("csv", marks=pytest.mark.soak)])
def test_whatever_a_user_says_of_times_without_a_zone_no_count_is_wrong(
    in_new_york: SparkSession, tmp_path: Path, ending: str
) -> None:
    whole = {name: [None if t is None else t // SECOND * SECOND for t in ts] for name, ts in skewed(1, parts=2).items()}
    root, sink = tmp_path / "in", Sink("append")
    write_zoneless(root, whole, ending)
    run(load(in_new_york, root, ending, 2, QUERY.delay_ms), QUERY, sink, tmp_path / "checkpoint")
    done = naive.run(QUERY, logged_batches(tmp_path / "checkpoint", root, whole))
    header = {"header": "true"} if ending == "csv" else {}

    for schema in ({}, {"dataSchema": "ts timestamp, k string"}, {"dataSchema": "ts string, k string"}):
        given = {**header, **schema}
        found = audit(tmp_path, time="ts", options={**given, "timeZone": ZONE})
        assert_counted(found, done, sink, QUERY, tmp_path / "checkpoint")
        assert found.dropped > 0
        assert_unknown(audit(tmp_path, time="ts", options=given), "they are 5 hours before those that led to")
        wrong = audit(tmp_path, time="ts", options={**given, "timeZone": "Asia/Kolkata"})
        assert_unknown(wrong, "they are 10 hours 30 minutes before those that led to")
    with pytest.raises(OptionError, match=r"none of its rows has a time, and the watermark .*; name the column"):
        audit(tmp_path, time="k", options={**header, "dataSchema": "ts timestamp, k string"})
    if ending == "csv":
        numbers = {**header, "dataSchema": "ts timestamp, k bigint", "timestampUnit": "s"}
        assert_unknown(audit(tmp_path, time="k", options=numbers), "or its event time is another column (--time)")
    for window in ("1 hour", "1 minute, 30 seconds", "1 minute, 1 minute, 7 seconds", "30 seconds"):
        with pytest.raises(OptionError, match=r"is not the query's: its state has windows of 1 minute; leave it out"):
            audit(tmp_path, time="ts", window=window, options={**header, "timeZone": ZONE})
    with pytest.raises(OptionError, match=r"mode = 'complete' is not the query's"):
        audit(tmp_path, time="ts", mode="complete", options={**header, "timeZone": ZONE})
    for folder, why in MISSING.items():
        shutil.move(tmp_path / "checkpoint" / folder, tmp_path / "away")
        if folder == "metadata":
            without = audit(tmp_path, time="ts", options={**header, "timeZone": ZONE})
            assert_counted(without, done, sink, QUERY, tmp_path / "checkpoint")
        elif folder == "state":
            assert_unknown(audit(tmp_path, time="ts", options={**header, "timeZone": ZONE}), why)
        else:
            with pytest.raises(CheckpointError, match=why):
                audit(tmp_path, time="ts", options={**header, "timeZone": ZONE})
        shutil.move(tmp_path / "away", tmp_path / "checkpoint" / folder)


MISSING = {
    "metadata": "",
    "offsets": "has no directory `offsets`",
    "commits": "is not in `commits`",
    "sources": "sources/0, the log of the files that were read, is missing",
    "state": "its checkpoint has no state",
}


# ---- queries that are not what they seem -----------------------------------------------------------------------------


def run_plain(frame: DataFrame, checkpoint: Path, mode: str = "append") -> None:
    out = frame.writeStream.format("noop").outputMode(mode).option("checkpointLocation", str(checkpoint))
    assert out.trigger(availableNow=True).start().awaitTermination(120)


def by_window(frame: DataFrame, size: str = "1 minute") -> DataFrame:
    return frame.groupBy(F.window("ts", size)).count()


def written(root: Path, seed: int = 1, at_s: int = 0, parts: int = 3) -> None:
    files = skewed(seed, parts=parts)
    write(root, {f"{name} of {at_s}": times for name, times in files.items()}, "parquet", at_s)


@pytest.mark.soak
def test_a_window_that_was_changed_between_runs_makes_all_unknown(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "in"
    for at_s, size in ((0, "1 minute"), (100, "5 minutes")):
        written(root, at_s=at_s)
        run_plain(by_window(load(spark, root, "parquet", 2, 10_000), size), tmp_path / "checkpoint")
    for window in (None, "1 minute", "5 minutes"):
        assert_unknown(audit(tmp_path, window=window), "the state has windows of 1 minute and 5 minutes")


@pytest.mark.soak
def test_a_delay_that_was_changed_between_runs_is_named_and_the_counts_are_right(
    spark: SparkSession, tmp_path: Path
) -> None:
    root, sink, files = tmp_path / "in", Sink("append"), skewed(1, parts=8)
    names = list(files)
    for at_s, chosen, delay_ms in ((0, names[:9], 10_000), (100, names[9:], 60_000)):
        write(root, {name: files[name] for name in chosen}, "parquet", at_s)
        run(load(spark, root, "parquet", 1, delay_ms), QUERY, sink, tmp_path / "checkpoint")

    found = audit(tmp_path)

    assert found.emitted == sum(sink.emitted.values())
    assert found.dropped + found.emitted + found.open + found.without_time == found.read == 24 * 60
    (note,) = found.notes
    assert note.startswith("The delay of withWatermark was changed, from 10 seconds to 1 minute before micro-batch ")
    assert "filter" not in note


@pytest.mark.soak
def test_what_a_query_filters_is_no_loss(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "in"
    written(root)
    reader = spark.readStream.schema("ts timestamp, k string").option("maxFilesPerTrigger", 1)
    rows = reader.option("recursiveFileLookup", True).parquet(str(root)).where("k % 7 = 1")
    run_plain(by_window(rows.withWatermark("ts", "10 seconds")), tmp_path / "checkpoint")
    assert_unknown(audit(tmp_path), "the query filters or changes rows before withWatermark")
    assert "if it only filters them, at most " in str(audit(tmp_path))


@pytest.mark.soak
def test_a_filter_between_two_sources_is_no_loss(spark: SparkSession, tmp_path: Path) -> None:
    def side(name: str, keep: str) -> DataFrame:
        written(tmp_path / name, seed=len(name))
        reader = spark.readStream.schema("ts timestamp, k string").option("maxFilesPerTrigger", 1)
        rows = reader.option("recursiveFileLookup", True).parquet(str(tmp_path / name)).where(keep)
        return rows.withWatermark("ts", "10 seconds")

    run_plain(by_window(side("left", "k % 5 = 0").union(side("right", "true"))), tmp_path / "checkpoint")
    assert_unknown(audit(tmp_path), "the event times of its 2 sources do not lead to the watermarks")
    shutil.rmtree(tmp_path / "checkpoint")
    run_plain(by_window(side("left", "true").union(side("right", "true"))), tmp_path / "checkpoint")
    assert audit(tmp_path).query.undecided is None
    assert audit(tmp_path).notes == ()


@pytest.mark.soak
def test_files_that_were_written_anew_are_named_and_in_no_count(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "in"
    written(root)
    run_plain(by_window(load(spark, root, "parquet", 1, 10_000)), tmp_path / "checkpoint")
    before = audit(tmp_path)
    names = random.Random(0).sample(before.splits()["split"].to_pylist(), 3)
    for name in names:
        shutil.copy(root / name, tmp_path / "copy")
        os.replace(tmp_path / "copy", root / name)

    found = audit(tmp_path)

    kept = {row["split"]: row["dropped"] for row in before.splits().to_pylist() if row["split"] not in names}
    assert {row["split"]: row["dropped"] for row in found.splits().to_pylist() if row["split"] not in names} == kept
    assert found.read == before.read - 3 * 60
    assert "and 2 more: it was changed after the query had read it; if it was only copied, give the directory" in str(
        found
    )
    # A copy, which its user knows to be one.
    assert audit(tmp_path, source=str(root)).splits() == before.splits()


@pytest.mark.soak
def test_a_query_without_a_stateful_operator_lost_nothing_if_it_has_no_watermark(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = tmp_path / "in"
    written(root)
    frame = load(spark, root, "parquet", 2, 10_000)
    run_plain(frame.select("k"), tmp_path / "watermark" / "checkpoint")
    assert not (tmp_path / "watermark/checkpoint/state").exists()
    assert_unknown(audit(tmp_path / "watermark"), "either it has no stateful operator, and dropped none, or")
    plain = spark.readStream.schema("ts timestamp, k string").option("recursiveFileLookup", True).parquet(str(root))
    run_plain(plain.select("k"), tmp_path / "plain" / "checkpoint")
    assert str(audit(tmp_path / "plain")).startswith("No row was dropped of 540: the query has no stateful operator")


@pytest.mark.soak
@pytest.mark.parametrize("gap", ["6 seconds", "1 minute"])
def test_a_gap_that_is_longer_than_a_session_of_the_state_is_refused(
    spark: SparkSession, tmp_path: Path, gap: str
) -> None:
    written(tmp_path / "in")
    frame = load(spark, tmp_path / "in", "parquet", 2, 10_000)
    sessions = frame.groupBy(F.session_window("ts", "5 seconds"), "k").count()
    run_plain(sessions, tmp_path / "checkpoint")
    assert audit(tmp_path, window="5 seconds").dropped > 0
    with pytest.raises(OptionError, match=r"its state has a session of 5 seconds, and no session is shorter"):
        audit(tmp_path, window=gap)


OTHERS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "update": by_window,
    "sliding": lambda frame: frame.groupBy(F.window("ts", "1 minute", "15 seconds"), "k").count(),
    "keyed": lambda frame: frame.groupBy("k", F.window("ts", "1 minute")).count(),
    "time": lambda frame: frame.groupBy("ts").count(),
    "dedupe": lambda frame: frame.dropDuplicates(["ts", "k"]),
}


@pytest.mark.soak
@pytest.mark.parametrize("kind", OTHERS)
def test_a_wrong_column_window_or_mode_is_noticed_whatever_the_operator(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    written(tmp_path / "in")
    mode = "update" if kind == "update" else "append"
    run_plain(OTHERS[kind](load(spark, tmp_path / "in", "parquet", 2, 10_000)), tmp_path / "checkpoint", mode)
    assert audit(tmp_path, mode=mode).dropped > 0
    with pytest.raises(OptionError, match="none of its rows has a time"):
        audit(tmp_path, mode=mode, time="k")
    with pytest.raises(OptionError, match="they have ts, k; name one of them"):
        audit(tmp_path, mode=mode, time="when")
    if kind in ("update", "sliding", "keyed"):
        with pytest.raises(OptionError, match="is not the query's: its state has windows of 1 minute"):
            audit(tmp_path, mode=mode, window="1 minute, 20 seconds")
    if kind != "dedupe":
        with pytest.raises(OptionError, match="mode = 'complete' is not the query's"):
            audit(tmp_path, mode="complete")
