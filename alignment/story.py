"""The story of one split, in order, with times: from an event log, or from the explanations of its source.

An event log has all that drove an engine, and its plans; `story_in` is what of them concerns the split. Where there is
none (a checkpoint, the progress of a query) `story_of` compares what was known after one micro-batch with what was
known after the next.
"""

from __future__ import annotations

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


def story_in(entries: Iterable[Any], split_id: str) -> Iterator[StoryEvent]:
    """Yield what happened to a split, oldest first, by the entries of an engine in an event log. O(log).

    An entry without a time has that of the one before it.

    Examples
    --------
    >>> log = [events.SplitsAssigned(("orders-1",), (5,), (0,), 1_767_261_600_000_000)]
    >>> [str(event) for event in story_in(log, "orders-1")]
    ['2026-01-01 10:00:00  assigned    from position 5 on']
    """
    known: _State | None = None
    plan: MicroBatchPlan | None = None
    at_us = 0
    for entry in entries:
        at_us = max(at_us, getattr(entry, "at_us", 0), getattr(entry, "now_us", 0))
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
