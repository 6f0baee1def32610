"""The membership of one source in an alignment group: what became known goes in, what is to be done comes out.

Theory of operation
===================

**One call changes a membership.** `handle` takes an event and returns instructions. There is no clock and no I/O here:
events bring the time, and who carries out an instruction returns what it brought as an event, `Seen` or `Unreachable`.
The same events in the same order lead to the same state and the same instructions, so that a log of them replays.

**The life of a member.** It *joins* before the first source of its query plans, or with its first call. Spark *calls*
it in each trigger; in a call it plans, once or more often, and *reports* after each plan. Between calls it only renews
its report. It *leaves*, or its process ends, or its lease does: then it holds nobody back.

**A report counts for its lease**, and as long as the process that wrote it lives. In a run to the end of what is there
(AvailableNow), and before the first plan, reports are renewed by nothing but plans, and a plan may take long: their
lease is as good as endless there, and only the end of the process ends it.

**Which members are of one query** Spark tells no source. It follows from how Spark calls them: one after another, each
once in a trigger, never two at a time. So a member is a *stranger*, and stays one, once

- it plans while this source is in a call;
- it was called more often than this source, or, when it reports a new call, less often;
- it was not called in the first trigger of this source.

Members are *of this query* if the user says so of both (`in_one_query`) and they are no strangers. Of others that
have kept step for `STEPS` triggers the log says what to set: to keep step is no proof. A stranger holds this source,
and is held by it, by its watermark, as a source of any other query; but if both say that they are with the sources of
one query it is as if it were in another group: one frame may be in two queries. This is sound for sources of one
query, which nothing makes strangers, wherever they run: it needs no clock that they share. It is not complete: of two
queries that keep step each takes the other's sources for its own, for as long as they do. They then plan one event
time together, and no record is lost by it.

**What always holds** is in `validate`, which tests call after each event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, assert_never

from alignment import group_events as events
from alignment.combine import SplitStatus
from alignment.groups import (
    SourceReport,
    TriggerPart,
    awaits_first_plans,
    followed_watermark,
    is_waited_for,
    next_rank,
    source_limit,
)
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK

STEPS: Final = 3
"""Triggers in which a source keeps step with another one before the log says that they seem to be of one query."""

_FOR_A_RUN_US: Final = 30 * 24 * 3600 * 1_000_000
"""A lease that only the end of its process ends."""

_SPARED: Final = 2
_ATTEMPTS: Final = 20
"""Times that a run waits in vain for others before it leaves the group, and how many of these without a pause."""

_SHORTEST_LEASE_US: Final = 10_000_000
_LEASE_INTERVALS: Final = 10


class _Phase(StrEnum):
    BETWEEN = "between"
    CALLED = "called"
    PLANNING = "planning"
    LEFT = "left"


@dataclass(slots=True)
class _Other:
    """The memory of another member: its calls when it was last seen, and in how many triggers it kept step."""

    calls: int = 0
    steps: int = 0
    stepped_at: int = 0
    is_stranger: bool = False


@dataclass(slots=True)
class _Wait:
    """While a run is drained: at which limit it waits, since when, and for how many attempts."""

    limit_us: int = MAX_WATERMARK
    since_us: int = 0
    attempts: int = 0


@dataclass(slots=True)
class Membership:
    """One source's part in its group.

    Attributes
    ----------
    source_id, name, pid
        A unique id: two sources of one name stay two. What other members call it, and its process.
    max_drift_us, interval_us
        How far it may be ahead of the slowest other one; how often it renews its report, at least.
    in_one_query
        The user says that all members that say so are of one query.
    where
        Where the members meet, for the log.
    limit_us
        How far it may read, by the last reports seen; `MAX_WATERMARK` for no limit, also after it has left.
    planned_limit_us
        The same as its last plan had it; `MIN_WATERMARK` where that plan lets others plan first.
    followed_us, planned_followed_us
        What it announces while it is idle; `MIN_WATERMARK` if it knows no other source of its query. As last seen, and
        as its last plan had it.
    calls
        How often Spark has called it; at least 0, and never less than before.
    lets_others_plan
        Its last plan, the first one, is to read nothing: sources of its query have not planned yet.
    is_waited_for
        Another member has records that it may not read before this one goes on.
    plans_again
        A run that waited in vain is to plan once more: the others have gone on, or are given up.
    slowest
        The other member that counts with the smallest watermark; None if none counts.
    """

    source_id: str
    name: str
    pid: int
    max_drift_us: int
    interval_us: int
    in_one_query: bool
    where: str = ""
    limit_us: int = MAX_WATERMARK
    planned_limit_us: int = MAX_WATERMARK
    followed_us: int = MIN_WATERMARK
    planned_followed_us: int = MIN_WATERMARK
    calls: int = 0
    lets_others_plan: bool = False
    is_waited_for: bool = False
    plans_again: bool = False
    slowest: events.Member | None = None
    _phase: _Phase = _Phase.BETWEEN
    _rank: int | None = None
    _progress: events.Progress = field(default_factory=events.Progress)
    _is_drained: bool = False
    _others: dict[str, _Other] = field(default_factory=dict)
    _wait: _Wait = field(default_factory=_Wait)
    _written_us: int | None = None
    _failing_since_us: int | None = None
    _is_hinted: bool = False
    _has_planned: bool = False
    _has_looked_again: bool = False
    _looked_at: int = 0
    _awaits_limit: bool = False

    # ---- what is known -------------------------------------------------------------------------------------------

    @property
    def has_left(self) -> bool:
        """True if it takes no part any more."""
        return self._phase is _Phase.LEFT

    @property
    def needs_lookahead(self) -> bool:
        """True if other sources of its query plan by how far its next plan gets."""
        return not self.has_left and self.in_one_query

    @property
    def waits(self) -> bool:
        """True if it has something to read as soon as the others let it, or something to follow."""
        is_follower = self.in_one_query and self._progress.status is SplitStatus.IDLE
        return not self.has_left and (self._progress.next_us is not None or is_follower)

    @property
    def may_go_on(self) -> bool:
        """True if its next plan may do more than the last one, by the reports last seen."""
        if self._progress.next_us is not None and self.limit_us != self.planned_limit_us:
            return True
        is_idle = self._progress.status is SplitStatus.IDLE
        return is_idle and self.followed_us > max(self.planned_followed_us, self._progress.announced_us)

    @property
    def lease_us(self) -> int:
        """For how long a report counts that is renewed, and how long it is tried to reach the others."""
        return max(_LEASE_INTERVALS * self.interval_us, _SHORTEST_LEASE_US)

    @property
    def strangers(self) -> frozenset[str]:
        """Ids of the members that are known to be of other queries."""
        return frozenset(i for i, other in self._others.items() if other.is_stranger)

    def holds(self, next_us: int | None) -> bool:
        """Return whether the limit of the last plan keeps this source from its next record."""
        return next_us is not None and next_us > self.planned_limit_us and not self.has_left

    # ---- events --------------------------------------------------------------------------------------------------

    def handle(self, event: events.Event) -> tuple[events.Instruction, ...]:
        """Take an event, and return what is to be done, in this order."""
        if self.has_left:
            if isinstance(event, events.PlanStarted):
                self.planned_limit_us = self.limit_us
            return ()
        match event:
            case events.Joined():
                return self._write(event.at_us) if self.calls == 0 else ()
            case events.Drained():
                # As slow as can be until it has planned: all sources of a query are drained before the first of them
                # plans, so that each knows of the others.
                self._is_drained = True
                self._progress = replace(self._progress, watermark=MIN_WATERMARK)
                return self._write(event.at_us)
            case events.Resumed():
                # The others may plan before this source: until it plans it is where its state is (FLINK-40505).
                watermark = MIN_WATERMARK if self._is_drained else event.watermark
                self._progress = events.Progress(watermark=watermark, announced_us=event.announced_us)
                return self._write(event.at_us)
            case events.CallStarted():
                self.calls += 1
                self._phase, self._has_looked_again = _Phase.CALLED, False
                # That it takes part in the first trigger must be seen, whether it plans in it or not.
                return self._write(event.at_us) if self.calls == 1 else ()
            case events.CallEnded():
                self._phase = _Phase.BETWEEN
                return ()
            case events.PlanStarted():
                self._phase, self._awaits_limit = _Phase.PLANNING, True
                return self._write(event.at_us)
            case events.PlanEnded():
                self._phase = _Phase.CALLED
                self._progress = event.progress
                return self._write(event.at_us)
            case events.TimePassed():
                if self._written_us is None or event.at_us - self._written_us >= self.interval_us:
                    return self._write(event.at_us)
                return (events.Read(),) if event.reads else ()
            case events.WaitedInVain():
                return self._wait_once_more(event.at_us)
            case events.Seen():
                return self._see(event)
            case events.Unreachable():
                return self._fail(event)
            case events.Left():
                return self._leave()
            case _:
                assert_never(event)

    # ---- inside: reports -----------------------------------------------------------------------------------------

    def _report(self) -> SourceReport:
        """Return its own report."""
        done, is_planning = self._progress, self._phase is _Phase.PLANNING
        part = TriggerPart(self.calls, is_planning, self.in_one_query, self._rank, done.lookahead)
        return SourceReport(self.max_drift_us, done.watermark, done.next_us, part, done.status, done.announced_us)

    def _write(self, at_us: int) -> tuple[events.Instruction, ...]:
        self._written_us = at_us
        # Before the first plan, which may take long, and in a run that is drained nothing renews a report in time.
        is_first = self.in_one_query and not self._has_planned
        lease_us = _FOR_A_RUN_US if self._is_drained or is_first else self.lease_us
        return (
            events.Write(events.Member(self.source_id, self.name, self.pid, at_us, at_us + lease_us, self._report())),
        )

    def _see(self, seen: events.Seen) -> tuple[events.Instruction, ...]:
        self._failing_since_us = None
        members = [member for member in seen.members if member.source_id != self.source_id]
        if seen.is_fresh:
            self._keep_step(members)
        reports = {member.source_id: member.report for member in members}
        instructions: tuple[events.Instruction, ...] = ()
        if self._rank is None and self.calls:
            self._rank = next_rank(self.source_id, {**reports, self.source_id: self._report()})
            instructions = self._write(seen.at_us)
        members = [member for member in members if not self._is_of_another_group(member.source_id, member.report)]
        related = {
            m.source_id: m.report if self._is_peer(m.source_id, m.report) else replace(m.report, part=None)
            for m in members
        }
        related[self.source_id] = self._report()
        self.limit_us = source_limit(self.source_id, related)
        self.is_waited_for = is_waited_for(self.source_id, related)
        counting = [member for member in members if member.report.watermark is not None]
        self.slowest = min(counting, key=lambda member: member.report.watermark or 0, default=None)
        if self.in_one_query:
            related[self.source_id] = replace(related[self.source_id], status=SplitStatus.IDLE)
            self.followed_us = followed_watermark(related)
        if not instructions:
            self._conclude(awaits_first_plans(self.source_id, related))
        return instructions + self._hint(members)

    def _conclude(self, is_first: bool) -> None:
        """Let a plan that has started have the limit."""
        if not self._awaits_limit:
            return
        self._awaits_limit = False
        self.lets_others_plan = is_first and self.in_one_query and not self._has_planned
        self._has_planned = True
        self.planned_limit_us = MIN_WATERMARK if self.lets_others_plan else self.limit_us
        self.planned_followed_us = self.followed_us

    def _fail(self, event: events.Unreachable) -> tuple[events.Instruction, ...]:
        warns = self._failing_since_us is None
        if self._failing_since_us is None:
            self._failing_since_us = event.at_us
        if event.at_us - self._failing_since_us >= self.lease_us:
            self.limit_us = MAX_WATERMARK
        self._conclude(is_first=False)
        if not warns:
            return ()
        return (
            events.Warn(
                f"its members cannot be reached in {self.where}: {event.why}; the last limit holds for "
                f"{self.lease_us // 1_000_000} s, then this source goes on without the group"
            ),
        )

    def _leave(self) -> tuple[events.Instruction, ...]:
        self._phase = _Phase.LEFT
        # The last plan had another limit: the next one may do more.
        self.limit_us, self.followed_us = MAX_WATERMARK, MIN_WATERMARK
        self.lets_others_plan = self.is_waited_for = self._awaits_limit = False
        self.slowest = None
        self._others.clear()
        return (events.Remove(),)

    # ---- inside: queries -----------------------------------------------------------------------------------------

    def _keep_step(self, members: Sequence[events.Member]) -> None:
        """Find strangers, and those that keep step, among members as they are now."""
        self._others = {m.source_id: self._others.get(m.source_id, _Other()) for m in members}
        is_called = self._phase is not _Phase.BETWEEN
        for member in members:
            part, other = member.report.part, self._others[member.source_id]
            if part is None:
                other.is_stranger = True
                continue
            is_new = part.calls != other.calls
            other.is_stranger |= (
                (is_called and part.is_planning)
                or part.calls > (self.calls if is_called else self.calls + 1)
                or (is_new and part.calls < self._looked_at)
                or (is_called and self.calls > 1 and part.calls == 0)
            )
            if is_new and self.calls > other.stepped_at:
                other.steps, other.stepped_at = other.steps + 1, self.calls
            other.calls = part.calls
        self._looked_at = self.calls

    def _is_peer(self, source_id: str, report: SourceReport) -> bool:
        """Return whether another member is taken to be of the same query."""
        other = self._others.get(source_id)
        if other is None or other.is_stranger or report.part is None:
            return False
        return self.in_one_query and report.part.in_one_query

    def _is_of_another_group(self, source_id: str, report: SourceReport) -> bool:
        """Return whether another member is of another query, where both give their group the sources of one query."""
        other = self._others.get(source_id)
        says_so = self.in_one_query and report.part is not None and report.part.in_one_query
        return says_so and other is not None and other.is_stranger

    def _hint(self, members: Sequence[events.Member]) -> tuple[events.Instruction, ...]:
        """Say once that sources seem to be of one query, and what to set."""
        if self.in_one_query or self._is_hinted:
            return ()
        others = [(member.name, self._others.get(member.source_id, _Other())) for member in members]
        of_query = [name for name, other in others if other.steps >= STEPS and not other.is_stranger]
        if not of_query:
            return ()
        self._is_hinted = True
        return (
            events.Warn(
                f"source {self.name!r} and {', '.join(map(repr, of_query))} seem to be of one query: if they are give "
                "all of its sources alignmentScope=query, so that drift costs no micro-batches, and an idle source "
                "does not hold the query"
            ),
        )

    # ---- inside: waiting -----------------------------------------------------------------------------------------

    def _wait_once_more(self, at_us: int) -> tuple[events.Instruction, ...]:
        """Wait until the limit has stood for as long as the shortest lease, and for many attempts; then leave.

        Then a member that counts does not go on. It may be of another query, whose micro-batches this one does not see.
        """
        # The others have read the report that this source has just made.
        self.plans_again = self.may_go_on and not self._has_looked_again
        if self.plans_again:
            self._has_looked_again = True
            return ()
        wait = self._wait
        if self.planned_limit_us != wait.limit_us:
            self._wait = wait = _Wait(self.planned_limit_us, at_us)
        wait.attempts += 1
        if wait.attempts <= _ATTEMPTS or at_us - wait.since_us < _SHORTEST_LEASE_US:
            return (events.Pause(),) if wait.attempts > _SPARED else ()
        who = "a member" if self.slowest is None else self.slowest.name
        text = f"{who} has not gone on for {_SHORTEST_LEASE_US // 1_000_000} s; this source goes on without the group"
        self.plans_again = True
        return (events.Warn(text), *self._leave())

    def validate(self) -> None:
        """Assert what always holds; for tests."""
        assert self.calls >= 0, self
        assert (self._rank is None) or self.calls > 0, self
        assert not self.lets_others_plan or (self.in_one_query and self.planned_limit_us == MIN_WATERMARK), self
        assert not self._awaits_limit or self._phase is _Phase.PLANNING, self
        assert self._looked_at <= self.calls, self
        assert all(other.steps <= self.calls + 1 for other in self._others.values()), self
        assert self.in_one_query or self.followed_us == MIN_WATERMARK, self
        if self.has_left:
            assert self.limit_us == MAX_WATERMARK, self
            holds_others = (self.is_waited_for, self.lets_others_plan, self.waits, self.needs_lookahead)
            assert not any(holds_others), self
