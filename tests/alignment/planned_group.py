"""Memberships of sources without planners: a place in memory, and sources that are lists of event times."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from alignment import group_events as events
from alignment.combine import SplitStatus
from alignment.group_events import Event, Instruction, Member, Progress
from alignment.groups import Lookahead
from alignment.membership import Membership
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK

DRIFT = 10
_ids = count()


@dataclass
class Place:
    """What the members of a group have written; it can be out of reach, and time goes on by itself."""

    members: dict[str, Member] = field(default_factory=dict)
    alive: set[int] = field(default_factory=set)
    now_us: int = 0
    is_reachable: bool = True
    warnings: list[str] = field(default_factory=list)

    def carry_out(self, membership: Membership, event: Event, log: list[Event] | None = None) -> None:
        """Let a membership take an event, and do what it says until nothing is left."""
        instructions: deque[Instruction] = deque()
        queue: deque[Event] = deque([event])
        while queue or instructions:
            if queue:
                if log is not None:
                    log.append(queue[0])
                instructions.extend(membership.handle(queue.popleft()))
                membership.validate()
                continue
            match instructions.popleft():
                case events.Write(member):
                    if self.is_reachable:
                        self.members[member.source_id] = member
                    queue.append(self._seen(is_fresh=True))
                case events.Read():
                    queue.append(self._seen(is_fresh=False))
                case events.Remove():
                    if self.is_reachable:
                        self.members.pop(membership.source_id, None)
                case events.Warn(text):
                    self.warnings.append(text)
                case events.Pause():
                    self.now_us += 50_000

    def _seen(self, *, is_fresh: bool) -> Event:
        self.now_us += 1
        if not self.is_reachable:
            return events.Unreachable(self.now_us, "it is away")
        there = [m for m in self.members.values() if m.pid in self.alive and m.until_us > self.now_us]
        return events.Seen(self.now_us, tuple(there), is_fresh)


@dataclass
class Listed:
    """A source of one split: all its records, in order, and how many are read and known. Its watermark is exact.

    It is silent once it `is_silent` and has read all that is known: its split is idle then. It `announces` its own
    watermark, or that of the others where it follows them; both never go back.
    """

    times: Sequence[int]
    max_rows: int | None
    known: int
    is_indexed: bool = True
    ends: bool = True
    in_one_query: bool = True
    is_silent: bool = False
    read: int = 0
    announced: int = MIN_WATERMARK
    late: int = 0
    place: Place = field(default_factory=Place)
    log: list[Event] | None = None
    membership: Membership = field(init=False)

    def start(self, place: Place) -> None:
        """A planner process begins, and joins the group."""
        self.place = place
        number = next(_ids)
        name = f"source {number}"
        self.membership = Membership(str(number), name, number, DRIFT, 1_000_000, self.in_one_query)
        place.alive.add(number)
        if self.in_one_query:
            self.take(events.Joined(place.now_us))
        if self.read:
            self.take(events.Resumed(place.now_us, None if self.has_ended else self.watermark, self.announced))

    def kill(self) -> None:
        """Its process ends, with all that it knew; offsets have where it was."""
        self.place.alive.discard(self.membership.pid)

    def take(self, event: Event) -> None:
        self.place.carry_out(self.membership, event, self.log)

    @property
    def reported(self) -> int | None:
        """The watermark that the others see; None if it does not count."""
        member = self.place.members.get(self.membership.source_id)
        return None if member is None else member.report.watermark

    @property
    def next_us(self) -> int | None:
        return self.times[self.read] if self.read < self.known else None

    @property
    def has_ended(self) -> bool:
        return self.ends and self.read == len(self.times)

    @property
    def status(self) -> SplitStatus:
        if self.has_ended:
            return SplitStatus.FINISHED
        return SplitStatus.IDLE if self.is_silent and self.next_us is None else SplitStatus.ACTIVE

    @property
    def watermark(self) -> int:
        return self.times[self.read - 1] if self.read else (self.times[0] - 1 if self.known else MIN_WATERMARK)

    @property
    def counts(self) -> bool:
        return self.known > 0 and self.status is SplitStatus.ACTIVE

    def start_plan(self) -> int:
        """How far it may read."""
        self.take(events.PlanStarted(self.place.now_us))
        return self.membership.planned_limit_us

    def end_plan(self, bound: int) -> int:
        """Read up to a bound, and report; how many records."""
        end = bisect_right(self.times, bound, self.read, self.known)
        if self.max_rows is not None:
            end = min(end, self.read + self.max_rows)
        self.late += sum(time <= self.announced for time in self.times[self.read : end])
        rows, self.read = end - self.read, end
        self.announced = max(self.announced, self.watermark)
        if self.status is SplitStatus.IDLE:
            self.announced = max(self.announced, self.membership.planned_followed_us)
        lookahead = self.look_ahead() if self.membership.needs_lookahead else None
        watermark = self.watermark if self.counts else None
        done = Progress(watermark, self.next_us, lookahead, self.status, self.announced)
        self.take(events.PlanEnded(self.place.now_us, done))
        return rows

    def call(self) -> int:
        """Spark asks for the next micro-batch; how many records it has."""
        self.take(events.CallStarted(self.place.now_us))
        rows = self.end_plan(self.start_plan())
        self.take(events.CallEnded(self.place.now_us))
        return rows

    def look_ahead(self) -> Lookahead | None:
        if not self.is_indexed:
            return None
        stop = MAX_WATERMARK
        if self.max_rows is not None and self.read + self.max_rows < self.known:
            # No record of this time fits any more, unless it is the only one.
            first_out = self.times[self.read + self.max_rows]
            stop = first_out - 1 if self.times[self.read] < first_out else first_out
        reach = max(self.watermark, self.times[self.known - 1]) if self.known else MIN_WATERMARK
        return Lookahead(stop, reach)


class Query:
    """What Spark does: it plans the sources in one order in each trigger, and then reads them all."""

    def __init__(self, sources: Sequence[Listed], place: Place | None = None) -> None:
        self.sources = list(sources)
        self.place = Place() if place is None else place
        self.restart()

    def restart(self) -> None:
        """All planners are new, and are where the offsets were."""
        for source in self.sources:
            if hasattr(source, "membership"):
                source.kill()
        for source in self.sources:
            source.start(self.place)

    def trigger(self) -> tuple[int, bool]:
        """How many records it reads; and whether a source waits for the first plans of the others."""
        rows, waits = 0, False
        for source in self.sources:
            rows += source.call()
            waits |= source.membership.lets_others_plan
        return rows, waits

    @property
    def watermark(self) -> int:
        """Spark's: the smallest of what its sources have announced; ended ones count no more."""
        left = [source.announced for source in self.sources if not source.has_ended]
        return min(left, default=MAX_WATERMARK)


def fresh(source: Listed) -> Listed:
    """The same source before its first record, for another query."""
    return replace(source, read=0, announced=MIN_WATERMARK, late=0)
