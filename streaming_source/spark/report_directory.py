"""Reports from readers to their planner where no port may be opened: files in a directory of the user's.

Option `reportLocation` names it, on any file system. A task writes one file with its reports after it has read its
splits, and Spark requests the next micro-batch when all tasks have ended. So a planner lists the directory once for
each micro-batch, and finds the reports that a gateway would have by then. As with a gateway, reports are idempotent,
may be lost, and arrive in any order.
"""

from __future__ import annotations

import logging
import math
import posixpath
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final
from uuid import uuid4

from pyarrow import fs

from alignment.events import RangeReport
from streaming_source.data_files.stores import Root, without_secrets, write_whole
from streaming_source.gateway.messages import RefusedError, decode_reports, encode_reports
from streaming_source.spark.places import PLACE_ERRORS, check_writable

__all__ = ["ReportDirectory", "ReportFiles"]

_log = logging.getLogger(__name__)

_AT_ONCE: Final = 16
"""How many files a planner reads concurrently: in an object store each takes some 20 ms."""

_AGAIN_S: Final = 1.0
"""Delay before a directory that could not be read is tried again."""

_KEPT_S: Final = 24 * 3600
"""How long the folder of a run is kept if that run has not removed it."""


class ReportDirectory:
    """The planner's end: a folder in `root` for this run of the query, which removes it at its end.

    `monotonic_s` is the clock by which a directory that cannot be read is tried again, `wall_s` the time of day.
    """

    def __init__(
        self,
        root: Root,
        monotonic_s: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._root = root
        self._monotonic_s = monotonic_s
        self._due_s = math.inf
        began_s = wall_s()
        self._oldest_s = began_s - _KEPT_S
        self.run_id = f"{int(began_s)}-{uuid4().hex[:12]}"

    def __str__(self) -> str:
        return without_secrets(self._root.uri)

    def begin(self) -> None:
        """Remove folders of earlier runs; raises an `OptionError` if this process may not write into the directory.

        A planner is not always closed. The folder of a run that began a day ago is removed if no task has written into
        it for a day; if that run continues, its next task creates the folder again.
        """
        check_writable(self._root, "reportLocation", "name a directory that the planner and all tasks may write to")
        try:
            files, path = self._root.open()
            for folder in files.get_file_info(fs.FileSelector(path)):
                if folder.type is fs.FileType.Directory and _began_s(folder.base_name) < self._oldest_s:
                    inside = files.get_file_info(fs.FileSelector(folder.path))
                    if all((one.mtime_ns or 0) / 1e9 < self._oldest_s for one in inside):
                        for one in inside:
                            files.delete_file(one.path)
                        _remove_if_empty(files, folder.path)
        except PLACE_ERRORS as error:
            _log.warning("%s: folders of earlier runs are left behind: %s", self, without_secrets(str(error)))

    def expect(self) -> None:
        """Make the next plan look for reports: tasks are about to read a micro-batch."""
        self._due_s = -math.inf

    def take(self) -> list[RangeReport]:
        """Return and remove the reports written since the last call. No listing if none are expected."""
        if self._monotonic_s() < self._due_s:
            return []
        try:
            files, folder = self._opened()
            found = files.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        except PLACE_ERRORS as error:
            self._try_again(error)
            return []
        self._due_s = math.inf
        paths = [one.path for one in found if one.base_name.endswith(".json") and not one.base_name.startswith("_")]
        if not paths:
            return []
        with ThreadPoolExecutor(min(_AT_ONCE, len(paths))) as threads:
            taken = [*threads.map(lambda path: _taken(files, path), paths)]
        for reports in taken:
            if isinstance(reports, Exception):
                self._try_again(reports)
                break
        return [report for reports in taken if not isinstance(reports, Exception) for report in reports]

    def close(self) -> None:
        """Remove the folder of this run."""
        try:
            files, folder = self._opened()
            if files.get_file_info(folder).type is not fs.FileType.NotFound:
                files.delete_dir(folder)
        except PLACE_ERRORS as error:
            _log.warning("%s: the folder of this run is left behind: %s", self, without_secrets(str(error)))

    def _try_again(self, error: Exception) -> None:
        self._due_s = self._monotonic_s() + _AGAIN_S
        text = "reports of readers cannot be taken from %s: %s; the watermark waits for them"
        _log.warning(text, self, without_secrets(str(error)))

    def _opened(self) -> tuple[fs.FileSystem, str]:
        files, path = self._root.open()
        return files, posixpath.join(path, self.run_id)


class ReportFiles:
    """A task attempt's end: a failed write is no error, and the watermark waits for the missing report."""

    def __init__(self, root: Root, run_id: str, batch: int, subtask_id: int, attempt: int) -> None:
        self._root = root
        self._run_id = run_id
        self._task = f"{batch}-{subtask_id}-{attempt}"
        self._numbers = count()

    def send_reports(self, reports: Sequence[RangeReport]) -> bool:
        """Write reports into a new file; return whether that succeeded."""
        if not reports:
            return True
        try:
            files, folder = self._root.open()
            path = posixpath.join(folder, self._run_id, f"{self._task}-{next(self._numbers)}.json")
            try:
                write_whole(files, path, encode_reports(reports))
            except FileNotFoundError:
                # After an idle day another run may have removed the folder just as it was to be used again.
                write_whole(files, path, encode_reports(reports))
        except PLACE_ERRORS as error:
            text = "could not report in %s: %s; the query goes on, its watermark may wait"
            _log.warning(text, without_secrets(self._root.uri), without_secrets(str(error)))
            return False
        return True


def _began_s(run_id: str) -> float:
    """Return when the run of a folder began; infinity for a folder that is not of a run."""
    seconds, _, rest = run_id.partition("-")
    return int(seconds) if seconds.isdigit() and rest else math.inf


def _remove_if_empty(files: fs.FileSystem, folder: str) -> None:
    """Remove a folder of another run; what a task writes into it meanwhile stays."""
    if files.type_name == "local":
        with suppress(OSError):
            Path(folder).rmdir()
    elif not files.get_file_info(fs.FileSelector(folder, allow_not_found=True)):
        files.delete_dir(folder)


def _taken(files: fs.FileSystem, path: str) -> list[RangeReport] | Exception:
    """Read the reports of a file and remove it; return the error if it cannot be read."""
    try:
        with files.open_input_stream(path) as stream:
            written = stream.read()
        files.delete_file(path)
        return decode_reports(written)
    except PLACE_ERRORS as error:
        return error
    except RefusedError:
        _log.warning("%s is no report of a reader, and is left out", posixpath.basename(path))
        return []
