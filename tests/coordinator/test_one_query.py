"""Sources of one query plan one event time together: planners beside each other, in triggers like Spark's."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streaming_source.coordinator import SourceState
from tests.examples import examples
from tests.scenarios.support import Group, Planned

DRIFT = 10


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    started = Group(tmp_path)
    yield started
    started.close()


class Triggers:
    """Plans all sources of a group in each trigger, in one order, and keeps what Spark's offset log would."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.count = self.rows = 0
        self.log: list[list[SourceState[object, object]]] = [[member.state for member in group.members]]
        self.apart: list[int] = []

    def trigger(self) -> bool:
        """Plan one micro-batch; whether there was anything to do."""
        begun = [len(member.read) for member in self.group.members]
        moved = sum([member.plan() for member in self.group.members]) > 0
        if moved:
            self.count += 1
            self.log.append([member.state for member in self.group.members])
        read = [member.read for member in self.group.members]
        self.rows = sum(map(len, read)) - sum(begun)
        left = [unread(member)[0] for member in self.group.members if unread(member)]
        went = [one[-1] for one, before in zip(read, begun, strict=True) if len(one) > before]
        if left and went:
            self.apart.append(max(went) - min(left))
        return moved

    def run(self, most: int = 2_000) -> None:
        """Trigger after trigger, until nothing is to do."""
        for _ in range(most):
            if not self.trigger():
                return
        raise AssertionError("the run does not end")

    def restart(self) -> None:
        """Kill all planners, and go on from the last offsets that were written."""
        for member, state in zip(self.group.members, self.log[-1], strict=True):
            self.group.end(member.exchange.membership.source_id)
            member.restart(state)


def unread(member: Planned) -> list[int]:
    times = [
        record.time_us
        for script in member.source.scripts.values()
        for record in script.records
        if record.time_us is not None
    ]
    return sorted(times)[len(member.read) :]


def pair(
    group: Group, first: Sequence[int], second: Sequence[int], rows: int | None = 100, *, available_now: bool = True
) -> list[Planned]:
    return [
        group.source({"s": times}, max_rows=rows, available_now=available_now, in_one_query=True)
        for times in (first, second)
    ]


@pytest.mark.parametrize("available_now", [True, False])
def test_drift_costs_no_micro_batches(group: Group, available_now: bool) -> None:
    slow, fast = range(0, 10_000, 10), range(0, 10_000, 5)
    members = pair(group, slow, fast, available_now=available_now)
    triggers = Triggers(group)
    triggers.run()
    assert [len(member.read) for member in members] == [1000, 2000]
    # 20 of them are full of records of the one that has more; the others are the first, and one where an end comes.
    assert triggers.count <= 22
    assert max(triggers.apart) <= 0


def test_the_first_micro_batch_reads_nothing_that_is_ahead_of_a_source_that_was_not_planned_yet(group: Group) -> None:
    ahead, behind = pair(group, range(5_000, 6_000), range(0, 1_000))
    triggers = Triggers(group)
    triggers.trigger()
    assert (len(ahead.read), len(behind.read)) == (0, 100)
    triggers.run()
    assert (len(ahead.read), len(behind.read)) == (1_000, 1_000)
    assert max(triggers.apart) <= 0


def test_without_a_read_limit_all_that_is_there_is_read_at_once(group: Group) -> None:
    pair(group, range(0, 10_000, 10), range(0, 9_000, 5), None)
    triggers = Triggers(group)
    triggers.run()
    assert triggers.count <= 4


@pytest.mark.parametrize("drift", ["10 us", "1 second"])
def test_a_history_and_what_follows_it_are_read_in_one_micro_batch_once_both_have_planned(
    group: Group, drift: str
) -> None:
    """The first micro-batch reads nothing: its first source does not know yet how far the other gets."""
    ends = (range(100), range(90), range(110)), (range(100, 200), range(90, 190), range(110, 210))
    for side in ends:
        splits = {f"s{number}": times for number, times in enumerate(side)}
        group.source(splits, drift=drift, bounded=True, available_now=True, in_one_query=True)
    triggers, rows = Triggers(group), []
    while triggers.trigger():
        rows.append(triggers.rows)
    assert rows == [0, 600]
    assert [member.state.has_ended for member in group.members] == [True, True]


