"""A person on call gets the right answer: the cause, the split and the advice, live and from the checkpoint alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from streaming_source import explain
from streaming_source.monitoring.explained import ExplainedQuery, explain_checkpoint
from tests.monitoring.on_call import COURSES, Course, OnCall, Situation, await_answer

pytestmark = pytest.mark.spark

_PATIENCE_S = 90
_AT_ONCE = 4
"""Queries that run while one of them is looked at: most of the time they wait."""


def wrong(situation: Situation, explained: ExplainedQuery, cause: str | None) -> list[str]:
    """What is not as it must be in an answer."""
    text, sources = " ".join(str(explained).split()), explained.to_json()["sources"]
    if not sources:
        return [] if cause is None else [f"{situation.name}: {text}"]
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


def look(on_call: OnCall, situation: Situation) -> list[str]:
    live = wrong(situation, explain(on_call.query), situation.cause)
    if situation.stored == "any" or live:
        return live
    stored = explain_checkpoint(on_call.checkpoint)
    if situation.stored == "same":
        return wrong(situation, stored, situation.cause)
    causes = [source["cause"] for source in stored.to_json()["sources"]]
    as_expected = [] if situation.stored is None else [situation.stored]
    return [] if causes == as_expected else [f"{situation.name}: {causes} is wrong in the checkpoint: {stored}"]


def run(spark: SparkSession, folder: Path, courses: Sequence[Course]) -> list[str]:
    """Go through the situations of each course, while the next ones begin; what was wrong."""
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "200ms")
    calls = [OnCall(spark, folder / f"course_{number}") for number in range(len(courses))]
    begun = 0
    found: list[str] = []
    try:
        for at, course in enumerate(courses):
            for number in range(begun, min(at + _AT_ONCE, len(courses))):
                courses[number].begin(calls[number])
                begun = number + 1
            for situation in course.situations:
                if situation.act is not None:
                    situation.act(calls[at])
                found += await_answer(calls[at], partial(look, calls[at], situation), _PATIENCE_S)
            calls[at].close()
    finally:
        spark.conf.unset("spark.sql.streaming.noDataProgressEventInterval")
        for on_call in calls[:begun]:
            on_call.close()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("half", [0, 1])
def test_each_cause_is_named_with_its_split_and_its_advice(spark: SparkSession, tmp_path: Path, half: int) -> None:
    found = run(spark, tmp_path, [course for course in COURSES if course.is_quick][half::2])
    assert not found, "\n".join(found)


@pytest.mark.soak
@pytest.mark.parametrize("course", [course for course in COURSES if not course.is_quick], ids=lambda one: one.name)
def test_so_is_each_other_situation(spark: SparkSession, tmp_path: Path, course: Course) -> None:
    found = run(spark, tmp_path, [course])
    assert not found, "\n".join(found)
