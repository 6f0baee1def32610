"""What to change, where the reports of a source show that something should be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

from alignment.combine import SplitStatus
from alignment.durations import format_duration
from alignment.explain import Cause, Explanation, SplitExplanation, WaitsFor
from alignment.sentence import duration_text, moment, named
from alignment.watermarks import MIN_WATERMARK
from streaming_source.monitoring.report import WatermarkReport

__all__ = ["Advice", "advise"]

_LONG_US: Final = 600_000_000
_FEW: Final = 3
"""Micro-batches from which on a trend is one."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to change.

    Attributes
    ----------
    option
        The option that it is about; `data` where the records themselves are wrong.
    text
        What was seen, and what to do.
    """

    option: str
    text: str


def advise(history: Sequence[WatermarkReport]) -> list[Advice]:
    """Advice from what one source reported, oldest first; nothing of an empty history. O(reports times splits).

    Of a single report less can be said than of some: what grows or repeats is seen in a history alone.
    """
    # Of a micro-batch the last word counts: a query reports while it waits, too.
    reports = list({report.sequence: report.explanation for report in history}.values())
    return [advice for rule in _RULES for advice in rule(reports)] if reports else []


def _late(reports: Sequence[Explanation]) -> Iterator[Advice]:
    """Whose fault late records are: the bound's, idleness's, or nobody's."""
    disordered: Counter[str] = Counter()
    came_back: Counter[str] = Counter()
    if len(reports) == 1:
        disordered.update({split.split_id: split.late for split in reports[0].splits if split.late})
    for before, after in pairwise(reports):
        known = {split.split_id: split for split in before.splits}
        for split in after.splits:
            last = known.get(split.split_id)
            more = split.late - last.late if last is not None else 0
            if last is not None and more > 0 and last.watermark > MIN_WATERMARK:
                (came_back if last.status is SplitStatus.IDLE else disordered)[split.split_id] += more
    bounds = reports[-1].bounds
    if disordered and bounds.out_of_orderness_us is not None:
        yield Advice(
            "maxOutOfOrderness",
            f"{disordered.total():,} records of {named(disordered)} came late while their split was being read: they "
            f"are more out of order than maxOutOfOrderness, {format_duration(bounds.out_of_orderness_us)}. Raise it.",
        )
    if came_back and bounds.idle_timeout_us is not None:
        yield Advice(
            "idleTimeout",
            f"{came_back.total():,} records of {named(came_back)} came late because their split had been idle. A "
            f"longer idleTimeout than {format_duration(bounds.idle_timeout_us)} would have waited for them.",
        )


def _silence(reports: Sequence[Explanation]) -> Iterator[Advice]:
    last = reports[-1]
    if last.cause not in (Cause.SILENT, Cause.EMPTY):
        return
    timeout_us, holder = last.bounds.idle_timeout_us, last.holders[0]
    idle_at_us = last.idle_at_us(holder)
    if timeout_us is None:
        yield Advice(
            "idleTimeout",
            f"Without idleTimeout split {holder.split_id!r} holds the watermark for as long as it is silent. If it may "
            "be left out after a while, give that time as idleTimeout.",
        )
    elif idle_at_us is not None and idle_at_us - last.at_us > _LONG_US:
        yield Advice(
            "idleTimeout",
            f"With an idleTimeout of {format_duration(timeout_us)} split {holder.split_id!r} holds the watermark until "
            f"{moment(idle_at_us, last.at_us)}. A shorter one releases it earlier.",
        )


def _drift(reports: Sequence[Explanation]) -> Iterator[Advice]:
    drift_us = reports[-1].bounds.max_drift_us
    known = [report for report in reports if report.watermark > MIN_WATERMARK]
    moves_us = [b.watermark - a.watermark for a, b in pairwise(known) if b.watermark > a.watermark]
    at_limit = [report for report in known if any(s.waits_for is WaitsFor.DRIFT for s in report.splits)]
    if drift_us is None or len(moves_us) < _FEW or 2 * len(at_limit) < len(known):
        return
    move_us = int(median(moves_us))
    if move_us > drift_us:
        yield Advice(
            "maxDrift",
            f"The watermark moves on by {duration_text(move_us)} from micro-batch to micro-batch, and maxDrift is "
            f"{format_duration(drift_us)}: splits wait at the limit although they keep pace. Give at least twice as "
            "much as one trigger brings.",
        )


def _future(reports: Sequence[Explanation]) -> Iterator[Advice]:
    last = reports[-1]
    ahead = [split for split in last.splits if split.next_us is not None]
    if ahead:
        split = max(ahead, key=lambda split: split.next_us or 0)
        kind = "is from the future" if (split.next_us or 0) > last.at_us else "lies far ahead of what the others have"
        yield Advice(
            "data",
            f"The record at {split.next_place} of split {split.split_id!r}, of {moment(split.next_us or 0)}, {kind}: "
            "all records behind it wait until the others have come that far. Correct or remove it at its source.",
        )
    elif last.is_in_the_future:
        split = max(last.splits, key=lambda split: split.watermark)
        between = f"before position {split.position}"
        for before, after in pairwise(_of_split(reports, split.split_id)):
            if before.watermark < after.watermark == split.watermark:
                between = f"from position {before.position} to {after.position}"
        yield Advice(
            "data",
            f"Among the records of split {split.split_id!r} {between} one is dated {moment(split.watermark)} or later. "
            "Watermarks never go back: correct it at its source, and begin with a new checkpoint.",
        )


def _of_split(reports: Sequence[Explanation], split_id: str) -> list[SplitExplanation]:
    return [split for report in reports for split in report.splits if split.split_id == split_id]


def _read_limit(reports: Sequence[Explanation]) -> Iterator[Advice]:
    """Whether more comes in than the read limit lets through."""
    limited: list[Explanation] = []
    for report in reversed(reports):
        if not any(split.waits_for is WaitsFor.ROWS for split in report.splits):
            break
        limited.insert(0, report)
    max_rows = reports[-1].bounds.max_rows
    if len(limited) < _FEW or max_rows is None:
        return
    first, last = limited[0], limited[-1]
    behind = [sum(split.behind for split in report.splits) for report in (first, last)]
    if behind[1] <= behind[0]:
        return
    come = -(-(_read_to(last) + behind[1] - _read_to(first) - behind[0]) // (len(limited) - 1))
    yield Advice(
        "maxRowsPerTrigger",
        f"The backlog has grown from {behind[0]:,} to {behind[1]:,} records in {len(limited) - 1} micro-batches of at "
        f"most {max_rows:,}: about {come:,} come in from one to the next, so this query never catches up. Give a "
        f"maxRowsPerTrigger of more than {come:,}, or trigger more often.",
    )


def _read_to(report: Explanation) -> int:
    return sum(split.position for split in report.splits)


def _reports(reports: Sequence[Explanation]) -> Iterator[Advice]:
    if reports[-1].cause is Cause.REPORT:
        yield Advice(
            "gatewayHost",
            "If this micro-batch is done, the reports of its readers were lost: see that the executors reach the "
            "gateway of the driver (gatewayHost, gatewayPort). The next records of the split bring the watermark on.",
        )


_RULES: Final[tuple[Callable[[Sequence[Explanation]], Iterator[Advice]], ...]] = (
    _late,
    _silence,
    _drift,
    _future,
    _read_limit,
    _reports,
)
