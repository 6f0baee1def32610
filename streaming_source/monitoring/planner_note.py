"""Notes of a planner on what its checkpoint does not have: its last report, its error, and whether it runs.

A checkpoint is written when a micro-batch is planned, and no planner knows where it is. So each planner leaves a *note*
on its machine, whose name the offsets have, and who reads the checkpoint there finds it. The planner locks the file:
one that is not locked is of a process that has ended, however it did. A task that fails on that machine leaves its
error beside it.

Notes are in `streaming-source-<user>` of the directory for temporary files, which only their user may read: they name
splits, positions and event times, as the log of the driver does. No note of another user is read, nor one in a
directory that others may write to. A note of a process that has ended is removed by a later start once it is
a week old, or two later runs of its query have ended. A name begins with what is read: a start reads few of many.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import signal
import stat
import tempfile
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final
from uuid import uuid4

from alignment.codec import Codec, Form, Wire
from alignment.exceptions import AlignmentError
from streaming_source.from_data import as_json
from streaming_source.monitoring.report import WatermarkReport

_FOLDER: Final = "streaming-source-"
_OF_WRITER: Final = re.compile(r"[0-9a-f]{20}")
"""Of what is read, and of the query's first run."""
_KEPT_S: Final = 7 * 86_400
_LOOKED_AT: Final = 0.02
"""Which share of the notes of others a start looks at, to remove old ones."""
_PAUSE_S: Final = 1.0
_SHARE: Final = 50
"""Times the length of writing a report for which none is written."""
_SHOWN: Final = 600
"""Characters of an error."""
_MOST_BYTES: Final = 64 << 20
"""A larger note is not read."""
_REPORT: Final = Form(WatermarkReport.to_json, WatermarkReport.from_json)


@dataclass(frozen=True, slots=True)
class PlannerNote:
    """The note of one planner process under a `name`: its last `report`, None before any, and its error.

    It was written at `at_us`, processing time, by a planner of what it `reads`. It `runs` while its process does, and
    it `was_closed` if Spark ended it, as it does with every query that ends. A run that ends by itself (AvailableNow)
    `came_to_its_end` once it has planned all that it was to read.
    """

    name: str
    pid: int
    at_us: Annotated[int, Wire("at")]
    reads: Annotated[str, Wire(absent="")]
    runs: bool
    was_closed: Annotated[bool, Wire("closed")] = False
    error: str | None = None
    report: Annotated[WatermarkReport | None, Wire(form=_REPORT)] = None
    came_to_its_end: Annotated[bool, Wire("ended")] = False

    @property
    def was_cut_off(self) -> bool:
        """True if it planned a run that ends by itself, and its process ended before that."""
        drains = self.report is not None and self.report.explanation.is_draining
        return drains and not (self.runs or self.came_to_its_end)

    @property
    def was_killed(self) -> bool:
        """True if its process has ended neither by an error nor by Spark."""
        return not (self.runs or self.was_closed or self.error)


_NOTE: Final = Codec(PlannerNote)


