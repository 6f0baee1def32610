"""Situations of a person on call, each with what `explain` must answer: the cause, the split, and the advice.

A *course* is one query that goes through situations, one after the other. `three_ways` runs them on Spark, and asks in
each `explain(query)`, the command line and the log: those that are `quick` in `make test`, so that each cause is in one
of them, without the log; all in `make soak`.
Situations of Kafka's brokers are in `tests/kafka/test_outage.py` and `test_lost_leader.py`; splits that wait their turn
(`horizon`) are in `tests/alignment/test_explain.py` and lost reports (`report`) in `tests/monitoring/situations.py`:
these need no Spark.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from streaming_source import read_stream
from streaming_source.monitoring.explained import explain_checkpoint
from tests.spark.support import SECOND, T0, UTC_US, write_file

__all__ = ["COURSES", "Course", "OnCall", "Situation"]

_SELDOM_S = 10
FUTURE_S = (4_070_908_800 * SECOND - T0) // SECOND
"""2099, in seconds from the first event time on."""


@dataclass(frozen=True)
class Situation:
    """What is seen, and what `explain` must answer.

    `split` is the first that holds the watermark, None where none does. `advice` are the options that the advice
    names, `says` words of the answer. `stored` is the cause that the command line gives, by default the same with all
    the rest; None where there is no checkpoint any more. `logs` are patterns of the log, None for what follows from the
    cause: a warning with the split and the advice, or, where nothing is wrong, none. `act` brings the situation about.
    """

    name: str
    cause: str
    split: str | None
    advice: tuple[str, ...]
    says: tuple[str, ...] = ()
    stored: str | None = "same"
    logs: tuple[str, ...] | None = None
    act: Callable[[OnCall], None] | None = None


@dataclass(frozen=True)
class Course:
    """A query, and the situations that it comes into."""

    begin: Callable[[OnCall], None]
    situations: Sequence[Situation]
    is_quick: bool = False

    @property
    def name(self) -> str:
        return self.situations[0].name


@dataclass
class OnCall:
    """A folder of files, and a query over it."""

    spark: SparkSession
    folder: Path
    query: StreamingQuery = field(init=False)
    released: threading.Event = field(default_factory=threading.Event)
    tick: Callable[[], None] = field(default=lambda: None)
    files: int = 0
    others: list[StreamingQuery | Application] = field(default_factory=list)

    @property
    def checkpoint(self) -> str:
        return str(self.folder / "checkpoint")

    def add(self, split: str, *seconds: float | None, folder: str = "in") -> None:
        """One more file of a split, with records of these seconds; None for one without an event time."""
        times = [None if second is None else T0 + round(second * SECOND) for second in seconds]
        self.files += 1
        write_file(self.folder / folder / split / f"part-{self.files:03}.parquet", pa.array(times, UTC_US), split)

    def start(
        self,
        exact: bool = True,
        folder: str = "in",
        change: Callable[[DataFrame], DataFrame] | None = None,
        sink: Callable[[DataFrame, int], None] | None = None,
        out: str = "",
        trigger: dict[str, Any] | None = None,
        schema: str | None = None,
        name: str = "",
        **options: Any,
    ) -> StreamingQuery:
        """Start a query over the files; `sink` writes its micro-batches, or Spark into the folder `out`."""
        reader = (read_stream(self.spark) if exact else self.spark.readStream).format("aligned_files")
        given = {"eventTimeColumn": "ts", "discoveryInterval": "200 ms", "warnAfter": "3 seconds", **options}
        reader = reader.options(**{name: str(value) for name, value in given.items()})
        if schema is not None:
            reader = reader.schema(schema)
        frame = reader.load(str(self.folder / folder))
        frame = frame if exact else frame.withWatermark("ts", "5 seconds")
        writer = (frame if change is None else change(frame)).writeStream.queryName(
            f"{self.folder.name}_{folder}{name}"
        )
        writer = writer.format("noop") if sink is None else writer.foreachBatch(sink)
        writer = writer.format("parquet").option("path", out) if out else writer
        writer = writer.trigger(**trigger) if trigger else writer
        place = "checkpoint" if folder == "in" else f"checkpoint-{folder}"
        self.query = writer.option("checkpointLocation", str(self.folder / place)).start()
        return self.query

    def let_come(self, splits: Iterable[str], first_s: int = 100) -> None:
        """From now on each of these splits gets a record at each look."""
        seconds = iter(range(first_s, 100_000))

        def tick() -> None:
            second = next(seconds)
            for split in splits:
                self.add(split, second)

        self.tick = tick

    def close(self) -> None:
        self.released.set()
        for query in [*self.others, self.query]:
            query.stop()


def _two_splits(on_call: OnCall, **options: Any) -> None:
    on_call.add("a", *range(20))
    on_call.add("b", *range(20))
    on_call.start(maxOutOfOrderness="2 seconds", **options)


# ---- what the queries do ---------------------------------------------------------------------------------------------


def flowing(on_call: OnCall) -> None:
    _two_splits(on_call, idleTimeout="12 seconds")
    on_call.let_come(["a", "b"])


def only_b_flows(on_call: OnCall) -> None:
    on_call.let_come(["b"], 5_000)


def nothing_flows(on_call: OnCall) -> None:
    on_call.tick = lambda: None


def stop(on_call: OnCall) -> None:
    on_call.query.stop()


def sink_that_hangs(on_call: OnCall) -> None:
    def sink(frame: DataFrame, number: int) -> None:
        frame.count()
        if number == 1:
            on_call.released.wait(120)
            raise OSError("no space left on device")

    on_call.add("a", *range(20))
    on_call.add("b", *range(20))
    on_call.start(sink=sink, idleTimeout="1 minute", warnAfter="12 seconds")
    on_call.query.processAllAvailable()
    on_call.add("a", 21, 22, 23)


def release(on_call: OnCall) -> None:
    on_call.released.set()


def sink_that_is_slow(on_call: OnCall) -> None:
    def sink(frame: DataFrame, _: int) -> None:
        frame.count()
        on_call.released.wait(11)

    on_call.add("a", *range(20))
    on_call.start(sink=sink, idleTimeout="5 seconds", warnAfter="10500 ms")
    on_call.let_come(["a"])


def run_that_leaves_rows(on_call: OnCall) -> None:
    on_call.add("a", *range(20))
    on_call.add("b", *range(100))
    on_call.start(exact=False, maxOutOfOrderness="5 seconds", maxDrift="10 seconds", trigger={"availableNow": True})


def bounded_run(on_call: OnCall) -> None:
    on_call.add("a", *range(20))
    on_call.start(bounded=True, trigger={"availableNow": True})


def folder_without_files(on_call: OnCall) -> None:
    (on_call.folder / "in").mkdir(parents=True)
    on_call.start(schema="ts timestamp, k string")


def record_from_the_future(on_call: OnCall) -> None:
    on_call.add("a", *range(15))
    on_call.add("a", 15, FUTURE_S, 17)
    on_call.add("b", *range(20))
    on_call.start(maxOutOfOrderness="2 seconds", maxDrift="30 seconds", idleTimeout="1 hour")


def record_from_the_future_behind_a_finished_file(on_call: OnCall) -> None:
    on_call.add("a", *range(20))
    on_call.add("b", *range(20))
    on_call.start(maxOutOfOrderness="2 seconds", maxDrift="30 seconds", idleTimeout="1 hour")
    on_call.query.processAllAvailable()
    on_call.add("a", FUTURE_S, 22)


def watermark_in_the_future(on_call: OnCall) -> None:
    on_call.add("a", *range(20))
    on_call.start(maxOutOfOrderness="2 seconds", idleTimeout="1 hour")
    on_call.query.processAllAvailable()
    on_call.add("a", 20, FUTURE_S, 22)


def small_read_limit(on_call: OnCall) -> None:
    on_call.add("a", *range(400))
    on_call.add("b", *range(400))
    on_call.start(maxRowsPerTrigger=5, trigger={"processingTime": "1 second"})


def too_few_rows(on_call: OnCall) -> None:
    on_call.add("a", *range(20))
    on_call.start(minRowsPerTrigger=1000, maxTriggerDelay="1 hour")
    on_call.query.processAllAvailable()
    on_call.add("a", 21, 22, 23)


def no_event_times(on_call: OnCall) -> None:
    on_call.add("a", None, None, None)
    on_call.add("b", *range(20))
    on_call.start(invalidTimestamp="null", idleTimeout="1 hour")


def empty_directory(on_call: OnCall) -> None:
    on_call.add("a")
    on_call.add("b", *range(20))
    on_call.start(idleTimeout="1 hour")


def gap_in_event_time(on_call: OnCall) -> None:
    on_call.add("a", *range(20))
    on_call.add("a", 36_000, 36_001)
    on_call.add("b", *range(20))
    on_call.start(maxOutOfOrderness="2 seconds", maxDrift="30 seconds", idleTimeout="1 hour")


def regular_sensors(on_call: OnCall) -> None:
    on_call.add("hourly", 0)
    on_call.add("hourly", *range(3_600, 36_000, 3_600))
    on_call.add("slower", 0)
    on_call.start(maxDrift="1 minute", idleTimeout="1 hour")


def record_of_another_day(on_call: OnCall) -> None:
    on_call.add("a", *range(15), 86_400, *range(16, 20))
    on_call.add("b", *range(20))
    on_call.start(maxOutOfOrderness="2 seconds", maxDrift="30 seconds", idleTimeout="1 hour")


def all_read(on_call: OnCall) -> None:
    _two_splits(on_call, idleTimeout="1 hour")


def one_leaps_and_one_is_silent(on_call: OnCall) -> None:
    _two_splits(on_call, idleTimeout="1 hour")
    on_call.query.processAllAvailable()
    on_call.add("b", FUTURE_S, 22)
    on_call.let_come(["b"], 23)


def kill_the_planner(on_call: OnCall) -> None:
    (note,) = explain_checkpoint(on_call.checkpoint).notes
    os.kill(note.pid, signal.SIGKILL)


def start_it_twice(on_call: OnCall) -> None:
    first = on_call.query
    # Spark refuses a second one of its name, and stops the first one of its checkpoint.
    on_call.others.append(on_call.start(name="_again", idleTimeout="1 hour"))
    on_call.query = first


def seldom_triggered(on_call: OnCall) -> None:
    _two_splits(on_call, trigger={"processingTime": f"{_SELDOM_S} seconds"}, idleTimeout="1 hour")


class Application:
    """Another one, with the same query on the same checkpoint: what `python -m tests.monitoring.on_call FOLDER` is."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "tests.monitoring.on_call", str(folder)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def stop(self) -> None:
        """End it when its standard input ends."""
        self._process.communicate()


