"""What is claimed of a writer, and what is not: by the shape of its query, and by its micro-batches."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignment.claims import (
    ClaimRule,
    Lane,
    NoClaim,
    OperatorKind,
    WriterOperator,
    WriterProgress,
    WriterShape,
    claim_rule,
)
from alignment.watermarks import FAR_US, MAX_WATERMARK, MIN_WATERMARK, Claim
from tests.examples import examples

SECOND = 1_000_000
OURS, STOCK = ("ts",), None
WINDOWS = WriterOperator(OperatorKind.WINDOWS, "windowed aggregation", "window", 60 * SECOND)
HOURS = WriterOperator(OperatorKind.WINDOWS, "windowed aggregation", "window", 3600 * SECOND)
DEDUPE = WriterOperator(OperatorKind.DEDUPLICATION, "dropDuplicates")
JOIN = WriterOperator(OperatorKind.JOIN, "stream-stream join")
SESSIONS = WriterOperator(OperatorKind.OTHER, "session windows")

CLAIMED = {
    "no state over ours": ((), (OURS,), "ts", True, 0),
    "no state over a union of ours": ((), (OURS, OURS), "TS", True, 0),
    "no state over ours, by its own column": ((), (OURS,), None, True, 0),
    "a number's column of its own": ((), (("n", "event_time"),), "event_time", True, 0),
    "deduplication over ours": ((DEDUPE,), (OURS,), "ts", True, 0),
    "windows over Spark's source": ((WINDOWS,), (STOCK,), "window.end", False, 0),
    "windows over Spark's source, by their own column": ((WINDOWS,), (STOCK,), None, False, 0),
    "windows over two of ours": ((WINDOWS,), (OURS, OURS), "window.end", False, 0),
    "the start of windows": ((WINDOWS,), (STOCK,), "window.start", False, 60 * SECOND),
    "the start of windows of a union": ((HOURS, WINDOWS), (STOCK,), "window.start", False, 3600 * SECOND),
    "the time of windows": ((WINDOWS,), (STOCK,), "window_time(window)", False, 1),
    "windows behind deduplication": ((DEDUPE, WINDOWS), (STOCK,), "window.end", False, 0),
    "windows of windows": ((WINDOWS, WINDOWS), (STOCK,), "window.end", False, 0),
}


@pytest.mark.parametrize("case", CLAIMED)
def test_what_follows_from_the_shape_is_claimed(case: str) -> None:
    operators, sources, column, by_sources, behind_us = CLAIMED[case]
    rule = claim_rule(WriterShape(operators, sources), column)
    assert isinstance(rule, ClaimRule), rule
    assert (rule.by_sources, rule.behind_us) == (by_sources, behind_us)
    assert column is None or rule.column == column


NOT_CLAIMED = {
    "no state over Spark's source": ((), (STOCK,), "ts", "Spark filters no row"),
    "a union of ours and Spark's": ((), (OURS, STOCK), "ts", "Spark filters no row"),
    "deduplication over Spark's source": ((DEDUPE,), (STOCK,), "ts", "Spark filters no row"),
    "another column than the source's": ((), (OURS,), "other", "event times are 'ts'"),
    "a union by two names": ((), (OURS, ("at",)), None, "event times are 'at' and 'ts'"),
    "a function's times": ((), ((),), "ts", "a function's"),
    "sessions": ((SESSIONS,), (OURS,), "session_window.end", "session windows"),
    "windows behind sessions": ((SESSIONS, WINDOWS), (OURS,), "window.end", "session windows"),
    "a join": ((JOIN,), (OURS, OURS), "ts", "condition"),
    "windows behind a join": ((JOIN, WINDOWS), (OURS, OURS), "window.end", "condition"),
    "windows over two of Spark's": ((WINDOWS,), (STOCK, STOCK), "window.end", "2 sources"),
    "another name for the window": ((WINDOWS,), (STOCK,), "hour", "claim is on window.end"),
    "the start of windows of no known length": (
        (WriterOperator(OperatorKind.WINDOWS, "windowed aggregation", "window"), WINDOWS),
        (STOCK,),
        "window.start",
        "how long",
    ),
}


@pytest.mark.parametrize("case", NOT_CLAIMED)
def test_what_does_not_follow_is_not_claimed_and_the_fix_is_named(case: str) -> None:
    operators, sources, column, reason = NOT_CLAIMED[case]
    found = claim_rule(WriterShape(operators, sources), column)
    assert isinstance(found, NoClaim), found
    assert reason in found.reason
    assert "claimDelay" in found.fix or "read_stream" in found.fix


@pytest.mark.parametrize(
    ("operators", "sources"),
    [((JOIN,), (STOCK, STOCK)), ((SESSIONS,), (STOCK,)), ((JOIN, WINDOWS), (OURS, OURS)), ((DEDUPE,), (OURS,))],
)
def test_a_delay_that_the_user_vouches_for_is_taken_off(operators: tuple[WriterOperator, ...], sources: tuple) -> None:
    rule = claim_rule(WriterShape(operators, sources), "ts", 5 * SECOND)
    assert isinstance(rule, ClaimRule)
    assert rule.until_us(WriterProgress(100 * SECOND, (100 * SECOND, 200 * SECOND))) == 95 * SECOND


def test_no_delay_makes_a_claim_of_a_source_of_sparks_own_that_nothing_filters() -> None:
    assert isinstance(claim_rule(WriterShape((), (STOCK,)), "ts", 5 * SECOND), NoClaim)
    assert isinstance(claim_rule(WriterShape((JOIN,), (STOCK, STOCK)), None, 5 * SECOND), NoClaim)


def test_a_micro_batch_claims_nothing_before_a_watermark_and_all_behind_the_last_one() -> None:
    by_sources, by_query = ClaimRule("ts", True), ClaimRule("window.start", False, 60 * SECOND)
    assert by_sources.until_us(WriterProgress(0, (5, None))) == MIN_WATERMARK
    assert by_sources.until_us(WriterProgress(0, (5, 7))) == 5
    assert by_sources.until_us(WriterProgress(0, (MAX_WATERMARK, 7))) == 7
    assert by_sources.until_us(WriterProgress(0, (MAX_WATERMARK, MAX_WATERMARK))) == MAX_WATERMARK
    assert by_query.until_us(WriterProgress(0, (None,))) == MIN_WATERMARK
    assert by_query.until_us(WriterProgress(90 * SECOND, (None,))) == 30 * SECOND
    assert by_query.until_us(WriterProgress(FAR_US + 1, (None,))) == MAX_WATERMARK


def test_a_lane_takes_no_claim_of_a_writer_of_another_one() -> None:
    lane = Lane(("a",))
    assert lane.until_us == MIN_WATERMARK
    assert lane.take(Claim("a", 0, 50, 1)).take(Claim("b", 5, 90, 3)).until_us == 50


def test_a_writer_that_was_replaced_is_a_stranger_when_it_commits_again() -> None:
    lane = Lane(("old", "new")).take(Claim("old", 9, 50, 1))
    assert lane.has("old")
    assert lane.has("new")
    lane = lane.take(Claim("new", 0, MIN_WATERMARK, 2))
    assert (lane.until_us, lane.has("old"), lane.has("new")) == (MIN_WATERMARK, False, True)
    assert lane.take(Claim("old", 10, 99, 3)) == lane, "a zombie claims nothing"
    assert lane.take(Claim("new", 1, 60, 4)).until_us == 60


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 100)), max_size=30))
@settings(max_examples=examples(50))
def test_a_claim_is_true_for_ever_so_it_never_goes_back(commits: list[tuple[int, int]]) -> None:
    """Micro-batches may be seen twice, or out of order: the best of the newest ones counts, as in a list of all."""
    lane, newest, best = Lane(("a",)), -1, MIN_WATERMARK
    for version, (batch, until_us) in enumerate(commits):
        lane = lane.take(Claim("a", batch, until_us, version))
        if batch >= newest:
            newest, best = batch, max(best, until_us)
        assert lane.until_us == best
