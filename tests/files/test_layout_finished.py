"""Finished files: none is read twice, none that waits is lost, whatever is forgotten and whenever it is restarted."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from streaming_source.connectors.files.file_discovery import FileDiscovery, WaitingFile
from streaming_source.connectors.files.finished import RecentFiles, order_key
from streaming_source.connectors.files.finished_log import FinishedLog
from streaming_source.connectors.files.listing import ListedDirectory, ListedFile
from streaming_source.connectors.files.marks import MARK, Marks, MarkSketch, marks_of
from streaming_source.connectors.files.split import (
    FileOrder,
    FilesCheckpoint,
    FilesCheckpointSerializer,
    OrderKey,
    Remembered,
)
from streaming_source.data_files.file import FileBlocks
from streaming_source.data_files.journal import Journal
from streaming_source.data_files.stores import Root
from streaming_source.exceptions import DataLossError, MalformedDataError, OffsetError


def written_and_read(state: Remembered) -> Remembered:
    serializer = FilesCheckpointSerializer()
    data = serializer.serialize(FilesCheckpoint(remembered=state))
    return serializer.deserialize(serializer.version, json.dumps(json.loads(data)).encode()).remembered


NO_TIMES = FileBlocks(np.array([1]), np.array([0]), np.array([0]), np.array([0]))


class AllThereIs:
    """A lister that lists everything each time."""

    lists_all = True

    def __init__(self, there: set[ListedFile]) -> None:
        self.there = there

    def list_changed(self) -> list[ListedDirectory]:
        return [ListedDirectory("", sorted(self.there), False)]

    def forget(self) -> None:
        """It does not remember."""


class Life(RuleBasedStateMachine):
    """Files come with any keys, wait, are opened in any order, finish and go; now and then all but the offset is lost.

    Between two runs files come and go as well.
    """

    @initialize(order=st.sampled_from(["eventTime", "name", "modificationTime"]), max_files=st.integers(1, 20))
    def begin(self, order: FileOrder, max_files: int) -> None:
        self.order, self.max_files = order, max_files
        self.there: set[ListedFile] = set()
        self.waiting: set[ListedFile] = set()
        self.late: set[ListedFile] = set()
        self.in_work: list[ListedFile] = []
        self.finishing: list[ListedFile] = []
        self.read: set[ListedFile] = set()
        self.away: set[ListedFile] = set()
        self.numbers = 0
        self.sequence = 0
        self.state = Remembered()
        self.start()

    def start(self) -> None:
        self.finished = RecentFiles(self.order, 10**9, written_and_read(self.state), self.max_files)
        self.discovery = FileDiscovery(
            self.order, lambda files: [NO_TIMES for _ in files], self.finished, [], list(self.in_work)
        )
        self.waiting.clear()
        self.late.clear()
        self.away.clear()
        self.look()

    def key(self, file: ListedFile) -> OrderKey:
        return order_key(file, self.order)

    @rule(modified=st.lists(st.integers(0, 2000), min_size=1, max_size=9), names=st.randoms(use_true_random=False))
    def come(self, modified: list[int], names: Random) -> None:
        for modified_ms in modified:
            self.numbers += 1
            self.there.add(ListedFile.of(f"{names.randrange(1000):03d}-{self.numbers}", modified_ms, self.numbers))

    @rule()
    def look(self) -> None:
        """As the enumerator does with what a look finds."""
        found = self.discovery.find_new(AllThereIs(self.there))  # type: ignore[arg-type]
        if found.forgotten is not None:
            self.finished.settle(found.forgotten)
        self.finished.look(found.gone, found.back)
        new = {WaitingFile.unpack(entry, self.order).file for entry in found.waiting}
        assert not found.rewritten
        assert not new & (self.waiting | self.read | set(self.in_work)), "found twice"
        self.waiting |= new
        self.late |= {file for file in new if self.finished.is_forgotten(file)}
        assert self.waiting == self.there - self.read - set(self.in_work), "missed"

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def open_some(self, data: st.DataObject) -> None:
        """By event time in any order, else in the order of keys."""
        for _ in range(data.draw(st.integers(1, len(self.waiting)))):
            waiting = sorted(self.waiting, key=self.key)
            file = waiting[data.draw(st.integers(0, len(waiting) - 1)) if self.order == "eventTime" else 0]
            self.waiting.remove(file)
            self.late.discard(file)
            self.in_work.append(file)

    @precondition(lambda self: self.in_work)
    @rule(data=st.data())
    def finish_some(self, data: st.DataObject) -> None:
        for _ in range(data.draw(st.integers(1, len(self.in_work)))):
            self.finishing.append(self.in_work.pop(data.draw(st.integers(0, len(self.in_work) - 1))))
        self.save()

    @rule()
    def save(self) -> None:
        self.sequence += 1
        newest_ms = max((file.modified_ms for file in self.there), default=0)
        before, lowest = self.state, min(map(self.key, self.waiting), default=None)
        state = self.finished.save(self.sequence, self.finishing, lowest, newest_ms)
        not_read = [file for file in self.late if self.finished.is_forgotten(file)]
        self.state = replace(state, unread=marks_of(not_read).tobytes())
        again = RecentFiles(self.order, 0, written_and_read(self.state), 1).finished_by(before, self.state)
        assert sorted(again.tolist()) == sorted(marks_of(self.finishing).tolist())
        self.read |= set(self.finishing)
        self.finishing.clear()

    @precondition(lambda self: self.read & self.there)
    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        there = sorted(self.read & self.there)
        gone = set(data.draw(st.lists(st.sampled_from(there), max_size=20)))
        self.there -= gone
        self.away |= gone

    @rule()
    def come_back(self) -> None:
        self.there |= self.away
        self.away.clear()
        self.look()

    @rule()
    def restart(self) -> None:
        self.save()
        self.start()

    def teardown(self) -> None:
        if not hasattr(self, "finished"):
            return
        self.look()
        while self.waiting:
            some = sorted(self.waiting, key=self.key)[:5]
            self.waiting -= set(some)
            self.late -= set(some)
            self.finishing += some
            self.save()
        self.save()
        # What is remembered one by one is bounded.
        assert sum(len(segment.marks) // 12 for segment in self.state.segments) <= self.max_files


TestLife = Life.TestCase


@pytest.mark.parametrize("count", [0, 1, 5, 100, 300])
@given(data=st.data())
def test_a_sketch_tells_what_another_set_lacks_or_that_it_is_too_much(count: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), label="seed"))

    def some(marks: int) -> Marks:
        found = np.empty(marks, MARK)
        found["path"], found["version"] = rng.integers(0, 2**64, marks, np.uint64), rng.integers(0, 2**32, marks)
        return found

    both, added, gone = some(data.draw(st.integers(0, 2000))), some(rng.integers(0, count + 1)), some(count)
    sketch = MarkSketch.of(both)
    sketch.add(gone[: count // 2])
    sketch.add(added[:1])
    sketch.remove(added[:1])
    sketch.add(gone[count // 2 :])
    assert len(sketch) == both.size + count
    assert not sketch.surely_lacks_some(both)
    assert added.size or not sketch.surely_lacks_some(np.concatenate([both, added]))
    assert sketch.surely_lacks_some(np.concatenate([both, gone, added])) == bool(added.size)
    found = MarkSketch(sketch.tobytes()).difference(np.concatenate([both, added]))
    assert (found is None) == (count >= 300) or 100 <= count + added.size <= 200
    if found is not None:
        assert [sorted(marks.tolist()) for marks in found] == [sorted(added.tolist()), sorted(gone.tolist())]


def test_a_sketch_tells_the_two_versions_of_a_file_apart() -> None:
    before, after = (marks_of([ListedFile.of("a", modified_ms, 5)]) for modified_ms in (1, 2))
    assert MarkSketch.of(before).difference(after) == (after, before)


@pytest.mark.parametrize("order", ["eventTime", "name"])
def test_files_that_came_between_two_runs_and_are_too_many_to_be_told_from_read_ones_are_an_error(
    order: FileOrder,
) -> None:
    finished = RecentFiles(order, 10**9, Remembered(), 10)
    files = {ListedFile.of(f"b{number:05}", 1_600_000_000_000 + number, 1) for number in range(1000)}
    finished.save(1, sorted(files), None, 0)
    state = finished.save(2, [], None, 0)
    others = {ListedFile.of(f"a{number:05}", 1_500_000_000_000 + number, 1) for number in range(1000)}

    def new(there: set[ListedFile]) -> int:
        again = RecentFiles(order, 10**9, written_and_read(state), 10)
        discovery = FileDiscovery(order, lambda files: [NO_TIMES for _ in files], again, [], [])
        return len(discovery.find_new(AllThereIs(there)).waiting)  # type: ignore[arg-type]

    assert new(files) == 0
    assert new(files | set(sorted(others)[:20])) == 20
    with pytest.raises(MalformedDataError, match=r"1990 files have (modification times|names) up to .* 990 were read"):
        new(files | others)
    # Or so many have gone, with a file that came among those that are there.
    with pytest.raises(MalformedDataError, match=r"750 files have .* cannot be distinguished.*stateLocation"):
        new(set(sorted(files)[300:]) | set(sorted(others)[:60]))


def test_files_that_went_between_two_runs_are_no_error_and_what_cannot_be_told_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    finished = RecentFiles("eventTime", 10**9, Remembered(), 10)
    files = [ListedFile.of(f"{number:05}", 1_600_000_000_000 + number, 1) for number in range(1000)]
    finished.save(1, files, None, 0)
    state = finished.save(2, [], None, 0)
    for left, is_told in ((files, False), (files[50:], False), ([], False), (files[500:], True)):
        again = RecentFiles("eventTime", 10**9, written_and_read(state), 10)
        discovery = FileDiscovery("eventTime", lambda files: [NO_TIMES for _ in files], again, [], [])
        found = discovery.find_new(AllThereIs(set(left)))  # type: ignore[arg-type]
        assert not found.waiting
        assert found.forgotten is not None
        assert found.forgotten.size - found.gone.size == max(len(left) - 10, 0)
        assert ("500 of 990 files that were read up to 2020-09-13T12:26:40.989Z are gone" in caplog.text) is is_told
        assert ("one that came meanwhile is not read" in caplog.text) is is_told


def test_many_files_that_the_offset_remembers_one_by_one_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    finished = RecentFiles("eventTime", 10**9, Remembered(), 100)
    for number in range(4000):
        file = ListedFile.of(f"{number}.parquet", 1_600_000_000_000 + number, 1)
        # One that was modified before them all waits.
        finished.save(number + 1, [file], (1, ""), 1_600_000_000_000 + number)
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "set stateLocation, with the same checkpointLocation" in warnings[0]


# ---- the log -------------------------------------------------------------------------------------------------------


def log(path: Path, state: Remembered = Remembered()) -> FinishedLog:  # noqa: B008
    return FinishedLog("eventTime", Root(str(path)), state)


def file_of(state: int, number: int) -> ListedFile:
    return ListedFile.of(f"{state}/{number}", state, number)


def held(logged: FinishedLog) -> int:
    marks = logged.load()
    assert len(np.unique(marks)) == len(marks)
    return len(marks)


@given(
    finished=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    restarts=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), max_size=4),
    merged=st.integers(2, 5),
)
def test_the_log_tells_what_was_finished_up_to_any_state_that_it_is_restarted_from(
    tmp_path_factory: pytest.TempPathFactory, finished: list[int], restarts: list[tuple[int, int]], merged: int
) -> None:
    path = tmp_path_factory.mktemp("log")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{FinishedLog.__module__}._FILES_MERGED", merged)
        # Files that each state finished, and what its offset says, in the life that counts.
        lives: list[tuple[set[ListedFile], Remembered]] = [(set(), Remembered())]

        def live(logged: FinishedLog, counts: list[int], life: int) -> None:
            for count in counts:
                state = len(lives)
                files = {ListedFile.of(f"{life}/{state}/{n}", life, n) for n in range(count)}
                before, remembered = lives[-1][1], written_and_read(logged.save(state, sorted(files), None, 0))
                again = log(path, remembered).finished_by(before, remembered)
                assert sorted(again.tolist()) == sorted(marks_of(files).tolist())
                lives.append((lives[-1][0] | files, remembered))

        live(log(path), finished, 0)
        for life, (back_to, counts) in enumerate(restarts, 1):
            del lives[min(back_to, len(lives) - 1) + 1 :]
            restarted = log(path, lives[-1][1])
            assert {int(p) for p in restarted.load()["path"]} == {int(p) for p in marks_of(lives[-1][0])["path"]}
            live(restarted, [n % 3 for n in range(counts)], life)
        for files, state in lives:
            assert {int(p) for p in log(path, state).load()["path"]} == {int(p) for p in marks_of(files)["path"]}


def test_the_log_is_a_few_files_however_many_states_there_were(tmp_path: Path) -> None:
    logged = log(tmp_path)
    for state in range(1, 801):
        state_of_offset = logged.save(state, [file_of(state, 0)], None, 0)
    (directory,) = tmp_path.iterdir()
    assert len(list(directory.iterdir())) < 3 * 32
    assert held(log(tmp_path, state_of_offset)) == 800
    assert directory.name == f"_{state_of_offset.log[0]}"  # type: ignore[index]


def test_a_log_that_is_gone_is_told_and_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    logged = log(tmp_path)
    state = logged.save(1, [file_of(1, 1)], None, 0)
    (entry,) = tmp_path.glob("*/*")
    content = entry.read_bytes()
    entry.write_bytes(content[: len(content) // 2])
    with pytest.raises(OffsetError, match=r"stateLocation: .*\.arrow is damaged .* Restore it"):
        log(tmp_path, state).load()
    entry.unlink()
    with pytest.raises(DataLossError, match="stateLocation has no entry of state 1"):
        log(tmp_path, state).load()


@pytest.mark.parametrize("write", range(12))
def test_a_log_whose_writing_is_killed_at_any_file_goes_on_from_the_last_offset(tmp_path: Path, write: int) -> None:
    class KilledError(Exception):
        """The process is no more."""

    class Mortal(FinishedLog):
        left = write

        def _write(self, part: object, table: pa.Table) -> None:
            self.step()
            super()._write(part, table)  # type: ignore[arg-type]
            self.step()

        def _remove(self, parts: object) -> None:
            for part in sorted(parts, key=lambda part: part.first):  # type: ignore[attr-defined]
                self.step()
                super()._remove([part])

        def step(self) -> None:
            self.left -= 1
            if self.left < 0:
                raise KilledError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{FinishedLog.__module__}._FILES_MERGED", 3)
        state = Remembered()
        logged: FinishedLog = Mortal("eventTime", Root(str(tmp_path)), state)
        for sequence in range(1, 10):
            try:
                state = logged.save(sequence, [file_of(sequence, 0)], None, 0)
            except KilledError:
                # As a process that comes back: from what was given out last.
                logged = log(tmp_path, state)
                assert held(logged) == sequence - 1
                state = logged.save(sequence, [file_of(sequence, 1)], None, 0)
        assert held(log(tmp_path, state)) == 9


def test_two_parts_with_the_same_entries_that_kills_have_left_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One kill before merged parts are removed, another one before the part is that was cut at an older offset."""
    monkeypatch.setattr(f"{FinishedLog.__module__}._FILES_MERGED", 2)
    monkeypatch.setattr(Journal, "remove", lambda self, names: None)
    logged = log(tmp_path)
    states = [logged.save(sequence, [file_of(sequence, 0)] if sequence else [], None, 0) for sequence in range(5)]
    assert held(log(tmp_path, states[2])) == 2
    log(tmp_path, states[2])._cut()
    for part in tmp_path.glob("*/000000000001-000000000004-*"):
        part.unlink()
    assert len(list(tmp_path.glob("*/000000000001-000000000002-*"))) == 2
    monkeypatch.undo()
    assert held(log(tmp_path, states[2])) == 2
    again = log(tmp_path, states[2])
    state = again.save(3, [file_of(3, 1)], None, 0)
    assert held(log(tmp_path, state)) == 3


