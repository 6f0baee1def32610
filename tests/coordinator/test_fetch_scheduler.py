from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from streaming_source.coordinator.event_times.split_scan import FetchScheduler


def taken(turns: FetchScheduler[str]) -> list[tuple[str, bool]]:
    got = []
    while (turn := turns.take()) is not None:
        got.append(turn)
    return got


def filled(busy: str, quiet: str) -> FetchScheduler[str]:
    turns: FetchScheduler[str] = FetchScheduler(6)
    for item in busy:
        turns.add(item)
    for item in quiet:
        turns.add(item, quiet=True)
    return turns


def test_each_has_its_turn_in_the_order_in_which_it_came() -> None:
    assert taken(filled("abc", "xy")) == [("a", False), ("b", False), ("c", False), ("x", True), ("y", True)]


def test_some_places_are_kept_for_those_that_bring_something() -> None:
    turns = filled("", "stuvwxyz")
    assert taken(turns) == [(item, True) for item in "stuv"]
    turns.add("a")
    turns.add("b")
    turns.add("c")
    assert taken(turns) == [("a", False), ("b", False)]
    turns.leave(quiet=True)
    assert taken(turns) == [("c", False)]


def test_one_place_is_kept_for_those_that_do_not() -> None:
    turns = filled("abcdefgh", "xyz")
    assert taken(turns) == [*((item, False) for item in "abcde"), ("x", True)]
    turns.leave(quiet=False)
    assert taken(turns) == [("f", False)]
    turns.leave(quiet=True)
    assert taken(turns) == [("y", True)]


def test_a_place_that_was_left_is_given_again() -> None:
    turns = filled("ab", "")
    for _ in range(100):
        item, quiet = turns.take() or ("nobody", False)
        turns.leave(quiet=quiet)
        turns.add(item)
    assert sorted(item for item, _ in taken(turns)) == ["a", "b"]


@given(st.integers(0, 12), st.integers(0, 12), st.integers(4, 8))
def test_whoever_waits_gets_its_turn_soon_however_many_there_are(busy: int, quiet: int, places: int) -> None:
    turns: FetchScheduler[tuple[bool, int]] = FetchScheduler(places)
    for number in range(busy):
        turns.add((False, number))
    for number in range(quiet):
        turns.add((True, number), quiet=True)
    under_way: list[tuple[tuple[bool, int], bool]] = []
    had: Counter[tuple[bool, int]] = Counter()
    for _ in range(2 * (busy + quiet) * places):
        while (turn := turns.take()) is not None:
            under_way.append(turn)
            had[turn[0]] += 1
        assert len(under_way) <= places
        if under_way:
            item, of_quiet = under_way.pop(0)
            turns.leave(quiet=of_quiet)
            turns.add(item, quiet=of_quiet)
    assert len(had) == busy + quiet
