"""Why the watermark of a query stands where it does: of one that runs, or of a checkpoint alone."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from textwrap import fill
from typing import Any, Final, Protocol

from alignment.explain import SplitExplanation
from alignment.sentence import duration_text, moment, watermark_text
from streaming_source.monitoring.advice import Advice, advise
from streaming_source.monitoring.checkpoint import Checkpoint, MicroBatch
from streaming_source.monitoring.report import WatermarkReport

__all__ = ["ExplainedQuery", "ExplainedSource", "aligned", "explain", "explain_checkpoint"]

_COLUMNS: Final = ("split", "status", "watermark", "position", "behind", "late", "waits for", "since")
_WIDTH: Final = 100
_LINES: Final = 20
"""Splits that a table shows at most."""


class _Query(Protocol):
    """A `StreamingQuery`, classic or of Spark Connect."""

    @property
    def recentProgress(self) -> Sequence[Mapping[str, Any]]: ...  # noqa: N802


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
        """In words."""
        advice = [f"Advice ({advice.option}): {advice.text}" for advice in self.advice]
        return "\n".join([*map(_wrapped, [self.report.sentence, *advice]), *_table(self.report)])


@dataclass(frozen=True, slots=True)
class ExplainedQuery:
    """The sources of a query that are of this library, in its order. `str` of it is for people.

    Attributes
    ----------
    sources
        See `ExplainedSource`.
    batch
        The micro-batch of the checkpoint that this is from; None of a query that runs.
    age_us
        How long ago that was planned.
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
        """In words, one source after another."""
        if not self.sources:
            return "Nothing is known yet: no source of this library has planned a micro-batch of this query."
        lines = [] if self.batch is None else [_heading(self.batch, self.age_us)]
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
    history: dict[int, list[WatermarkReport]] = {}
    for progress in query.recentProgress:
        for place, report in enumerate(WatermarkReport.of_progress(progress)):
            if report is not None:
                history.setdefault(place, []).append(report)
    return ExplainedQuery(tuple(_explained(history[place]) for place in sorted(history)))


def explain_checkpoint(path: str, now_us: int | None = None) -> ExplainedQuery:
    """The same from the checkpoint alone, of a query that runs or does not: what its last micro-batch says now.

    Parameters
    ----------
    path
        Its `checkpointLocation`; see `Checkpoint`.
    now_us
        Processing time, in microseconds since the epoch; None for that of the clock.

    Raises
    ------
    CheckpointError
        If it is not one.
    """
    batches = Checkpoint(path).history()
    if not batches:
        return ExplainedQuery(())
    last = batches[-1]
    now_us = time.time_ns() // 1000 if now_us is None else now_us
    explained = []
    for place, report in enumerate(last.sources):
        if report is not None:
            before = [known for batch in batches[:-1] if (known := batch.sources[place]) is not None]
            now = replace(report, explanation=replace(report.explanation, at_us=now_us))
            explained.append(_explained([*before, now]))
    return ExplainedQuery(tuple(explained), last, now_us - last.planned_at_us)


def _explained(history: Sequence[WatermarkReport]) -> ExplainedSource:
    return ExplainedSource(history[-1], tuple(advise(history)))


def _wrapped(text: str) -> str:
    return fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _heading(batch: MicroBatch, age_us: int) -> str:
    state = "committed" if batch.is_committed else "not committed"
    ago = duration_text(max(age_us, 0))
    return f"Micro-batch {batch.number}, planned at {moment(batch.planned_at_us)} ({ago} ago), {state}:"


def _table(report: WatermarkReport) -> list[str]:
    """The splits, aligned in columns: who holds the watermark, then from the slowest on."""
    explanation = report.explanation
    holders = set(explanation.held_by)
    ordered = sorted(explanation.splits, key=lambda s: (s.split_id not in holders, s.watermark, s.split_id))
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
