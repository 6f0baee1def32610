"""How the sources of one application that name the same alignment group exchange their reports."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

from alignment.explain import GroupMember
from alignment.groups import SourceReport, is_waited_for, source_limit
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from streaming_source.coordinator.calls import AsyncCalls

__all__ = ["GroupExchange"]

_log = logging.getLogger(__name__)

_BUSY_S: Final = 0.1
"""How long a plan waits for another source's transaction, each of which takes well under a millisecond."""

_LISTEN_S: Final = 0.05
"""How often a source that waits for the others looks whether it may go on: an exchange costs well under a millisecond,
and a backlog of two queries moves on by a drift each time (FLINK-37399)."""

_TURNS: Final = 20
_PAUSE_S: Final = 0.05
"""How often a source that is being drained looks whether it may go on, and for how long each time, before it leaves."""

_LEASE_INTERVALS: Final = 10
_SHORTEST_LEASE_US: Final = 10_000_000
_FOR_A_RUN_US: Final = 30 * 24 * 3600 * 1_000_000

_TABLE: Final = """
    CREATE TABLE IF NOT EXISTS report (
        meeting TEXT, source TEXT, name TEXT, pid INTEGER, at_us INTEGER, until_us INTEGER,
        max_drift_us INTEGER, watermark INTEGER, next_us INTEGER,
        PRIMARY KEY (meeting, source)
    ) WITHOUT ROWID
"""


