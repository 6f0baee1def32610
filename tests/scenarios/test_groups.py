"""Sources that hold each other together: starting, ending, dying, and catching up with a backlog."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from alignment.combine import SplitStatus
from alignment.watermarks import MAX_WATERMARK
from streaming_source.coordinator.group_exchange import GroupExchange
from streaming_source.testing import EOF
from tests.scenarios.support import SECOND, Group

ACTIVE, PAUSED, IDLE, FINISHED = SplitStatus


def test_a_source_that_starts_again_is_where_its_checkpoint_was_before_it_is_asked_for_more(group: Group) -> None:
    """FLINK-40505: what a reader had said before it failed was held against the group, or nothing was at all."""
    source = group.source({"a": [1, 2, 100]}, max_rows=1)
    other = group.source({"o": [1, 10, 11, 109]})
    source.plan()
    first = source.state
    source.plan_all()
    assert source.read == [1, 2, 100]
    source.restart(first)
    other.plan_all()
    assert other.read == [1, 10], "0 and the drift: not where it had been, and not as if it were not there"


def test_a_source_whose_micro_batch_takes_ten_minutes_is_not_taken_for_dead(group: Group) -> None:
    """FLINK-40505: a lease ends what is dead, and not what is at work."""
    behind = group.source({"s": [1, 2]})
    ahead = group.source({"a": [1, 300]})
    group.plan_all()
    # Its micro-batch is read: its planner is not asked for the next one.
    group.members.remove(behind)
    for _ in range(120):
        group.clock.advance("5 seconds")
        behind.work()
        ahead.work()
        ahead.plan_all()
    assert ahead.read == [1]
    behind.close()
    group.let_pass(2)
    assert ahead.read == [1, 300]


def test_a_backlog_of_two_queries_moves_on_by_far_more_than_a_drift_an_interval(group: Group) -> None:
    """FLINK-37399: limits came once an interval, so a backlog was read at one drift an interval."""
    both = [group.source({"s": [0]}) for _ in range(2)]
    group.let_pass(1)
    for member in both:
        member.source.go_on("s", *range(5, 400, 5))
    began_us = group.clock.now_us()
    # The micro-batches of the one take longer; each planner is asked every 10 ms, but while one is read.
    takes_us, free_us = (30_000, 200_000), [0, 0]
    while min(member.read[-1] for member in both) < 395:
        group.clock.advance("10 ms")
        for i, member in enumerate(both):
            member.work()
            if group.clock.now_us() >= free_us[i] and member.plan():
                free_us[i] = group.clock.now_us() + takes_us[i]
        assert abs(both[0].read[-1] - both[1].read[-1]) <= 10
    assert group.clock.now_us() - began_us < 12 * SECOND, "there are 40 drifts in it, and an interval is a second"


def test_with_no_more_splits_to_come_limits_still_do(group: Group) -> None:
    """FLINK-37670: once all splits were assigned no limit was sent any more, and all waited for ever."""
    slow, fast = list(range(0, 100, 2)), list(range(0, 1000, 20))
    sides = [group.source({"s": times}, bounded=True, max_rows=3) for times in (slow, fast)]
    group.let_pass(30)
    assert [side.read for side in sides] == [slow, fast]
    assert [side.watermark for side in sides] == [MAX_WATERMARK] * 2


def test_a_source_that_is_finished_leaves_the_others_alone(group: Group) -> None:
    """FLINK-35157: the last watermark of what had finished was the limit for ever."""
    group.source({"s": [1, 2, EOF]}, bounded=True)
    other = group.source({"o": [1, 300, 5000]})
    group.let_pass(5)
    # Its nearest record beyond the drift is a gap that only its own splits decide on.
    assert other.read == [1, 300, 5000]


def test_a_source_that_has_no_splits_yet_holds_nobody(group: Group) -> None:
    """FLINK-32414: a reader without splits said MIN, and everybody waited."""
    source = group.source({})
    other = group.source({"o": [1, 300]})
    group.let_pass(5)
    assert other.read == [1, 300]
    source.source.go_on("s", 301)
    group.let_pass(2)
    other.source.go_on("o", 311, 312)
    group.let_pass(2)
    assert other.read == [1, 300], "of 301 only 300 is certain, and 311 is later than its drift allows"
    source.source.go_on("s", 302)
    group.let_pass(2)
    assert other.read == [1, 300, 311]


def test_an_idle_source_is_not_held_by_what_it_said_itself(group: Group) -> None:
    """FLINK-32496: idle was written as the largest watermark, which was beyond the limit of who had written it."""
    source = group.source({"s": [50]}, idle="10 seconds")
    other = group.source({"o": [50]})
    group.let_pass(20)
    assert source.statuses == {"s": IDLE}
    source.source.go_on("s", 55)
    group.let_pass(2)
    assert source.read == [50, 55]
    other.source.go_on("o", 60)
    group.let_pass(2)
    assert other.read == [50, 60]


def test_a_limit_goes_down_with_who_comes_back_behind(group: Group) -> None:
    """FLINK-32496: by design. What was read is read; nothing later than the new limit is."""
    behind = group.source({"s": [50]}, idle="10 seconds")
    ahead = group.source({"a": [50]})
    group.let_pass(20)
    ahead.source.go_on("a", 400, 500)
    group.let_pass(2)
    assert ahead.read == [50, 400, 500]
    behind.source.go_on("s", 51)
    group.let_pass(2)
    ahead.source.go_on("a", 450)
    group.let_pass(5)
    assert ahead.read == [50, 400, 500]
    group.let_pass(10)
    assert ahead.read == [50, 400, 450, 500], "it was idle once more"


def test_sources_of_one_name_do_not_speak_for_each_other(group: Group) -> None:
    """Two sources of one name in one group overwrote each other's watermark: no issue was ever filed."""
    slow, *fast = (group.source({"s": times}) for times in ([1], [1, 300], [1, 300]))
    assert {member.source.name for member in (slow, *fast)} == {"testing"}
    group.let_pass(3)
    assert [member.read for member in fast] == [[1], [1]]
    slow.source.go_on("s", 295)
    group.let_pass(3)
    assert [member.read for member in fast] == [[1, 300], [1, 300]]


