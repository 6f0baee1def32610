"""The exchange of reports between the sources that name the same alignment group: the I/O of a `Membership`."""

from __future__ import annotations

import os
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, assert_never

from alignment import group_events
from alignment.events import Event, GroupLimitMoved, IdleWatermarkMoved
from alignment.explain import GroupMember
from alignment.group_events import Progress
from alignment.membership import Membership
from alignment.shown import log_of
from alignment.watermarks import MIN_WATERMARK
from streaming_source.coordinator.calls import AsyncCalls
from streaming_source.coordinator.group_location import GroupLocation
from streaming_source.exceptions import SourceError

_log = log_of(__name__)

_LISTEN_S: Final = 0.05
"""Seconds between the looks of a source that waits for the others: an exchange costs well under a millisecond,
and a backlog of two queries moves on by a drift each time (FLINK-37399)."""

_PAUSE_S: Final = 0.05
"""Seconds that a source that is being drained waits each time for a report of another one."""


class GroupExchange:
    """One source's membership in an alignment group.

    Each planner process writes its last `SourceReport` to a location that all planners of the group use, reads those of
    the others, and computes its limit from them. A source that was stopped or killed releases the others at once; one
    that hangs, or whose process is on another host, after its lease. If nothing can be exchanged for that long, the
    source goes on without the group. What a membership is, and who is of one query, is in `alignment.membership`.

    An idle source `follows` the others of its query where it announces its watermark to Spark by rows: else Spark's own
    watermark holds for all of them.

    `now_us` is a monotonic clock that all processes of the host share, `name` what the other members call this source.
    The `membership` may be read from the planner's thread; all else from any thread.
    """

    def __init__(
        self,
        location: GroupLocation,
        group: str,
        max_drift_us: int,
        interval_us: int,
        now_us: Callable[[], int],
        is_alive: Callable[[int], bool] | None = None,
        name: str = "",
        in_one_query: bool = False,
        follows: bool = True,
    ) -> None:
        self.location = location
        self.now_us = now_us
        self._group = group
        self._is_alive = is_alive or _is_alive
        self._follows = follows
        self._lock = threading.Lock()
        self._seen_version: object = None
        self.membership = Membership(
            source_id=uuid.uuid4().hex,
            name=name,
            pid=os.getpid(),
            max_drift_us=max_drift_us,
            interval_us=interval_us,
            in_one_query=in_one_query,
            where=str(location),
        )

    # ---- what the planner asks -----------------------------------------------------------------------------------

    @property
    def may_go_on(self) -> bool:
        """True if the last plan is not the next one, by what others have reported since. Some microseconds."""
        if self.membership.waits and self.membership.needs_lookahead and self.location.version() != self._seen_version:
            # Another source of the query may have planned in this very trigger.
            self._take(group_events.TimePassed(self.now_us(), reads=True))
        return self.membership.may_go_on

    def start(self, calls: AsyncCalls) -> None:
        """Exchange reports periodically, also while a micro-batch takes long."""
        calls.repeat(self.renew_when_due, min(self.membership.interval_us / 1e6, _LISTEN_S))

    def join(self) -> None:
        """Let the other sources of the query know of this one, before the first of them plans."""
        self._take(group_events.Joined(self.now_us()))

    def drain(self) -> None:
        """Let them know that this one reads only what is there (AvailableNow), before the first of them plans."""
        self._take(group_events.Drained(self.now_us()))

    def resume(self, watermark: int | None, announced_us: int) -> None:
        self._take(group_events.Resumed(self.now_us(), watermark, announced_us))

    @contextmanager
    def call(self) -> Iterator[None]:
        """Spark asks for the next micro-batch: what is planned meanwhile, or not, is of one trigger."""
        self._take(group_events.CallStarted(self.now_us()))
        try:
            yield
        finally:
            self._take(group_events.CallEnded(self.now_us()))

    def start_plan(self) -> Sequence[Event]:
        """Return what the others let the engine do in the plan that follows."""
        self._take(group_events.PlanStarted(self.now_us()))
        limit = GroupLimitMoved(self.membership.planned_limit_us)
        if not self._follows or self.membership.planned_followed_us == MIN_WATERMARK:
            return (limit,)
        return (limit, IdleWatermarkMoved(self.membership.planned_followed_us))

    def end_plan(self, progress: Progress) -> None:
        """Report how far the source is after a plan."""
        self._take(group_events.PlanEnded(self.now_us(), progress))

    def wait_for_others(self) -> bool:
        """Let a run that can do nothing but wait for other sources wait for a moment.

        Return whether the run is to go on to the next trigger, in which others may plan; if not, this source plans once
        more, since the others have gone on or are given up.
        """
        self._take(group_events.WaitedInVain(self.now_us()))
        return not self.membership.plans_again

    def leave(self) -> None:
        """Hold nobody back any more, whatever is still reported. A process that ends has left without it."""
        self._take(group_events.Left())

    def slowest_at(self, now_us: int) -> GroupMember | None:
        """The other member that counts with the smallest watermark, its times by the clock that shows `now_us`."""
        member = self.membership.slowest
        if member is None or member.report.watermark is None:
            return None
        shift_us = now_us - self.now_us()
        at_us, until_us = member.at_us + shift_us, member.until_us + shift_us
        return GroupMember(self._group, member.name, member.pid, member.report.watermark, at_us, until_us)

    def renew_when_due(self) -> None:
        """Renew the report once an interval has passed; and see those of the others while this source waits."""
        self._take(group_events.TimePassed(self.now_us(), reads=self.membership.waits))

    def _take(self, event: group_events.Event) -> None:
        """Let the membership take an event, and carry out what it says."""
        with self._lock:
            instructions = deque(self.membership.handle(event))
            while instructions:
                answer = self._carry_out(instructions.popleft())
                if answer is not None:
                    instructions.extend(self.membership.handle(answer))

    def _carry_out(self, instruction: group_events.Instruction) -> group_events.Event | None:
        match instruction:
            case group_events.Write():
                return self._exchange(instruction.member)
            case group_events.Read():
                return self._exchange(None)
            case group_events.Pause():
                self.location.wait_for_change(self._seen_version, _PAUSE_S)
            case group_events.Remove():
                try:
                    self.location.remove(self._group, self.membership.source_id)
                except SourceError as error:
                    _log.warning("alignment group %r: could not leave: %s; the lease will end", self._group, error)
            case group_events.Warn():
                _log.warning("alignment group %r: %s", self._group, instruction.text)
            case _:
                assert_never(instruction)
        return None

    def _exchange(self, own: group_events.Member | None) -> group_events.Seen | group_events.Unreachable:
        now_us = self.now_us()
        # Before the reports are read: what is written meanwhile is another version.
        version = None if own is not None else self.location.version()
        try:
            members = self.location.exchange(
                self._group, own, lambda member: member.until_us <= now_us or not self._is_alive(member.pid)
            )
        except SourceError as error:
            return group_events.Unreachable(now_us, str(error))
        self._seen_version = self.location.version() if own is not None else version
        return group_events.Seen(now_us, tuple(members), is_fresh=own is not None)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
