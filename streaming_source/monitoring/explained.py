"""Why the watermark of a query stands where it does, and what to change: of one that runs, or of a checkpoint alone."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise, takewhile
from statistics import median
from textwrap import fill
from typing import Any, Final, Protocol

from alignment.combine import SplitStatus
from alignment.durations import format_duration
from alignment.explain import Cause, Explanation, SplitExplanation, WaitsFor
from alignment.sentence import duration_text, moment, named, watermark_text
from alignment.watermarks import MIN_WATERMARK
from streaming_source.monitoring.micro_batch import MicroBatch
from streaming_source.monitoring.report import WatermarkReport

__all__ = ["Advice", "ExplainedQuery", "ExplainedSource", "aligned", "explain", "explain_checkpoint"]

_COLUMNS: Final = ("split", "status", "watermark", "position", "behind", "late", "waits for", "since")
_WIDTH: Final = 100
_LINES: Final = 20
"""Splits that a table shows at most."""
_LONG_US: Final = 600_000_000
_FEW: Final = 3
"""Micro-batches from which on a trend is one."""


class _Query(Protocol):
    """A `StreamingQuery`, classic or of Spark Connect."""

    @property
    def recentProgress(self) -> Sequence[Mapping[str, Any]]: ...  # noqa: N802


@dataclass(frozen=True, slots=True)
class Advice:
    """What was seen, and what to do about it with one option; `data` where the records themselves are wrong."""

    option: str
    text: str


@dataclass(frozen=True, slots=True)
class ExplainedSource:
    """One source: its last report, and advice from the reports before it.

    `str` of it is a sentence, the advice, and a table of the splits, those first that hold the watermark.
    """

    report: WatermarkReport
    advice: tuple[Advice, ...]

    def to_json(self) -> dict[str, Any]:
        """As `WatermarkReport.to_json`, with `advice`."""
        return {**self.report.to_json(), "advice": [asdict(advice) for advice in self.advice]}

    def __str__(self) -> str:
        texts = [self.report.sentence, *(f"Advice ({advice.option}): {advice.text}" for advice in self.advice)]
        wrapped = [fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False) for text in texts]
        return "\n".join([*wrapped, *_table(self.report)])


@dataclass(frozen=True, slots=True)
class ExplainedQuery:
    """The sources of a query that are of this library, in its order. `str` of it is for people.

    `batch` is the micro-batch of the checkpoint that this is from, None of a query that runs; `age_us` how long ago
    that was planned.
    """

    sources: tuple[ExplainedSource, ...]
    batch: MicroBatch | None = None
    age_us: int = 0

    def to_json(self) -> dict[str, Any]:
        """For programs: `{"sources": [...]}`, and of a checkpoint `batch` and `committed`."""
        found: dict[str, Any] = {"sources": [source.to_json() for source in self.sources]}
        if self.batch is not None:
            found |= {"batch": self.batch.number, "committed": self.batch.is_committed}
        return found

    def __str__(self) -> str:
        if not self.sources:
            return "Nothing is known yet: no source of this library has planned a micro-batch of this query."
        lines = []
        if self.batch is not None:
            number, at = self.batch.number, moment(self.batch.planned_at_us)
            state = "committed" if self.batch.is_committed else "not committed"
            lines = [f"Micro-batch {number}, planned at {at} ({duration_text(max(self.age_us, 0))} ago), {state}:"]
        for source in self.sources:
            lines += [f"{source.report.source}:", str(source)] if self.sources[1:] else [str(source)]
        return "\n".join(lines)


def explain(query: _Query) -> ExplainedQuery:
    """Why the watermark of a running query stands where it does, from its last progress, and what to change.

    Parameters
    ----------
    query
        A `StreamingQuery`, classic or of Spark Connect.

    Examples
    --------
    >>> print(explain(query))  # doctest: +SKIP
    The watermark stands at 2026-01-01 10:02:13 UTC because split 'carrier=HA' has delivered nothing since 10:02:18; ...
    """
    if not hasattr(query, "recentProgress"):
        raise TypeError(
            f"explain takes a running StreamingQuery, not a {type(query).__name__}: give it what start() returned; for "
            "a checkpoint run streaming-source explain CHECKPOINT"
        )
    return ExplainedQuery(_explained(map(WatermarkReport.of_progress, query.recentProgress)))


def explain_checkpoint(path: str, now_us: int | None = None) -> ExplainedQuery:
    """The same from the checkpoint alone, of a query that runs or does not: what its last micro-batch says now.

    `path` is its `checkpointLocation`; `now_us` processing time in microseconds since the epoch, None
    for that of the clock. A `CheckpointError` if it is no checkpoint.
    """
    batches = MicroBatch.of_checkpoint(path)
    if not batches:
        return ExplainedQuery(())
    last = batches[-1]
    now_us = time.time_ns() // 1000 if now_us is None else now_us
    now = [one and replace(one, explanation=replace(one.explanation, at_us=now_us)) for one in last.sources]
    explained = _explained([*(batch.sources for batch in batches[:-1]), now])
    return ExplainedQuery(explained, last, now_us - last.planned_at_us)


def _explained(history: Iterable[Sequence[WatermarkReport | None]]) -> tuple[ExplainedSource, ...]:
    """From the reports of all sources, oldest first, None of one that is not ours."""
    of_source: dict[int, list[WatermarkReport]] = {}
    for reports in history:
        for place, report in enumerate(reports):
            if report is not None:
                of_source.setdefault(place, []).append(report)
    return tuple(ExplainedSource(known[-1], tuple(_advice_on(known))) for _, known in sorted(of_source.items()))


def _table(report: WatermarkReport) -> list[str]:
    """The splits, aligned in columns: who holds the watermark, then from the slowest on."""
    holders = set(report.explanation.held_by)
    ordered = sorted(report.explanation.splits, key=lambda s: (s.split_id not in holders, s.watermark, s.split_id))
    lines = aligned([_COLUMNS, *map(_row, ordered[:_LINES])]) if ordered else []
    more = len(ordered) - _LINES
    return lines + ([f"... and {more} more"] if more > 0 else [])


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table, its columns one below another."""
    widths: list[int] = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _row(split: SplitExplanation) -> tuple[str, ...]:
    watermark = watermark_text(split.watermark)
    since = "" if split.silent_since_us is None else watermark_text(split.silent_since_us)
    waits_for = split.waits_for.value if split.counts else ""
    numbers = (f"{number:,}" for number in (split.position, split.behind, split.late))
    return split.split_id, split.status.name.lower(), watermark, *numbers, waits_for, since


