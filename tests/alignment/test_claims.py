"""What is claimed of a writer, and what is not: by the shape of its query, and by its micro-batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignment.claims import (
    ClaimRule,
    Claims,
    NoClaim,
    OperatorKind,
    SinkCommit,
    StrangeCommit,
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


class Ledger:
    """What micro-batches claim, and whose were asked for."""

    def __init__(self, claimed_us: Mapping[tuple[str, int], int | None]) -> None:
        self._claimed_us, self.asked = claimed_us, list[tuple[str, int]]()

    def __call__(self, writer: str, batch: int) -> int | None:
        self.asked.append((writer, batch))
        return self._claimed_us[writer, batch]


def commits(*micro_batches: tuple[str, int]) -> list[SinkCommit]:
    return [SinkCommit(version, [batch]) for version, batch in enumerate(micro_batches)]


def test_a_stranger_claims_nothing() -> None:
    claims = Claims.of([["a"]])
    assert claims.until_us == MIN_WATERMARK
    claims, _ = claims.take(commits(("a", 0), ("b", 5)), Ledger({("a", 0): 50}))
    assert (claims.until_us, claims.known) == (50, (Claim("a", 0, 50, 0),))


def test_of_many_commits_the_newest_of_each_writer_is_asked_for() -> None:
    ledger = Ledger(dict.fromkeys([("a", 7), ("b", 2)], 50))
    Claims.of([["a"], ["b"]]).take(commits(*(("a", n) for n in range(8)), *(("b", n) for n in range(3))), ledger)
    assert sorted(ledger.asked) == [("a", 7), ("b", 2)]


def test_a_writer_that_was_replaced_is_a_stranger_when_it_commits_again() -> None:
    ledger = Ledger({("old", 9): 50, ("new", 0): MIN_WATERMARK, ("new", 1): 60})
    claims, _ = Claims.of([["old", "new"]]).take(commits(("old", 9), ("new", 0), ("old", 10)), ledger)
    assert claims.until_us == MIN_WATERMARK, "a zombie claims nothing"
    claims, _ = claims.take(commits(("old", 11), ("new", 1)), ledger)
    assert claims.until_us == 60


@pytest.mark.parametrize("first", [None, MIN_WATERMARK, 40])
def test_what_a_writer_claimed_does_not_hold_of_the_one_that_replaces_it(first: int | None) -> None:
    """As after a full refresh, which begins with the earliest rows: also where its first claim is not known."""
    before, _ = Claims.of([["old"]]).take(commits(("old", 3)), Ledger({("old", 3): 90}))
    claims = Claims.of([["old", "new"]], before.known)
    assert (claims.until_us, claims.holder, claims.known) == (MIN_WATERMARK, "new", before.known)
    claims, _ = claims.take(commits(("new", 0)), Ledger({("new", 0): first}))
    assert claims.until_us == (MIN_WATERMARK if first is None else first)


def test_a_writer_that_has_ended_holds_nothing_once_it_is_named_before_one_that_goes_on() -> None:
    ledger = Ledger({("a", 0): 500, ("b", 0): 100, ("a", 1): 900})
    before, _ = Claims.of([["a"], ["b"]]).take(commits(("a", 0), ("b", 0)), ledger)
    assert before.until_us == 100
    claims = Claims.of([["b", "a"]], before.known)
    assert claims.until_us == 500
    claims, _ = claims.take(commits(("a", 1)), ledger)
    assert (claims.until_us, [claim.writer for claim in claims.known]) == (900, ["a"])


@pytest.mark.parametrize("listings", [[3], [2, 1], [1, 2], [1, 1, 1]])
def test_a_zombie_behind_a_claim_is_found_however_commits_are_listed(listings: list[int]) -> None:
    ledger = Ledger({("old", 0): 100, ("new", 0): 900})
    written, claims, strange = commits(("old", 0), ("new", 0), ("old", 1)), Claims.of([["old", "new"]]), []
    for count in listings:
        claims, found = claims.take(written[:count], ledger, {2: 50})
        written, strange = written[count:], strange + found
    assert strange == [StrangeCommit(2, 900)]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 100)), max_size=30))
@settings(max_examples=examples(50))
def test_a_claim_is_true_for_ever_so_it_never_goes_back(written: list[tuple[int, int]]) -> None:
    """Micro-batches may be seen twice, or out of order: the best of the newest ones counts, as in a list of all."""
    claims, newest, best = Claims.of([["a"]]), -1, MIN_WATERMARK
    for version, (batch, until_us) in enumerate(written):
        claims, _ = claims.take([SinkCommit(version, [("a", batch)])], lambda *_, us=until_us: us)
        if batch >= newest:
            newest, best = batch, max(best, until_us)
        assert claims.until_us == best


@given(st.data())
@settings(max_examples=examples(100))
def test_claims_are_those_of_one_who_goes_through_all_commits_again(data: st.DataObject) -> None:
    """Writers side by side and replaced, zombies, strangers, restarts, one that ends; commits listed in any groups."""
    sides = data.draw(st.sampled_from([[["a"]], [["a", "b"]], [["a"], ["c"]], [["a", "b", "d"], ["c"]]]))
    written = data.draw(st.lists(st.tuples(st.sampled_from("abcdx"), st.booleans(), st.integers(0, 60)), max_size=25))
    batches, ledger = Counter[str](), dict[tuple[str, int], int | None]()
    history, earliest_us = list[SinkCommit](), dict[int, int]()
    for version, (writer, is_known, step_us) in enumerate(written):
        number = batches[writer]
        before = max((us for (one, _), us in ledger.items() if one == writer and us is not None), default=0)
        ledger[writer, number] = before + step_us if is_known or not number else None
        history.append(SinkCommit(version, [(writer, number)]))
        earliest_us[version], batches[writer] = data.draw(st.integers(0, 150)), number + 1
    claims, found, done = Claims.of(sides), list[StrangeCommit](), 0
    while done < len(history):
        count = data.draw(st.integers(1, 5))
        claims, strange = claims.take(history[done : done + count], Ledger(ledger), earliest_us)
        found, done = found + strange, done + count
        until_us, expected = _gone_through(history[:done], sides, ledger, earliest_us)
        assert (claims.until_us <= until_us) if None in ledger.values() else (claims.until_us == until_us)
        if None not in ledger.values():
            assert [one.version for one in found] == expected
        if data.draw(st.booleans()):
            # The watermark that was announced stays in the offset, beside the claims.
            claims = replace(Claims.of(sides, claims.known), announced_us=claims.announced_us)


def _gone_through(
    history: list[SinkCommit],
    sides: list[list[str]],
    ledger: Mapping[tuple[str, int], int | None],
    earliest_us: Mapping[int, int],
) -> tuple[int, list[int]]:
    announced, strange, until_us = MIN_WATERMARK, [], MIN_WATERMARK
    for version, commit in enumerate(history):
        ((writer, _),) = commit.micro_batches
        newest = [
            max((side.index(one) for one in _writers(history[:version]) if one in side), default=0) for side in sides
        ]
        is_named = any(writer in side and side.index(writer) >= at for side, at in zip(sides, newest, strict=True))
        if not is_named and MIN_WATERMARK < announced >= earliest_us[version]:
            strange.append(version)
        until_us = MAX_WATERMARK
        for side in sides:
            own = [batch for one in history[: version + 1] for batch in one.micro_batches if batch[0] == side[-1]]
            known = [us for batch in own if (us := ledger[batch]) is not None]
            until_us = min(until_us, max(known, default=MIN_WATERMARK))
        announced = max(announced, until_us)
    return until_us, strange


def _writers(history: list[SinkCommit]) -> list[str]:
    return [writer for commit in history for writer, _ in commit.micro_batches]
