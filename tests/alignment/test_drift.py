"""Groups of sources, by the rule by which the planners of queries exchange their limits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from alignment.exceptions import InvalidArgumentError, UnknownMemberError
from alignment.groups import AlignmentGroup
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from tests.examples import examples

LOOKS_ON = "looks on"


def group_of(*member_ids: str, drift: int = 1000) -> AlignmentGroup:
    """A group with one more member, which never counts: its limit is what all the others together allow."""
    group = AlignmentGroup("g")
    for member_id in (*member_ids, LOOKS_ON):
        group.join(member_id, drift)
    return group


def test_al_04_a_member_that_has_not_reported_holds_nobody() -> None:
    group = group_of("a", "b")
    assert group.limit("a") == MAX_WATERMARK
    group.report("a", 10)
    assert group.limit("b") == 1010


def test_co_02_idle_members_are_left_out_and_the_limit_follows_in_both_directions() -> None:
    group = group_of("s0", "s1")
    limits = []
    for member_id, watermark, counts in [
        ("s0", 42, True),
        ("s1", 44, True),
        ("s0", 42, False),
        ("s0", 42, True),
        ("s0", 42, False),
        ("s1", 44, False),
        ("s0", 42, True),
        ("s1", 46, True),
    ]:
        group.report(member_id, watermark, counts=counts)
        limits.append(group.limit(LOOKS_ON))
    assert limits == [1042, 1042, 1044, 1042, 1044, MAX_WATERMARK, 1042, 1042]


def test_co_08_without_a_report_there_is_no_limit() -> None:
    assert group_of("s0").limit("s0") == MAX_WATERMARK


def test_each_member_adds_its_own_drift_to_the_slowest_other_one() -> None:
    group = AlignmentGroup("g")
    group.join("a", 10)
    group.join("b", 20)
    group.report("a", 100)
    assert (group.limit("a"), group.limit("b")) == (MAX_WATERMARK, 120)
    group.report("b", 50)
    assert (group.limit("a"), group.limit("b")) == (60, 120)
    group.report("b", 50, counts=False)
    assert (group.limit("a"), group.limit("b")) == (MAX_WATERMARK, 120)


def test_over_a_gap_the_nearest_goes_on() -> None:
    group = group_of("a", "b", drift=10)
    group.report("a", 100, next_us=500)
    group.report("b", 90, next_us=400)
    assert (group.limit("a"), group.limit("b")) == (100, 400)


def test_a_watermark_of_min_counts_and_one_of_max_does_not_overflow() -> None:
    group = group_of("a", "b")
    group.report("a", MIN_WATERMARK)
    assert group.limit("b") == MIN_WATERMARK + 1000
    group.report("a", MAX_WATERMARK)
    assert group.limit("b") == MAX_WATERMARK


def test_a_member_that_leaves_releases_the_group() -> None:
    group = group_of("a", "b")
    group.report("a", 5)
    group.report("b", 50)
    group.leave("a")
    assert group.limit(LOOKS_ON) == 1050
    group.join("a", 1)


CALLS_WITH_AN_UNKNOWN_MEMBER: list[Callable[[AlignmentGroup], object]] = [
    lambda group: group.report("b", 5),
    lambda group: group.leave("b"),
    lambda group: group.limit("b"),
]


@pytest.mark.parametrize("call", CALLS_WITH_AN_UNKNOWN_MEMBER)
def test_an_unknown_member_is_an_error(call: Callable[[AlignmentGroup], object]) -> None:
    with pytest.raises(UnknownMemberError, match="'b' is not in the group 'g'"):
        call(group_of("a"))


REFUSED: list[tuple[str, Callable[[], object]]] = [
    ("name = ' '", lambda: AlignmentGroup(" ")),
    ("max_drift_us = -1", lambda: AlignmentGroup("g").join("a", -1)),
    ("member_id = 'a' is in the group 'g' already", lambda: group_of("a").join("a", 1)),
]


@pytest.mark.parametrize(("message", "build"), REFUSED)
def test_what_breaks_a_rule_is_refused(message: str, build: Callable[[], object]) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        build()


class AlignmentGroupWalk(RuleBasedStateMachine):
    """AG-02: a group beside a model that keeps each last report and computes everything anew."""

    def __init__(self) -> None:
        super().__init__()
        self.group = group_of(drift=0)
        self.drift: dict[str, int] = {LOOKS_ON: 0}
        self.reports: dict[str, int] = {}

    def a_member(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.drift.keys() - {LOOKS_ON})))

    @rule(member_id=st.sampled_from("abcdef"), drift=st.integers(0, 5) | st.just(MAX_WATERMARK))
    def join(self, member_id: str, drift: int) -> None:
        if member_id not in self.drift:
            self.group.join(member_id, drift)
            self.drift[member_id] = drift

    @precondition(lambda self: len(self.drift) > 1)
    @rule(
        data=st.data(),
        watermark=st.integers(-3, 12) | st.sampled_from([MIN_WATERMARK, MAX_WATERMARK]),
        counts=st.booleans(),
    )
    def report(self, data: st.DataObject, watermark: int, counts: bool) -> None:
        member_id = self.a_member(data)
        self.group.report(member_id, watermark, counts=counts)
        self.reports.pop(member_id, None)
        if counts:
            self.reports[member_id] = watermark

    @precondition(lambda self: len(self.drift) > 1)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        member_id = self.a_member(data)
        self.group.leave(member_id)
        self.drift.pop(member_id)
        self.reports.pop(member_id, None)

    @invariant()
    def agrees_with_the_model(self) -> None:
        assert self.group.limit(LOOKS_ON) == min(self.reports.values(), default=MAX_WATERMARK)
        for member_id, drift in self.drift.items():
            others = [watermark for other, watermark in self.reports.items() if other != member_id]
            assert self.group.limit(member_id) == (min(min(others) + drift, MAX_WATERMARK) if others else MAX_WATERMARK)


TestAg02AlignmentGroupAgreesWithTheNaiveModel = AlignmentGroupWalk.TestCase
TestAg02AlignmentGroupAgreesWithTheNaiveModel.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
