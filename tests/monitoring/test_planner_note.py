"""What a planner leaves on its machine: that it runs, how it ended, and its last report."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest

from alignment.explain import Explanation
from streaming_source.monitoring import planner_note
from streaming_source.monitoring.planner_note import PlannerNote, Writer, notes_of
from streaming_source.monitoring.query_state import end_by_notes
from streaming_source.monitoring.report import WatermarkReport
from tests.monitoring.situations import at

_PLANNER = """
import sys
from pathlib import Path
from streaming_source.monitoring.planner_note import Writer

note = Writer(sys.argv[1] or None, folder=Path(sys.argv[2]))
note.close_at_sigterm()
print(note.name, flush=True)
for line in sys.stdin:
    note.fail(ValueError(line.strip()))
    print("failed", flush=True)
"""


class Planner:
    """A process with a note."""

    def __init__(self, folder: Path, known: str = "") -> None:
        arguments = [sys.executable, "-c", _PLANNER, known, str(folder)]
        self.process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.name = self.process.stdout.readline().strip()

    def end(self, number: int) -> PlannerNote:
        """What is known of it once it got a signal."""
        self.process.send_signal(number)
        self.process.communicate()
        return next(note for note in notes_of(self.name) if note.pid == self.process.pid)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "streaming-source-0"
    made.mkdir(mode=0o700)
    return made


def test_a_planner_that_was_killed_is_told_from_one_that_spark_ended(folder: Path) -> None:
    killed, ended = Planner(folder), Planner(folder)
    assert [note.runs for name in (killed.name, ended.name) for note in notes_of(name)] == [True, True]
    assert end_by_notes(notes_of(killed.name)) is None
    gone, closed = killed.end(signal.SIGKILL), ended.end(signal.SIGTERM)
    assert (gone.runs, gone.was_closed) == (False, False)
    assert (closed.runs, closed.was_closed) == (False, True)
    failed, stopped = end_by_notes([gone]), end_by_notes([closed])
    assert failed is not None
    assert failed.error == f"its planner, process {gone.pid}, was killed or has crashed, as where memory runs out"
    assert stopped is not None
    assert (stopped.error, stopped.pid, stopped.at_us) == (None, closed.pid, closed.at_us)


def test_the_next_run_goes_on_under_the_same_name_and_is_the_one_that_counts(folder: Path) -> None:
    first = Planner(folder)
    first.end(signal.SIGKILL)
    second = Planner(folder, first.name)
    assert second.name == first.name
    assert [(note.pid, note.runs) for note in notes_of(first.name)] == [
        (second.process.pid, True),
        (first.process.pid, False),
    ]
    second.end(signal.SIGTERM)


def test_a_signal_that_comes_while_a_note_is_written_closes_it_and_raises_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it raised came out of the call that it interrupted, and Spark failed the query that it had stopped."""
    note, close = Writer(folder=folder), os.close

    def close_and_get_the_signal(opened: int) -> None:
        close(opened)
        monkeypatch.setattr("os.close", close)
        note.close()

    monkeypatch.setattr("os.close", close_and_get_the_signal)
    note.end_run()
    (left,) = notes_of(note.name)
    assert left.was_closed
    assert left.error is None


def test_what_it_fails_with_is_there_when_it_is_gone(folder: Path) -> None:
    planner = Planner(folder)
    assert planner.process.stdin is not None
    assert planner.process.stdout is not None
    print("the file is damaged", file=planner.process.stdin, flush=True)
    planner.process.stdout.readline()
    failed = planner.end(signal.SIGTERM)
    assert failed.error == "ValueError: the file is damaged"
    end = end_by_notes([failed])
    assert end is not None
    assert end.error == failed.error


def reported(writer: Writer, sequence: int) -> WatermarkReport:
    report = WatermarkReport("aligned_files", sequence, Explanation(at(sequence), at(9), at(9)))
    writer.report(report, report.to_json())
    return report