def start_another_application(on_call: OnCall) -> None:
    on_call.others.append(Application(on_call.folder))
    # It waits for no trigger, so it comes first if something comes just after a trigger of this one, which are at round
    # times.
    time.sleep(_SELDOM_S + 1 - time.time() % _SELDOM_S)
    on_call.let_come(["a", "b"])


def delete_the_checkpoint(on_call: OnCall) -> None:
    shutil.rmtree(on_call.checkpoint)
    on_call.add("a", 100)


def old_split_is_new_and_routed(on_call: OnCall) -> None:
    options = {"late": "route", "lateLocation": on_call.folder / "late", "idleTimeout": "1 hour"}
    on_call.add("a", *range(100))
    on_call.start(maxOutOfOrderness="2 seconds", **options)
    on_call.query.processAllAvailable()
    on_call.add("new", 3, 4, 200)
    on_call.query.processAllAvailable()
    # Else all is read, and none is silent alone.
    on_call.let_come(["new"], 201)


def slow_partner(on_call: OnCall) -> None:
    options = {"alignmentGroup": "pair", "maxDrift": "30 seconds", "idleTimeout": "1 hour"}
    on_call.add("behind", *range(20), folder="partner")
    on_call.add("ahead", *range(1000))
    on_call.others.append(on_call.start(folder="partner", **options))
    on_call.others[0].processAllAvailable()
    on_call.start(**options)