class Writer:
    """Leaves the note of this process. Where that cannot be done it leaves none: the query goes on without.

    `known` is the name in the last offset, None at the first start; `reads` is what the source reads, with its name.
    The note is `name` and the id of the process. `earlier` is at the first start the last note of a query that read the
    same, got further and has ended: it may be this one, whose checkpoint is gone.
    """

    def __init__(self, known: str | None = None, reads: str = "", folder: Path | None = None) -> None:
        folder = folder or Path(tempfile.gettempdir()) / f"{_FOLDER}{os.getuid()}"
        is_own = known is not None and Path(known).parent == folder and _is_name(known)
        of_reads = f"{zlib.crc32(reads.encode()):08x}"
        self.name = known if known is not None and is_own else str(folder / f"{of_reads}{uuid4().hex[:12]}")
        self.known = self.name if known is None else known
        self._path = Path(f"{self.name}.{os.getpid()}.json")
        self._locked = -1
        self._left: dict[str, Any] = {"pid": os.getpid(), "reads": reads}
        self.earlier: PlannerNote | None = None
        self._cause: object = None
        self._written_s = -math.inf
        self._rest_s = 0.0
        with suppress(OSError):  # others may have made one of that name
            folder.mkdir(mode=0o700, exist_ok=True)
        self._is_left = _is_private(folder)
        if self._is_left:
            of_same = _removing_old(folder, of_reads)
            if known is None:
                ended = (note for note in _notes(of_same) if not note.runs and note.reads == reads)
                self.earlier = next((note for note in ended if note.report is not None), None)
            else:
                _remove_earlier_runs(self.name)
            self._write()

    def report(self, report: WatermarkReport, written: Mapping[str, Any]) -> None:
        """Leave a report, whose JSON is at hand; where the last one was left too short a time ago, with what follows.

        That is many times as long as writing took; where the cause is the same, a second at least.
        """
        cause = report.sequence, written["cause"], written["heldBy"]
        self._left["report"] = written
        begun_s = time.monotonic()
        rest_s = max(self._rest_s, _PAUSE_S if cause == self._cause else 0.0)
        if self._locked < 0 or begun_s < self._written_s + rest_s:
            return
        self._cause = cause
        self._write()
        self._written_s = time.monotonic()
        self._rest_s = _SHARE * (self._written_s - begun_s)

    def fail(self, error: BaseException) -> None:
        """Leave what the planner fails with."""
        self._left["error"] = _error_text(error)
        self._write()

    def end_run(self) -> None:
        """Leave that a run which ends by itself has planned all that it reads."""
        if not self._left.get("ended"):
            self._left["ended"] = True
            self._write()

    def close(self) -> None:
        """Spark ends this planner: it plans no more."""
        self._left["closed"] = True
        self._write()
        self._hold(-1)

    def close_at_sigterm(self) -> None:
        """Close it also where Spark ends the process by a signal: that is how it stops a query."""
        if threading.current_thread() is not threading.main_thread():
            return
        before = signal.getsignal(signal.SIGTERM)

        def close(number: int, frame: FrameType | None) -> None:
            try:
                self.close()
            finally:
                if callable(before):
                    before(number, frame)
                elif before is signal.SIG_DFL:
                    signal.signal(number, signal.SIG_DFL)
                    os.kill(os.getpid(), number)

        signal.signal(signal.SIGTERM, close)

    def _write(self) -> None:
        """Write the note beside the last one, lock it, and put it in its place: so one in its place has its lock.

        Where the disk is full the last one stays.
        """
        if not self._is_left:
            return
        self._left["at"] = time.time_ns() // 1000
        written, opened = self._path.with_suffix(".new"), -1
        try:
            # A signal may have come while one was being written.
            written.unlink(missing_ok=True)
            opened = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            _write_locked(opened, json.dumps(self._left).encode())
            written.replace(self._path)
        except OSError:
            if opened >= 0:
                os.close(opened)
                with suppress(OSError):
                    written.unlink()
            return
        self._hold(opened)

    def _hold(self, opened: int) -> None:
        """Hold the lock of the newest note alone: of none, where it is -1. A signal may come in here, and close it."""
        before, self._locked = self._locked, opened
        if before >= 0:
            with suppress(OSError):
                os.close(before)