class Counted:
    """How often a source has reported how far it is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, exchange: GroupExchange) -> None:
        self.times = 0
        call: Callable[..., Any] = exchange.location.exchange

        def counting(*arguments: Any, **options: Any) -> Any:
            # An exchange without a report of its own only reads.
            self.times += arguments[1] is not None
            return call(*arguments, **options)

        monkeypatch.setattr(exchange.location, "exchange", counting)


def test_there_is_one_renewal_an_interval_however_often_the_planner_goes_back(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLINK-32316: a source that was set back announced its limits twice as often."""
    source = group.source({"s": [1, 2]}, max_rows=1)
    source.plan()
    first = source.state
    for _ in range(5):
        source.plan()
        source.planning.rewind(first)
    reported = Counted(monkeypatch, source.exchange)
    for _ in range(100):
        group.clock.advance("100 ms")
        source.work()
    assert 9 <= reported.times <= 10


def test_an_exchange_that_fails_is_not_the_last_one(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    """FLINK-32362: after one limit that could not be delivered none was sent any more."""
    behind = group.source({"s": [1]})
    ahead = group.source({"a": [1, 300]})
    group.plan_all()
    holder = sqlite3.connect(group.folder / "group", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    try:
        with caplog.at_level(logging.WARNING):
            group.let_pass(2)
        assert caplog.text.count("cannot be reached") == 2, "once each"
        assert ahead.read == [1]
    finally:
        holder.rollback()
        holder.close()
    behind.source.go_on("s", 299)
    group.let_pass(2)
    assert ahead.read == [1, 300]


def test_a_planner_that_was_closed_reports_no_more(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """FLINK-32411: the thread that announced limits outlived its source."""
    source = group.source({"s": [1]})
    other = group.source({"o": [1, 300]})
    group.plan_all()
    reported = Counted(monkeypatch, source.exchange)
    source.planning.host.close()
    for _ in range(100):
        group.clock.advance("100 ms")
        source.work()
    assert reported.times == 0
    source.close()
    # One that was on its way.
    source.exchange.renew_when_due()
    assert reported.times == 0
    group.members.remove(source)
    group.let_pass(2)
    assert other.read == [1, 300]
