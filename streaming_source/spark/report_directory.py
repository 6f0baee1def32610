"""Reports from readers to their planner where no port may be opened: files in a directory of the user's.

Option `reportLocation` names it, on any file system. A task writes one entry with its reports after it has read its
splits, and Spark requests the next micro-batch when all tasks have ended. So a planner lists the journal once for each
micro-batch, and finds the reports that a gateway would have by then. As with a gateway, reports are idempotent, may be
lost, and arrive in any order: no error of the store ends the query, and a file that is no report is left out.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final
from uuid import uuid4

from alignment.events import RangeReport
from alignment.shown import log_of
from streaming_source.data_files.journal import Journal
from streaming_source.exceptions import SourceError
from streaming_source.gateway.messages import RefusedError, decode_reports, encode_reports

_log = log_of(__name__)

_AGAIN_S: Final = 1.0
"""Delay before a directory that could not be read is tried again."""

_KEPT_S: Final = 24 * 3600
"""Seconds that a report is kept that its run has not removed."""

_REPORT: Final = re.compile(r"[0-9a-f]{12}(-\d+){4}\.json")
"""Name of an entry: run, micro-batch, task, attempt, and a number in that."""


def report_journal(source: object, location: str) -> Journal:
    """Return the directory that option `reportLocation` names."""
    return Journal(
        Journal.root_of(source, location), "reportLocation", writers="the planner and all tasks", is_patient=False
    )


class ReportDirectory:
    """The planner's end: entries that begin with the id of this run of the query, which removes them.

    Raises an `OptionError` if this process may not write there. What an earlier run left is removed after a day.
    `monotonic_s` is the clock by which a directory that cannot be read is tried again.
    """

    def __init__(self, journal: Journal, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._journal = journal
        self._monotonic_s = monotonic_s
        self._due_s = math.inf
        self.run_id = uuid4().hex[:12]
        store_s = journal.check()
        try:
            journal.remove_older((time.time() if store_s is None else store_s) - _KEPT_S, _REPORT)
        except SourceError as error:
            _log.warning("reports of earlier runs are left behind: %s", error)

    def expect(self) -> None:
        """Make the next plan look for reports: tasks are about to read a micro-batch."""
        self._due_s = -math.inf

    def take(self) -> list[RangeReport]:
        """Return and remove the reports written since the last call. No listing if none are expected."""
        if self._monotonic_s() < self._due_s:
            return []
        self._due_s = math.inf
        errors: list[SourceError] = []
        found: dict[str, bytes] = {}
        try:
            found = self._journal.read(self._names(), bytes, errors)
            self._journal.remove(found)
        except SourceError as error:
            errors.append(error)
        if errors:
            self._due_s = self._monotonic_s() + _AGAIN_S
            _log.warning("reports of readers cannot be taken: %s; the watermark waits for them", errors[0])
        return [report for name, content in found.items() for report in _reports(name, content)]

    def close(self) -> None:
        """Remove what was not taken."""
        try:
            self._journal.remove(self._names())
        except SourceError as error:
            _log.warning("reports of this run are left behind: %s", error)

    def _names(self) -> list[str]:
        return [name for name in self._journal.names() if name.startswith(f"{self.run_id}-")]


class ReportFiles:
    """A task attempt's end: a failed write is no error, and the watermark waits for the missing report."""

    def __init__(self, journal: Journal, run_id: str, batch: int, subtask_id: int, attempt: int) -> None:
        self._journal = journal
        self._task = f"{run_id}-{batch}-{subtask_id}-{attempt}"
        self._numbers = count()

    def send_reports(self, reports: Sequence[RangeReport]) -> bool:
        """Write reports into a new file; return whether that succeeded."""
        if not reports:
            return True
        try:
            self._journal.write(f"{self._task}-{next(self._numbers)}.json", encode_reports(reports))
        except SourceError as error:
            _log.warning("could not report: %s; the query goes on, its watermark may wait", error)
            return False
        return True


def _reports(name: str, content: bytes) -> list[RangeReport]:
    try:
        return decode_reports(content)
    except RefusedError:
        _log.warning("%s is no report of a reader, and is left out", name)
        return []
