"""What an engine explains of splits, in positions of the source: an engine counts records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from alignment.explain import SplitExplanation, WaitsFor
from alignment.watermarks import MIN_WATERMARK
from streaming_source.api import SourceSplit
from streaming_source.coordinator.event_times import RecordNumber
from streaming_source.coordinator.event_times.provider import EventTimeProvider

__all__ = ["in_source_positions", "with_invalid"]


def in_source_positions(
    splits: Sequence[SplitExplanation],
    states: Mapping[str, SourceSplit],
    available: Mapping[str, tuple[int, int]],
    event_times: EventTimeProvider[Any],
    known_ends: Mapping[str, int],
) -> list[SplitExplanation]:
    """Return the splits with positions of the source, and all records that it reports to be there. O(n).

    `states` are the splits as of the last state, `available` is `Engine.available`. The source reported `known_ends`,
    beyond what event times are known of.
    """
    located = []
    for split in splits:
        split_id, is_far = split.split_id, split.next_us is not None
        seen_to = event_times.position_at(split_id, RecordNumber(available[split_id][1]))
        position = event_times.position_at(split_id, RecordNumber(split.position))
        place = event_times.place_of(split_id, split.position) if is_far else None
        unseen = known_ends.get(split_id, 0) - seen_to
        located.append(_located(split, states.get(split_id), position, unseen, place))
    return located


def with_invalid(split: SplitExplanation, state: SourceSplit | None) -> SplitExplanation:
    """Return a split that has no watermark with what was read of it: no record of that has an event time."""
    if state is None or split.watermark > MIN_WATERMARK or split.waits_for is WaitsFor.REPORT:
        return split
    return split._replace(invalid=max(split.position - state.origin().position, 0))


def _located(
    split: SplitExplanation, state: SourceSplit | None, position: int, unseen: int, place: str | None
) -> SplitExplanation:
    if position == split.position and unseen <= 0 and split.next_us is None:
        return split
    if unseen > 0:
        if split.waits_for is WaitsFor.RECORDS:
            split = split._replace(waits_for=WaitsFor.NOTHING, silent_since_us=None)
        split = split._replace(behind=split.behind + unseen)
    if place is None and split.next_us is not None and state is not None and state.position == position:
        place = state.place
    return split._replace(position=position, place=place)