# ---- what to change --------------------------------------------------------------------------------------------------


def _advice_on(history: Sequence[WatermarkReport]) -> list[Advice]:
    """Advice from what one source reported, oldest first. O(reports times splits).

    Of a single report less can be said than of some: what grows or repeats is seen in a history alone.
    """
    # Of a micro-batch the last word counts: a query reports while it waits, too.
    reports = list({report.sequence: report.explanation for report in history}.values())
    rules = (_late, _silence, _drift, _future, _read_limit, _reports)
    return [advice for rule in rules for advice in rule(reports)]


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
        known = [one for report in reports for one in report.splits if one.split_id == split.split_id]
        for before, after in pairwise(known):
            if before.watermark < after.watermark == split.watermark:
                between = f"from position {before.position} to {after.position}"
        yield Advice(
            "data",
            f"Among the records of split {split.split_id!r} {between} one is dated {moment(split.watermark)} or later. "
            "Watermarks never go back: correct it at its source, and begin with a new checkpoint.",
        )


def _read_limit(reports: Sequence[Explanation]) -> Iterator[Advice]:
    """Whether more comes in than the read limit lets through."""
    limited = list(takewhile(lambda one: any(s.waits_for is WaitsFor.ROWS for s in one.splits), reversed(reports)))
    max_rows = reports[-1].bounds.max_rows
    if len(limited) < _FEW or max_rows is None:
        return
    behind = [sum(split.behind for split in report.splits) for report in (limited[-1], limited[0])]
    read_to = [sum(split.position for split in report.splits) for report in (limited[-1], limited[0])]
    if behind[1] <= behind[0]:
        return
    come = -(-(read_to[1] + behind[1] - read_to[0] - behind[0]) // (len(limited) - 1))
    yield Advice(
        "maxRowsPerTrigger",
        f"The backlog has grown from {behind[0]:,} to {behind[1]:,} records in {len(limited) - 1} micro-batches of at "
        f"most {max_rows:,}: about {come:,} come in from one to the next, so this query never catches up. Give a "
        f"maxRowsPerTrigger of more than {come:,}, or trigger more often.",
    )


def _reports(reports: Sequence[Explanation]) -> Iterator[Advice]:
    if reports[-1].cause is Cause.REPORT:
        yield Advice(
            "gatewayHost",
            "If this micro-batch is done, the reports of its readers were lost: see that the executors reach the "
            "gateway of the driver (gatewayHost, gatewayPort). The next records of the split bring the watermark on.",
        )
