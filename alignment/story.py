"""The story of one split, in order, with times: from the log that an engine keeps, or from its explanations.

An engine keeps its last events and plans in an `EventLog`; its `story` of a split is what of them concerns that split.
Where no engine is at hand (a checkpoint, the progress of a query) `story_of` compares what was known after one
micro-batch with what was known after the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from alignment import events
from alignment.combine import SplitStatus
from alignment.explain import Explanation, SplitExplanation, WaitsFor
from alignment.plan import MicroBatchPlan, SplitTable
from alignment.sentence import counted, moment
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MIN_WATERMARK

_CELLS: Final = 200_000
"""Entries of splits and blocks that a log has at most: some MB."""

_STATUSES: Final = {
    SplitStatus.ACTIVE: "is active, and holds the watermark if it is the slowest",
    SplitStatus.PAUSED: "is paused: its next record is beyond the limit",
    SplitStatus.IDLE: "is idle: it has had nothing to read for idleTimeout, and holds nothing back",
    SplitStatus.FINISHED: "is finished: all its records are read",
}
_WAITS: Final = {
    WaitsFor.SOURCE: "cannot be reached",
    WaitsFor.TRANSACTION: "waits for an open transaction",
    WaitsFor.REPORT: "waits for the reports of its readers",
    WaitsFor.ROWS: "waits for its turn: the read limit admits no more",
    WaitsFor.MIN_ROWS: "waits until minRowsPerTrigger records are there",
    WaitsFor.GROUP: "waits for another source of its alignment group",
    WaitsFor.HORIZON: "waits for splits that are not read yet",
    WaitsFor.SCAN: "has records that are not scanned for event times yet",
}


class StoryEvent(NamedTuple):
    """One thing that happened to a split, at a processing time in microseconds; `what` in one word, for programs."""

    at_us: int
    what: str
    text: str

    def __str__(self) -> str:
        return f"{moment(self.at_us).removesuffix(' UTC')}  {self.what:<10}  {self.text}"


@dataclass(frozen=True, slots=True)
class _State:
    """A split after a micro-batch."""

    position: int
    watermark: int
    status: SplitStatus


class EventLog:
    """The last events and plans of an engine: as many as fit, by the splits and blocks that they are about.

    Examples
    --------
    >>> log = EventLog()
    >>> log.add(events.SplitsAssigned(("orders-1",), (5,), (0,), 1_767_261_600_000_000))
    >>> [str(event) for event in log.story("orders-1")]
    ['2026-01-01 10:00:00  assigned    from position 5 on']
    """

    def __init__(self, cells: int = _CELLS) -> None:
        self._entries: deque[tuple[int, int, object]] = deque()
        self._cells = 0
        self._most = cells
        self._now_us = 0

    def add(self, entry: object) -> None:
        """The next event, or plan; an event without a time has that of the one before it. O(1) amortised."""
        self._now_us = max(self._now_us, getattr(entry, "at_us", 0), getattr(entry, "now_us", 0))
        size = _size(entry)
        self._entries.append((self._now_us, size, entry))
        self._cells += size
        while self._cells > self._most and len(self._entries) > 1:
            self._cells -= self._entries.popleft()[1]

    def story(self, split_id: str) -> tuple[StoryEvent, ...]:
        """Return the events of one split, oldest first; none of a split that it does not have. O(log)."""
        return tuple(self._of(split_id))

    def __len__(self) -> int:
        return len(self._entries)

    def _of(self, split_id: str) -> Iterator[StoryEvent]:
        known: _State | None = None
        plan: MicroBatchPlan | None = None
        for at_us, _, entry in self._entries:
            if isinstance(entry, MicroBatchPlan):
                plan = entry
            elif isinstance(entry, events.Restored):
                known = _state_in(entry.table, split_id)
                if known is not None:
                    status = known.status.name.lower()
                    yield StoryEvent(at_us, "restored", f"{status}, from position {known.position:,} on")
            elif isinstance(entry, events.PlanCommitted) and plan is not None:
                after = _state_in(plan.after, split_id)
                if after is not None:
                    late = int(plan.late[plan.after.split_ids.index(split_id)])
                    yield from _changes(at_us, known, after, late)
                known = after
            else:
                found = _of_event(entry, split_id)
                if found is not None:
                    yield StoryEvent(at_us, *found)


def story_of(split_id: str, explanations: Iterable[Explanation]) -> tuple[StoryEvent, ...]:
    """Return what happened to a split between explanations of its source, oldest first. O(their splits)."""
    found: list[StoryEvent] = []
    before: SplitExplanation | None = None
    for number, explanation in enumerate(explanations):
        at_us = explanation.at_us
        split = next((one for one in explanation.splits if one.split_id == split_id), None)
        if split is None:
            if before is not None:
                found.append(StoryEvent(at_us, "left", "is finished, or gone: it is not in work any more"))
        else:
            if before is None and number:
                found.append(StoryEvent(at_us, "assigned", "is in work"))
            known = None if before is None else _State(before.position, before.watermark, before.status)
            after = _State(split.position, split.watermark, split.status)
            found += _changes(at_us, known, after, split.late - (0 if before is None else before.late))
            waits_for = WaitsFor.NOTHING if before is None else before.waits_for
            if split.waits_for is not waits_for and split.waits_for in _WAITS:
                behind = f", with {counted(split.behind, 'record')} unread" if split.behind else ""
                found.append(StoryEvent(at_us, "waits", f"{_WAITS[split.waits_for]}{behind}"))
        before = split
    return tuple(found)


def _changes(at_us: int, before: _State | None, after: _State, late: int) -> Iterator[StoryEvent]:
    """Yield what one micro-batch has made of a split."""
    if before is None:
        if after.watermark > MIN_WATERMARK:
            yield StoryEvent(at_us, "read", f"up to position {after.position:,}{_watermark(after)}")
    elif after.position != before.position:
        moved = "" if after.watermark == before.watermark else _watermark(after)
        yield StoryEvent(at_us, "read", f"from position {before.position:,} to {after.position:,}{moved}")
    elif after.watermark != before.watermark:
        yield StoryEvent(at_us, "watermark", f"is at {moment(after.watermark)}")
    if late > 0:
        yield StoryEvent(at_us, "late", f"{counted(late, 'record')} came at or below the announced watermark")
    if after.status is not (SplitStatus.ACTIVE if before is None else before.status):
        yield StoryEvent(at_us, after.status.name.lower(), _STATUSES[after.status])


def _watermark(state: _State) -> str:
    return "" if state.watermark == MIN_WATERMARK else f", its watermark is at {moment(state.watermark)}"


def _of_event(entry: object, split_id: str) -> tuple[str, str] | None:
    """Return what an event is to a split, if it is about it."""
    match entry:
        case events.SplitsAssigned() if split_id in entry.split_ids:
            position = entry.positions[entry.split_ids.index(split_id)]
            return "assigned", f"from position {position:,} on"
        case events.BlocksIndexed(split_id=of) if of == split_id:
            latest_us = int(entry.max_us.max()) if entry.max_us.size else NO_TIMESTAMP
            until = "" if latest_us == NO_TIMESTAMP else f", event times up to {moment(latest_us)}"
            return "found", f"{counted(int(entry.rows.sum()), 'record')}{until}"
        case events.OpaqueBlockIndexed(split_id=of) if of == split_id:
            return "found", f"{counted(entry.rows, 'record')}, event times up to {moment(entry.max_us)}"
        case events.SplitsBlocked() if split_id in entry.unreachable:
            return "waits", _WAITS[WaitsFor.SOURCE]
        case events.SplitsBlocked() if split_id in entry.split_ids:
            return "waits", _WAITS[WaitsFor.TRANSACTION]
        case events.RangesReported() if ranges := [one for one in entry.reports if one.split_id == split_id]:
            return "reported", f"what readers saw from position {ranges[0].start:,} to {ranges[-1].stop:,}"
        case events.SplitCompleted(split_id=of) if of == split_id:
            return "complete", "no record will be added to it"
        case events.SplitAbandoned(split_id=of) if of == split_id:
            return "gone", "its unread records are lost"
    return None


def _state_in(table: SplitTable, split_id: str) -> _State | None:
    if split_id not in table.split_ids:
        return None
    at = table.split_ids.index(split_id)
    status = SplitStatus(table.statuses[at])
    return _State(int(table.positions[at]), int(table.watermarks[at]), status)


def _size(entry: Any) -> int:
    """Splits or blocks that an entry has, at least 1."""
    for name in ("rows", "split_ids", "reports"):
        sized: Any = getattr(entry, name, None)
        if hasattr(sized, "__len__"):
            return max(len(sized), 1)
    table: Any = entry.after if isinstance(entry, MicroBatchPlan) else getattr(entry, "table", ())
    return max(len(table), 1)
