"""Records of planned micro-batches whose event times stand out, for `explain`; plans do not use them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np

from alignment.combine import SplitStatus
from alignment.explain import FUTURE_US, FarRecord, SplitExplanation
from alignment.index import EventTimeIndex
from alignment.plan import MicroBatchPlan, SplitTable
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MIN_WATERMARK, BoolArray, Int64Array
from streaming_source.coordinator.event_times.provider import EventTimeProvider

__all__ = ["StrangeTimes"]

_MOST_SPLITS: Final = 10
_MOST_RECORDS: Final = 100_000
"""Event times are loaded of at most so many splits of a micro-batch, with at most so many records each."""
_NEIGHBOURS: Final = 1_000
"""Records behind one that is far ahead, by which it is found to be an outlier or not."""
_FAR: Final = 10
"""An outlier is so many times further from its neighbours than these lie apart, or may be out of order."""


class StrangeTimes:
    """Records that stand out, of the splits in work.

    `far` has by split id the first record that brought the watermark of its split into the future, and `is_outlier` is
    of the next record of a split that is not read because it lies far ahead. `earlier` has the record that holds the
    watermark by being there and unread, though its split was read further than the bound on out-of-orderness foresees.
    `needed_bound_us` is the smallest bound on out-of-orderness with which none of the late records would have been late
    that a split delivered while it was read; None if there was none. Neither is known where only readers know event
    times.
    """

    def __init__(self) -> None:
        self.far: dict[str, FarRecord] = {}
        self.earlier: dict[str, FarRecord] = {}
        # By split: the position of the next record that was looked at, the end of what was known then, the answer.
        self._outliers: dict[str, tuple[int, int, bool]] = {}
        self.needed_bound_us: int | None = None

    def note(
        self,
        before: SplitTable,
        plan: MicroBatchPlan,
        index: EventTimeIndex,
        event_times: EventTimeProvider[Any],
        now_us: int,
        bound_us: int | None,
    ) -> None:
        """A plan is about to be committed, behind a table of the same splits. O(n), and O(records) where some do.

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
        for slot, _, times in _loaded((plan.late > 0) & was_read, before, plan, index):
            needed_us = _disorder(times, int(before.watermarks[slot]) + bound_us + 1)
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

    def is_outlier(
        self, split: SplitExplanation, index: EventTimeIndex, event_times: EventTimeProvider[Any], bound_us: int
    ) -> bool:
        """Return whether the next record of a split, at its `next_us`, is far from those of the split around it.

        Its position is a number of the index. `bound_us` bounds how far records are out of order. It is so only where
        records behind it lie before it, and near those that were read. Loads the times of what is behind it, once.
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
    """Return whether a time is far from those behind it, and from the latest before it, which its split had read."""
    if not behind.size:
        return False
    around = behind if watermark == MIN_WATERMARK else np.append(behind, watermark + bound_us + 1)
    latest = int(around.max())
    return time_us - latest > _FAR * max(latest - int(around.min()), bound_us)


def _disorder(times: Int64Array, latest_us: int) -> int:
    """Return how far a record is behind the latest one before it, at most; `latest_us` precedes all of them."""
    valid = times[times != NO_TIMESTAMP]
    latest = np.maximum(np.maximum.accumulate(valid), latest_us) if valid.size else valid
    return int((latest - valid).max(initial=0))
