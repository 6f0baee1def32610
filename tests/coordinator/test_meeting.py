"""Sources of one group leave word for each other in a file."""

from __future__ import annotations

import logging
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from alignment.watermarks import MAX_WATERMARK
from streaming_source.coordinator import GroupMeeting

INTERVAL_US = 1_000_000
LEASE_US = 10_000_000


class Clock:
    now_us = 50_000_000

    def __call__(self) -> int:
        return self.now_us


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def join(tmp_path: Path, clock: Clock) -> Callable[..., GroupMeeting]:
    def member(group: str = "g", drift: int = 10, is_alive: Callable[[int], bool] | None = None) -> GroupMeeting:
        return GroupMeeting(tmp_path / "meeting", group, drift, INTERVAL_US, clock, is_alive)

    return member


Join = Callable[..., GroupMeeting]


def test_each_source_learns_its_limit_from_the_others(join: Join) -> None:
    fast, slow = join(drift=10), join(drift=500)
    assert fast.report(1_000, 1_001) == MAX_WATERMARK
    assert slow.report(200, 201) == 1_500
    assert fast.renew() == 210
    slow.report(990, 991)
    assert fast.renew() == 1_000


def test_another_group_is_not_heard(join: Join) -> None:
    join("other").report(5, 6)
    assert join("g").report(1_000, 1_001) == MAX_WATERMARK


def test_a_source_that_leaves_holds_nobody_back(join: Join) -> None:
    fast, slow = join(), join()
    slow.report(200, 201)
    assert fast.report(1_000, 1_001) == 210
    slow.leave()
    assert fast.renew() == MAX_WATERMARK


def test_a_source_that_hangs_holds_the_others_for_its_lease_and_no_longer(join: Join, clock: Clock) -> None:
    fast, slow = join(), join()
    slow.report(200, 201)
    clock.now_us += LEASE_US - 1
    assert fast.report(1_000, 1_001) == 210
    clock.now_us += 1
    assert fast.renew() == MAX_WATERMARK
    # It was only slow, and is back.
    slow.renew()
    assert fast.renew() == 210


_MEMBER = """
import sys, time
from pathlib import Path
from streaming_source.coordinator import GroupMeeting
meeting = GroupMeeting(Path(sys.argv[1]), "g", 10, 1_000_000, lambda: 50_000_000)
meeting.report(200, 201)
print("in", flush=True)
time.sleep(600)
"""


def test_a_process_that_is_killed_holds_nobody_back(join: Join, tmp_path: Path) -> None:
    fast = join()
    with subprocess.Popen(
        [sys.executable, "-c", _MEMBER, str(tmp_path / "meeting")], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        assert fast.report(1_000, 1_001) == 210
        process.kill()
        process.wait()
    assert fast.renew() == MAX_WATERMARK


def test_a_process_of_another_user_is_taken_for_alive(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    fast, slow = join(), join()
    slow.report(200, 201)

    def refuse(pid: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    assert fast.report(1_000, 1_001) == 210


def test_where_nothing_can_be_exchanged_the_last_limit_holds_for_a_lease_and_is_then_lifted(
    join: Join, tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    fast, slow = join(), join()
    slow.report(200, 201)
    fast.report(1_000, 1_001)
    # A member that was stopped in the middle of its transaction.
    holder = sqlite3.connect(tmp_path / "meeting", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    try:
        with caplog.at_level(logging.WARNING):
            assert fast.renew() == 210
            clock.now_us += LEASE_US
            assert fast.renew() == MAX_WATERMARK
        assert caplog.text.count("cannot be reached") == 1
        fast.leave()
    finally:
        holder.rollback()
        holder.close()
    slow.renew()
    assert fast.renew() == 210


def test_two_sources_of_one_name_stay_two(join: Join) -> None:
    assert join().source_id != join().source_id