def slow_split(on_call: OnCall) -> None:
    on_call.add("a", *range(20))
    on_call.add("b", *range(1000))
    on_call.start(maxOutOfOrderness="2 seconds", maxDrift="30 seconds", idleTimeout="1 hour")
    on_call.let_come(["a"], 21)


def silent_without_timeout(on_call: OnCall) -> None:
    _two_splits(on_call, idleTimeout="none")
    on_call.let_come(["b"])


def one_is_idle(on_call: OnCall) -> None:
    # A warning at the moment at which it becomes idle would be no fault.
    _two_splits(on_call, idleTimeout="3 seconds", warnAfter="20 seconds")
    on_call.let_come(["b"])


def come_back_from_idleness(on_call: OnCall) -> None:
    on_call.add("a", 25, 26, 27)


def file_sink(on_call: OnCall) -> None:
    compacted = "spark.sql.streaming.fileSink.log.compactInterval"
    on_call.spark.conf.set(compacted, "2")
    on_call.add("a", *range(20))
    on_call.start(out=str(on_call.folder / "out"), idleTimeout="1 hour")
    on_call.spark.conf.unset(compacted)


def delete_the_sink(on_call: OnCall) -> None:
    """Spark notices it when it makes one file of its log of several."""
    on_call.query.processAllAvailable()
    shutil.rmtree(on_call.folder / "out")
    on_call.add("a", 21)


