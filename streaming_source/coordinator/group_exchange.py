"""How the sources of one application that name the same alignment group exchange their reports."""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from alignment.explain import GroupMember
from alignment.groups import Outlook, SourceReport, Turn, awaits_first_turns, is_waited_for, next_rank, source_limit
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from streaming_source.coordinator.calls import AsyncCalls
from streaming_source.coordinator.group_place import GroupPlace, Member, PlaceError

__all__ = ["GroupExchange"]

_log = logging.getLogger(__name__)

_LISTEN_S: Final = 0.05
"""How often a source that waits for the others looks whether it may go on: an exchange costs well under a millisecond,
and a backlog of two queries moves on by a drift each time (FLINK-37399)."""

_TURNS: Final = 20
_PAUSE_S: Final = 0.05
"""How often a source that is being drained looks whether it may go on, and how long it waits each time for a report of
another one, before it leaves."""

_LEASE_INTERVALS: Final = 10
_SHORTEST_LEASE_US: Final = 10_000_000
_FOR_A_RUN_US: Final = 30 * 24 * 3600 * 1_000_000


class GroupExchange:
    """One source's membership in an alignment group.

    Each planner process writes its last `SourceReport` to a place that all planners of the group use, reads those of
    the others, and computes its limit from them. A report counts for a *lease* from when it was written, and as long as
    the process that wrote it lives: a source that was stopped or killed releases the others at once; one that hangs, or
    whose process is on another host, after the lease. If nothing can be exchanged for that long, the source goes on
    without the group.

    A report is renewed every `interval_us` at least; the lease is ten times as long, and no less than ten seconds.
    `now_us` is a monotonic clock that all processes of the host share, `name` what the other members call this source;
    its `source_id` is unique: two of one name stay two. `slowest` is, by this clock, the other member that counts with
    the smallest watermark; None if none counts. This source `is_waited_for` while another one has records that it may
    not read before this one goes on.

    With `in_one_query` it has turns with the other members that are sources of the same query, which Spark plans one
    after another; see `alignment.groups`. It `lets_others_plan` where its last plan, the first one, is to read nothing,
    since sources of its query have not planned yet.
    """

    def __init__(
        self,
        place: GroupPlace,
        group: str,
        max_drift_us: int,
        interval_us: int,
        now_us: Callable[[], int],
        is_alive: Callable[[int], bool] | None = None,
        name: str = "",
        in_one_query: bool = False,
    ) -> None:
        self.name = name
        self.source_id = uuid.uuid4().hex
        self.slowest: GroupMember | None = None
        self.is_waited_for = self.lets_others_plan = False
        self.place = place
        self._group = group
        self._interval_us = interval_us
        self._lease_us = max(_LEASE_INTERVALS * interval_us, _SHORTEST_LEASE_US)
        self.now_us = now_us
        self._is_alive = is_alive or _is_alive
        self._lock = threading.Lock()
        self.in_one_query = in_one_query
        self._rank: int | None = None
        self._report = SourceReport(max_drift_us, turn=Turn() if in_one_query else None)
        self._reports = {self.source_id: self._report}
        self._seen_version: object = None
        self._limit_us = MAX_WATERMARK
        self._last_exchange_us = self._last_try_us = now_us()
        self._has_warned = self._has_left = False
        # Whether something is to be read as soon as the others let it; and the limit of the last plan.
        self._waits = False
        self._planned_limit_us: int = MAX_WATERMARK
        # While draining: at which limit it waits, since when, and for how many turns.
        self._held_at_us, self._held_since_us, self._turns = MAX_WATERMARK, 0, 0

    def start(self, calls: AsyncCalls) -> None:
        """Renew the report periodically.

        It is renewed on a worker, and so also while a micro-batch takes longer than the lease.
        """
        calls.repeat(lambda: self.renew_when_due(reads=self._waits), min(self._interval_us / 1e6, _LISTEN_S))

    def join(self) -> None:
        """Let the other sources of the query know that this one will have turns, before the first of them plans."""
        if self.in_one_query and self._rank is None:
            with self._lock:
                self._exchange()

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
            self.place.wait_for_change(self._seen_version, _PAUSE_S)
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
        """Whether the limit has moved since the last plan, and something waits to be read. Some microseconds."""
        if not self._waits:
            return False
        if self.in_one_query and self.place.version() != self._seen_version:
            # Another source of the query may have planned in this very trigger.
            with self._lock:
                self._exchange(writes=False)
        return self._limit_us != self._planned_limit_us

    def report(self, watermark: int | None, next_us: int | None, outlook: Outlook | None = None) -> int:
        """Write how far this source is, and take its limit. From any thread; see `SourceReport`.

        Without an `outlook` this source has no turn until it reports one.
        """
        self._waits = next_us is not None
        has_turn = self.in_one_query and (self._rank is None or outlook is not None)
        turn = Turn(self._rank, outlook) if has_turn else None
        with self._lock:
            self._report = SourceReport(self._report.max_drift_us, watermark, next_us, turn)
            return self._exchange()

    def renew(self) -> int:
        """Renew the report, and take the limit of the next plan.

        It is `MIN_WATERMARK` with the first plan, if another source of the query has not planned yet: how far that one
        gets in the same trigger is not known.
        """
        with self._lock:
            limit_us = self._exchange()
            self.lets_others_plan = False
            if self.in_one_query and self._rank is None:
                limit_us = self._take_rank()
            self._planned_limit_us = limit_us
            return limit_us

    def _take_rank(self) -> int:
        self._rank = next_rank(self.source_id, self._reports)
        self.lets_others_plan = awaits_first_turns(self.source_id, self._reports)
        self._report = replace(self._report, turn=Turn(self._rank))
        limit_us = self._exchange()
        return MIN_WATERMARK if self.lets_others_plan else limit_us

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
                self.place.remove(self._group, self.source_id)
            except PlaceError as error:
                _log.warning("alignment group %r: could not leave: %s; the lease will end", self._group, error)

    def _exchange(self, *, writes: bool = True) -> int:
        if self._has_left:
            return self._limit_us
        now_us = self.now_us()
        self._last_try_us = now_us if writes else self._last_try_us
        # The first source of a query may take long to plan for the first time: until then nothing renews the reports of
        # the others.
        lease_us = _FOR_A_RUN_US if self.in_one_query and self._rank is None else self._lease_us
        own = Member(self.source_id, self.name, os.getpid(), now_us, now_us + lease_us, self._report)
        # Before the reports are read: what is written meanwhile is another version.
        version = None if writes else self.place.version()
        try:
            others = self.place.exchange(
                self._group,
                own if writes else None,
                lambda member: member.until_us <= now_us or not self._is_alive(member.pid),
            )
        except PlaceError as error:
            self._warn(error)
            if now_us - self._last_exchange_us >= self._lease_us:
                self._limit_us = MAX_WATERMARK
            return self._limit_us
        self._has_warned = False
        self._last_exchange_us = now_us
        self._seen_version = self.place.version() if writes else version
        others = [member for member in others if member.source_id != self.source_id]
        self._reports = {self.source_id: self._report, **{member.source_id: member.report for member in others}}
        self._limit_us = source_limit(self.source_id, self._reports)
        self.is_waited_for = is_waited_for(self.source_id, self._reports)
        counting = [
            GroupMember(self._group, one.name, one.pid, one.report.watermark, one.at_us, one.until_us)
            for one in others
            if one.report.watermark is not None
        ]
        self.slowest = min(counting, key=lambda member: member.watermark, default=None)
        return self._limit_us

    def _warn(self, error: PlaceError) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "alignment group %r: its members cannot be reached in %s: %s; the last limit holds for the lease of "
                "%d s, then this source goes on without the group",
                self._group,
                self.place,
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
