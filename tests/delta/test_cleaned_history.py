"""Any prefix of a table's log is cleaned up, at any moment, its folder too: all rows are read, or an error says why.

Of a stream, an audit and a checkpoint that is taken over. The model is a list of appends.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deltalake
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import streaming_source
from streaming_source import cut_from
from streaming_source.connectors.delta import DeltaSource, lister
from streaming_source.exceptions import DataLossError, FileGoneError, OptionError
from streaming_source.spark.offsets import OffsetCodec
from streaming_source.testing import SourceHarness
from tests.auditing import naive
from tests.auditing.test_delta import QUERY, offset, write_checkpoint
from tests.delta.tables import SECOND, append, harness, times
from tests.delta.test_take_over import checkpoint, taken_over
from tests.examples import examples
from tests.tables.reading import outcome_of

APPEND, COMPACT, LOOK, RESTART, VACUUM = "append", "compact", "look", "restart", "vacuum"

STEPS = st.one_of(
    st.sampled_from([APPEND, APPEND, APPEND, COMPACT, LOOK, RESTART, VACUUM]),
    # How many of the newest commits stay in the log.
    st.integers(1, 3),
)


@dataclass
class History:
    """A table, how many appends it had, and the oldest commit in its log."""

    path: Path
    appends: int = 0
    oldest: int = 0

    @property
    def times(self) -> list[int]:
        return [number * SECOND for number in range(self.appends)]

    @property
    def table(self) -> deltalake.DeltaTable:
        return deltalake.DeltaTable(str(self.path))

    def append(self) -> None:
        append(self.path, [self.appends * SECOND], topic="orders", partition=0, offset=self.appends)
        self.appends += 1

    def compact(self) -> None:
        self.table.optimize.compact()

    def vacuum(self) -> None:
        self.table.vacuum(0, dry_run=False, enforce_retention_duration=False)

    def clean_up(self, stay: int) -> None:
        """As `delta.logRetentionDuration` has it: a checkpoint, and commits before it are deleted."""
        table = self.table
        table.create_checkpoint()
        for version in range(self.oldest, table.version() + 1 - stay):
            (self.path / f"_delta_log/{version:020}.json").unlink()
            self.oldest = version + 1


@pytest.fixture(autouse=True)
def _looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lister, "_LOOKS", 2)


def later(done: SourceHarness) -> list[int]:
    """Look twice, as every other look asks whether the log was cleaned up."""
    for _ in range(2):
        done.clock.advance("2 seconds")
        done.run()
    return times(done)


@settings(max_examples=examples(12), deadline=None)
@example(steps=[LOOK, APPEND, APPEND, 1])
@example(steps=[LOOK, APPEND, LOOK, APPEND, APPEND, 1])
@example(steps=[LOOK, APPEND, COMPACT, VACUUM, 1])
@given(steps=st.lists(STEPS, min_size=2, max_size=9))
def test_a_stream_reads_all_rows_or_ends_with_an_error(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str | int]
) -> None:
    history = History(tmp_path_factory.mktemp("t"))
    history.append()
    done = harness(history.path)
    done.run()
    read, outcome = history.table.version(), None
    is_vacuumed = False
    for step in [*steps, LOOK]:
        if step == APPEND:
            history.append()
        elif step == COMPACT:
            history.compact()
        elif step == VACUUM:
            history.vacuum()
            is_vacuumed = True
        elif isinstance(step, int):
            history.clean_up(step)
        elif step == RESTART:
            done.restart()
        else:
            outcome = outcome_of(lambda: later(done))
            if isinstance(outcome, Exception):
                break
            read = history.table.version()
    done.close()
    if isinstance(outcome, Exception):
        assert history.oldest > read + 1 or (is_vacuumed and isinstance(outcome, FileGoneError)), outcome
        assert "new checkpointLocation" in str(outcome)
    else:
        assert outcome == history.times
    # Whatever became of that, the rows of a fresh one are those of the table, and so are they in a cut.
    assert later(harness(history.path)) == history.times
    assert cut_from(history.path).next_offsets == {"orders": {0: history.appends}}
    for options in ({"starting_version": 0}, {"starting_timestamp": "1970-01-01"}):
        begun = outcome_of(lambda options=options: later(harness(history.path, options)))
        is_gone = is_vacuumed and isinstance(begun, FileGoneError)
        assert begun == history.times or is_gone or (isinstance(begun, OptionError) and history.oldest), begun


@settings(max_examples=examples(8), deadline=None)
@given(read=st.integers(0, 4), stay=st.integers(1, 5), is_snapshot=st.booleans())
def test_an_audit_and_a_take_over_have_all_rows_or_say_what_is_gone(
    tmp_path_factory: pytest.TempPathFactory, read: int, stay: int, is_snapshot: bool
) -> None:
    """Of a query that has read the first `read` of four appends, the first of them as a snapshot."""
    folder = tmp_path_factory.mktemp("t")
    history = History(folder / "table")
    for _ in range(4):
        history.append()
    table_id = str(history.table.metadata().id)
    is_snapshot = is_snapshot and read == 1
    history.clean_up(stay)

    old = checkpoint(folder, history.path, max(read - 1, 0), 0 if read else -1, isStartingVersion=is_snapshot)
    printed = taken_over(old, folder / "new", "--table", history.path).splitlines()[-1]
    if printed.startswith("{"):
        done = harness(history.path)
        text = (folder / "new/offsets/0").read_text().splitlines()[2]
        done.state = OffsetCodec(DeltaSource(str(history.path))).decode(json.loads(text))
        done.restart()
        outcome = outcome_of(lambda: later(done))
        assert outcome == history.times[read:] or (isinstance(outcome, DataLossError) and history.oldest)
    else:
        assert history.oldest, printed

    micro_batches = [[(str(number), [time])] for number, time in enumerate(history.times)]
    offsets = [offset(table_id, 0, 0, snapshot=True), *(offset(table_id, n + 1, -1, snapshot=False) for n in (1, 2, 3))]
    write_checkpoint(folder / "checkpoint", naive.run(QUERY, micro_batches), offsets)
    found = streaming_source.audit(str(folder / "checkpoint"), window="1 hour", mode="append", source=str(history.path))
    assert found.read == 4 or "Not all can be seen any more" in str(found)
    assert history.oldest or found.read == 4


def test_an_older_state_of_the_log_that_was_put_in_place_is_named(tmp_path: Path) -> None:
    for second in range(3):
        append(tmp_path, [second * SECOND])
    done = harness(tmp_path)
    done.run()
    (tmp_path / f"_delta_log/{2:020}.json").unlink()
    done.restart()

    with pytest.raises(
        DataLossError, match=r"is at version 1, and version 2 was read: an older state of its log .*new"
    ):
        later(done)


def test_a_version_that_was_cleaned_up_is_refused_as_a_beginning_with_the_oldest_one(tmp_path: Path) -> None:
    history = History(tmp_path)
    for _ in range(4):
        history.append()
    history.table.create_checkpoint()
    for _ in range(2):
        history.append()
    for version in range(3):
        (tmp_path / f"_delta_log/{version:020}.json").unlink()

    with pytest.raises(
        OptionError,
        match=r"startingVersion = 0: .* not in the log .* the oldest is 3: give that, or leave the option out",
    ):
        later(harness(tmp_path, {"starting_version": 0}))
    assert later(harness(tmp_path, {"starting_version": 3})) == history.times[3:]
    for options in ({"version_as_of": 1}, {"version_as_of": 2}):
        with pytest.raises(
            OptionError, match=r"versionAsOf = \d: version \d .* cleaned up .* the oldest that can be is 3"
        ):
            DeltaSource(str(tmp_path), **options).for_batch().schema()
    # Nothing of the log but a checkpoint.
    history.oldest = 3
    history.clean_up(0)
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
    assert DeltaSource(str(tmp_path), timestamp_as_of="1970-01-01T03:00Z").for_batch()._open_first().version() == 2
    assert later(harness(tmp_path, {"starting_timestamp": "1970-01-01T02:00Z"})) == [n * SECOND for n in (1, 2, 3)]
