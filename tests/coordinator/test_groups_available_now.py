"""Alignment groups in AvailableNow runs: members hold each other together until each has read what was there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignment.watermarks import MAX_WATERMARK
from tests.examples import examples
from tests.scenarios.support import Group, Planned

DRIFT = 10


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    started = Group(tmp_path)
    yield started
    started.close()


@pytest.fixture(autouse=True, scope="module")
def _without_pauses() -> Iterator[None]:
    """Time is the test's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streaming_source.coordinator.group_exchange._PAUSE_S", 0.0)
        yield


def run(group: Group, triggers: int = 2_000) -> list[int]:
    """Trigger after trigger, as Spark: all sources are planned in each, and one that brings nothing new is the last.

    Returns how far apart the sources were after each, of those that had not read all.
    """
    apart = []
    for _ in range(triggers):
        if not sum([member.plan() for member in group.members]):
            return apart
        reached = [member.read[-1] if member.read else None for member in group.members]
        lag = [at for at, member in zip(reached, group.members, strict=True) if not _has_all(member) and at is not None]
        if lag and None not in reached:
            apart.append(max(at for at in reached if at is not None) - min(lag))
    raise AssertionError("the run does not end")


def _has_all(member: Planned) -> bool:
    return len(member.read) == sum(len(script.records) for script in member.source.scripts.values())


def test_sources_of_one_query_stay_together_and_each_reads_all_that_was_there(group: Group) -> None:
    slow = group.source({"s": range(100, 1000)}, max_rows=7, available_now=True)
    fast = group.source({"f": range(100, 3000, 5)}, max_rows=50, available_now=True)
    apart = run(group)
    assert _has_all(slow)
    assert _has_all(fast)
    assert 0 < max(apart) <= DRIFT + 1


def test_a_split_that_has_nothing_more_in_a_run_does_not_hold_the_other_sources(group: Group) -> None:
    for name in ("a", "b"):
        logs = {f"{name}/short": range(100, 110), f"{name}/long": range(100, 1100)}
        group.source(logs, max_rows=100, available_now=True)
    # As many triggers as there are drifts, and not one for each record.
    apart = run(group, triggers=300)
    assert all(map(_has_all, group.members))
    assert max(apart) <= DRIFT + 1


def test_a_source_that_has_nothing_in_a_run_holds_nobody(group: Group) -> None:
    silent = group.source({"s": [1]}, available_now=True)
    run(group)
    # The next run: another has records, this one has none.
    silent.restart()
    other = group.source({"o": range(100, 500)}, available_now=True)
    assert len(run(group)) < 5
    assert _has_all(other)


def test_a_source_that_ends_or_does_not_plan_is_not_waited_for_without_an_end(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    dead = group.source({"d": [1]}, available_now=True)
    ahead = group.source({"a": [100, 200]}, available_now=True)
    # Its process ends before it has planned.
    group.members.remove(dead)
    assert ahead.plan()
    assert ahead.read == []
    group.end(dead.exchange.membership.source_id)
    run(group)
    assert ahead.read == [100, 200]
    # One of another query lives, and does not go on.
    group.source({"h": [1]}, available_now=True)
    group.members.pop()
    late = group.source({"l": [100, 200]}, available_now=True)
    turns = 0
    while not late.read:
        assert late.plan()
        group.clock.advance("1 second")
        turns += 1
    assert turns > 20
    assert "has not gone on for 10 s" in caplog.text


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.tuples(st.integers(0, 300), st.lists(st.integers(0, 60), max_size=30), st.sampled_from([None, 1, 4])),
        min_size=2,
        max_size=3,
    ),
    st.data(),
)
def test_whatever_comes_in_which_run_each_run_ends_with_all_read(
    sources: Sequence[tuple[int, list[int], int | None]], data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder:
        group = Group(Path(folder))
        times = [list(accumulate(steps, initial=begin)) for begin, steps, _ in sources]
        cuts = [data.draw(st.integers(0, len(of_one))) for of_one in times]
        members = [
            group.source({"x": of_one[:cut]}, max_rows=most, available_now=True)
            for of_one, cut, (_, _, most) in zip(times, cuts, sources, strict=True)
        ]
        run(group)
        assert [member.read for member in members] == [of_one[:cut] for of_one, cut in zip(times, cuts, strict=True)]
        for member, of_one, cut in zip(members, times, cuts, strict=True):
            member.source.go_on("x", *of_one[cut:])
        for member in members:
            member.restart()
        run(group)
        assert [member.read for member in members] == times
        assert all(member.watermark < MAX_WATERMARK for member in members)
        group.close()


@settings(max_examples=examples(100))
@given(st.data())
def test_the_watermark_that_spark_keeps_is_the_minimum_of_all_sources_after_every_run(data: st.DataObject) -> None:
    """SPARK-50046: Spark keeps one watermark between runs, and the minimum needs a word of each source in each."""
    with TemporaryDirectory() as folder:
        group, kept = Group(Path(folder)), 0
        drift, most = data.draw(st.sampled_from(["10 us", "1 hour"])), data.draw(st.sampled_from([None, 3]))
        number = data.draw(st.integers(2, 3))
        members = [group.source({"x": []}, drift=drift, max_rows=most, available_now=True) for _ in range(number)]
        latest = [0] * number
        for _ in range(data.draw(st.integers(2, 6))):
            for i, member in enumerate(members):
                if steps := data.draw(st.lists(st.integers(1, 40), max_size=8)):
                    times = list(accumulate(steps, initial=latest[i]))[1:]
                    member.source.go_on("x", *times)
                    latest[i] = times[-1]
            for member in members:
                member.restart()
            # As Spark's tracker: of each source what its rows have announced in this run, and the minimum of all.
            announced: dict[int, int] = {}
            for _ in range(2_000):
                planned = [i for i, member in enumerate(members) if member.plan()]
                announced |= {i: members[i].watermark for i in planned}
                if len(announced) == number:
                    kept = max(kept, min(announced.values()))
                if not planned:
                    break
            if all(latest):
                assert kept == max(min(latest) - 1, 0)
        group.close()
