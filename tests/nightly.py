"""Which tests `make test` leaves to `make soak`, beside those marked so: what they run, others in `make test` run too.

`nightly.txt` names them, a function or a case of it a line. `python -m tests.nightly` writes it anew, after a run in
which each test was a context of coverage:

    python -m coverage run -m pytest tests -p tests.nightly -n 2 -q -m "not soak and not browser"
    python -m coverage combine

Each branch is taken by two tests that stay, where two take it; those are chosen that take the most branches in their
time. Of each function one case stays, unless it takes long. Quick tests stay, and those that draw their input, which
find what nobody thought of. Which tests on Spark stay is decided by hand: one for each promise, since what Spark does
with it is no branch of ours.
"""

from __future__ import annotations

import heapq
import json
import os
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Final

import pytest

__all__ = ["NAMES", "chosen", "is_nightly"]

_LIST: Final = Path(__file__).with_name("nightly.txt")
NAMES: Final = frozenset(_LIST.read_text(encoding="utf-8").splitlines())
"""Functions, and cases of them."""

_STAY: Final = ("tests/outside/",)
"""Tests of many hostile values, which take the same branches."""

_ROOT: Final = Path(__file__).parents[1]
_MEASURED: Final = _ROOT / "build" / "nightly"
_TIMES: Final = 2
_WORTH_S: Final = 0.1
"""What is quicker need not be left out."""
_LONG_S: Final = 0.5
"""A function each case of which takes longer may be left out altogether."""


def is_nightly(nodeid: str) -> bool:
    """Return whether the list has a test or its function."""
    return nodeid in NAMES or nodeid.partition("[")[0] in NAMES


def chosen(branches: Mapping[str, Set[object]], seconds: Mapping[str, float], kept: Set[str], times: int) -> set[str]:
    """Return the tests beside `kept` that are needed so that each branch is taken so many times, as far as it can be.

    `branches` and `seconds` are by test. Next is always the one that takes the most branches in its time.
    """
    taken = Counter(branch for test in kept & branches.keys() for branch in branches[test])

    def worth(test: str) -> float:
        return sum(taken[branch] < times for branch in branches[test]) / max(seconds[test], _WORTH_S)

    found: set[str] = set()
    queue = [(-worth(test), test) for test in sorted(branches.keys() - kept)]
    heapq.heapify(queue)
    while queue:
        _, test = heapq.heappop(queue)
        # What has been chosen since may take its branches.
        now = worth(test)
        if now and queue and -now > queue[0][0]:
            heapq.heappush(queue, (-now, test))
        elif now:
            found.add(test)
            taken.update(branches[test])
    return found


# ---- a run that is measured ------------------------------------------------------------------------------------------


def pytest_configure() -> None:
    """Run all of them."""
    globals()["NAMES"] = frozenset()
    _MEASURED.mkdir(parents=True, exist_ok=True)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Let a test be a context, in the processes that it starts as well."""
    import coverage

    from tests.rooms import room_of

    measured, began = coverage.Coverage.current(), time.perf_counter()
    os.environ["COVERAGE_TEST"] = item.nodeid
    if measured is not None:
        measured.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        if measured is not None:
            measured.switch_context("")
        room, draws = room_of(item), item.get_closest_marker("hypothesis") or item.name == "runTest"
        stays = bool(draws) or room in ("quick", "alone") or item.nodeid.startswith(_STAY)
        line = [item.nodeid, time.perf_counter() - began, stays, room == "spark"]
        with (_MEASURED / f"{os.getpid()}.jsonl").open("a") as file:
            file.write(f"{json.dumps(line)}\n")


def main() -> None:
    """Write the list."""
    lines = [json.loads(line) for path in _MEASURED.glob("*.jsonl") for line in path.read_text().splitlines()]
    seconds = {test: took for test, took, *_ in lines}
    on_spark = {test for test, _, _, is_on_spark in lines if is_on_spark}
    kept = {test for test, took, stays, _ in lines if stays or took < _WORTH_S} | {
        test for test in on_spark if not is_nightly(test)
    }
    with sqlite3.connect(_ROOT / ".coverage") as data:
        contexts = {number: name.strip("|") for number, name in data.execute("select id, context from context")}
        branches = defaultdict[str, set[object]](set)
        for number, *branch in data.execute("select context_id, file_id, fromno, tono from arc"):
            branches[contexts[number]].add(tuple(branch))
    kept |= chosen({test: branches[test] for test in seconds.keys() - on_spark | kept}, seconds, kept, _TIMES)
    cases = defaultdict[str, list[str]](list)
    for test in sorted(seconds, key=seconds.__getitem__):
        cases[test.partition("[")[0]].append(test)
    kept |= {tests[0] for tests in cases.values() if seconds[tests[0]] < _LONG_S and tests[0] not in on_spark}
    left_out = seconds.keys() - kept
    stay = {test.partition("[")[0] for test in kept}
    names = {test if (function := test.partition("[")[0]) in stay else function for test in left_out}
    _LIST.write_text("".join(f"{name}\n" for name in sorted(names)), encoding="utf-8")
    print(
        f"{len(left_out):,} of {len(seconds):,} tests, {sum(map(seconds.__getitem__, left_out)):,.0f} s, are left out"
    )


if __name__ == "__main__":
    main()
