"""Asks in each situation of a person on call what is wrong, in three ways: the query, the command line and the log.

`python -m tests.monitoring.three_ways FOLDER LOG [NAME...]` goes through all of them, or through those courses. The
standard error of its Spark goes to the file LOG. It prints what was wrong.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from streaming_source import explain
from streaming_source.exceptions import CheckpointError
from streaming_source.monitoring.explained import ExplainedQuery, explain_checkpoint
from tests.monitoring.on_call import COURSES, Course, OnCall, Situation

__all__ = ["run"]

_PATIENCE_S = 90
_PAUSE_S = 0.3
_AT_ONCE = 4
"""Queries that run while one of them is looked at: most of the time they wait."""
_SILENT = ("nothing", "slowest", "rows", "allIdle", "stopped", "ended", "any")
"""Causes of which the log says nothing: nothing is wrong, or the watermark goes on."""


def run(spark: SparkSession, folder: Path, courses: Sequence[Course], log: Path | None = None) -> list[str]:
    """Go through the situations of each course, while the next ones begin; what was wrong."""
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "200ms")
    calls = [OnCall(spark, folder / f"course_{number}") for number in range(len(courses))]
    at = begun = 0
    found: list[str] = []
    lock, ended = threading.Lock(), threading.Event()

    def let_come() -> None:
        """Whatever a look takes, and for the queries that wait for one too: else their splits are silent."""
        while not ended.wait(_PAUSE_S):
            with lock:
                for on_call in calls[at:begun]:
                    on_call.tick()

    coming = threading.Thread(target=let_come, daemon=True)
    coming.start()
    try:
        for at, course in enumerate(courses):
            for number in range(begun, min(at + _AT_ONCE, len(courses))):
                courses[number].begin(calls[number])
                begun = number + 1
                _await_planner(calls[number])
            for situation in course.situations:
                if situation.act is not None:
                    with lock:
                        situation.act(calls[at])
                wrong = _await_answer(partial(_look, calls[at], situation, log), _PATIENCE_S)
                print(*wrong, sep="\n", end="\n" if wrong else "", flush=True)
                found += wrong
            calls[at].close()
    finally:
        ended.set()
        coming.join()
        spark.conf.unset("spark.sql.streaming.noDataProgressEventInterval")
        for on_call in calls[:begun]:
            on_call.close()
    return found


def _await_planner(on_call: OnCall) -> None:
    """Wait until a query has its planner: Spark gives each ten seconds to start, too few where four start at once."""
    limit = time.monotonic() + _PATIENCE_S
    while on_call.query.isActive and "Initializing" in on_call.query.status["message"] and time.monotonic() < limit:
        time.sleep(_PAUSE_S)


def _await_answer(look: Callable[[], list[str]], seconds: float) -> list[str]:
    """What is still wrong with the answer after so long; nothing as soon as it is right."""
    limit = time.monotonic() + seconds
    while wrong := look():
        if time.monotonic() > limit:
            return wrong
        time.sleep(_PAUSE_S)
    return []


def _look(on_call: OnCall, situation: Situation, log: Path | None) -> list[str]:
    return (
        _wrong(situation, explain(on_call.query), situation.cause)
        or _wrong_on_the_command_line(on_call, situation)
        or ([] if log is None else _wrong_in_the_log(on_call, situation, log.read_text(encoding="utf-8")))
    )


def _wrong(situation: Situation, explained: ExplainedQuery, cause: str) -> list[str]:
    """What is not as it must be in an answer."""
    text, sources = " ".join(str(explained).split()), explained.to_json()["sources"]
    if not sources:
        return [f"{situation.name}: {text}"]
    source = sources[0]
    advice = {one["option"] for one in source["advice"]}
    expected = set(situation.advice)
    found = {
        "cause": cause in ("any", source["cause"]),
        "split": situation.split in ("any", next(iter(source["heldBy"]), None)),
        "advice": expected - {"any"} <= advice if "any" in expected else expected == advice,
        **{words: words in text for words in situation.says},
    }
    return [f"{situation.name}: {what} is wrong in: {explained}" for what, is_right in found.items() if not is_right]


def _wrong_on_the_command_line(on_call: OnCall, situation: Situation) -> list[str]:
    if situation.stored == "any":
        return []
    try:
        stored = explain_checkpoint(on_call.checkpoint)
    except CheckpointError as error:
        is_right = situation.stored is None and "the checkpoint was deleted, and the query would begin anew" in str(
            error
        )
        return [] if is_right else [f"{situation.name}: {error}"]
    if situation.stored == "same":
        return _wrong(situation, stored, situation.cause)
    causes = [source["cause"] for source in stored.to_json()["sources"]]
    return [] if causes == [situation.stored] else [f"{situation.name}: {causes} is wrong in the checkpoint: {stored}"]


def _wrong_in_the_log(on_call: OnCall, situation: Situation, log: str) -> list[str]:
    if situation.logs is not None:
        return [f"{situation.name}: the log has no {words!r}" for words in situation.logs if not re.search(words, log)]
    own = re.compile(rf"^\S+ WARNING aligned_files {re.escape(str(on_call.folder))}/in: (.*)$", re.MULTILINE)
    warnings = [text for text in own.findall(log) if "held for" in text or "has not been committed" in text]
    if situation.cause in _SILENT:
        return [f"{situation.name}: the log warns of {warnings[-1]}"] if warnings and situation.act is None else []
    wanted = [f"Advice ({option})" for option in situation.advice] + [f"split {situation.split!r}"]
    if situation.split is None or situation.cause == "microBatch":
        wanted.pop()
    if any(all(words in text for words in wanted) for text in warnings):
        return []
    return [f"{situation.name}: {wanted} is in none of the warnings {warnings}"]


if __name__ == "__main__":
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = session.config("spark.sql.shuffle.partitions", "2").config("spark.sql.session.timeZone", "UTC")
    # A query reports each 200 ms, and what was late stays in both answers while it waits for its look.
    for kept in ("numRecentProgressUpdates", "minBatchesToRetain"):
        session = session.config(f"spark.sql.streaming.{kept}", "10000")
    # Its progress bar would stand before lines of the log.
    session = session.config("spark.ui.showConsoleProgress", "false")
    wanted = [course for course in COURSES if not sys.argv[3:] or course.begin.__name__ in sys.argv[3:]]
    sys.exit(bool(run(session.getOrCreate(), Path(sys.argv[1]), wanted, Path(sys.argv[2]))))
