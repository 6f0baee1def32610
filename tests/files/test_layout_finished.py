"""Finished files: none is read twice, none that waits is lost, whatever is forgotten and whenever it is restarted."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from streaming_source.connectors.files.backlog import order_key
from streaming_source.connectors.files.checkpoint import (
    FileOrder,
    FilesCheckpoint,
    FilesCheckpointSerializer,
    Remembered,
)
from streaming_source.connectors.files.finished import FinishedFiles, RecentFiles
from streaming_source.connectors.files.finished_log import FinishedLog
from streaming_source.connectors.files.listing import ListedFile
from streaming_source.connectors.files.marks import Known, MarkSet, marks_of
from streaming_source.data_files.stores import Root
from streaming_source.exceptions import DataLossError, OffsetError


def written_and_read(state: Remembered) -> Remembered:
    serializer = FilesCheckpointSerializer()
    data = serializer.serialize(FilesCheckpoint(remembered=state))
    return serializer.deserialize(serializer.version, json.dumps(json.loads(data)).encode()).remembered


def known_as(finished: FinishedFiles, file: ListedFile) -> Known:
    known = MarkSet()
    known.add(finished.load())
    return Known(int(known.match(marks_of([file]))[0]))


def is_new(finished: FinishedFiles, file: ListedFile) -> bool:
    return known_as(finished, file) is Known.NEW and not finished.is_forgotten(file)


class Life(RuleBasedStateMachine):
    """Files come, wait, are begun in any order, and finish; now and then all but the offset is lost."""

    @initialize(
        order=st.sampled_from(["eventTime", "name", "modificationTime"]),
        max_age_ms=st.sampled_from([1, 70, 100_000]),
        max_files=st.integers(1, 20),
    )
    def begin(self, order: FileOrder, max_age_ms: int, max_files: int) -> None:
        self.order = order
        self.limits = (max_age_ms, max_files)
        self.waiting: list[ListedFile] = []
        self.in_work: list[ListedFile] = []
        self.read: list[ListedFile] = []
        self.newest_ms = 0
        self.state = Remembered()
        self.sequence = 0
        self.finished = RecentFiles(self.order, max_age_ms, self.state, max_files)
        self.numbers = 0

    @rule(modified=st.lists(st.integers(0, 2000), min_size=1, max_size=9), names=st.randoms())
    def come(self, modified: list[int], names: object) -> None:
        for modified_ms in modified:
            self.numbers += 1
            name = f"{names.randrange(1000):03d}-{self.numbers}"  # type: ignore[attr-defined]
            file = ListedFile.of(name, modified_ms, self.numbers)
            self.newest_ms = max(self.newest_ms, modified_ms)
            if not self.finished.is_forgotten(file):
                self.waiting.append(file)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def begin_some(self, data: st.DataObject) -> None:
        """By event time in any order, else in the order of keys."""
        self.waiting.sort(key=lambda file: order_key(file, self.order))
        for _ in range(data.draw(st.integers(1, len(self.waiting)))):
            place = data.draw(st.integers(0, len(self.waiting) - 1)) if self.order == "eventTime" else 0
            self.in_work.append(self.waiting.pop(place))

    @precondition(lambda self: self.in_work)
    @rule(data=st.data())
    def finish_some(self, data: st.DataObject) -> None:
        for _ in range(data.draw(st.integers(1, len(self.in_work)))):
            file = self.in_work.pop(data.draw(st.integers(0, len(self.in_work) - 1)))
            self.finished.add(file)
            self.read.append(file)

    @rule()
    def save(self) -> None:
        self.sequence += 1
        lowest = min((order_key(file, self.order) for file in self.waiting), default=None)
        self.state = self.finished.save(self.sequence, lowest, self.newest_ms)

    @rule()
    def restart(self) -> None:
        self.save()
        max_age_ms, max_files = self.limits
        self.finished = RecentFiles(self.order, max_age_ms, written_and_read(self.state), max_files)

    @invariant()
    def each_file_is_read_once(self) -> None:
        if not hasattr(self, "finished"):
            return
        assert not [file for file in self.read if is_new(self.finished, file)], "would be read again"
        assert not [file for file in self.waiting if not is_new(self.finished, file)], "would be missed"

    def teardown(self) -> None:
        if not hasattr(self, "finished") or self.order == "eventTime":
            return
        while self.waiting or self.in_work:
            self.waiting.sort(key=lambda file: order_key(file, self.order))
            self.in_work += self.waiting[:5]
            del self.waiting[:5]
            for file in self.in_work:
                self.finished.add(file)
            self.in_work.clear()
            self.save()
        # What is kept is bounded: one segment more than was asked for, at most.
        kept = sum(len(segment.marks) // 12 for segment in self.state.segments)
        assert kept <= self.limits[1]


TestLife = Life.TestCase


def test_by_age_the_marks_of_what_is_old_leave_the_offset() -> None:
    finished = RecentFiles("eventTime", 64_000, Remembered(), 100)
    sizes = []
    for number in range(1000):
        finished.add(ListedFile.of(f"{number}.parquet", number * 1000, 1))
        sizes.append(len(json.dumps(repr(finished.save(number + 1, None, number * 1000)))))
    assert max(sizes[100:]) < 1.2 * min(sizes[100:])
    assert finished.forgotten == (999_000 - 64_000, "")


def test_a_large_offset_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    finished = RecentFiles("eventTime", 10**9, Remembered(), 100)
    for number in range(4000):
        finished.add(ListedFile.of(f"{number}.parquet", 1_600_000_000_000 + number, 1))
        finished.save(number + 1, None, 1_600_000_000_000 + number)
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "set stateLocation" in warnings[0]


# ---- the log -------------------------------------------------------------------------------------------------------


def log(path: Path, state: Remembered = Remembered()) -> FinishedLog:  # noqa: B008
    return FinishedLog(Root(str(path)), state)


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
                for file in files:
                    logged.add(file)
                lives.append((lives[-1][0] | files, written_and_read(logged.save(state, None, 0))))

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
    for state in range(1, 2001):
        logged.add(file_of(state, 0))
        state_of_offset = logged.save(state, None, 0)
    (directory,) = tmp_path.iterdir()
    assert len(list(directory.iterdir())) < 3 * 32
    assert held(log(tmp_path, state_of_offset)) == 2000
    assert directory.name == f"_{state_of_offset.log[0]}"  # type: ignore[index]


def test_a_log_that_is_gone_is_told_and_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    logged = log(tmp_path)
    logged.add(file_of(1, 1))
    state = logged.save(1, None, 0)
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
        logged: FinishedLog = Mortal(Root(str(tmp_path)), state)
        for sequence in range(1, 10):
            logged.add(file_of(sequence, 0))
            try:
                state = logged.save(sequence, None, 0)
            except KilledError:
                # As a process that comes back: from what was given out last.
                logged = log(tmp_path, state)
                assert held(logged) == sequence - 1
                logged.add(file_of(sequence, 1))
                state = logged.save(sequence, None, 0)
        assert held(log(tmp_path, state)) == 9


def test_the_log_may_lie_where_the_files_are(tmp_path: Path) -> None:
    logged = log(tmp_path)
    logged.add(file_of(1, 1))
    logged.save(1, None, 0)
    (directory,) = tmp_path.iterdir()
    assert directory.name.startswith("_")
