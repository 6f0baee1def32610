"""Why the watermark of a query stands where it does, and what to change: from a running query, or a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from textwrap import fill
from typing import Any, Final

from alignment.arrow_times import format_timestamp
from alignment.exceptions import AlignmentError, UnknownSplitError
from alignment.explain import LastBatch, QueryEnd, SplitExplanation
from alignment.sentence import aligned, duration_text, moment, watermark_text
from alignment.shown import shown
from alignment.story import StoryEvent, story_of
from streaming_source.checkpoint.offset_log import RESTORE
from streaming_source.exceptions import CheckpointError
from streaming_source.from_data import as_place
from streaming_source.monitoring.causes.answer import advice_on
from streaming_source.monitoring.causes.rule import Advice
from streaming_source.monitoring.micro_batch import CheckpointBatches, MicroBatch, late_sources
from streaming_source.monitoring.planner_note import PlannerNote, error_of_task, notes_of
from streaming_source.monitoring.query_advice import (
    on_behind,
    on_largest_watermark,
    on_second_watermark,
    on_silent_source,
)
from streaming_source.monitoring.query_state import Query, QueryState, end_by_notes
from streaming_source.monitoring.report import WatermarkReport

_COLUMNS: Final = ("split", "status", "watermark", "position", "behind", "late", "waits for", "since")
_WIDTH: Final = 100
_LINES: Final = 20
"""Splits that a table shows at most."""
_SECOND_US: Final = 1_000_000
_OVERDUE_US: Final = 60 * _SECOND_US
"""A query that runs announces that a split has become idle with its next trigger: sooner than this, unless its
micro-batches are further apart."""

_Reports = Sequence[WatermarkReport | None]


@dataclass(frozen=True, slots=True)
class ExplainedSource:
    """One source: its last report, the advice, and all known reports, oldest first.

    Its `str` is a sentence, the advice, and a table of the splits, in which those that hold the watermark are first.
    """

    report: WatermarkReport
    advice: tuple[Advice, ...]
    history: tuple[WatermarkReport, ...] = field(default=(), repr=False, compare=False)

    def story(self, split_id: str) -> tuple[StoryEvent, ...]:
        """Return what happened to a split between these reports, oldest first; empty if none of them has it."""
        # The first report of a micro-batch has its time. Later ones are made while the query waits.
        return story_of(split_id, [one.explanation for one in self.history])

    def to_json(self) -> dict[str, Any]:
        """As `WatermarkReport.to_json`, with `advice`."""
        return {**self.report.to_json(), "advice": [asdict(advice) for advice in self.advice]}

    def __str__(self) -> str:
        return "\n".join([_wrapped(self.report.sentence), *map(_advice_text, self.advice), *_table(self.report)])


@dataclass(frozen=True, slots=True)
class SplitStory:
    """The story of one split, oldest first. Its `str` has a line for each event, `to_json` is for programs."""

    split_id: str
    events: tuple[StoryEvent, ...]

    def to_json(self) -> dict[str, Any]:
        """`{"split": ..., "events": [{"at": ..., "what": ..., "text": ...}]}`, times as ISO-8601 in UTC."""
        events = [{"at": format_timestamp(one.at_us), "what": one.what, "text": one.text} for one in self.events]
        return {"split": self.split_id, "events": events}

    def __str__(self) -> str:
        return "\n".join([f"Split {self.split_id!r}:", *(shown(str(event)) for event in self.events)])


@dataclass(frozen=True, slots=True)
class ExplainedQuery:
    """The sources of a query that are of this library, in the query's order. Its `str` is for people.

    `batch` is the last micro-batch of the checkpoint, None for a running query. `age_us` is how long ago that was
    planned, or the query reported. `name` is the name of the query. `end` is what ended it; None if it runs, or if that
    is not known. `advice` is on the query as a whole. `notes` are those that its planners left on this machine, of a
    checkpoint. `late_of` has in words how far its sources of `late_records` are.
    """

    sources: tuple[ExplainedSource, ...]
    batch: MicroBatch | None = None
    age_us: int = 0
    name: str | None = None
    end: QueryEnd | None = None
    advice: tuple[Advice, ...] = ()
    notes: tuple[PlannerNote, ...] = ()
    late_of: tuple[str, ...] = ()

    def story(self, split_id: str) -> SplitStory:
        """Return what happened to a split, in order, with times, as far back as reports or the checkpoint reach.

        Raises an `UnknownSplitError` if none of them has it.
        """
        for source in self.sources:
            if events := source.story(split_id):
                return SplitStory(split_id, events)
        known = {split.split_id for one in self.sources for at in one.history for split in at.explanation.splits}
        if not known:
            raise UnknownSplitError(f"split {split_id!r}: no split of this query is known yet; wait for a micro-batch")
        near = get_close_matches(split_id, known, 1) or sorted(known)[:1]
        raise UnknownSplitError(
            f"split {split_id!r} is in no micro-batch that is known of this query; give one of its "
            f"{len(known):,}, {near[0]!r} for example"
        )

    def to_json(self) -> dict[str, Any]:
        """Return `{"sources": [...]}`, with `advice`, if any, and from a checkpoint `batch` and `committed`."""
        found: dict[str, Any] = {"sources": [source.to_json() for source in self.sources]}
        if self.advice:
            found["advice"] = [asdict(advice) for advice in self.advice]
        if self.name is not None:
            found["query"] = self.name
        if self.batch is not None:
            found |= {"batch": self.batch.number, "committed": self.batch.is_committed}
        return found

    def __str__(self) -> str:
        if not self.sources:
            nothing = "no source of this library has planned a micro-batch of this query"
            if self.batch is not None and not self.late_of:
                return (
                    "None of its sources is of this library: its watermark is the latest event time that these have "
                    "brought, less the delay of withWatermark."
                )
            if self.end is None:
                return "\n".join(map(_wrapped, self.late_of)) or f"Nothing is known yet: {nothing}."
            why = "does not run any more" if self.end.error is None else f"has failed: {self.end.error.rstrip('.')}"
            known = [_wrapped(f"The query {why}."), *map(_wrapped, self.late_of)]
            return "\n".join(known) if self.late_of else shown(f"The query {why}; {nothing}.")
        lines = [shown(self.heading), *map(_advice_text, self.advice)]
        for source in self.sources:
            lines += [shown(f"{source.report.called}:"), str(source)] if self.sources[1:] else [str(source)]
        return "\n".join([*lines, *map(_wrapped, self.late_of)])

    @property
    def heading(self) -> str:
        """The query, its source, and the time that this is of."""
        ago = f"({duration_text(max(self.age_us, 0))} ago)"
        if self.batch is None:
            query = "The query" if self.name is None else f"Query {self.name!r}"
            at_us = max(source.report.explanation.at_us for source in self.sources)
            only = "" if self.sources[1:] else f", {self.sources[0].report.called}"
            return f"{query}{only}, as of {moment(at_us)} {ago}:"
        number, at = self.batch.number, moment(self.batch.planned_at_us)
        state = "committed" if self.batch.is_committed else "not committed"
        runs = "if the query runs"
        if self.notes:
            pids = ", ".join(f"{note.pid}" for note in self.notes if note.runs)
            runs = f"the query runs (process {pids})" if pids else "the query does not run"
        return f"As of micro-batch {number}, planned at {at} {ago}, {state}; {runs}:"


def explain(query: Query, now_us: int | None = None) -> ExplainedQuery:
    """Explain why the watermark of a query stands where it does, and what to change.

    It is explained from the last progress of the query. If the query has ended, or its micro-batch takes long, its
    status and its checkpoint are read too, if they can be.

    Parameters
    ----------
    query
        A `StreamingQuery`, classic or of Spark Connect.
    now_us
        Processing time in microseconds since the epoch; None for that of the clock.

    Examples
    --------
    >>> print(explain(query))  # doctest: +SKIP
    Query 'orders', aligned_files /data/orders, as of 2026-01-01 10:02:37 UTC (3 s ago):
    The watermark stands at 2026-01-01 10:02:13 UTC because split 'carrier=HA' has delivered nothing since 10:02:18; ...
    """
    if not hasattr(query, "recentProgress"):
        raise TypeError(
            f"explain takes a running StreamingQuery, not a {type(query).__name__}: give it what start() returned; for "
            "a checkpoint run streaming-source explain CHECKPOINT"
        )
    now_us = _clock_us() if now_us is None else now_us
    state = QueryState.of(query)
    history: list[_Reports] = [WatermarkReport.of_progress(progress) for progress in query.recentProgress]
    history = [*_before(history, state), *history]
    at_us = max((one.explanation.at_us for reports in history[-1:] for one in reports if one), default=now_us)
    last = None
    if state.end is not None or state.is_at_work or not history:
        last = state.last_batch()
        if (planned := _newer(history, last)) is not None:
            history.append(_with(planned.sources, at_us=now_us, probed_us=planned.planned_at_us))
            at_us = now_us
        elif state.is_at_work and history:
            # Spark planned it after its last report: the time of the plan is not known.
            at_work = LastBatch(at_us)
            history.append(_with(history[-1], at_us=now_us, batch=at_work, probed_us=at_us))
            at_us = now_us
    if state.end is not None and history:
        end = state.end_with([] if last is None else _last_notes(last))
        history.append(_with(history[-1], at_us=max(at_us, state.end.at_us or 0), end=end))
    second = on_second_watermark(
        next(iter(query.recentProgress[-1:]), None), None if state.end is None else state.end.error
    )
    silent = on_silent_source(history[-1]) if history and state.end is None else None
    advice = tuple(filter(None, (second, silent)))
    late_of = () if not query.recentProgress else late_sources(query.recentProgress[-1])
    return ExplainedQuery(_explained(history), None, now_us - at_us, state.name, state.end, advice, late_of=late_of)


def _before(history: Sequence[_Reports], state: QueryState) -> list[_Reports]:
    """Return what the checkpoint has from before the first progress, where that has late records already."""
    first: _Reports = next(iter(history), [])
    if not any(one is not None and one.explanation.late for one in first):
        return []
    before = (batch.sources for batch in state.batches() if _sequence(batch.sources) < _sequence(first))
    return [sources for sources in before if len(sources) == len(first)]


def _sequence(reports: _Reports) -> int:
    return sum(one.sequence for one in reports if one is not None)


def explain_checkpoint(path: str, now_us: int | None = None) -> ExplainedQuery:
    """Explain a query from its checkpoint alone: what its last micro-batch means now.

    `path` is its `checkpointLocation`. `now_us` is processing time in microseconds since the epoch, None for that of
    the clock. Raises a `CheckpointError` if it is no checkpoint. A checkpoint does not show whether the query runs.
    The notes of its planners do, on the machine of the driver; elsewhere it does not run if a micro-batch is overdue.
    """
    return explain_again(CheckpointBatches(path), now_us)


def explain_again(checkpoint: CheckpointBatches, now_us: int | None = None) -> ExplainedQuery:
    """Explain a query by a checkpoint that is read again and again: of one look the next reads what is new."""
    try:
        explained = explain_batches(checkpoint.read(), now_us)
        # Times of a damaged offset may be none that a calendar has.
        explained.to_json()
        str(explained)
        return explained
    except AlignmentError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        why = f"its last offsets cannot be explained ({error!r})"
        raise CheckpointError(f"{checkpoint.path} is damaged: {why}; {RESTORE}") from None


def explain_through(path: str, now_us: int | None = None) -> Iterator[tuple[str, ExplainedQuery]]:
    """Explain a query from its checkpoint, then the writers upstream that hold its watermark, nearest first.

    Yields the path of each checkpoint with what it shows. See `explain_checkpoint`. Only a path or a URI without query
    and login is opened that a checkpoint names.
    """
    ahead, seen = [path], {path}
    while ahead:
        path = ahead.pop(0)
        explained = explain_checkpoint(path, now_us)
        yield path, explained
        upstream = [source.report.explanation.upstream for source in explained.sources]
        ahead += [as_place(one, [path]) for one in dict.fromkeys(upstream) if one is not None and one not in seen]
        seen.update(ahead)


def explain_batches(batches: Sequence[MicroBatch], now_us: int | None = None) -> ExplainedQuery:
    """The same from micro-batches of a checkpoint that were read, oldest first."""
    if not batches:
        return ExplainedQuery(())
    last = batches[-1]
    if last.late_of and not any(last.sources):
        return ExplainedQuery((), last, late_of=last.late_of)
    now_us = _clock_us() if now_us is None else now_us
    notes = _last_notes(last)
    runs, end = any(note.runs for note in notes), end_by_notes(notes)
    if runs or end is not None:
        return _explained_with_notes(batches, notes, now_us, end)
    probed_us = None if last.is_committed and now_us - (last.committed_at_us or 0) >= _SECOND_US else last.planned_at_us
    now = _with(last.sources, at_us=now_us, probed_us=probed_us)
    patience_us = _OVERDUE_US
    if batches[1:]:
        patience_us = max(patience_us, 2 * (last.planned_at_us - batches[-2].planned_at_us))
    overdue = next(filter(None, (_overdue(one, patience_us) for one in now if one is not None)), None)
    if last.is_committed and overdue is not None:
        now = _with(now, end=QueryEnd(overdue=overdue))
    return _of_batches(batches, [now], now_us)


def _explained_with_notes(
    batches: Sequence[MicroBatch], notes: Sequence[PlannerNote], now_us: int, end: QueryEnd | None
) -> ExplainedQuery:
    """Explain a checkpoint with what its planners have left on this machine: whether they run, and their reports."""
    last = batches[-1]
    at_us = now_us if end is None else max(last.planned_at_us, end.at_us or 0, *(note.at_us for note in notes))
    now = [*_with(last.sources, at_us=at_us, probed_us=last.planned_at_us)]
    for number, one in enumerate(last.sources if last.is_committed else ()):
        note = None if one is None else next((n for n in notes if n.name == one.note), None)
        if one is None or note is None or note.report is None or note.report.sequence != one.sequence:
            continue
        batch = note.report.explanation.batch and replace(note.report.explanation.batch, number=last.number)
        now[number] = replace(note.report, explanation=replace(note.report.explanation, batch=batch))
    return _of_batches(batches, [now if end is None else _with(now, end=end)], now_us, notes)


def _last_notes(batch: MicroBatch) -> list[PlannerNote]:
    """Return the last note of each planner that a micro-batch names, as far as they are on this machine."""
    names = [one.note for one in batch.sources if one is not None and one.note is not None]
    return [_with_error(note, batch) for name in names for note in notes_of(name)[:1]]


def _with_error(note: PlannerNote, batch: MicroBatch) -> PlannerNote:
    """Return the note with the error of a task, where one ended the query in its last micro-batch."""
    if note.runs or note.error is not None or batch.is_committed:
        return note
    found = error_of_task(note.name, batch.planned_at_us)
    return note if found is None else replace(note, error=found[0], at_us=found[1])


def _of_batches(
    batches: Sequence[MicroBatch], now: Sequence[_Reports], now_us: int, notes: Sequence[PlannerNote] = ()
) -> ExplainedQuery:
    last = batches[-1]
    explained = _explained([*(batch.sources for batch in batches[:-1]), *now])
    second = next((on_behind(last.watermark_us, before.announced) for before in batches[-2:-1]), None)
    largest = on_largest_watermark(last.policy, last.announced)
    advice = tuple(filter(None, (second, largest, on_silent_source(now[-1]))))
    age_us = now_us - last.planned_at_us
    return ExplainedQuery(explained, last, age_us, advice=advice, notes=tuple(notes), late_of=last.late_of)


def _newer(history: Sequence[_Reports], batch: MicroBatch | None) -> MicroBatch | None:
    """Return the micro-batch of the checkpoint, if the query has not reported it yet."""
    if batch is None or not any(batch.sources):
        return None
    return batch if _sequence(batch.sources) > sum(map(_sequence, history[-1:])) else None


def _with(reports: _Reports, **known: Any) -> _Reports:
    """Return the reports with more fields of their explanations set."""
    return [one and replace(one, explanation=replace(one.explanation, **known)) for one in reports]


def _overdue(report: WatermarkReport, patience_us: int) -> str | None:
    """Return a split that is idle by now, without a micro-batch that announces it; None if there is none."""
    explanation = report.explanation
    if explanation.is_draining:
        return None
    due = ((explanation.idle_at_us(split), split.split_id) for split in explanation.splits)
    at_us, split_id = min(((us, split_id) for us, split_id in due if us is not None), default=(explanation.at_us, ""))
    return split_id if at_us + patience_us < explanation.at_us else None


def _advice_text(advice: Advice) -> str:
    return _wrapped(f"Advice ({advice.option}): {advice.text}")


def _wrapped(text: str) -> str:
    return fill(shown(text), _WIDTH, break_long_words=False, break_on_hyphens=False)


def _clock_us() -> int:
    return time.time_ns() // 1000


def _explained(history: Iterable[_Reports]) -> tuple[ExplainedSource, ...]:
    """Explain the sources from their reports, oldest first, None for a source that is not of this library."""
    of_source: dict[int, list[WatermarkReport]] = {}
    for reports in history:
        for number, report in enumerate(reports):
            if report is not None:
                of_source.setdefault(number, []).append(report)
    explained = []
    for _, known in sorted(of_source.items()):
        # The last report of each micro-batch: a query reports also while it waits.
        advice = advice_on([*{report.sequence: report.explanation for report in known}.values()])
        explained.append(ExplainedSource(known[-1], tuple(advice), tuple(known)))
    return tuple(explained)


def _table(report: WatermarkReport) -> list[str]:
    """Return the lines of the table of splits: first those that hold the watermark, then from the slowest on."""
    holders = set(report.explanation.held_by)
    ordered = sorted(report.explanation.splits, key=lambda s: (s.split_id not in holders, s.watermark, s.split_id))
    lines = aligned([_COLUMNS, *map(_row, ordered[:_LINES])]) if ordered else []
    more = len(ordered) - _LINES
    return lines + ([f"... and {more:,} more"] if more > 0 else [])


def _row(split: SplitExplanation) -> tuple[str, ...]:
    watermark = watermark_text(split.watermark)
    since = "" if split.silent_since_us is None else watermark_text(split.silent_since_us)
    waits_for = split.waits_for.value if split.counts else ""
    numbers = (f"{number:,}" for number in (split.position, split.behind, split.late))
    return split.split_id, split.status.name.lower(), watermark, *numbers, waits_for, since