@pytest.mark.parametrize("available_now", [True, False])
def test_records_that_are_not_seen_yet_are_not_taken_for_the_end(group: Group, available_now: bool) -> None:
    """The planners read 1,000 records ahead: after a plan of them all nothing is known of the next ones."""
    members = pair(group, range(0, 10_000), range(0, 10_000, 4), None, available_now=available_now)
    triggers = Triggers(group)
    for _ in range(60):
        triggers.trigger()
        group.clock.advance("100 ms")
        for member in members:
            member.work()
    assert [len(member.read) for member in members] == [10_000, 2_500]
    assert max(triggers.apart) <= DRIFT


def test_a_source_of_another_query_holds_by_its_watermark(group: Group) -> None:
    members = pair(group, range(0, 1_000), range(0, 1_000), available_now=False)
    other = group.source({"o": [50]})
    triggers = Triggers(group)
    triggers.run(50)
    assert other.read == [50]
    assert max(member.read[-1] for member in members) <= 49 + DRIFT
    other.close()
    group.members.remove(other)
    group.clock.advance("1 second")
    for member in members:
        member.work()
    triggers.run()
    assert [len(member.read) for member in members] == [1_000] * 2


def test_a_source_whose_planner_dies_holds_the_others_no_longer(group: Group) -> None:
    first, second = pair(group, range(0, 1_000), range(0, 1_000), available_now=False)
    triggers = Triggers(group)
    for _ in range(3):
        triggers.trigger()
    group.members.remove(second)
    group.end(second.exchange.membership.source_id)
    group.clock.advance("1 second")
    first.work()
    Triggers(group).run()
    assert len(first.read) == 1_000
    second.close()


def test_new_records_of_both_are_read_in_the_next_triggers(group: Group) -> None:
    members = pair(group, range(0, 100), range(0, 100), available_now=False)
    triggers = Triggers(group)
    triggers.run()
    # The last ones hold each other, as they may get more.
    for member in members:
        member.source.go_on("s", *range(100, 5_000))
    group.clock.advance("1 second")
    for member in members:
        member.work()
    triggers.run()
    assert [len(member.read) for member in members] == [5_000] * 2
    assert triggers.count <= 55
    assert max(triggers.apart) <= 2 * DRIFT


SOURCE = st.tuples(
    st.integers(0, 300), st.lists(st.integers(0, 60), min_size=1, max_size=40), st.sampled_from([None, 1, 4])
)


@settings(max_examples=examples(60))
@example([(51, [0], None), (44, [0, 0], 1)], False, 0)  # a read limit leaves some of the last records of one time
@given(st.lists(SOURCE, min_size=2, max_size=3), st.booleans(), st.integers(0, 2**32))
def test_whenever_planners_are_killed_all_is_read_once_and_together(
    sources: Sequence[tuple[int, list[int], int | None]], available_now: bool, seed: int
) -> None:
    rng = random.Random(seed)
    with TemporaryDirectory() as folder:
        group = Group(Path(folder))
        times = [list(accumulate(steps, initial=begin)) for begin, steps, _ in sources]
        for of_one, (_, _, most) in zip(times, sources, strict=True):
            group.source({"x": of_one}, max_rows=most, available_now=available_now, in_one_query=True, idle="3 seconds")
        triggers, kills, quiet = Triggers(group), 0, 0
        for _ in range(2_000):
            if kills < 6 and rng.random() < 0.15:
                kills += 1
                if rng.random() < 0.5:
                    # One source was planned, and then the query failed: no offset of this trigger was written.
                    group.members[0].plan()
                triggers.restart()
            quiet = 0 if triggers.trigger() else quiet + 1
            if quiet > 8:
                break
            group.clock.advance("1 second")
            for member in group.members:
                member.work()
        assert [member.read for member in group.members] == times
        assert all(apart <= 0 for apart in triggers.apart), triggers.apart
        group.close()
