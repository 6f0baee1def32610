"""A plugin of pytest: in which order tests run, what each worker had of them, and why some did not run.

A test is in one of five rooms: a quick one is what a change touches first; then what uses the shared Spark session,
what uses the broker, what starts a service of its own or takes long, and what is wide: it needs no service, and shows
of many cases what a quick one shows of some.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

__all__ = ["ROOMS", "room_of"]

ROOMS = ("quick", "spark", "broker", "alone", "wide")
_ALONE = ("spark", "kafka", "browser", "slow", "soak")
"""The marks that `make quick` leaves out, with `wide`."""


def room_of(item: pytest.Item) -> str:
    """What a test shares with others."""
    fixtures: Sequence[str] = getattr(item, "fixturenames", ())
    if "spark" in fixtures:
        return "spark"
    if "kafka_jars" in fixtures and not item.get_closest_marker("spark"):
        return "broker"
    if any(map(item.get_closest_marker, _ALONE)):
        return "alone"
    return "wide" if item.get_closest_marker("wide") else "quick"


def _place(item: pytest.Item) -> tuple[int, bool]:
    """Room by room. Last of what uses Spark what uses the broker as well; of what is alone what does not take long."""
    room = room_of(item)
    if room == "spark":
        return ROOMS.index(room), "kafka_jars" in getattr(item, "fixturenames", ())
    return ROOMS.index(room), room == "alone" and not item.get_closest_marker("slow")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Quick ones first. A worker leaves the places of all in a file, for who hands them out."""
    items.sort(key=_place)
    if folder := getattr(config, "workerinput", {}).get("rooms"):
        rooms: dict[str, list[int]] = {room: [] for room in ROOMS}
        for number, item in enumerate(items):
            rooms[room_of(item)].append(number)
        (Path(folder) / config.workerinput["workerid"]).write_text(json.dumps(rooms))  # type: ignore[attr-defined]


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Run())


@dataclass
class _Shift:
    """What a worker has done, and what last."""

    tests: int = 0
    seconds: float = 0.0
    done_s: float = 0.0
    last: str = ""


class _Run:
    """Hands out the tests of a run, and says at its end who did what and what was not done."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._begun = time.monotonic()
        self._shifts: defaultdict[str, _Shift] = defaultdict(_Shift)
        self._shares: Any = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["rooms"] = self._folder.name

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        from tests.shares import Shares

        self._shares = Shares(config, log, Path(self._folder.name))
        return self._shares

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._shares and report.failed:
            self._shares.failed(report.nodeid)
        shift = self._shifts[getattr(report, "worker_id", "")]
        shift.tests += report.when == "teardown"
        shift.seconds += report.duration
        shift.done_s, shift.last = time.monotonic() - self._begun, report.nodeid

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        why: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for report in terminalreporter.stats.get("skipped", ()):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            why[reason.removeprefix("Skipped: ")][report.nodeid.split("::")[0].removeprefix("tests/")] += 1
        if why:
            terminalreporter.section(f"Skipped, {sum(map(Counter.total, why.values()))} tests")
        for reason, files in sorted(why.items(), key=lambda one: -one[1].total()):
            terminalreporter.write_line(f"{files.total():4}  {reason}  ({', '.join(sorted(files))})")
        if len(self._shifts) > 1:
            terminalreporter.section("Workers")
            for worker, done in sorted(self._shifts.items()):
                did = f"{worker}: {done.tests:,} tests in {done.seconds:.0f} s"
                terminalreporter.write_line(f"{did}; the last was done after {done.done_s:.0f} s: {done.last}")
        self._folder.cleanup()
