"""Sources of one alignment group exchange their reports through a file."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from alignment.combine import SplitStatus
from alignment.events import IdleWatermarkMoved
from alignment.group_events import Progress, Seen
from alignment.watermarks import MAX_WATERMARK
from streaming_source.coordinator.group_exchange import GroupExchange
from streaming_source.coordinator.group_location import GroupFile
from tests.coordinator.groups import renew, report

INTERVAL_US = 1_000_000
LEASE_US = 10_000_000
IDLE = SplitStatus.IDLE


class Clock:
    now_us = 50_000_000

    def __call__(self) -> int:
        return self.now_us


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def join(tmp_path: Path, clock: Clock) -> Callable[..., GroupExchange]:
    def member(group: str = "g", drift: int = 10, is_alive: Callable[[int], bool] | None = None) -> GroupExchange:
        return GroupExchange(GroupFile(tmp_path / "group"), group, drift, INTERVAL_US, clock, is_alive)

    return member


Join = Callable[..., GroupExchange]


def test_each_source_learns_its_limit_from_the_others(join: Join) -> None:
    fast, slow = join(drift=10), join(drift=500)
    assert report(fast, 1_000, 1_001) == MAX_WATERMARK
    assert report(slow, 200, 201) == 1_500
    assert renew(fast) == 210
    report(slow, 990, 991)
    assert renew(fast) == 1_000


def test_the_reports_of_another_group_do_not_count(join: Join) -> None:
    report(join("other"), 5, 6)
    assert report(join("g"), 1_000, 1_001) == MAX_WATERMARK


def test_a_source_that_leaves_does_not_hold_the_others_back(join: Join) -> None:
    fast, slow = join(), join()
    report(slow, 200, 201)
    assert report(fast, 1_000, 1_001) == 210
    slow.leave()
    assert renew(fast) == MAX_WATERMARK


def test_what_is_on_its_way_when_a_source_leaves_does_not_bring_it_back(join: Join, clock: Clock) -> None:
    fast, slow = join(), join()
    report(slow, 200, 201)
    slow.leave()
    clock.now_us += INTERVAL_US
    slow.renew_when_due()
    report(slow, 300, 301)
    assert report(fast, 1_000, 1_001) == MAX_WATERMARK


def test_a_source_that_hangs_holds_the_others_for_its_lease_and_no_longer(join: Join, clock: Clock) -> None:
    fast, slow = join(), join()
    report(slow, 200, 201)
    clock.now_us += LEASE_US - 1
    assert report(fast, 1_000, 1_001) == 210
    clock.now_us += 1
    assert renew(fast) == MAX_WATERMARK
    # It was only slow, and is back.
    renew(slow)
    assert renew(fast) == 210


def test_a_source_that_reads_gets_a_new_limit_at_once_and_renews_its_report_after_an_interval(
    join: Join, clock: Clock
) -> None:
    fast, slow = join(), join()
    report(slow, 200, 201)
    assert report(fast, 1_000, 1_001) == 210
    report(slow, 300, 301)
    fast.renew_when_due()
    assert fast.membership.limit_us == 310
    clock.now_us += INTERVAL_US
    fast.renew_when_due()
    # It has renewed its report: its lease goes on from there.
    clock.now_us += LEASE_US - 1
    assert renew(slow) == 1_010
    clock.now_us += 1
    assert renew(slow) == MAX_WATERMARK


def test_a_source_that_only_reads_removes_no_member(join: Join, tmp_path: Path, clock: Clock) -> None:
    fast, slow = join(), join()
    report(slow, 200, 201)
    report(fast, 1_000, 1_001)
    clock.now_us += LEASE_US
    assert fast._exchange(None) == Seen(clock.now_us, (), is_fresh=False)
    with closing(sqlite3.connect(tmp_path / "group")) as file:
        assert file.execute("SELECT count(*) FROM member").fetchone() == (2,)


_MEMBER = """
import sys, time
from pathlib import Path
from alignment.group_events import Progress
from streaming_source.coordinator.group_exchange import GroupExchange
from streaming_source.coordinator.group_location import GroupFile
exchange = GroupExchange(GroupFile(Path(sys.argv[1])), "g", 10, 1_000_000, lambda: 50_000_000)
exchange.end_plan(Progress(200, 201))
print("in", flush=True)
time.sleep(600)
"""


def test_a_process_that_is_killed_does_not_hold_the_others_back(join: Join, tmp_path: Path) -> None:
    fast = join()
    with subprocess.Popen(
        [sys.executable, "-c", _MEMBER, str(tmp_path / "group")], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        assert report(fast, 1_000, 1_001) == 210
        process.kill()
        process.wait()
    assert renew(fast) == MAX_WATERMARK


_APART = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]


def test_a_process_in_another_container_is_not_taken_for_ended(join: Join, tmp_path: Path, clock: Clock) -> None:
    if not shutil.which("unshare") or subprocess.run([*_APART, "true"], capture_output=True, check=False).returncode:
        pytest.skip("unshare may make no process namespace here")
    here = join()
    report(here, 300, 301)
    with subprocess.Popen(
        [*_APART, sys.executable, "-c", _MEMBER, str(tmp_path / "group")], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        # Neither sees the other's process, and neither has removed the other's report.
        with closing(sqlite3.connect(tmp_path / "group")) as file:
            assert file.execute("SELECT count(*), count(DISTINCT host) FROM member").fetchone() == (2, 2)
        assert renew(here) == 210
        process.kill()
        process.wait()
    # It holds the others until its lease ends.
    assert renew(here) == 210
    clock.now_us += LEASE_US
    assert renew(here) == MAX_WATERMARK


def test_a_run_that_was_killed_in_another_container_holds_the_group_for_minutes_and_not_for_days(
    tmp_path: Path, join: Join, clock: Clock
) -> None:
    killed = GroupExchange(GroupFile(tmp_path / "group", "another host"), "g", 10, INTERVAL_US, clock)
    killed.drain()
    here = join()
    assert report(here, 1_000, 1_001) < 0
    clock.now_us += 600 * INTERVAL_US
    assert renew(here) == MAX_WATERMARK


def test_processes_of_one_machine_see_each_other_without_the_folder_proc(tmp_path: Path) -> None:
    script = (
        "from pathlib import Path; from streaming_source.coordinator import group_location; "
        f"group_location._PROC = Path({str(tmp_path / 'missing')!r}); print(group_location.this_host())"
    )
    command = [sys.executable, "-c", script]
    assert len({subprocess.run(command, capture_output=True, check=True).stdout for _ in range(2)}) == 1


def test_a_process_of_another_user_is_taken_for_alive(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    fast, slow = join(), join()
    report(slow, 200, 201)

    def refuse(pid: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    assert report(fast, 1_000, 1_001) == 210


def test_where_nothing_can_be_exchanged_the_last_limit_holds_for_a_lease_and_is_then_lifted(
    join: Join, tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    fast, slow = join(), join()
    report(slow, 200, 201)
    report(fast, 1_000, 1_001)
    # A member that was stopped in the middle of its transaction.
    holder = sqlite3.connect(tmp_path / "group", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    try:
        with caplog.at_level(logging.WARNING):
            assert renew(fast) == 210
            clock.now_us += LEASE_US
            assert renew(fast) == MAX_WATERMARK
        assert caplog.text.count("cannot be reached") == 1
        join().leave()
    finally:
        holder.rollback()
        holder.close()
    renew(slow)
    assert renew(fast) == 210


def test_two_sources_of_one_name_stay_two(join: Join) -> None:
    assert join().membership.source_id != join().membership.source_id


@pytest.mark.parametrize("follows", [True, False])
def test_an_idle_source_follows_the_others_only_where_its_own_watermark_is_that_of_spark(
    tmp_path: Path, clock: Clock, follows: bool
) -> None:
    """With a plain withWatermark Spark's watermark holds for all sources: records are not late by another one's."""
    location = GroupFile(tmp_path / "group")
    silent, other = (
        GroupExchange(location, "g", 10, INTERVAL_US, clock, in_one_query=True, follows=follows) for _ in range(2)
    )
    for member in (silent, other):
        with member.call():
            member.start_plan()
            member.end_plan(Progress(announced_us=700, watermark=700) if member is other else Progress(status=IDLE))
    with silent.call():
        assert [event for event in silent.start_plan() if isinstance(event, IdleWatermarkMoved)] == (
            [IdleWatermarkMoved(700)] if follows else []
        )
