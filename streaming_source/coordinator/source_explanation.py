"""The explanation of an engine, with what the source adds: its positions, its waits, and records that stand out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from alignment.combine import SplitStatus
from alignment.explain import FUTURE_US, Explanation, FarRecord, SplitExplanation, WaitsFor
from alignment.index import EventTimeIndex
from alignment.plan import MicroBatchPlan, SplitTable
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK, BoolArray, Int64Array
from streaming_source.api import SourceSplit
from streaming_source.coordinator.event_times import RecordNumber
from streaming_source.coordinator.event_times.provider import EventTimeProvider
from streaming_source.coordinator.rules import ReadRules
from streaming_source.coordinator.runtime import SourceRuntime
from streaming_source.coordinator.state import SourceState

_MOST_SPLITS: Final = 10
_MOST_RECORDS: Final = 100_000
"""Event times are loaded of at most so many splits of a micro-batch, with at most so many records each."""
_NEIGHBOURS: Final = 1_000
"""Records after one that is far ahead, by which it is found to be an outlier or not."""
_YEAR_US: Final = 365 * 86_400_000_000
_MOST_BOUNDS: Final = 100
"""A record that is further behind than a year, and so many times the bound, is dated wrongly: no delay is that long."""
_FAR: Final = 10
"""An outlier is so many times further from its neighbours than these lie apart, or may be out of order."""


class OutlyingTimes:
    """Records that stand out, of the splits in work.

    `far` has by split id the first record that brought the watermark of its split into the future, and `is_outlier` is
    of the next record of a split that is not read because it lies far ahead. `earlier` has the record that holds the
    watermark by being there and unread, though its split was read further than the bound on out-of-orderness foresees.
    `needed_bound_us` is the smallest bound on out-of-orderness with which none of the late records would have been late
    that a split delivered while it was read; None if there was none. Neither is known where only readers know event
    times. `stray` has by split id the first record that is further behind than any bound can cover: it is dated
    wrongly. The first late records of the splits that `came_back` came when these were idle. `latest_us` is the latest
    event time of all that was read, as far as a bound on out-of-orderness shows it.
    """

    def __init__(self) -> None:
        self.far: dict[str, FarRecord] = {}
        self.earlier: dict[str, FarRecord] = {}
        # By split: the position of the next record that was looked at, the end of what was known then, the answer.
        self._outliers: dict[str, tuple[int, int, bool]] = {}
        self.needed_bound_us: int | None = None
        self.came_back: set[str] = set()
        self.stray: dict[str, FarRecord] = {}
        self.latest_us = NO_TIMESTAMP

    def note_came_back(self, before: SplitTable, late: Int64Array) -> list[str]:
        """Return the splits whose first late records (`int64[n]`) come now, and which were idle before. O(n)."""
        slots = np.flatnonzero((late > 0) & (before.statuses == SplitStatus.IDLE))
        new = [split_id for slot in slots if (split_id := before.split_ids[slot]) not in self.came_back]
        self.came_back.update(new)
        return new

    def note(
        self,
        before: SplitTable,
        plan: MicroBatchPlan,
        index: EventTimeIndex,
        event_times: EventTimeProvider[Any],
        now_us: int,
        bound_us: int | None,
    ) -> None:
        """A plan is about to be committed, after a table of the same splits. O(n), and O(records) where some do.

        The index still has the records that are planned.
        """
        if not event_times.knows_each:
            return
        limit_us = now_us + FUTURE_US
        leapt = (plan.after.watermarks > limit_us) & (before.watermarks <= limit_us)
        for slot, start, times in _loaded(leapt, before, plan, index):
            split_id, ahead = before.split_ids[slot], np.flatnonzero(times > limit_us)
            if ahead.size:
                position = start + int(ahead[0])
                place = event_times.place_of(split_id, position) or f"position {position}"
                self.far[split_id] = FarRecord(int(times[ahead[0]]), place)
        if bound_us is None or not plan.late.any():
            return
        was_read = (before.watermarks > MIN_WATERMARK) & (before.statuses != SplitStatus.IDLE)
        most_us = max(_YEAR_US, _MOST_BOUNDS * bound_us)
        for slot, start, times in _loaded((plan.late > 0) & was_read, before, plan, index):
            behind_us = _behind(times, int(before.watermarks[slot]) + bound_us + 1)
            strays = np.flatnonzero(behind_us > most_us)
            if strays.size and (split_id := before.split_ids[slot]) not in self.stray:
                position = start + int(strays[0])
                place = event_times.place_of(split_id, position) or f"position {position}"
                self.stray[split_id] = FarRecord(int(times[strays[0]]), place)
            needed_us = int(behind_us[behind_us <= most_us].max(initial=0))
            if needed_us > bound_us or not strays.size:
                self.needed_bound_us = max(needed_us, self.needed_bound_us or 0)

    def note_earlier(
        self, plan: MicroBatchPlan, index: EventTimeIndex, event_times: EventTimeProvider[Any], bound_us: int
    ) -> None:
        """The same of a plan under perfect watermarks. O(n); loads times once for each record that holds the watermark.

        Of a split of which nothing was read the next record counts as read.
        """
        after, holder = plan.after, _holder(plan)
        if holder is None or not event_times.knows_each or after.combined != int(plan.holds_us[holder]):
            self.earlier.clear()
            return
        split_id, position = after.split_ids[holder], int(after.positions[holder])
        watermark, holds_us = int(after.watermarks[holder]), int(plan.holds_us[holder])
        known = self.earlier.get(split_id)
        if known is not None and known.time_us == holds_us + 1:
            return
        self.earlier.clear()
        if position == index.end_of(split_id) or (watermark > MIN_WATERMARK and holds_us >= watermark):
            return
        found = index.earliest_record(split_id, position)
        if found is None or found[0] == position:
            return
        number, time_us = found
        if watermark == MIN_WATERMARK:
            watermark = int(index.times_between(split_id, position, position + 1)[0]) - bound_us - 1
        if time_us <= watermark:
            place = event_times.place_of(split_id, number) or f"position {number}"
            self.earlier[split_id] = FarRecord(time_us, place)

    def unread_behind(self, plan: MicroBatchPlan, index: EventTimeIndex, horizon_us: int, bound_us: int) -> int:
        """Return how far the earliest record that a plan leaves unread is behind the latest that was read; 0 for none.

        Not counted are records of which the index does not know the event times. O(n log m).
        """
        watermark = int(plan.after.watermarks.max(initial=MIN_WATERMARK))
        if watermark > MIN_WATERMARK:
            self.latest_us = max(self.latest_us, watermark + bound_us + 1)
        earliest = index.earliest_times(plan.after.positions)
        earliest_us = min(int(earliest[earliest > NO_TIMESTAMP].min(initial=MAX_WATERMARK)), horizon_us)
        return max(self.latest_us - earliest_us, 0) if self.latest_us > NO_TIMESTAMP else 0

    def is_outlier(
        self, split: SplitExplanation, index: EventTimeIndex, event_times: EventTimeProvider[Any], bound_us: int
    ) -> bool:
        """Return whether the next record of a split, at its `next_us`, is far from those of the split around it.

        Its position is a number of the index. `bound_us` bounds how far records are out of order. It is so only where
        records after it lie before it, and near those that were read. Loads the times of what is after it, once.
        """
        split_id, start, stop = split.split_id, split.position, split.position + min(split.behind, _NEIGHBOURS + 1)
        if split.next_us is None or not event_times.knows_each:
            return False
        position, end, answer = self._outliers.get(split_id, (-1, -1, False))
        if (position, end) != (start, stop):
            behind = index.times_between(split_id, start, stop)[1:]
            answer = _stands_out(split.next_us, split.watermark, behind[behind != NO_TIMESTAMP], bound_us)
            self._outliers[split_id] = start, stop, answer
        return answer

    def forget(self, split_ids: Iterable[str]) -> None:
        """Forget splits that are no longer in work."""
        for split_id in split_ids:
            self.far.pop(split_id, None)
            self.earlier.pop(split_id, None)
            self.came_back.discard(split_id)
            self.stray.pop(split_id, None)
            self._outliers.pop(split_id, None)


def _holder(plan: MicroBatchPlan) -> int | None:
    """Return the slot of a split that holds the combined watermark; None if no split counts."""
    statuses = plan.after.statuses
    counting = np.flatnonzero((statuses == SplitStatus.ACTIVE) | (statuses == SplitStatus.PAUSED))
    return int(counting[plan.holds_us[counting].argmin()]) if counting.size else None


def _loaded(
    wanted: BoolArray,
    before: SplitTable,
    plan: MicroBatchPlan,
    index: EventTimeIndex,
) -> Iterator[tuple[int, int, Int64Array]]:
    """Slot, first position, and event times of what the plan reads of some splits, where that is not too much."""
    rows = plan.after.positions - before.positions
    for slot in np.flatnonzero(wanted & (rows > 0) & (rows <= _MOST_RECORDS))[:_MOST_SPLITS].tolist():
        start, stop = int(before.positions[slot]), int(plan.after.positions[slot])
        yield slot, start, index.times_between(before.split_ids[slot], start, stop)


def _stands_out(time_us: int, watermark: int, behind: Int64Array, bound_us: int) -> bool:
    """Return whether a time is far from those after it, and from the latest before it, which its split had read."""
    if not behind.size:
        return False
    around = behind if watermark == MIN_WATERMARK else np.append(behind, watermark + bound_us + 1)
    latest = int(around.max())
    return time_us - latest > _FAR * max(latest - int(around.min()), bound_us)


def _behind(times: Int64Array, latest_us: int) -> Int64Array:
    """Return how far each record is behind the latest one before it, 0 without a time; `latest_us` precedes all."""
    latest = np.maximum(np.maximum.accumulate(times), latest_us) if times.size else times
    return np.where(times == NO_TIMESTAMP, 0, latest - times)


def with_source(
    explanation: Explanation,
    runtime: SourceRuntime[Any, Any],
    state: SourceState[Any, Any],
    outlying: OutlyingTimes,
    rules: ReadRules,
    **others: Any,
) -> Explanation:
    """Return an explanation of the runtime's engine with what its source adds, and with other fields. O(n).

    `state` is the last state, `outlying` has the records that stand out in it.
    """
    known, host = state.by_id(), runtime.host
    available = runtime.engine.available() if host.known_ends else {}
    index, bound_us = runtime.engine.index, explanation.bounds.out_of_orderness_us or 0
    marked = [
        split._replace(is_outlier=True)
        if split.next_us is not None and outlying.is_outlier(split, index, runtime.event_times, bound_us)
        else split
        for split in explanation.splits
    ]
    splits = _in_source_positions(marked, known, available, runtime.event_times, host.known_ends)
    if far := outlying.far:
        splits = [split._replace(far=far.get(split.split_id)) for split in splits]
    if earlier := outlying.earlier:
        splits = [split._replace(earlier=earlier.get(split.split_id)) for split in splits]
    if stray := outlying.stray:
        splits = [split._replace(stray=stray.get(split.split_id)) for split in splits]
    if came_back := outlying.came_back:
        splits = [split._replace(was_idle=split.split_id in came_back) for split in splits]
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
        needed_bound_us=outlying.needed_bound_us,
        metrics=(*host.enumerator.metrics().items(), *_outside(state, rules)),
        routes_late=rules.options.late == "route",
        **others,
    )


def _may_lie_before(state: SourceState[Any, Any], rules: ReadRules) -> bool:
    """Return whether a split may lack a watermark because its records lie before the wanted range: these are valid."""
    times = rules.planning.times
    return times is not None and state.outside > 0 and times.from_us is not None and times.overlap == "drop"


def _outside(state: SourceState[Any, Any], rules: ReadRules) -> Iterator[tuple[str, int]]:
    """Yield how many records lay outside of the wanted range, as far as their event times are known to the planner."""
    if (times := rules.planning.times) and times.overlap != "fail":
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