def test_the_log_may_lie_where_the_files_are(tmp_path: Path) -> None:
    logged = log(tmp_path)
    logged.save(1, [file_of(1, 1)], None, 0)
    (directory,) = tmp_path.iterdir()
    assert directory.name.startswith("_")


@pytest.mark.parametrize("forgotten", [0, 90])
def test_a_log_takes_over_what_an_offset_without_one_remembers(tmp_path: Path, forgotten: int) -> None:
    files = {ListedFile.of(f"{number:03}", 1_600_000_000_000 + number, 1) for number in range(100)}
    finished = RecentFiles("eventTime", 10**9, Remembered(), 100 - forgotten)
    finished.save(1, sorted(files), None, 0)
    state = written_and_read(finished.save(2, [file_of(2, 0)], None, 0))
    assert (state.forgotten is not None) == bool(forgotten)
    there = AllThereIs({*files, file_of(2, 0), file_of(3, 0)})
    logged = log(tmp_path, state)
    found = FileDiscovery("eventTime", lambda files: [NO_TIMES] * len(files), logged, [], []).find_new(there)  # type: ignore[arg-type]
    assert [WaitingFile.unpack(entry, "eventTime").file for entry in found.waiting] == [file_of(3, 0)]
    if found.forgotten is not None:
        logged.settle(found.forgotten)
    after = written_and_read(logged.save(3, [file_of(3, 0)], None, 0))
    assert after == Remembered(log=after.log)
    assert held(log(tmp_path, after)) == 102
    assert log(tmp_path, after).finished_by(state, after).tolist() == marks_of([file_of(3, 0)]).tolist()