def leave_error(name: str, error: BaseException) -> None:
    """Leave what a task fails with beside the note of its planner, if that is of this machine and user."""
    with suppress(OSError):
        path = Path(name)
        if _is_name(name) and _is_private(path.parent):
            written = path.with_name(f"{path.name}.{os.getpid()}.task")
            opened = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with open(opened, "w", encoding="utf-8") as file:
                json.dump({"at": time.time_ns() // 1000, "error": _error_text(error)}, file)


def error_of_task(name: str, since_us: int) -> tuple[str, int] | None:
    """Return the last error that a task has left under a name since a time, and when; None without one."""
    path, found = Path(name), []
    if _is_name(name) and _is_private(path.parent):
        for one in path.parent.glob(f"{path.name}.*.task"):
            # As of a note: what is none says nothing.
            with suppress(OSError, ValueError, KeyError, TypeError), open(_open_own(one), encoding="utf-8") as file:
                left = as_json(file.read(_MOST_BYTES))
                found.append((int(left["at"]), str(left["error"])[:_SHOWN]))
    at_us, error = max(found, default=(since_us - 1, ""))
    return (error, at_us) if at_us >= since_us else None


def _error_text(error: BaseException) -> str:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return " ".join(f"{name}: {error}".split())[:_SHOWN]


def notes_of(name: str) -> list[PlannerNote]:
    """Return the notes of a name, the last one first; none where this machine, or this user, has none of it."""
    path = Path(name)
    if not (_is_name(name) and _is_private(path.parent)):
        return []
    found = _notes(path.parent.glob(f"{path.name}.*.json"))
    return sorted(found, key=lambda note: (note.runs, note.at_us), reverse=True)


def _is_name(name: str) -> bool:
    """Return whether this names notes: a checkpoint decides no more than which of them are read."""
    path = Path(name)
    return path.parent.name.startswith(_FOLDER) and _OF_WRITER.fullmatch(path.name) is not None


def _notes(paths: Iterable[Path]) -> Iterator[PlannerNote]:
    for path in paths:
        # A note is whatever is in a file of that name: what is none says nothing.
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, AlignmentError):
            yield _read(path)


def _read(path: Path) -> PlannerNote:
    opened = _open_own(path)
    try:
        with open(opened, "rb", closefd=False) as file:
            left = as_json(file.read(_MOST_BYTES))
        # One that was replaced meanwhile has lost its lock.
        runs = _is_locked(opened) or path.stat().st_ino != os.fstat(opened).st_ino
    finally:
        os.close(opened)
    return _NOTE.read({**left, "name": str(path).removesuffix(f".{left['pid']}.json"), "runs": runs})


def _open_own(path: Path) -> int:
    """Open a regular file of this user to read it: no link, and nothing that a reader waits at."""
    opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    found = os.fstat(opened)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
        os.close(opened)
        raise OSError(f"{path} is no file of this user")
    return opened


def _write_locked(opened: int, content: bytes) -> None:
    """Lock a file and write all of it: a disk that is nearly full takes a part, and fails at the next one."""
    # Imported here: Windows has no such locks, no notes, and checkpoints are read there too.
    import fcntl

    fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    while content:
        content = content[os.write(opened, content) :]


def _is_locked(opened: int) -> bool:
    import fcntl

    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _is_private(folder: Path) -> bool:
    """Return whether a directory, and no link to one, is this user's alone."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _removing_old(folder: Path, prefix: str) -> list[Path]:
    """Return the notes whose names begin so, the last one first; those of ended processes are removed after a week.

    Of the others a start looks at a few, by chance, so that it takes no longer where thousands are left.
    """
    oldest_s = time.time() - _KEPT_S
    found: list[tuple[float, str]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            is_same = entry.name.startswith(prefix)
            if not is_same and random.random() > _LOOKED_AT:
                continue
            with suppress(OSError):
                written_s = entry.stat().st_mtime
                if written_s < oldest_s and not _has_writer(Path(entry.path)):
                    os.unlink(entry)
                elif is_same and entry.name.endswith(".json"):
                    found.append((written_s, entry.path))
    return [Path(path) for _, path in sorted(found, reverse=True)]


def _has_writer(path: Path) -> bool:
    """Return whether a process holds this note, as one does whose query has a trigger of weeks."""
    try:
        opened = _open_own(path)
    except OSError:
        return False
    try:
        return _is_locked(opened)
    finally:
        os.close(opened)


def _remove_earlier_runs(name: str) -> None:
    """Remove the notes of the runs of a query that have ended, but that of the last one, and the last with a report."""
    ended = [note for note in notes_of(name) if not note.runs]
    with_report = [note for note in ended if note.report is not None]
    kept = {note.pid for note in (*ended[:1], *with_report[:1])}
    for note in ended:
        if note.pid not in kept:
            with suppress(OSError):
                Path(f"{name}.{note.pid}.json").unlink()
