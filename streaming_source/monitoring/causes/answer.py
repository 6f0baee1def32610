"""The answer to why a watermark stands where it does: the cause in one word, in words, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from alignment.combine import SplitStatus
from alignment.durations import format_duration
from alignment.explain import Cause, Explanation, WaitsFor, silent_in_run
from alignment.sentence import counted, duration_text, moment, named
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from streaming_source.monitoring.causes import of_query, of_records, of_waits
from streaming_source.monitoring.causes.of_records import far_record
from streaming_source.monitoring.causes.of_waits import beyond_the_limit
from streaming_source.monitoring.causes.rule import Advice, Rule, records_outside

RULES: Final[tuple[Rule, ...]] = (
    of_query.FAILED,
    of_query.ENDED,
    of_query.STOPPED,
    of_query.LONG_BATCH,
    of_query.UNREAD,
    of_waits.UPSTREAM,
    of_records.FUTURE,
    of_waits.HORIZON,
    of_records.ALL_IDLE,
    of_records.NO_SPLITS,
    of_records.EARLIER,
    of_waits.DRIFT,
    of_waits.AWAY,
    of_waits.TRANSACTION,
    of_waits.REPORT,
    of_waits.SCAN,
    of_waits.MIN_ROWS,
    of_waits.GROUP,
    of_records.INVALID,
    of_records.EMPTY,
    of_records.SILENT,
    of_query.SLOW_BATCHES,
    of_waits.ROWS,
    of_records.NOTHING,
    of_records.SLOWEST,
    of_records.UNIT,
    of_records.LATE,
)
"""The first one that applies is the cause. `SLOWEST` applies wherever a split holds the watermark, and so one does."""


def _rule_of(explanation: Explanation) -> Rule:
    return next(rule for rule in RULES if rule.applies(explanation))


def cause_of(explanation: Explanation) -> Cause:
    """Why the watermark is not further, in one word. O(n)."""
    cause = _rule_of(explanation).cause
    assert cause is not None
    return cause


def sentence(explanation: Explanation) -> str:
    """Why the watermark is where it is, who waits for others, what was late, and what outside of the range. O(n)."""
    rule = _rule_of(explanation)
    parts = [rule.says(explanation), *_pinned(explanation), *_before_a_leap(explanation)]
    parts += [*_at_the_limit(explanation), *filter(None, [silent_in_run(explanation)]), *_idle_ones(explanation)]
    if explanation.away is not None and rule.cause is not Cause.SOURCE:
        parts.append(f"Not all splits can be reached: {explanation.away}.")
    return " ".join([*parts, *_late(explanation, rule), *_outside(explanation)])


def advice_on(reports: Sequence[Explanation]) -> list[Advice]:
    """Return advice from explanations of one source, one of each micro-batch, oldest first. O(reports times splits)."""
    applies = _rule_of(reports[-1])
    found: list[Advice] = []
    for rule in RULES:
        found += [*rule.always(reports), *(rule.advises(reports) if rule is applies else ())]
    return found


# ---- in addition to the cause ----


def _pinned(explanation: Explanation) -> list[str]:
    held_by = set(explanation.held_by)
    pinned = [split for split in explanation.splits if split.next_us is not None and split.split_id not in held_by]
    if not pinned:
        return []
    first = max(pinned, key=lambda split: split.next_us or 0)
    others = f" Nor can {len(pinned) - 1} more." if pinned[1:] else ""
    return [f"Split {first.split_id!r} {beyond_the_limit(explanation, first)}.{others}"]


def _before_a_leap(explanation: Explanation) -> list[str]:
    """A split that is in the future already, while others still hold the watermark."""
    latest = explanation.furthest_in_the_future
    if latest is None or explanation.is_in_the_future or explanation.watermark == MAX_WATERMARK:
        return []
    ahead, holders = duration_text(latest.watermark - explanation.at_us), explanation.held_by
    when = f" when {named(holders)} {'are' if holders[1:] else 'is'} idle or has come that far" if holders else ""
    return [
        f"Split {latest.split_id!r} is at {moment(latest.watermark)}, {ahead} in the future: {far_record(latest)}. "
        f"The watermark leaps there{when}, and whatever follows in time is late then."
    ]


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


def _late(explanation: Explanation, rule: Rule) -> list[str]:
    late = {split.split_id: split.late for split in explanation.splits if split.late}
    if explanation.watermark == MIN_WATERMARK:
        return []
    if late:
        worst = sorted(late, key=lambda split_id: -late[split_id])
        came_back = [split.split_id for split in explanation.splits if split.was_idle]
        idle = f"; {named(came_back)} had been idle" if came_back else ""
        return [f"{counted(sum(late.values()), 'record')} came late, of {named(worst)}{idle}."]
    return [] if rule.cause is Cause.ENDED else ["Nothing has come late."]


def _outside(explanation: Explanation) -> list[str]:
    outside = records_outside(explanation)
    lie = "lies" if outside == 1 else "lie"
    text = f"{counted(outside, 'record')} {lie} outside of the range of event times (option overlap)."
    return [text] if outside else []