def damaged_file(on_call: OnCall) -> None:
    _two_splits(on_call)
    on_call.query.processAllAvailable()
    (on_call.folder / "in" / "a" / "part-900.parquet").write_bytes(b"nothing that Parquet knows")


def file_without_permission(on_call: OnCall) -> None:
    """Another user than root must do it: root may read all."""
    _two_splits(on_call)
    on_call.query.processAllAvailable()
    on_call.add("a", 20, folder="staged")
    (staged,) = (on_call.folder / "staged" / "a").iterdir()
    staged.chmod(0)
    staged.replace(on_call.folder / "in" / "a" / staged.name)


def function_that_fails(on_call: OnCall) -> None:
    @F.udf("string", useArrow=False)
    def failing(key: str) -> str:
        if key.endswith("/13"):
            raise ValueError(f"{key} is an unlucky record")
        return key

    on_call.add("a", *range(20))
    on_call.start(change=lambda frame: frame.select(failing("k")))


def seconds_as_milliseconds(on_call: OnCall) -> None:
    path = on_call.folder / "in" / "a" / "part-001.parquet"
    write_file(path, pa.array([T0], UTC_US), seconds=pa.array([T0 // SECOND], pa.int64()))
    on_call.start(eventTimeColumn="seconds", timestampUnit="ms", idleTimeout="1 hour")


def milliseconds_as_seconds(on_call: OnCall) -> None:
    path = on_call.folder / "in" / "a" / "part-001.parquet"
    write_file(path, pa.array([T0], UTC_US), millis=pa.array([T0 // 1000], pa.int64()))
    on_call.start(eventTimeColumn="millis", timestampUnit="s", idleTimeout="1 hour")


def bound_too_small(on_call: OnCall) -> None:
    on_call.add("a", *range(20))
    on_call.start(maxOutOfOrderness="2 seconds", idleTimeout="1 hour")
    on_call.query.processAllAvailable()
    on_call.add("a", 40, 41)
    on_call.query.processAllAvailable()
    on_call.add("a", 30, 42)
    on_call.query.processAllAvailable()


def old_split_is_new(on_call: OnCall) -> None:
    on_call.add("a", *range(100))
    on_call.start(maxOutOfOrderness="2 seconds", idleTimeout="1 hour")
    on_call.query.processAllAvailable()
    on_call.add("new", 3, 4, 200)
    on_call.query.processAllAvailable()
    # Else all is read, and none is silent alone.
    on_call.let_come(["new"], 201)


def rename_a_directory(on_call: OnCall) -> None:
    (on_call.folder / "in" / "b").rename(on_call.folder / "in" / "bb")


def add_a_file_of_an_earlier_name(on_call: OnCall) -> None:
    write_file(on_call.folder / "in" / "a" / "part-000.parquet", pa.array([T0], UTC_US), "a")


def write_lines(on_call: OnCall, *values: str) -> None:
    """A file of CSV without a header, in split `a`."""
    path = on_call.folder / "in" / "a" / "part-001.csv"
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"2026-01-01T00:00:0{n}Z,{value}\n" for n, value in enumerate(values)), encoding="utf-8")


def record_that_no_task_reads(on_call: OnCall) -> None:
    write_lines(on_call, "1", "2", "many")
    on_call.start(schema="ts timestamp, n int", fileFormat="csv", mode="FAILFAST", idleTimeout="1 hour")


def start_with_another_option(on_call: OnCall) -> None:
    write_lines(on_call, "1", "2")
    lines = {"schema": "ts timestamp, n int", "fileFormat": "csv", "idleTimeout": "1 hour"}
    on_call.start(**lines)
    on_call.query.processAllAvailable()
    on_call.query.stop()
    on_call.start(header="true", name="_again", **lines)


COURSES: tuple[Course, ...] = (
    Course(
        sink_that_hangs,
        (
            Situation(
                "the sink hangs",
                "microBatch",
                "b",
                ("sink",),
                ("Micro-batch 1, of 3 records, planned at", "has not been committed for ", "the sink or the state"),
            ),
            Situation(
                "the sink fails",
                "failed",
                "b",
                ("query",),
                ("The query has failed at", "OSError: no space left on device", "Micro-batch 1, of 3 records"),
                stored="stopped",
                logs=("OSError: no space left on device",),
                act=release,
            ),
        ),
        is_quick=True,
    ),
    Course(
        flowing,
        (
            Situation("all is well", "nothing", "a", (), ("all that is there has been read",)),
            Situation(
                "a split is silent", "silent", "a", ("idleTimeout",), ("delivered nothing since",), act=only_b_flows
            ),
            Situation("all splits are idle", "allIdle", None, ("source",), act=nothing_flows),
            Situation("the query was stopped", "stopped", None, ("query",), ("does not run",), act=stop),
        ),
        is_quick=True,
    ),
    Course(
        run_that_leaves_rows,
        (
            Situation(
                "a run leaves rows unread",
                "unread",
                "a",
                ("maxDrift",),
                ("leaves", "of 'b'"),
                logs=("this run ends with",),
            ),
        ),
        is_quick=True,
    ),
    Course(bounded_run, (Situation("the source has ended", "ended", None, ()),), is_quick=True),
    Course(
        folder_without_files,
        (
            Situation(
                "there is nothing to read",
                "noSplits",
                None,
                ("source",),
                ("no split has been found in /",),
            ),
        ),
        is_quick=True,
    ),
    Course(
        record_from_the_future,
        (
            Situation(
                "a record is from the future",
                "future",
                "a",
                ("maxFutureSkew",),
                ("row 1 of", "a/part-002.parquet", "2099-01-01"),
            ),
        ),
        is_quick=True,
    ),
    Course(
        small_read_limit,
        (Situation("the read limit is small", "rows", "a", ("maxRowsPerTrigger",)),),
        is_quick=True,
    ),
    Course(
        too_few_rows,
        (Situation("minRowsPerTrigger waits", "minRows", "a", ("minRowsPerTrigger",), ("= 1,000 ", "of 3 now")),),
        is_quick=True,
    ),
    Course(
        no_event_times,
        (
            Situation(
                "no record has an event time",
                "invalid",
                "a",
                ("eventTimeColumn", "idleTimeout"),
                ("read for 3 positions", "no record there has a valid event time"),
            ),
        ),
        is_quick=True,
    ),
    Course(
        empty_directory,
        (Situation("a split never had a record", "empty", "a", ("idleTimeout",), ("has never had a record",)),),
    ),
    Course(
        gap_in_event_time,
        (Situation("a split makes a leap", "drift", "a", ("maxDrift",), ("row 0 of", "a/part-002.parquet")),),
        is_quick=True,
    ),
    Course(
        slow_partner,
        (
            Situation(
                "the other source of a group is slow",
                "group",
                "ahead",
                ("maxDrift",),
                ("waits for source 'aligned_files /", "/partner'", "of its alignment group 'pair', which is at"),
            ),
        ),
        is_quick=True,
    ),
    Course(
        slow_split,
        (Situation("a split is slower than the others", "slowest", "a", ("maxDrift",), ("'b' waits at the limit",)),),
        is_quick=True,
    ),
    # ---- these take longer, or have a cause that is above
    Course(
        sink_that_is_slow,
        (Situation("the sink is slow", "microBatch", "a", ("sink",), ("Look at the sink or the state",), "any", ()),),
    ),
    Course(
        record_from_the_future_behind_a_finished_file,
        (
            Situation(
                "a file begins in the future",
                "future",
                "a",
                ("maxFutureSkew",),
                ("row 0 of a/part-003.parquet",),
            ),
        ),
    ),
    Course(
        watermark_in_the_future,
        (
            Situation(
                "the watermark is in the future",
                "future",
                "a",
                ("maxFutureSkew",),
                ("at row 1 of a/part-002.parquet, is dated 2099-01-01",),
            ),
        ),
    ),
    Course(
        silent_without_timeout,
        (Situation("a split is silent for ever", "silent", "a", ("idleTimeout",), ("it never becomes idle",)),),
    ),
    Course(
        one_is_idle,
        (
            Situation("one split is idle", "nothing", "b", (), ("'a' is idle and holds nothing back",)),
            Situation(
                "an idle split comes back",
                "any",
                "any",
                ("idleTimeout",),
                ("3 records of 'a' came late because their split had been idle",),
                logs=("3 late records",),
                act=come_back_from_idleness,
            ),
        ),
    ),
    Course(
        file_sink,
        (
            Situation("a query is well", "nothing", "a", ()),
            Situation(
                "the folder of its sink is deleted",
                "failed",
                "any",
                ("query",),
                ("The sink was removed", "a new checkpointLocation and an empty place"),
                stored="stopped",
                logs=("out/_spark_metadata",),
                act=delete_the_sink,
            ),
        ),
    ),
    Course(
        damaged_file,
        (
            Situation(
                "a file is damaged",
                "failed",
                "a",
                ("query",),
                ("part-900.parquet is not a readable",),
                logs=("not a readable",),
            ),
        ),
    ),
    Course(
        file_without_permission,
        (
            Situation(
                "a permission is lost",
                "failed",
                "a",
                ("query",),
                ("Permission denied", "part-003.parquet"),
                logs=("Permission denied",),
            ),
        ),
    ),
    Course(
        function_that_fails,
        (
            Situation(
                "a function of the user fails",
                "failed",
                "a",
                ("query",),
                ("ValueError: part-001/13 is an unlucky record",),
                stored="stopped",
                logs=("ValueError: part-001/13 is an unlucky record",),
            ),
        ),
    ),
    Course(
        seconds_as_milliseconds,
        (Situation("seconds are read as milliseconds", "nothing", "a", ("timestampUnit",), ("of 1970",)),),
    ),
    Course(
        milliseconds_as_seconds,
        (
            Situation(
                "milliseconds are read as seconds",
                "failed",
                "a",
                ("query", "eventTimeColumn"),
                ("InvalidTimestampError", "See that eventTimeColumn and timestampUnit are those of these records"),
                stored="any",
                logs=("InvalidTimestampError",),
            ),
        ),
    ),
    Course(
        bound_too_small,
        (
            Situation(
                "records are late",
                "nothing",
                "a",
                ("maxOutOfOrderness",),
                ("Raise it, to 11 seconds at least", "advise(frame)"),
                logs=("1 late records",),
            ),
        ),
    ),
    Course(
        regular_sensors,
        (
            Situation(
                "records lie further apart than maxDrift",
                "drift",
                "hourly",
                ("maxDrift",),
                ("less than what lies between two records of that split", "row 0 of hourly/part-002.parquet"),
            ),
        ),
    ),
    Course(
        record_of_another_day,
        (
            Situation(
                "one record is of another day", "drift", "a", ("data",), ("far ahead of those before and after it",)
            ),
        ),
    ),
    Course(
        all_read,
        (Situation("all has been read, and none is idle yet", "nothing", "a", (), ("nothing has come since",)),),
    ),
    Course(
        one_leaps_and_one_is_silent,
        (
            Situation(
                "a split is in the future before the watermark is",
                "silent",
                "a",
                ("maxFutureSkew",),
                ("Split 'b' is at 2098-12-31", "row 0 of b/part-003.parquet", "The watermark leaps there when 'a'"),
            ),
        ),
    ),
    Course(
        all_read,
        (
            Situation("a query is well", "nothing", "a", ()),
            Situation(
                "its planner is killed",
                "failed",
                "a",
                ("query",),
                ("was killed or has crashed, as where memory runs out",),
                logs=("EOFException|Connection reset|Broken pipe",),
                act=kill_the_planner,
            ),
        ),
    ),
    Course(
        all_read,
        (
            Situation("a query is well", "nothing", "a", ()),
            Situation(
                "it is started twice",
                "stopped",
                "a",
                ("query",),
                ("another one goes on with its checkpoint", "Do not start this one again"),
                stored="nothing",
                logs=(),
                act=start_it_twice,
            ),
        ),
    ),
    Course(
        all_read,
        (
            Situation("a query is well", "nothing", "a", ()),
            Situation(
                "a directory is renamed",
                "failed",
                "any",
                ("query",),
                ("b is gone, and bb has the same files", "renamed?", "Do what the error names"),
                logs=("b is gone, and bb has the same files",),
                act=rename_a_directory,
            ),
        ),
    ),
    Course(
        all_read,
        (
            Situation("a query is well", "nothing", "a", ()),
            Situation(
                "a later file has an earlier name",
                "failed",
                "any",
                ("query",),
                ("part-000.parquet", "splitBy = file", "Do what the error names"),
                logs=("part-000.parquet",),
                act=add_a_file_of_an_earlier_name,
            ),
        ),
    ),
    Course(
        record_that_no_task_reads,
        (
            Situation(
                "a task fails",
                "failed",
                "a",
                ("query",),
                ("part-001.csv, record 2", "n = 'many' is no int"),
                logs=("n = 'many'",),
            ),
        ),
    ),
    Course(
        start_with_another_option,
        (
            Situation(
                "an option is changed between two runs",
                "failed",
                "any",
                ("query",),
                ("header", "Do what the error names"),
                logs=("header",),
            ),
        ),
    ),
    Course(
        seldom_triggered,
        (
            Situation("a query is well", "nothing", "a", ()),
            Situation(
                "another application has its checkpoint",
                "failed",
                "any",
                ("query",),
                ("CONCURRENT_STREAM_LOG_UPDATE", "Do not start this one again"),
                stored="nothing",
                logs=("CONCURRENT_STREAM_LOG_UPDATE",),
                act=start_another_application,
            ),
        ),
    ),
    Course(
        all_read,
        (
            Situation("a query is well", "nothing", "a", ()),
            Situation(
                "its checkpoint is deleted",
                "failed",
                "any",
                ("query",),
                ("The checkpoint is gone",),
                stored=None,
                logs=("does not exist",),
                act=delete_the_checkpoint,
            ),
        ),
    ),
    Course(
        old_split_is_new_and_routed,
        (
            Situation(
                "records are late and routed",
                "silent",
                "a",
                ("late", "idleTimeout"),
                ("They are kept: late_records(frame, checkpoint) reads them",),
                logs=("2 late records",),
            ),
        ),
    ),
    Course(
        old_split_is_new,
        (
            Situation(
                "a new split has old records",
                "silent",
                "a",
                ("late", "idleTimeout"),
                ("2 records of 'new' came late", "late=route keeps such records"),
                logs=("2 late records",),
            ),
        ),
    ),
)


if __name__ == "__main__":
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = session.config("spark.sql.shuffle.partitions", "2").config("spark.sql.session.timeZone", "UTC")
    query = OnCall(session.getOrCreate(), Path(sys.argv[1])).start(maxOutOfOrderness="2 seconds", idleTimeout="1 hour")
    # Else the other one plans a micro-batch after this one has looked for the last one, and before it has its planner.
    query.processAllAvailable()
    print("started", flush=True)
    sys.stdin.read()
