"""The explanation of an engine, with what the source adds: its own positions, and why its splits wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from alignment.explain import Explanation, SplitExplanation, WaitsFor
from alignment.watermarks import MIN_WATERMARK
from streaming_source.api import SourceSplit
from streaming_source.coordinator.event_times import RecordNumber
from streaming_source.coordinator.event_times.provider import EventTimeProvider
from streaming_source.coordinator.runtime import SourceRuntime
from streaming_source.coordinator.state import ReadRules, SourceState
from streaming_source.coordinator.strange_times import StrangeTimes

__all__ = ["with_source"]


def with_source(
    explanation: Explanation,
    runtime: SourceRuntime[Any, Any],
    state: SourceState[Any, Any],
    strange: StrangeTimes,
    rules: ReadRules,
) -> Explanation:
    """Return an explanation of the runtime's engine with what its source adds. O(n).

    `state` is the last state, `strange` has the records that stand out in it.
    """
    known, host = state.by_id(), runtime.host
    available = runtime.engine.available() if host.known_ends else {}
    index, bound_us = runtime.engine.index, explanation.bounds.out_of_orderness_us or 0
    marked = [
        split._replace(is_outlier=True)
        if split.next_us is not None and strange.is_outlier(split, index, runtime.event_times, bound_us)
        else split
        for split in explanation.splits
    ]
    splits = _in_source_positions(marked, known, available, runtime.event_times, host.known_ends)
    if far := strange.far:
        splits = [split._replace(far=far.get(split.split_id)) for split in splits]
    if earlier := strange.earlier:
        splits = [split._replace(earlier=earlier.get(split.split_id)) for split in splits]
    if explanation.bounds.out_of_orderness_us is not None and not _may_lie_before(state, rules):
        unreported = frozenset(runtime.engine.unreported())
        splits = [
            split if split.split_id in unreported else _with_invalid(split, known.get(split.split_id), runtime)
            for split in splits
        ]
    blocked, away = host.enumerator.blocked_splits(), host.enumerator.unreachable_splits()
    if isinstance(blocked, Mapping):
        splits = [split._replace(locked=blocked.get(split.split_id, 0)) for split in splits]
    return replace(
        explanation,
        splits=tuple(splits),
        away=next(iter(away.values()), None) if isinstance(away, Mapping) else None,
        needed_bound_us=strange.needed_bound_us,
        metrics=(*host.enumerator.metrics().items(), *_outside(state, rules)),
    )


def _may_lie_before(state: SourceState[Any, Any], rules: ReadRules) -> bool:
    """Return whether a split may lack a watermark because its records lie before the wanted range: these are valid."""
    return state.outside > 0 and rules.times.from_us is not None and rules.times.overlap == "drop"


def _outside(state: SourceState[Any, Any], rules: ReadRules) -> Iterator[tuple[str, int]]:
    """How many records lay outside of the wanted range, as far as their event times are known to the planner."""
    if rules.times and rules.times.overlap != "fail":
        yield "outOfRangeRecords", state.outside


def _in_source_positions(
    splits: Sequence[SplitExplanation],
    states: Mapping[str, SourceSplit],
    available: Mapping[str, tuple[int, int]],
    event_times: EventTimeProvider[Any],
    known_ends: Mapping[str, int],
) -> list[SplitExplanation]:
    """Return the splits with positions of the source, and all records that it reports to be there. O(n).

    An engine counts records. `states` are the splits as of the last state, `available` is `Engine.available`. The
    source reported `known_ends`, which may be beyond the records with known event times.
    """
    located, position_at = [], event_times.position_at
    for split in splits:
        split_id, is_far, known_end = split.split_id, split.next_us is not None, known_ends.get(split.split_id)
        position, unseen = position_at(split_id, RecordNumber(split.position)), 0
        if known_end is not None:
            unseen = known_end - position_at(split_id, RecordNumber(available[split_id][1]))
        # Nearly all splits of many are as the engine has them, and each trigger comes by here twice.
        if position != split.position or unseen > 0 or is_far:
            place = event_times.place_of(split_id, split.position) if is_far else None
            split = _located(split, states.get(split_id), position, unseen, place)
        located.append(split)
    return located


def _with_invalid(
    split: SplitExplanation, state: SourceSplit | None, runtime: SourceRuntime[Any, Any]
) -> SplitExplanation:
    """Return a split without a watermark with the count of its records so far: none of them has an event time."""
    if split.watermark > MIN_WATERMARK or split.position == 0 or state is None:
        return split
    invalid = split.position - runtime.event_times.known_from(state)
    return split._replace(invalid=invalid) if invalid > 0 else split


def _located(
    split: SplitExplanation, state: SourceSplit | None, position: int, unseen: int, place: str | None
) -> SplitExplanation:
    if unseen > 0:
        if split.waits_for is WaitsFor.RECORDS:
            split = split._replace(waits_for=WaitsFor.NOTHING, silent_since_us=None)
        split = split._replace(behind=split.behind + unseen)
    if place is None and split.next_us is not None and state is not None and state.position == position:
        place = state.place
    return split._replace(position=position, place=place)