def test_its_last_report_is_there_when_it_has_ended(folder: Path) -> None:
    writer = Writer(None, folder=folder)
    reports = [reported(writer, sequence) for sequence in (1, 1, 2)]
    (note,) = notes_of(writer.name)
    assert note.runs
    assert note.report == reports[0]
    writer.close()
    assert [note.report for note in notes_of(writer.name)] == reports[-1:]


def test_reports_take_a_small_share_of_the_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, took_s, written = 0.0, 0.02, 0

    def write(writer: Writer) -> None:
        nonlocal now_s, written
        now_s += took_s
        written += 1

    def written_of(sequences: Iterable[int]) -> int:
        nonlocal now_s, written
        written = 0
        for sequence in sequences:
            now_s += 0.1
            reported(writer, sequence)
        return written

    writer = Writer(None, folder=folder)
    monkeypatch.setattr(planner_note, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(Writer, "_write", write)
    assert 80 < written_of(range(1000)) <= 100, "of 102 s 2 %, 20 ms each"
    took_s = 0.001
    assert written_of(range(1000)) > 990
    assert 80 < written_of([1000] * 1000) <= 100, "with the same cause one a second"


@pytest.mark.parametrize("mode", [0o755, 0o777])
def test_nothing_is_left_where_others_may_read_or_write_it(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "streaming-source-0"
    folder.mkdir()
    folder.chmod(mode)
    writer = Writer(None, folder=folder)
    writer.close()
    assert list(folder.iterdir()) == []
    assert notes_of(writer.name) == []


def test_a_name_outside_of_the_own_directory_is_not_written_to(folder: Path, tmp_path: Path) -> None:
    assert Path(Writer(str(tmp_path / "elsewhere" / "x"), folder=folder).name).parent == folder


def test_of_the_runs_that_have_ended_the_last_one_and_the_last_with_a_report_have_notes(folder: Path) -> None:
    """So a query that starts every minute leaves no more than one that starts once."""
    writer = Writer(None, folder=folder)
    reported(writer, 1)
    writer.close()
    pids = [os.getpid()]
    for _ in range(3):
        planner = Planner(folder, writer.name)
        planner.end(signal.SIGKILL)
        pids.append(planner.process.pid)
        assert {note.pid for note in notes_of(writer.name)} == {pids[0], *pids[-2:]}
    running = [Planner(folder, writer.name) for _ in range(2)]
    assert [note.pid for note in notes_of(writer.name) if note.runs] == [each.process.pid for each in running[::-1]]
    for each in running:
        each.end(signal.SIGTERM)


def test_a_first_start_reads_no_notes_of_what_others_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(100):
        Writer(None, f"aligned_files /{i}", folder).close()
    read = []

    def read_one(path: Path, of_path: Callable[[Path], PlannerNote] = planner_note._read) -> PlannerNote:
        read.append(path)
        return of_path(path)

    monkeypatch.setattr(planner_note, "_read", read_one)
    Writer(None, "aligned_files /7", folder)
    assert len(read) == 1


def test_notes_are_removed_after_a_week(folder: Path) -> None:
    running = Writer(None, folder=folder)
    old, young = Path(running.name), Path(Writer(None, folder=folder).name)
    (path,) = folder.glob(f"{old.name}.*")
    running.close()
    os.utime(path, (1, 1))
    Writer(None, folder=folder)
    assert notes_of(str(old)) == []
    assert len(notes_of(str(young))) == 1


@pytest.mark.parametrize(("chance", "left"), [(0.01, 0), (0.03, 40)])
def test_a_start_asks_of_few_notes_of_others_how_old_they_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch, chance: float, left: int
) -> None:
    for i in range(40):
        Writer(None, f"aligned_files /{i}", folder).close()
    for path in folder.iterdir():
        os.utime(path, (1, 1))
    monkeypatch.setattr("random.random", lambda: chance)
    Writer(None, "aligned_files /x", folder)
    assert len(list(folder.iterdir())) == left + 1


def test_the_note_of_a_running_planner_stays_however_old_it_is(folder: Path) -> None:
    """With a trigger of a week none is written for so long."""
    writer = Writer(None, folder=folder)
    os.utime(f"{writer.name}.{os.getpid()}.json", (1, 1))
    Writer(None, folder=folder)
    assert [note.runs for note in notes_of(writer.name)] == [True]
    writer.close()


@pytest.mark.parametrize("taken", [0, 10])
def test_on_a_full_disk_the_last_note_stays_and_no_file_is_left_open(
    folder: Path, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(None, folder=folder)
    open_files = len(os.listdir("/proc/self/fd"))
    before = notes_of(writer.name)
    left, write = 0, os.write

    def write_little(opened: int, content: bytes) -> int:
        nonlocal left
        if left == 0:
            raise OSError(errno.ENOSPC, "the disk is full")
        left -= (count := write(opened, content[:left]))
        return count

    with monkeypatch.context() as full:
        full.setattr(os, "write", write_little)
        for _ in range(20):
            left = taken
            writer.fail(ValueError("the broker is away"))
    assert notes_of(writer.name) == before
    assert [path.suffix for path in folder.iterdir()] == [".json"]
    assert len(os.listdir("/proc/self/fd")) == open_files
    writer.close()
    (closed,) = notes_of(writer.name)
    assert closed.error == "ValueError: the broker is away"


@pytest.mark.parametrize(
    "content",
    [
        "{",
        '{"pid": 1}',
        "[" * 200_000,
        "[]",
        *(
            json.dumps({"pid": 1, "at": 1, **wrong})
            for wrong in ({"at": "x"}, {"pid": "x"}, {"pid": True}, {"error": 3}, {"reads": []}, {"report": [1]})
        ),
    ],
)
def test_a_damaged_note_says_nothing(folder: Path, content: str) -> None:
    name = Writer(None, folder=folder).name
    Path(f"{name}.1.json").write_text(content)
    assert [note.pid for note in notes_of(name)] == [os.getpid()]


def test_a_pipe_or_a_link_is_no_note(folder: Path, tmp_path: Path) -> None:
    name = Writer(None, folder=folder).name
    os.mkfifo(f"{name}.1.json")
    (tmp_path / "elsewhere.json").write_text('{"pid": 2, "at": 1}')
    Path(f"{name}.2.json").symlink_to(tmp_path / "elsewhere.json")
    assert [note.pid for note in notes_of(name)] == [os.getpid()]


def test_a_directory_of_others_has_no_notes(folder: Path, tmp_path: Path) -> None:
    name = Path(Writer(None, folder=folder).name)
    link = tmp_path / "streaming-source-link"
    link.symlink_to(folder)
    assert notes_of(str(link / name.name)) == []
    folder.chmod(0o777)
    assert notes_of(str(name)) == []
    folder.chmod(0o700)
    assert len(notes_of(str(name))) == 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize("of_other", ["directory", "note"])
def test_no_note_of_another_user_is_read(folder: Path, of_other: str) -> None:
    name = Writer(None, folder=folder).name
    os.chown(folder if of_other == "directory" else f"{name}.{os.getpid()}.json", 65534, 65534)
    assert notes_of(name) == []


@pytest.mark.parametrize("name", ["/etc/passwd", "streaming-source-0/*", f"streaming-source-0/../{'0123456789' * 2}"])
def test_a_checkpoint_names_no_other_file(name: str, tmp_path: Path) -> None:
    assert notes_of(str(tmp_path / name)) == []


def test_the_first_start_of_a_query_sees_what_read_the_same_and_has_ended(folder: Path) -> None:
    def leave(reads: str, sequence: int) -> Writer:
        writer = Writer(None, reads, folder)
        reported(writer, sequence)
        return writer

    orders, payments = leave("aligned_files /orders", 3), leave("aligned_files /payments", 4)
    assert Writer(None, "aligned_files /orders", folder).earlier is None, "it runs: it is another query"
    orders.close()
    earlier = Writer(None, "aligned_files /orders", folder).earlier
    assert earlier is not None
    assert earlier.name == orders.name
    assert Writer(orders.name, "aligned_files /orders", folder).earlier is None, "it goes on from an offset"
    assert Writer(None, "aligned_files /payments", folder).earlier is None
    payments.close()