class GroupExchange:
    """One source's part in a group of sources whose planners run on one host.

    Each planner process writes its last `SourceReport` into a SQLite file that all planners of the application know,
    reads those of the others, and takes its limit from them. A report counts for a *lease* from when it was written,
    and as long as the process that wrote it lives: a source that was stopped or killed releases the others at once, one
    that hangs after the lease. If nothing can be exchanged for that long the source goes on without the group.

    A report is renewed every `interval_us` at least; the lease is ten times as long, and no less than ten seconds.
    `now_us` is a monotonic clock that all processes of the host share, `name` what the other members call this source;
    its `source_id` is unique: two of one name stay two. `slowest` is, by this clock, the other member that counts with
    the smallest watermark; None if none counts. This source `is_waited_for` while another one has records that it may
    not read before this one goes on.
    """

    def __init__(
        self,
        path: Path,
        group: str,
        max_drift_us: int,
        interval_us: int,
        now_us: Callable[[], int],
        is_alive: Callable[[int], bool] | None = None,
        name: str = "",
    ) -> None:
        self.name = name
        self.slowest: GroupMember | None = None
        self.is_waited_for = False
        self._path = path
        self._group = group
        self._interval_us = interval_us
        self._lease_us = max(_LEASE_INTERVALS * interval_us, _SHORTEST_LEASE_US)
        self.now_us = now_us
        self._is_alive = is_alive or _is_alive
        self._lock = threading.Lock()
        self._report = SourceReport(max_drift_us)
        self._limit_us = MAX_WATERMARK
        self._last_exchange_us = self._last_try_us = now_us()
        self._has_warned = self._has_left = False
        # Whether something is to be read as soon as the others let it; and the limit of the last plan.
        self._waits = False
        self._planned_limit_us: int = MAX_WATERMARK
        # While draining: at which limit it waits, since when, and for how many turns.
        self._held_at_us, self._held_since_us, self._turns = MAX_WATERMARK, 0, 0
        self.source_id = uuid.uuid4().hex

    def start(self, calls: AsyncCalls) -> None:
        """Have the report renewed again and again.

        It is renewed on a worker, whatever the coordinator's thread does: a source is not dead because its micro-batch
        takes longer than its lease.
        """
        calls.repeat(lambda: self.renew_when_due(reads=self._waits), min(self._interval_us / 1e6, _LISTEN_S))

    def drain(self) -> None:
        """Count as a member from now on, as slow as can be, until this source has planned, or its process has ended.

        All sources of a query are drained before the first of them plans (AvailableNow), so that each knows of the
        others. A report is renewed with each plan and by nothing else, and may be a micro-batch old: no lease ends.
        """
        with self._lock:
            self._lease_us = _FOR_A_RUN_US
            self._report = replace(self._report, watermark=MIN_WATERMARK)
            self._exchange()

    def holds(self, next_us: int | None) -> bool:
        """Whether the limit of the last plan keeps this source from its next record."""
        return next_us is not None and next_us > self._planned_limit_us

    def is_worth_waiting(self) -> bool:
        """Whether a source that is being drained shall wait one more time.

        Until the limit has stood for as long as the shortest lease, and many turns: then a member that counts does not
        go on. It may be of another query, whose micro-batches this one does not see.
        """
        if self._planned_limit_us != self._held_at_us:
            self._held_at_us, self._held_since_us, self._turns = self._planned_limit_us, self.now_us(), 0
        self._turns += 1
        if self._turns > 2:
            time.sleep(_PAUSE_S)
        if self._turns <= _TURNS or self.now_us() - self._held_since_us < _SHORTEST_LEASE_US:
            return True
        _log.warning(
            "alignment group %r: %s has not gone on for %d s; this source goes on without the group",
            self._group,
            "a member" if self.slowest is None else self.slowest.source,
            _SHORTEST_LEASE_US // 1_000_000,
        )
        return False

    @property
    def may_go_on(self) -> bool:
        """Whether the limit has moved since the last plan, and something waits to be read."""
        return self._waits and self._limit_us != self._planned_limit_us

    def report(self, watermark: int | None, next_us: int | None) -> int:
        """Write how far this source is, and take its limit. From any thread; see `SourceReport`."""
        self._waits = next_us is not None
        with self._lock:
            self._report = SourceReport(self._report.max_drift_us, watermark, next_us)
            return self._exchange()

    def renew(self) -> int:
        """Renew the report, and take the limit of the next plan."""
        with self._lock:
            self._planned_limit_us = self._exchange()
            return self._planned_limit_us

    def renew_when_due(self, *, reads: bool) -> int:
        """Renew the report once an interval has passed; the limit that was taken last. From any thread.

        With `reads` the limit is taken also if it has not: other reports may have changed.
        """
        with self._lock:
            if self.now_us() - self._last_try_us >= self._interval_us:
                return self._exchange()
            return self._exchange(writes=False) if reads else self._limit_us

    def slowest_at(self, now_us: int) -> GroupMember | None:
        """The `slowest` with its times by the clock that shows `now_us` at this moment."""
        member = self.slowest
        if member is None:
            return None
        shift_us = now_us - self.now_us()
        return replace(member, reported_us=member.reported_us + shift_us, until_us=member.until_us + shift_us)

    def leave(self) -> None:
        """Hold nobody back any more, whatever is still reported. A process that ends has left without it."""
        with self._lock:
            self._has_left = True
            try:
                with closing(self._open()) as file, file:
                    file.execute("DELETE FROM report WHERE meeting = ? AND source = ?", (self._group, self.source_id))
            except sqlite3.Error as error:
                _log.warning("alignment group %r: could not leave: %s; the lease will end", self._group, error)

    def _exchange(self, *, writes: bool = True) -> int:
        if self._has_left:
            return self._limit_us
        now_us = self.now_us()
        self._last_try_us = now_us if writes else self._last_try_us
        try:
            with closing(self._open()) as file, file:
                if writes:
                    self._write(file, now_us)
                reports = self._read(file, now_us)
        except sqlite3.Error as error:
            self._warn(error)
            if now_us - self._last_exchange_us >= self._lease_us:
                self._limit_us = MAX_WATERMARK
        else:
            self._has_warned = False
            self._last_exchange_us = now_us
            self._limit_us = source_limit(self.source_id, reports)
            self.is_waited_for = is_waited_for(self.source_id, reports)
        return self._limit_us

    def _write(self, file: sqlite3.Connection, now_us: int) -> None:
        own = self._report
        row = (self._group, self.source_id, self.name, os.getpid(), now_us, now_us + self._lease_us)
        file.execute("BEGIN IMMEDIATE")
        file.execute(
            "INSERT OR REPLACE INTO report VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*row, own.max_drift_us, own.watermark, own.next_us),
        )

    def _read(self, file: sqlite3.Connection, now_us: int) -> dict[str, SourceReport]:
        """The reports of the members that live; the next transaction that writes removes the others."""
        found = file.execute(
            "SELECT source, name, pid, at_us, until_us, max_drift_us, watermark, next_us FROM report WHERE meeting = ?",
            (self._group,),
        ).fetchall()
        reports = {self.source_id: self._report}
        members = []
        for source_id, name, pid, at_us, until_us, *report in found:
            if source_id == self.source_id:
                continue
            if until_us > now_us and self._is_alive(pid):
                reports[source_id] = counting = SourceReport(*report)
                if counting.watermark is not None:
                    members.append(GroupMember(self._group, name, pid, counting.watermark, at_us, until_us))
            elif file.in_transaction:
                file.execute("DELETE FROM report WHERE meeting = ? AND source = ?", (self._group, source_id))
        self.slowest = min(members, key=lambda member: member.watermark, default=None)
        return reports

    def _open(self) -> sqlite3.Connection:
        # A connection for each exchange: one that is kept would be another process's after a fork.
        file = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)
        try:
            # Nothing here must survive the machine: reports are worth their lease.
            file.execute("PRAGMA synchronous = OFF")
            file.execute(_TABLE)
        except BaseException:
            file.close()
            raise
        return file

    def _warn(self, error: sqlite3.Error) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "alignment group %r: its members cannot be reached in %s: %s; the last limit holds for the lease of "
                "%d s, then this source goes on without the group",
                self._group,
                self._path,
                error,
                self._lease_us // 1_000_000,
            )


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
