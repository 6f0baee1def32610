from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from alignment.drift import AlignmentGroup
from alignment.exceptions import InvalidArgumentError, UnknownMemberError
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from tests.examples import examples


def group_of(*member_ids: str, drift: int = 1000) -> AlignmentGroup:
    group = AlignmentGroup("g")
    for member_id in member_ids:
        group.join(member_id, drift)
    return group


def test_al_04_a_member_that_has_not_reported_holds_nobody() -> None:
    group = group_of("a", "b")
    assert group.limit("a") == MAX_WATERMARK
    assert group.holding_back() == ()
    group.report("a", 10)
    assert group.limit("b") == 1010


def test_al_08_at_the_limit_a_split_goes_on_and_beyond_it_waits() -> None:
    group = group_of("a", drift=0)
    group.report("a", 5)
    assert not group.is_past_limit("a", 5)
    group.report("a", 4)
    assert group.is_past_limit("a", 5)


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
        limits.append(group.limit("s0"))
    assert limits == [1042, 1042, 1044, 1042, 1044, MAX_WATERMARK, 1042, 1042]


def test_co_08_without_a_report_there_is_no_limit() -> None:
    assert group_of("s0").limit("s0") == MAX_WATERMARK
    assert group_of("s0").slowest_watermark is None


def test_each_member_adds_its_own_drift() -> None:
    group = AlignmentGroup("g")
    group.join("a", 10)
    group.join("b", 20)
    group.report("a", 100)
    assert group.limit("a") == 110
    group.report("b", 50)
    assert (group.limit("a"), group.limit("b")) == (60, 70)
    group.report("b", 50, counts=False)
    assert (group.limit("a"), group.limit("b")) == (110, 120)


def test_a_watermark_of_min_counts_and_one_of_max_does_not_overflow() -> None:
    group = group_of("a", "b")
    group.report("a", MIN_WATERMARK)
    assert group.limit("b") == MIN_WATERMARK + 1000
    assert group.is_past_limit("b", 0)
    group.report("a", MAX_WATERMARK)
    assert group.limit("b") == MAX_WATERMARK
    assert not group.is_past_limit("b", MAX_WATERMARK)


def test_those_at_the_slowest_watermark_hold_the_group_back() -> None:
    group = group_of("c", "b", "a")
    group.report("c", 5)
    group.report("b", 6)
    group.report("a", 5)
    assert group.holding_back() == ("a", "c")
    assert group.slowest_watermark == 5


def test_a_member_that_leaves_releases_the_group() -> None:
    group = group_of("a", "b")
    group.report("a", 5)
    group.report("b", 50)
    group.leave("a")
    assert group.limit("b") == 1050
    assert "a" not in group
    assert len(group) == 1


def test_a_member_whose_lease_ends_releases_the_group() -> None:
    group = AlignmentGroup("g")
    group.join("dead", 10, lease_us=100, now_us=0)
    group.join("alive", 10, lease_us=100, now_us=0)
    group.join("without lease", 10)
    group.report("dead", 5, now_us=50)
    group.report("alive", 70, now_us=60)
    assert group.expire(149) == ()
    assert group.limit("alive") == 15
    assert group.expire(150) == ("dead",)
    assert group.limit("alive") == 80
    assert group.expire(10**9) == ("alive",)
    assert "without lease" in group


def test_a_lease_begins_with_the_first_instant_the_group_is_told() -> None:
    group = AlignmentGroup("g")
    group.join("a", 10, lease_us=100)
    assert group.expire(1_000_000) == ()
    assert group.expire(1_000_099) == ()
    assert group.expire(1_000_100) == ("a",)


def test_a_report_without_an_instant_does_not_renew_a_lease() -> None:
    group = AlignmentGroup("g")
    group.join("a", 10, lease_us=100, now_us=0)
    group.report("a", 5)
    assert group.expire(100) == ("a",)


def test_an_expired_member_is_told_so_and_may_join_again() -> None:
    group = AlignmentGroup("g")
    group.join("a", 10, lease_us=1, now_us=0)
    group.expire(1)
    with pytest.raises(UnknownMemberError, match="its lease has ended; join"):
        group.report("a", 5)
    group.join("a", 10)


CALLS_WITH_AN_UNKNOWN_MEMBER: list[Callable[[AlignmentGroup], object]] = [
    lambda group: group.report("b", 5),
    lambda group: group.leave("b"),
    lambda group: group.limit("b"),
    lambda group: group.is_past_limit("b", 5),
]


