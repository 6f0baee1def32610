"""A log that was cleaned up or put back; when its commits were made. The rest: `tables/test_expired_history.py`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import deltalake
import pytest
from pyarrow import fs

from streaming_source.connectors.delta import DeltaSource, lister
from streaming_source.exceptions import DataLossError, OptionError
from streaming_source.testing import SourceHarness
from tests.delta.tables import SECOND, STRATEGY, append, harness, times
from tests.examples import each_once


def later(done: SourceHarness) -> list[int]:
    done.clock.advance("2 seconds")
    done.run()
    return times(done)


def test_an_older_state_of_the_log_that_was_put_in_place_is_named(tmp_path: Path) -> None:
    for second in range(3):
        append(tmp_path, [second * SECOND])
    done = harness(tmp_path)
    done.run()
    (tmp_path / f"_delta_log/{2:020}.json").unlink()
    done.restart()

    with pytest.raises(
        DataLossError, match=r"is at version 1, and version 2 was read: an older state of its log was restored.*new"
    ):
        later(done)


@pytest.mark.parametrize(("is_stopped", "has_news"), each_once([False, True], [False, True]))
def test_an_older_state_that_was_put_in_place_and_written_on_is_named(
    tmp_path: Path, is_stopped: bool, has_news: bool
) -> None:
    for second in range(6):
        append(tmp_path, [second * SECOND])
    done = harness(tmp_path)
    done.run()
    for version in (3, 4, 5):
        (tmp_path / f"_delta_log/{version:020}.json").unlink()
    for second in range(10, 14 if has_news else 13):
        append(tmp_path, [second * SECOND])
    if is_stopped:
        done.restart()
    elif not has_news:
        # A query that runs looks for new versions alone.
        assert later(done) == [second * SECOND for second in range(6)]
        append(tmp_path, [20 * SECOND])

    with pytest.raises(DataLossError, match=r"is not the commit that was read as version 5: an older state.*restored"):
        later(done)


def test_a_version_that_was_cleaned_up_is_refused_as_a_start_with_the_oldest_one(tmp_path: Path) -> None:
    def clean_up(*versions: int) -> None:
        deltalake.DeltaTable(str(tmp_path)).create_checkpoint()
        for version in versions:
            (tmp_path / f"_delta_log/{version:020}.json").unlink()

    for second in range(4):
        append(tmp_path, [second * SECOND])
    clean_up(0, 1, 2)
    for second in range(4, 6):
        append(tmp_path, [second * SECOND])

    with pytest.raises(
        OptionError,
        match=r"startingVersion = 0: .* not in the log .* the oldest is 3: give that, or leave the option out",
    ):
        later(harness(tmp_path, {"starting_version": 0}))
    assert later(harness(tmp_path, {"starting_version": 3})) == [second * SECOND for second in range(3, 6)]
    for options in ({"version_as_of": 1}, {"version_as_of": 2}):
        with pytest.raises(
            OptionError, match=r"versionAsOf = \d: version \d .* cleaned up .* the oldest that can be is 3"
        ):
            DeltaSource(str(tmp_path), **options).for_batch().schema()
    # Nothing of the log but a checkpoint.
    clean_up(3, 4, 5)
    with pytest.raises(OptionError, match=r"startingVersion = 5: .* cleaned up .*; give latest, or leave the option"):
        later(harness(tmp_path, {"starting_version": 5}))


# ---- when commits were made ------------------------------------------------------------------------------------------


def rewrite(path: Path, version: int, keep: Any) -> None:
    """Write a commit again with what `keep` makes of its commitInfo: None leaves it out."""
    log = path / f"_delta_log/{version:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    made = [{"commitInfo": keep(one["commitInfo"])} if "commitInfo" in one else one for one in actions]
    kept = [one for one in made if one.get("commitInfo", True) is not None]
    log.write_text("\n".join(map(json.dumps, kept)))


HOUR_MS = 3_600_000


@pytest.mark.parametrize("without", ["timestamp", "commitInfo"])
def test_a_commit_that_does_not_say_when_it_was_made_is_of_the_time_of_its_file(tmp_path: Path, without: str) -> None:
    for hour in range(5):
        append(tmp_path, [hour * SECOND])
        rewrite(tmp_path, hour, lambda info, hour=hour: {**info, "timestamp": hour * HOUR_MS})
    rewrite(tmp_path, 2, lambda info: None if without == "commitInfo" else {"operation": info["operation"]})
    os.utime(tmp_path / f"_delta_log/{2:020}.json", (2 * 3600, 2 * 3600))

    for hour in range(5):
        at = f"1970-01-01T0{hour}:30:00Z"
        batch = DeltaSource(str(tmp_path), timestamp_as_of=at, bounded=True)
        done = SourceHarness(batch, harness(tmp_path).strategy)
        done.run()
        assert times(done) == [second * SECOND for second in range(hour + 1)]
        if hour < 4:
            assert later(harness(tmp_path, {"starting_timestamp": at})) == [n * SECOND for n in range(hour + 1, 5)]


def test_commits_whose_clocks_go_back_are_in_their_order(tmp_path: Path) -> None:
    for number, hour in enumerate([0, 3, 1, 4]):
        append(tmp_path, [number * SECOND])
        rewrite(tmp_path, number, lambda info, hour=hour: {**info, "timestamp": hour * HOUR_MS})

    assert DeltaSource(str(tmp_path), timestamp_as_of="1970-01-01T02:00Z").for_batch()._open_first().version() == 0
    assert DeltaSource(str(tmp_path), timestamp_as_of="1970-01-01T03:00Z").for_batch()._open_first().version() == 1
    # A millisecond after the one before it.
    behind = DeltaSource(str(tmp_path), timestamp_as_of="1970-01-01T03:00:00.001Z").for_batch()
    assert behind._open_first().version() == 2
    assert later(harness(tmp_path, {"starting_timestamp": "1970-01-01T02:00Z"})) == [n * SECOND for n in (1, 2, 3)]


def test_a_commit_that_comes_before_the_first_look_is_no_older_state(tmp_path: Path) -> None:
    for second in range(2):
        append(tmp_path, [second * SECOND])
    source = DeltaSource(str(tmp_path))
    listed_by = source.open_lister(source.schema(), STRATEGY.timestamp_assigner)
    append(tmp_path, [2 * SECOND])
    assert len(listed_by.commits(1).whole()) == 1
    assert not listed_by.commits(2).whole()


@pytest.mark.parametrize("hidden", [{3}, {2, 3}, {5}, {1, 4}])
def test_commits_that_a_store_does_not_show_at_once_are_in_the_chain(
    hidden: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for second in range(6):
        append(tmp_path, [second * SECOND])
    source = DeltaSource(str(tmp_path))
    listed_by = source.open_lister(source.schema(), STRATEGY.timestamp_assigner)
    shown, read = set[int](), lister.read_commit

    def shows_later(files: fs.FileSystem, root: str, version: int) -> Any:
        if version in hidden - shown:
            shown.add(version)
            return None
        return read(files, root, version)

    monkeypatch.setattr(lister, "read_commit", shows_later)
    assert [commit.version for commit in listed_by.commits(0, 5).whole()] == [1, 2, 3, 4, 5]
