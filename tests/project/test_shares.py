"""Tests are handed out so that quick ones come first, each service is started once, and all run once."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import nightly, wide
from tests.project.house import ROOT
from tests.rooms import ROOMS

shares = pytest.importorskip("tests.shares", reason="needs pytest-xdist")


class Worker:
    """Runs a test when it knows the next one, or that there is none: as a worker of pytest-xdist."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.has: list[int] = []
        self.done: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.has += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    def next(self) -> int | None:
        return self.has[0] if len(self.has) > 1 or (self.shutting_down and self.has) else None


class Run:
    """A run of tests over workers, in the order in which `seconds` say that they are done."""

    def __init__(self, folder: Path, workers: int, **sizes: int) -> None:
        numbers = iter(range(10_000))
        self.rooms = {room: [next(numbers) for _ in range(sizes.get(room, 0))] for room in ROOMS}
        (folder / "gw0").write_text(json.dumps(self.rooms))
        self.session = SimpleNamespace(shouldstop=None)
        manager = SimpleNamespace(getplugin=lambda _: self.session)
        option = SimpleNamespace(tx=["popen"] * workers)
        config: Any = SimpleNamespace(pluginmanager=manager, option=option, getvalue=lambda _: option.tx)
        self.shares = shares.Shares(config, None, folder)
        self.workers = [Worker(f"gw{number}") for number in range(workers)]
        self.tests = [f"test {number}" for room in self.rooms.values() for number in room]
        self.order: list[int] = []
        for worker in self.workers:
            self.shares.add_node(worker)
            self.shares.add_node_collection(worker, self.tests)
        self.shares.schedule()

    def go(self, fails: int | None = None, seconds: dict[str, int] | None = None) -> Run:
        free_at = dict.fromkeys(range(len(self.workers)), 0)
        while self.session.shouldstop is None:
            ready = [(free_at[n], n) for n, worker in enumerate(self.workers) if worker.next() is not None]
            if not ready:
                break
            now, number = min(ready)
            worker = self.workers[number]
            test = worker.has.pop(0)
            room = next(room for room, found in self.rooms.items() if test in found)
            free_at[number] = now + (seconds or {}).get(room, 1)
            worker.done.append(test)
            self.order.append(test)
            if test == fails:
                self.shares.failed(self.tests[test])
            self.shares.mark_test_complete(worker, test)
        return self

    def workers_of(self, room: str) -> list[int]:
        return [n for n, worker in enumerate(self.workers) if {*worker.done} & {*self.rooms[room]}]


SIZES = {"quick": 500, "spark": 40, "broker": 30, "wide": 100, "alone": 20}


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize(
    "sizes", [SIZES, {"quick": 1}, {"spark": 3}, {"alone": 1, "broker": 60, "wide": 50}, {"quick": 7, "spark": 90}]
)
def test_each_test_runs_once_and_the_quick_ones_before_all_others(
    tmp_path: Path, workers: int, sizes: dict[str, int]
) -> None:
    run = Run(tmp_path, workers, **sizes).go(seconds={"spark": 20, "broker": 15, "alone": 50})
    assert sorted(run.order) == list(range(len(run.tests)))
    assert {*run.order[: len(run.rooms["quick"])]} == {*run.rooms["quick"]}
    assert all(worker.shutting_down for worker in run.workers)


def test_where_a_quick_test_fails_all_quick_ones_are_seen_and_nothing_else_is_begun(tmp_path: Path) -> None:
    run = Run(tmp_path, 3, **SIZES).go(fails=250)
    assert sorted(run.order) == run.rooms["quick"]
    assert run.session.shouldstop == "a quick test failed; no other was begun"


def test_another_test_that_fails_stops_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path, 3, **SIZES)
    assert sorted(run.go(fails=run.rooms["spark"][0]).order) == list(range(len(run.tests)))


def test_the_session_and_the_broker_have_a_worker_each(tmp_path: Path) -> None:
    run = Run(tmp_path, 3, **SIZES).go(seconds={"spark": 20, "broker": 15, "alone": 50})
    assert (run.workers_of("spark"), run.workers_of("broker")) == ([0], [1])
    assert len(run.workers_of("quick")) == 3
    assert 2 in run.workers_of("wide")


def test_who_has_nothing_left_takes_half_of_what_is_worth_another_session(tmp_path: Path) -> None:
    run = Run(tmp_path, 2, quick=10, spark=100).go(seconds={"spark": 20})
    assert run.workers_of("spark") == [0, 1]
    assert min(len(worker.done) for worker in run.workers) > 40


def test_what_a_worker_held_that_crashed_is_run_by_another(tmp_path: Path) -> None:
    run = Run(tmp_path, 3, **SIZES)
    crashed = run.workers.pop(0)
    lost = crashed.has[0]
    assert run.shares.remove_node(crashed) == run.tests[lost]
    assert sorted([lost, *run.go().order]) == list(range(len(run.tests)))


def test_each_name_of_what_is_wide_or_left_to_the_night_is_that_of_a_test() -> None:
    for name in wide.NAMES | nightly.NAMES:
        module, _, test = name.partition("::")
        first = re.split(r"::|\[", test)[0]
        assert (ROOT / module).is_file(), name
        text = (ROOT / module).read_text(encoding="utf-8")
        assert any(begin in text for begin in (f"def {first}(", f"class {first}", f"{first} = ")) or not test, name


@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=3), st.frozensets(st.integers(0, 9)), max_size=12),
    st.data(),
    st.integers(1, 3),
)
def test_each_branch_is_taken_as_often_by_what_stays_and_nothing_stays_for_nothing(
    branches: dict[str, frozenset[object]], data: st.DataObject, times: int
) -> None:
    kept = data.draw(st.frozensets(st.sampled_from(sorted(branches) or [""])))
    seconds = dict(zip(branches, range(1, 99), strict=False))
    found = nightly.chosen(branches, seconds, kept, times)
    assert not found & kept
    stays = Counter(branch for test in (found | kept) & branches.keys() for branch in branches[test])
    there = Counter(branch for taken in branches.values() for branch in taken)
    assert all(stays[branch] >= min(times, count) for branch, count in there.items())
    # The one that was chosen last was needed: without it some branch is taken too seldom.
    assert not found or any(
        any(stays[branch] - 1 < min(times, there[branch]) for branch in branches[test]) for test in found
    )