@pytest.mark.parametrize("call", CALLS_WITH_AN_UNKNOWN_MEMBER)
def test_an_unknown_member_is_an_error(call: Callable[[AlignmentGroup], object]) -> None:
    with pytest.raises(UnknownMemberError, match="'b' is not in the group 'g'"):
        call(group_of("a"))


REFUSED: list[tuple[str, Callable[[], object]]] = [
    ("name = ' '", lambda: AlignmentGroup(" ")),
    ("max_drift_us = -1", lambda: AlignmentGroup("g").join("a", -1)),
    ("lease_us = 0", lambda: AlignmentGroup("g").join("a", 1, lease_us=0)),
    ("member_id = 'a' is in the group 'g' already", lambda: group_of("a").join("a", 1)),
]


@pytest.mark.parametrize(("message", "build"), REFUSED)
def test_what_breaks_a_rule_is_refused(message: str, build: Callable[[], object]) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        build()


def test_the_check_reports_a_broken_invariant_with_the_fields() -> None:
    group = group_of("a")
    group.report("a", 5)
    group._members["a"].watermark = 9
    with pytest.raises(AssertionError, match=r"out of step: \{.*'_name': 'g'"):
        group._check()


class AlignmentGroupWalk(RuleBasedStateMachine):
    """AG-02: a group beside a model that keeps each last report and computes everything anew."""

    def __init__(self) -> None:
        super().__init__()
        self.group = AlignmentGroup("g")
        self.drift: dict[str, int] = {}
        self.reports: dict[str, tuple[int, bool]] = {}
        self.lease: dict[str, int] = {}
        self.deadline: dict[str, int] = {}
        self.now = 0

    def a_member(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.drift)))

    def forget(self, member_id: str) -> None:
        for column in (self.drift, self.reports, self.lease, self.deadline):
            column.pop(member_id, None)  # type: ignore[attr-defined]

    def renew(self, member_id: str, told: bool) -> None:
        if told and member_id in self.lease:
            self.deadline[member_id] = self.now + self.lease[member_id]

    @rule(
        member_id=st.sampled_from("abcdef"),
        drift=st.integers(0, 5) | st.just(MAX_WATERMARK),
        lease=st.none() | st.integers(1, 5),
        told=st.booleans(),
    )
    def join(self, member_id: str, drift: int, lease: int | None, told: bool) -> None:
        if member_id in self.drift:
            return
        self.group.join(member_id, drift, lease_us=lease, now_us=self.now if told else None)
        self.drift[member_id] = drift
        if lease is not None:
            self.lease[member_id] = lease
        self.renew(member_id, told)

    @precondition(lambda self: self.drift)
    @rule(
        data=st.data(),
        watermark=st.integers(-3, 12) | st.sampled_from([MIN_WATERMARK, MAX_WATERMARK]),
        counts=st.booleans(),
        told=st.booleans(),
    )
    def report(self, data: st.DataObject, watermark: int, counts: bool, told: bool) -> None:
        member_id = self.a_member(data)
        self.group.report(member_id, watermark, counts=counts, now_us=self.now if told else None)
        self.reports[member_id] = (watermark, counts)
        self.renew(member_id, told)

    @precondition(lambda self: self.drift)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        member_id = self.a_member(data)
        self.group.leave(member_id)
        self.forget(member_id)

    @rule(passed=st.integers(0, 4))
    def expire(self, passed: int) -> None:
        self.now += passed
        for member_id in self.lease:
            self.deadline.setdefault(member_id, self.now + self.lease[member_id])
        expected = {member_id for member_id, deadline in self.deadline.items() if deadline <= self.now}
        assert set(self.group.expire(self.now)) == expected
        for member_id in expected:
            self.forget(member_id)

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.group._check()
        counting = {member_id: w for member_id, (w, counts) in self.reports.items() if counts}
        slowest = min(counting.values(), default=None)
        assert self.group.slowest_watermark == slowest
        assert list(self.group.holding_back()) == sorted(m for m, w in counting.items() if w == slowest)
        assert len(self.group) == len(self.drift)
        for member_id, drift in self.drift.items():
            expected = MAX_WATERMARK if slowest is None else min(slowest + drift, MAX_WATERMARK)
            assert self.group.limit(member_id) == expected


TestAg02AlignmentGroupAgreesWithTheNaiveModel = AlignmentGroupWalk.TestCase
TestAg02AlignmentGroupAgreesWithTheNaiveModel.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
