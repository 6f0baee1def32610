"""An explanation in words: one sentence on the watermark, one on the splits that wait, one on what was late."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np

from alignment.combine import SplitStatus
from alignment.durations import format_duration
from alignment.explain import Cause, Explanation, LastBatch, SplitExplanation, WaitsFor
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK

__all__ = ["counted", "duration_text", "moment", "named", "sentence", "watermark_text"]

_SECOND_US: Final = 1_000_000
_DAY_US: Final = 86_400 * _SECOND_US
_WORDS: Final = ("year", "day", "record", "split", "position")
"""Units whose plural has an `s`; the others are abbreviations."""
_STANDING_US: Final = _SECOND_US
"""A watermark that has not moved for less than this *is* somewhere; after that it *stands* there."""


def sentence(explanation: Explanation) -> str:
    """Why the watermark is where it is, who waits for others, what was late, and what outside of the range. O(n)."""
    parts = [_main(explanation), *_pinned(explanation), *_before_a_leap(explanation)]
    parts += [*_at_the_limit(explanation), *_idle_ones(explanation)]
    if explanation.away is not None and explanation.cause is not Cause.SOURCE:
        parts.append(f"Not all splits can be reached: {explanation.away}.")
    return " ".join([*parts, *_late(explanation), *_outside(explanation)])


def moment(us: int, near_us: int | None = None) -> str:
    """A time to the second, in UTC; only that of the day where it is on the day of `near_us`.

    Examples
    --------
    >>> moment(1_767_261_733_999_999), moment(1_767_261_738_000_000, 1_767_261_733_999_999)
    ('2026-01-01 10:02:13 UTC', '10:02:18')
    >>> moment(MAX_WATERMARK)
    'the end (every window closes)'
    """
    if us == MAX_WATERMARK:
        return "the end (every window closes)"
    day, _, clock = str(np.datetime64(us // _SECOND_US, "s")).partition("T")
    if near_us is not None and us // _DAY_US == near_us // _DAY_US:
        return clock
    return f"{day} {clock} UTC"


def watermark_text(us: int) -> str:
    """A watermark for a table, in UTC.

    Examples
    --------
    >>> watermark_text(MIN_WATERMARK), watermark_text(1_767_261_733_999_999)
    ('none', '2026-01-01 10:02:13')
    """
    return {MIN_WATERMARK: "none", MAX_WATERMARK: "end"}.get(us) or moment(us).removesuffix(" UTC")


def duration_text(us: int) -> str:
    """A duration to two digits or so, to be read and not to be parsed.

    Examples
    --------
    >>> [duration_text(s * 1_000_000) for s in (9.84, 41.3, 200, 7_512, 200_000, 2.3e9)]
    ['9.8 s', '41 s', '3 min 20 s', '2 h 5 min', '2 days 7 h', '72 years']
    """
    seconds = us / _SECOND_US
    if seconds < 60:
        return f"{int(seconds)} s" if seconds >= 10 else f"{round(seconds, 1):g} s"
    parts = (("year", 365 * 86_400), ("day", 86_400), ("h", 3600), ("min", 60), ("s", 1))
    at = next(i for i, (_, unit) in enumerate(parts) if seconds >= unit)
    whole, rest = divmod(int(seconds), parts[at][1])
    texts = [counted(whole, parts[at][0])]
    if at > 0 and (more := rest // parts[at + 1][1]):
        texts.append(counted(more, parts[at + 1][0]))
    return " ".join(texts)


def named(split_ids: Collection[str], most: int = 3) -> str:
    """The first ids of some, and how many more there are.

    Examples
    --------
    >>> named(["a", "b"]), named(["a", "b", "c", "d", "e"])
    ("'a', 'b'", "'a', 'b', 'c' and 2 more")
    >>> named([str(number) for number in range(5_003)])
    "'0', '1', '2' and 5,000 more"
    """
    ids = list(split_ids)
    return ", ".join(map(repr, ids[:most])) + (f" and {len(ids) - most:,} more" if ids[most:] else "")


def counted(count: int, unit: str) -> str:
    """A number of things, with an `s` where there are several.

    Examples
    --------
    >>> counted(1, "record"), counted(1200, "record")
    ('1 record', '1,200 records')
    """
    return f"{count:,} {unit}" + ("s" if unit in _WORDS and count != 1 else "")


def _main(explanation: Explanation) -> str:
    cause, n = explanation.cause, len(explanation.splits)
    if cause is Cause.ENDED:
        return "The source has ended: it lets every window close."
    if cause in (Cause.FAILED, Cause.STOPPED):
        return _ended(explanation)
    where = "There is no watermark yet"
    if explanation.watermark > MIN_WATERMARK:
        stands = explanation.at_us - explanation.stands_since_us >= _STANDING_US and cause is not Cause.NOTHING
        where = f"The watermark {'stands' if stands else 'is'} at {moment(explanation.watermark)}"
    if cause is Cause.MICRO_BATCH:
        return _batch_at_work(explanation)
    if cause is Cause.UNREAD:
        return _left_unread(explanation)
    if cause is Cause.NO_SPLITS and explanation.watermark > MIN_WATERMARK:
        return f"{where}: every split that was found{_in_what_is_read(explanation)} has been read to its end."
    if cause is Cause.NO_SPLITS:
        return f"{where}: no split has been found{_in_what_is_read(explanation)}."
    if cause is Cause.ALL_IDLE:
        return f"{where}: all {n} splits are idle." if n > 1 else f"{where}: its only split is idle."
    if cause is Cause.HORIZON and not explanation.holders:
        return f"{where} because splits that are not read yet begin there."
    if explanation.is_in_the_future:
        return _future(explanation, where)
    first = explanation.holders[0]
    if cause is Cause.NOTHING:
        return f"{where}: {_all_is_read(explanation, first)}."
    others = len(explanation.holders) - 1
    holder = f"split {first.split_id!r}" + (f" (and {others} more)" if others else "")
    return f"{where} because {holder} {_why(explanation, first)}{_idle(explanation, first)}."


def _all_is_read(explanation: Explanation, slowest: SplitExplanation) -> str:
    """That nothing is wrong; if nothing has come for a while, since when, and what becomes of the slowest split."""
    text, since_us = "all that is there has been read", explanation.silent_since_us
    if since_us is None or explanation.at_us - since_us < _STANDING_US:
        return f"{text}, and split {slowest.split_id!r} is the slowest"
    text += f", nothing has come since {moment(since_us, explanation.at_us)}, and split {slowest.split_id!r}"
    return f"{text} is the slowest{_idle(explanation, slowest)}"


def _ended(explanation: Explanation) -> str:
    """That the query does not run, why, and what it has left behind."""
    end, batch = explanation.end, explanation.batch
    assert end is not None
    at = "" if end.at_us is None else f" at {moment(end.at_us)}"
    text = "The query does not run any more."
    if end.error is not None:
        text = f"The query has failed{at}: {end.error.rstrip('.')}."
    elif end.overdue is not None:
        text = (
            f"The query does not run any more, or cannot reach its source: no micro-batch announces that split "
            f"{end.overdue!r} has become idle."
        )
    elif end.other_pid is not None:
        text = f"This run of the query has ended{at}; another one goes on with its checkpoint, process {end.other_pid}."
    elif end.pid is not None:
        text = f"The query does not run any more: its planner, process {end.pid}, has ended{at}."
    if batch is not None and batch.done_us is None:
        planned = moment(batch.planned_us, end.at_us)
        text += (
            f" {_named_batch(batch).capitalize()}, planned at {planned}, is not committed: the next run reads it again."
        )
        if end.error is None and end.pid is not None:
            text += " The query has failed in it, or was stopped: the log of the driver has the error."
    behind = sum(split.behind for split in explanation.splits)
    if explanation.watermark > MIN_WATERMARK:
        text += f" Its watermark was at {moment(explanation.watermark)}, with {behind:,} known records unread."
    return text


def _batch_at_work(explanation: Explanation) -> str:
    batch, took_us = explanation.batch, explanation.batch_takes_us
    assert batch is not None
    assert took_us is not None
    name = _named_batch(batch).capitalize()
    if batch.done_us is None:
        text = (
            f"{name}, planned at {moment(batch.planned_us)}, has not been committed for {duration_text(took_us)}: "
            "until then nothing more is planned, and the watermark does not move"
        )
    else:
        text = (
            f"{name} took {duration_text(took_us)} from its plan to its commit, and the query spends {batch.share:.0%} "
            "of its time so: records wait for Spark"
        )
    if explanation.watermark > MIN_WATERMARK:
        text += f". Behind this micro-batch the watermark is at {moment(explanation.watermark)}"
    return f"{text}."


def _named_batch(batch: LastBatch) -> str:
    number = "the last micro-batch" if batch.number is None else f"micro-batch {batch.number}"
    return number if batch.rows is None else f"{number}, of {counted(batch.rows, 'record')}"


def _left_unread(explanation: Explanation) -> str:
    left = {split.split_id: split.behind for split in explanation.splits if split.behind}
    slowest = [split.split_id for split in explanation.setters if split.split_id not in left]
    text = f"The run has ended and leaves {counted(sum(left.values()), 'record')} unread, of {named(left)}"
    if slowest and explanation.watermark > MIN_WATERMARK:
        text += f": they are later than split {slowest[0]!r} allows, which may still get earlier ones"
    return (
        f"{text}. The watermark is at {moment(explanation.watermark)}."
        if explanation.watermark > MIN_WATERMARK
        else f"{text}."
    )


def _in_what_is_read(explanation: Explanation) -> str:
    return "" if explanation.reads is None else f" in {explanation.reads}"


def _why(explanation: Explanation, holder: SplitExplanation) -> str:
    if holder.earlier is not None and explanation.cause is Cause.EARLIER:
        return (
            f"has a record that is not read yet, at {holder.earlier.place}, of {moment(holder.earlier.time_us)}: what "
            "is there is never late, so no window that ends later closes before it is read"
        )
    if holder.next_us is not None:
        return _beyond_the_limit(explanation, holder)
    near_us = explanation.watermark if explanation.watermark > MIN_WATERMARK else None
    since = "" if holder.silent_since_us is None else f" since {moment(holder.silent_since_us, near_us)}"
    if explanation.cause is Cause.EMPTY:
        in_range = " in the range" if _records_outside(explanation) else ""
        return f"has never had a record with an event time{in_range}, and nothing to read{since}"
    if explanation.cause is Cause.INVALID:
        positions = "position" if holder.invalid == 1 else "positions"
        return f"has been read for {holder.invalid:,} {positions}, and no record there has a valid event time"
    if explanation.cause is Cause.SILENT:
        return f"has delivered nothing{since}"
    return {
        WaitsFor.SOURCE: _away(explanation),
        WaitsFor.TRANSACTION: _transaction(holder),
        WaitsFor.REPORT: f"waits for what its readers report of the records before position {holder.position}",
        WaitsFor.ROWS: f"has {counted(holder.behind, 'record')} left that the read limit did not admit",
        WaitsFor.MIN_ROWS: _too_few(explanation, holder),
        WaitsFor.GROUP: f"waits for {_member(explanation)}",
        WaitsFor.HORIZON: "waits for splits that are not read yet",
    }.get(holder.waits_for, "is the slowest")


def _too_few(explanation: Explanation, holder: SplitExplanation) -> str:
    """Why rows that are there are not read: the micro-batch waits for more."""
    rows = f"has {counted(holder.behind, 'record')} left that wait"
    if explanation.bounds.min_rows is not None:
        unread = sum(split.behind for split in explanation.splits)
        rows += f" until minRowsPerTrigger = {explanation.bounds.min_rows:,} are there in all splits, of {unread:,} now"
    if explanation.reads_at_us < MAX_WATERMARK:
        rows += f", or until {moment(explanation.reads_at_us, explanation.at_us)} (maxTriggerDelay)"
    return rows


def _away(explanation: Explanation) -> str:
    away = [split.split_id for split in explanation.splits if split.waits_for is WaitsFor.SOURCE]
    if len(away) > 1 and len(away) == len(explanation.splits):
        why = explanation.away or "the source is away"
        return f"cannot be reached, like all {len(away)} splits{_in_what_is_read(explanation)}: {why}"
    because = f" ({explanation.away})" if explanation.away else ""
    return f"cannot be reached{because}, so that what it has is not known"


def _transaction(holder: SplitExplanation) -> str:
    if not holder.locked:
        return "has an open transaction: its next records cannot be read until that ends"
    records = counted(holder.locked, "record")
    return f"has an open transaction: {records} of it cannot be read until that ends, and {holder.behind:,} can be"


def _beyond_the_limit(explanation: Explanation, split: SplitExplanation) -> str:
    assert split.next_us is not None
    setters = [setter.split_id for setter in explanation.setters if setter is not split]
    until = f" before {named(setters)} {'have' if setters[1:] else 'has'} come that far or is idle" if setters else ""
    beyond = duration_text(split.next_us - explanation.bound_us)
    return (
        f"cannot go on{until}: its next record, at {split.next_place}, is of {moment(split.next_us)}, {beyond} "
        f"beyond the limit, and {split.behind - 1:,} more {'waits' if split.behind == 2 else 'wait'} behind it"
    )


def _member(explanation: Explanation) -> str:
    member = explanation.group
    if member is None:
        return "another source of its alignment group"
    reported, until = (moment(us, explanation.at_us) for us in (member.reported_us, member.until_us))
    is_at = "has no watermark"
    if member.watermark > MIN_WATERMARK:
        is_at = f"is at {moment(member.watermark, explanation.at_us)}"
    where = f"process {member.pid}" if member.pid else "on another host"
    text = f"source {member.source!r} ({where}) of its alignment group {member.group!r}, which {is_at}"
    if member.is_overdue(explanation.at_us):
        text += f" and reported last at {reported}; without a report it is left out from {until} on"
    return text


def _idle(explanation: Explanation, holder: SplitExplanation) -> str:
    idle_at_us = None if explanation.cause is Cause.SLOWEST else explanation.idle_at_us(holder)
    if idle_at_us is None:
        holds_others = explanation.cause in (Cause.SILENT, Cause.EMPTY, Cause.INVALID) or (
            explanation.cause is Cause.NOTHING and any(s.holds_us > holder.holds_us for s in explanation.counting)
        )
        never = holds_others and explanation.bounds.idle_timeout_us is None
        return "; without idleTimeout it never becomes idle" if never else ""
    if explanation.end is not None and not explanation.is_draining:
        return ""
    if explanation.is_draining:
        return f"; it is idle in the first run that begins after {moment(idle_at_us, explanation.at_us)}"
    if idle_at_us <= explanation.at_us:
        return "; it is idle as soon as the query looks again"
    at = moment(idle_at_us, explanation.at_us)
    return f"; it becomes idle in {duration_text(idle_at_us - explanation.at_us)}, at {at}"


def _future(explanation: Explanation, where: str) -> str:
    latest = explanation.furthest_in_the_future
    ahead = duration_text(explanation.watermark - explanation.at_us)
    record = "a record is dated so" if latest is None else _far_record(latest)
    return f"{where}, {ahead} in the future: {record}, and whatever follows in time is late."


def _far_record(split: SplitExplanation) -> str:
    if split.far is None:
        return f"a record of split {split.split_id!r}, before position {split.position}, is dated so"
    return f"a record of split {split.split_id!r}, at {split.far.place}, is dated {moment(split.far.time_us)}"


def _before_a_leap(explanation: Explanation) -> list[str]:
    """A split that is in the future already, while others still hold the watermark."""
    latest = explanation.furthest_in_the_future
    if latest is None or explanation.is_in_the_future or explanation.watermark == MAX_WATERMARK:
        return []
    ahead, holders = duration_text(latest.watermark - explanation.at_us), explanation.held_by
    when = f" when {named(holders)} {'are' if holders[1:] else 'is'} idle or has come that far" if holders else ""
    return [
        f"Split {latest.split_id!r} is at {moment(latest.watermark)}, {ahead} in the future: {_far_record(latest)}. "
        f"The watermark leaps there{when}, and whatever follows in time is late then."
    ]


def _pinned(explanation: Explanation) -> list[str]:
    held_by = set(explanation.held_by)
    pinned = [split for split in explanation.splits if split.next_us is not None and split.split_id not in held_by]
    if not pinned:
        return []
    first = max(pinned, key=lambda split: split.next_us or 0)
    others = f" Nor can {len(pinned) - 1} more." if pinned[1:] else ""
    return [f"Split {first.split_id!r} {_beyond_the_limit(explanation, first)}.{others}"]


def _at_the_limit(explanation: Explanation) -> list[str]:
    paused = [s for s in explanation.splits if s.waits_for is WaitsFor.DRIFT and s.next_us is None]
    drift_us = explanation.bounds.max_drift_us
    if not paused:
        return []
    verb = "wait" if paused[1:] else "waits"
    text = f"{named([split.split_id for split in paused])} {verb} at the limit"
    if drift_us is not None and explanation.watermark > MIN_WATERMARK:
        ahead_us = max(split.watermark for split in paused) - explanation.watermark
        text += f", {duration_text(ahead_us)} ahead of the watermark (maxDrift {format_duration(drift_us)})"
    return [f"{text}."]


def _idle_ones(explanation: Explanation) -> list[str]:
    idle = [split.split_id for split in explanation.splits if split.status is SplitStatus.IDLE]
    if not idle or len(idle) == len(explanation.splits):
        return []
    return [f"{named(idle)} {'are' if idle[1:] else 'is'} idle and {'hold' if idle[1:] else 'holds'} nothing back."]


def _outside(explanation: Explanation) -> list[str]:
    outside = _records_outside(explanation)
    lie = "lies" if outside == 1 else "lie"
    text = f"{counted(outside, 'record')} {lie} outside of the range of event times (option overlap)."
    return [text] if outside else []


def _records_outside(explanation: Explanation) -> int:
    return dict(explanation.metrics).get("outOfRangeRecords", 0)


def _late(explanation: Explanation) -> list[str]:
    late = {split.split_id: split.late for split in explanation.splits if split.late}
    if explanation.watermark == MIN_WATERMARK:
        return []
    if late:
        worst = sorted(late, key=lambda split_id: -late[split_id])
        return [f"{counted(sum(late.values()), 'record')} came late, of {named(worst)}."]
    return [] if explanation.cause is Cause.ENDED else ["Nothing has come late."]
