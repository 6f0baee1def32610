"""Sources of one group leave reports for each other in a directory, from hosts whose clocks and processes differ."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from alignment.group_events import Member
from alignment.groups import SourceReport
from alignment.watermarks import MAX_WATERMARK
from streaming_source.coordinator.group_exchange import GroupExchange
from streaming_source.data_files.stores import Root, StorageOptions
from streaming_source.exceptions import OffsetError, OptionError
from streaming_source.spark import group_directory
from streaming_source.spark.datasource import AlignedDataSource
from streaming_source.spark.group_directory import GroupDirectory
from tests.coordinator.groups import renew, report
from tests.files.stores import s3_store

SECOND_US = 1_000_000
WALL_US = 1_700_000_000 * SECOND_US
LEASE_US = 10 * SECOND_US


class Time:
    """The time of day of all hosts; each host's own clock began at another moment of it."""

    passed_us = 0

    def wall(self) -> int:
        return WALL_US + self.passed_us

    def of(self, host: str) -> Callable[[], int]:
        began_us = {"a": 50, "b": 9_000}[host] * SECOND_US
        return lambda: began_us + self.passed_us


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    monkeypatch.setattr(group_directory, "_LOOK_S", {True: 0.0, False: 0.0})
    return Time()


Join = Callable[..., GroupExchange]


@pytest.fixture
def join(tmp_path: Path, clock: Time) -> Join:
    def member(host: str, group: str = "g", drift: int = 10, root: Root | None = None) -> GroupExchange:
        now_us = clock.of(host)
        place = GroupDirectory(root or Root(str(tmp_path / "groups")), now_us, clock.wall, host)
        return GroupExchange(place, group, drift, SECOND_US, now_us)

    return member


def test_each_source_learns_its_limit_from_those_of_other_hosts(join: Join) -> None:
    fast, slow, other = join("a", drift=10), join("b", drift=500), join("b", group="../other")
    report(other, 5, 6)
    assert report(fast, 1_000, 1_001) == MAX_WATERMARK
    assert report(slow, 200, 201) == 1_500
    assert renew(fast) == 210
    assert fast.membership.slowest is not None
    assert fast.membership.slowest.report.watermark == 200
    slow.leave()
    assert renew(fast) == MAX_WATERMARK


def test_a_lease_ends_by_the_time_that_has_passed_and_not_by_the_clock_of_a_host(join: Join, clock: Time) -> None:
    fast, slow = join("a"), join("b")
    report(slow, 200, 201)
    clock.passed_us = LEASE_US - 1
    assert report(fast, 1_000, 1_001) == 210
    clock.passed_us = LEASE_US
    assert renew(fast) == MAX_WATERMARK


def test_a_run_that_was_killed_on_another_host_holds_the_group_for_minutes_and_not_for_days(
    join: Join, clock: Time
) -> None:
    killed, next_run = join("b"), join("a")
    killed.drain()
    clock.passed_us = 599 * SECOND_US
    assert report(next_run, 1_000, 1_001) < 0
    clock.passed_us = 600 * SECOND_US
    assert renew(next_run) == MAX_WATERMARK


def test_a_process_that_has_ended_on_this_host_holds_nobody_back(tmp_path: Path, join: Join, clock: Time) -> None:
    fast, now_us = join("a"), clock.of("a")()
    ended = Member("9" * 32, "slow", 2**22 + 1, now_us, now_us + LEASE_US, SourceReport(10, 200, 201))
    fast.location.exchange("g", ended, lambda member: False)
    assert [path.stem for path in (tmp_path / "groups").rglob("*.json")] == ["9" * 32]
    assert report(fast, 1_000, 1_001) == MAX_WATERMARK
    # It is forgotten, and its file with it.
    assert [path.stem for path in (tmp_path / "groups").rglob("*.json")] == [fast.membership.source_id]


def test_a_version_changes_with_what_others_write_and_with_nothing_else(join: Join) -> None:
    fast, slow = join("a"), join("b")
    report(fast, 1_000, 1_001)
    before = fast.location.version()
    assert fast.location.version() == before
    report(slow, 200, 201)
    fast.location.wait_for_change(before, 10)
    assert fast.location.version() != before


def test_a_file_that_is_missing_while_it_is_replaced_is_looked_for_again(
    join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, slow = join("a"), join("b")
    report(slow, 200, 201)
    assert report(fast, 1_000, 1_001) == 210
    (own,) = (file for file in (tmp_path / "groups").rglob("*.json") if file.stem == slow.membership.source_id)
    hidden, read = own.rename(own.with_name("_hidden")), GroupDirectory._read

    def replaced_afterwards(place: GroupDirectory, group: str) -> object:
        found = read(place, group)
        if hidden.exists():
            hidden.rename(own)
        return found

    monkeypatch.setattr(GroupDirectory, "_read", replaced_afterwards)
    assert renew(fast) == 210


def test_a_directory_that_cannot_be_read_is_not_tried_with_each_look(
    join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_directory, "_LOOK_S", {True: 60.0, False: 60.0})
    fast = join("a")
    report(fast, 1_000, 1_001)
    (written,) = (tmp_path / "groups").rglob("*.json")
    written.write_text("{")
    with pytest.raises(
        OffsetError, match=r"alignmentLocation: .*\.json is damaged .*; remove the files of the directory"
    ):
        fast.location.exchange("g", Member("b", "b", 1, 0, 1, SourceReport(1)), lambda member: False)
    written.unlink()
    assert fast.location.version() is None


@pytest.mark.parametrize(
    ("location", "refused"),
    [
        (None, "SPARK_LOCAL_DIRS is not set in .* name one with option alignmentLocation, .* leave alignmentGroup out"),
        ("{tmp}/file/groups", "option alignmentLocation: .*/file/groups: .*; name a directory that all sources of the"),
    ],
)
def test_a_group_that_has_no_place_is_refused_before_anything_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str | None, refused: str
) -> None:
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    (tmp_path / "file").write_text("no directory")
    options = {"alignmentGroup": "a", "maxDrift": "1 minute"}
    if location is not None:
        options["alignmentLocation"] = location.format(tmp=tmp_path)
    source = AlignedDataSource.of_format("aligned_datagen", options)
    reader = source.stream_reader(source.schema())
    with pytest.raises(OptionError, match=rf"(?s){refused}"):
        reader.prepareForTriggerAvailableNow()


def test_what_cannot_be_read_is_named(join: Join, tmp_path: Path) -> None:
    fast = join("a")
    report(fast, 1_000, 1_001)
    (written,) = (tmp_path / "groups").rglob("*.json")
    written.write_text('{"v": 3}')
    with pytest.raises(OffsetError, match=r"it is of version 3: upgrade spark-watermark-alignment everywhere"):
        fast.location.exchange("g", None, lambda member: False)


def test_members_meet_in_an_object_store_with_the_options_of_the_source(join: Join, s3_endpoint: str) -> None:
    store = s3_store(s3_endpoint)
    root = StorageOptions.of(store.storage).at(f"{store.uri}/groups")
    fast, slow = join("a", root=root), join("b", root=root)
    report(slow, 200, 201)
    assert report(fast, 1_000, 1_001) == 210
    slow.leave()
    assert renew(fast) == MAX_WATERMARK
    assert len(store.names("groups")) == 1
