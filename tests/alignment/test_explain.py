"""Why the watermark stands: the engine names the cause, in a sentence and by split."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from alignment.engine import Engine
from alignment.events import (
    BlocksIndexed,
    Event,
    GroupLimitMoved,
    HorizonMoved,
    NoMoreSplits,
    Probed,
    SplitCompleted,
    SplitsAssigned,
    SplitsBlocked,
)
from alignment.explain import Cause, Explanation, WaitsFor
from alignment.index import EventTimeIndex
from alignment.plan import PlanningRules
from streaming_source.monitoring.causes.answer import cause_of, sentence

S = 1_000_000
BOUND_US = 2 * S


class Source:
    """An engine over splits whose records are a second apart."""

    def __init__(self, *, max_drift_s: int | None = None, idle_s: int | None = 60, bounded: bool = False) -> None:
        drift_us = None if max_drift_s is None else max_drift_s * S
        rules = PlanningRules(BOUND_US, max_drift_us=drift_us, bounded=bounded)
        self.times: dict[str, list[int]] = {}
        self.engine = Engine(rules, EventTimeIndex(self._load), idle_timeout_us=None if idle_s is None else idle_s * S)
        self.now_us = 100 * S

    def add(self, split_id: str, *times_s: int) -> None:
        if split_id not in self.times:
            self.times[split_id] = []
            self.engine.apply(SplitsAssigned((split_id,), (0,), (0,), self.now_us))
        times = np.array(times_s, np.int64) * S
        self.times[split_id] += times.tolist()
        if times.size:
            block = (np.array([value], np.int64) for value in (times.size, times.min(), times.max()))
            self.engine.apply(BlocksIndexed(split_id, *block))

    def explain(self, *events: Event, after_s: int = 0, max_rows: int | None = None) -> Explanation:
        """Plan all there is, let time pass, look again; then explain."""
        for event in events:
            self.engine.apply(event)
        for _ in range(2):
            plan = self.engine.plan(self.now_us, max_rows)
            if self.engine.has_news(plan):
                self.engine.commit(plan)
            self.now_us += after_s * S
            after_s = 0
            self.engine.apply(Probed(self.now_us))
            for event in events:
                self.engine.apply(event)
        return self.engine.explain(self.now_us)

    def _load(self, split_id: str, start: int, stop: int) -> npt.NDArray[np.int64]:
        return np.array(self.times[split_id][start:stop], np.int64)


def waits(explanation: Explanation) -> dict[str, str]:
    return {split.split_id: str(split.waits_for) for split in explanation.splits}


def test_a_split_with_nothing_to_read_holds_the_watermark_and_is_idle_in_a_while() -> None:
    source = Source()
    source.add("a", 10, 20)
    source.add("b", *range(10, 60))
    source.explain(after_s=10)
    source.add("b", 61)
    explained = source.explain(after_s=9)
    assert explained.held_by == ("a",)
    assert sentence(explained) == (
        "The watermark stands at 1970-01-01 00:00:17 UTC because split 'a' has delivered nothing since 00:01:40; it "
        "becomes idle in 41 s, at 00:02:40. Nothing has come late."
    )


def test_a_source_whose_splits_have_nothing_to_read_since_the_same_time_is_well_and_says_since_when() -> None:
    source = Source()
    source.add("a", 10, 20)
    source.add("b", *range(10, 60))
    explained = source.explain(after_s=19)
    assert (cause_of(explained), explained.held_by) == (Cause.NOTHING, ("a",))
    assert sentence(explained) == (
        "The watermark is at 1970-01-01 00:00:17 UTC: all that is there has been read, nothing has come since "
        "00:01:40, and split 'a' is the slowest; it becomes idle in 41 s, at 00:02:40. Nothing has come late."
    )


def test_where_no_split_is_ever_idle_none_becomes_so() -> None:
    source = Source(idle_s=None)
    source.add("a", 10)
    source.add("b", 20)
    assert "; without idleTimeout it never becomes idle." in sentence(source.explain(after_s=3))
    source.add("b", 21)
    explained = source.explain(after_s=3)
    assert cause_of(explained) is Cause.SILENT
    assert "; without idleTimeout it never becomes idle." in sentence(explained)


def test_a_split_that_is_in_the_future_is_named_before_the_watermark_follows_it() -> None:
    source = Source()
    source.add("a", 10, 20)
    source.add("b", 10, 4_000_000, 12)
    source.explain(after_s=10)
    source.add("b", 30)
    explained = source.explain(after_s=9)
    assert (cause_of(explained), explained.held_by) == (Cause.SILENT, ("a",))
    assert (
        "Split 'b' is at 1970-02-16 07:06:37 UTC, 46 days 7 h in the future: a record of split 'b', before position 4, "
        "is dated so. The watermark leaps there when 'a' is idle or has come that far, and whatever follows in time is "
        "late then."
    ) in sentence(explained)


def test_a_split_without_a_record_lets_there_be_no_watermark() -> None:
    source = Source()
    source.add("a", 10)
    source.add("empty")
    explained = source.explain(after_s=5)
    assert explained.held_by == ("empty",)
    assert cause_of(explained) is Cause.EMPTY
    assert sentence(explained) == (
        "There is no watermark yet because split 'empty' has never had a record with an event time, and nothing to "
        "read since 1970-01-01 00:01:40 UTC; it becomes idle in 55 s, at 00:02:40."
    )


def test_when_all_are_idle_none_holds_it() -> None:
    source = Source()
    source.add("a", 10)
    source.add("b", 20)
    explained = source.explain(after_s=60)
    assert explained.held_by == ()
    assert sentence(explained).startswith("The watermark is at 1970-01-01 00:00:17 UTC: all 2 splits are idle.")


def test_splits_at_the_limit_are_named_with_the_limit() -> None:
    source = Source(max_drift_s=5)
    source.add("slow", 10)
    for fast in ("f1", "f2", "f3", "f4"):
        source.add(fast, *range(10, 60))
    explained = source.explain()
    assert waits(explained) == {"slow": "records", "f1": "drift", "f2": "drift", "f3": "drift", "f4": "drift"}
    at_the_limit = "'f1', 'f2', 'f3' and 1 more wait at the limit, 2 s ahead of the watermark (maxDrift 5 seconds)."
    assert at_the_limit in sentence(explained)


def test_an_open_transaction_a_read_limit_another_source_and_waiting_splits_are_told_apart() -> None:
    source = Source()
    source.add("a", *range(10, 60))
    explained = source.explain(max_rows=3)
    assert waits(explained) == {"a": WaitsFor.ROWS}
    assert "split 'a' has 44 records left that the read limit did not admit" in sentence(explained)
    explained = source.explain(GroupLimitMoved(20 * S))
    assert waits(explained) == {"a": WaitsFor.GROUP}
    assert "waits for another source of its alignment group" in sentence(explained)
    explained = source.explain(GroupLimitMoved(2**63 - 1), HorizonMoved(30 * S))
    assert waits(explained) == {"a": WaitsFor.HORIZON}
    assert "waits for splits that are not read yet" in sentence(explained)
    explained = source.explain(HorizonMoved(2**63 - 1), SplitsBlocked(frozenset(["a"])), after_s=90)
    assert waits(explained) == {"a": WaitsFor.TRANSACTION}
    assert "split 'a' has an open transaction" in sentence(explained)
    explained = source.explain(SplitsBlocked(frozenset(), unindexed=frozenset(["a"])), after_s=90)
    assert explained.splits[0].waits_for is WaitsFor.RECORDS
    assert cause_of(explained) is not Cause.TRANSACTION
    explained = source.explain(SplitsBlocked(frozenset(), frozenset(["a"])), after_s=90)
    assert cause_of(explained) is Cause.SOURCE
    assert "split 'a' cannot be reached" in sentence(explained)


@pytest.mark.parametrize("has_splits", [True, False])
def test_a_source_that_has_ended_says_so(has_splits: bool) -> None:
    source = Source(bounded=True)
    assert "no split has been found" in sentence(source.engine.explain(100 * S))
    if has_splits:
        source.add("a", 10)
        source.engine.apply(SplitCompleted("a"))
    ended = sentence(source.explain(NoMoreSplits()))
    assert ended == "The source has ended; all windows are closed."


def test_a_split_that_joins_behind_a_plan_that_made_no_micro_batch_is_explained_as_well() -> None:
    source = Source()
    for split_id in ("a", "b"):
        source.add(split_id, 10)
    source.explain()
    source.engine.plan(source.now_us)
    assert waits(source.engine.explain(source.now_us)) == {"a": "records", "b": "records"}
    source.add("c", 20)
    later = source.engine.explain(source.now_us + S)
    assert waits(later) == {"a": "records", "b": "records", "c": "nothing"}
    assert later.at_us == source.now_us + S
