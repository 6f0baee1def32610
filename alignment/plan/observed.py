"""The state of splits whose event times are learnt from reports: how far each is, and how dense its records are.

A split is *handed out* up to a position, *admission* after admission. Each admission is read as one or more ranges,
each range gives one report, and reports come in any order, twice, or not at all. The watermark needs only the latest
event time of what came in; how many records go next needs the whole of the last admission.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Set
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from alignment.events import RangeReport
from alignment.plan.conclusion import SplitTable
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, Int64Array

Slots: TypeAlias = npt.NDArray[np.intp]

_MAX_HOLES: Final = 16
"""Ranges without a report that are remembered of one split; of older ones a late report no longer adds counts."""


_THINNER: Final = 4.0
"""The factor by which fewer records per position than before are believed at once: a gap may be followed by none."""


class ObservedSplits:
    """The splits of one source, in columns; a split has one slot from `take_up` to `forget`.

    Attributes
    ----------
    latest_us
        Latest event time reported, in microseconds; `NO_TIMESTAMP` before any.
    density
        Positions per microsecond of event time, smoothed; NaN as long as it is not known.
    last_rows
        Positions in the last admission; 0 before any.
    spacing
        Positions per record, at least 1: at first 1, then as it was in the last admission, but at most four times as
        much as before.
    is_reported
        Whether all of the last admission was reported; True before any.
    """

    _COLUMNS: Final = (
        ("latest_us", np.int64, NO_TIMESTAMP),
        ("density", np.float64, np.nan),
        ("last_rows", np.int64, 0),
        ("spacing", np.float64, 1.0),
        ("is_reported", np.bool_, True),
        ("_admitted_to", np.int64, 0),
        # Latest event time before the last admission, if all before it was reported; extremes of that admission.
        ("_latest_before", np.int64, NO_TIMESTAMP),
        ("_low", np.int64, MAX_WATERMARK),
        ("_high", np.int64, NO_TIMESTAMP),
        ("_records", np.int64, 0),
        ("_late", np.int64, 0),
        ("_late_counted", np.int64, 0),
    )

    latest_us: Int64Array
    density: npt.NDArray[np.float64]
    last_rows: Int64Array
    spacing: npt.NDArray[np.float64]
    is_reported: npt.NDArray[np.bool_]
    _admitted_to: Int64Array
    _latest_before: Int64Array
    _low: Int64Array
    _high: Int64Array
    _records: Int64Array
    _late: Int64Array
    _late_counted: Int64Array

    def __init__(self) -> None:
        self._slots: dict[str, int] = {}
        self._free: list[int] = []
        # Of each slot the ranges reported: begin, end, begin, end, ... ascending.
        self._reported: list[list[int]] = []
        self._outside = 0
        for name, dtype, _ in self._COLUMNS:
            setattr(self, name, np.empty(0, dtype))

    # ---- splits --------------------------------------------------------------------------------------------------

    def take_up(self, table: SplitTable) -> Slots:
        """The slots of the splits of a table, `intp[n]`. O(n).

        One that is new, or whose position is not where it was handed out to, starts anew from its position: of what was
        reported before only which ranges is remembered.
        """
        slots = self.slots_of(table)
        for at in np.flatnonzero(self._admitted_to[slots] != table.positions):
            self._begin(int(slots[at]), int(table.positions[at]))
        return slots

    def slots_of(self, table: SplitTable) -> Slots:
        """The slots of the splits of a table, `intp[n]`; one that is not known yet gets one. O(n)."""
        for split_id in table.split_ids:
            if split_id not in self._slots:
                self._slots[split_id] = self._free.pop() if self._free else self._grow()
        return np.fromiter((self._slots[i] for i in table.split_ids), np.intp, len(table))

    def split_ids(self) -> Set[str]:
        """Ids of the splits that are known."""
        return self._slots.keys()

    def rewind(self, table: SplitTable) -> None:
        """Go back to a state, or begin from one: its splits start anew, all others are forgotten. O(n).

        Reports to a planner in another process must not come to this one: what they count may be in the table's state
        already. Reports of a micro-batch that is read again do come, and are taken in.
        """
        self.forget(self._slots.keys() - set(table.split_ids))
        self._outside = 0
        for slot, position in zip(self.take_up(table).tolist(), table.positions.tolist(), strict=True):
            self._begin(slot, position)

    def forget(self, split_ids: Iterable[str]) -> None:
        """Keep nothing of these splits, and ignore their reports; one that is not known makes no difference."""
        for split_id in split_ids:
            slot = self._slots.pop(split_id, None)
            if slot is not None:
                for name, _, initial in self._COLUMNS:
                    getattr(self, name)[slot] = initial
                self._reported[slot] = []
                self._free.append(slot)

    def unreported(self) -> list[str]:
        """Ids of the splits whose last admission was not reported in full. O(n)."""
        return [split_id for split_id, slot in self._slots.items() if not self.is_reported[slot]]

    def records_in(self, slots: Slots, positions: Int64Array) -> Int64Array:
        """Return the predicted number of records in these positions of each split, at least 1: `int64[n]`. O(n)."""
        spacing = self.spacing[slots]
        # Exact where there are no gaps: a float does not tell large numbers apart.
        return np.where(spacing == 1, positions, np.ceil(positions / spacing).astype(np.int64))

    # ---- admissions and reports ----------------------------------------------------------------------------------

    def admit(self, slots: Slots, ends: Int64Array) -> None:
        """The splits are read up to `ends`, `int64[n]`; where that is no further, nothing changes. O(n)."""
        rows = ends - self._admitted_to[slots]
        slots, ends, rows = slots[rows > 0], ends[rows > 0], rows[rows > 0]
        self._latest_before[slots] = np.where(self.is_reported[slots], self.latest_us[slots], NO_TIMESTAMP)
        self._low[slots], self._high[slots], self._records[slots] = MAX_WATERMARK, NO_TIMESTAMP, 0
        self._admitted_to[slots], self.last_rows[slots] = ends, rows
        self.is_reported[slots] = False

    def report(self, report: RangeReport) -> bool:
        """Take a report in; whether it changed anything. O(1), or O(log k) where k ranges of the split are missing.

        Reports of one split may come in any order, again, or not at all. Ignored is what no plan since the last
        `rewind` admitted, or of a split that is not known. Counts are added if no part of the range was counted.
        """
        slot = self._slots.get(report.split_id)
        if slot is None or report.stop <= report.start or report.stop > self._admitted_to[slot]:
            return False
        rows = report.stop - report.start
        new_rows = _add_range(self._reported[slot], report.start, report.stop)
        is_later = report.max_us > self.latest_us[slot]
        if is_later:
            self.latest_us[slot] = report.max_us
        if new_rows == 0:
            return bool(is_later)
        if new_rows == rows:
            self._late[slot] += report.late
            self._outside += report.outside
        if not self.is_reported[slot]:
            self._take_in_last(slot, report)
        return True

    def take_late(self, slots: Slots) -> Int64Array:
        """Late records counted since they were last taken, `int64[n]`. O(n)."""
        fresh: Int64Array = self._late[slots] - self._late_counted[slots]
        self._late_counted[slots] = self._late[slots]
        return fresh

    def take_outside(self) -> int:
        """Records outside of the wanted range, counted since they were last taken."""
        fresh, self._outside = self._outside, 0
        return fresh

    def _take_in_last(self, slot: int, report: RangeReport) -> None:
        """A report came in while the last admission was not reported in full."""
        end = int(self._admitted_to[slot])
        begin = end - int(self.last_rows[slot])
        # Of a range that began before, as many as fall on this admission if they lie evenly.
        within = max(report.stop - max(report.start, begin), 0) / (report.stop - report.start)
        self._records[slot] += report.records if within == 1 else round(report.records * within)
        if report.start >= begin and report.max_us != NO_TIMESTAMP:
            self._low[slot] = min(int(self._low[slot]), report.min_us)
            self._high[slot] = max(int(self._high[slot]), report.max_us)
        ranges = self._reported[slot]
        if ranges[-1] == end and ranges[-2] <= begin:
            self.is_reported[slot] = True
            self._measure_spacing(slot)
            self._measure(slot)

    def _measure_spacing(self, slot: int) -> None:
        records, thinnest = int(self._records[slot]), _THINNER * float(self.spacing[slot])
        measured = float(self.last_rows[slot]) / records if records else thinnest
        self.spacing[slot] = max(min(measured, thinnest), 1.0)

    def _measure(self, slot: int) -> None:
        """Take the density of the last admission in, now that all of it is known.

        What counts is how far the records brought the split on. Of a first one, or after a loss, only how far they lie
        apart is known. The geometric mean with what was known lets a gap or a burst be forgotten soon, and is never
        outside of what was measured.
        """
        high, before = int(self._high[slot]), int(self._latest_before[slot])
        rows = int(self.last_rows[slot])
        if before != NO_TIMESTAMP:
            advance_us = high - before
        else:
            advance_us = high - int(self._low[slot])
            rows -= 1
        if high == NO_TIMESTAMP or rows == 0:
            return
        measured = rows / max(advance_us, 1)
        known = float(self.density[slot])
        self.density[slot] = measured if np.isnan(known) else np.sqrt(known * measured)

    def _begin(self, slot: int, position: int) -> None:
        ranges = self._reported[slot]
        at = bisect_left(ranges, position)
        ranges[at:] = [position] if at % 2 else []
        if position < self._admitted_to[slot]:
            # These records are read, reported and counted again.
            self._late_counted[slot] = self._late[slot]
        self._admitted_to[slot], self.last_rows[slot], self.is_reported[slot] = position, 0, True
        self.latest_us[slot], self.density[slot] = NO_TIMESTAMP, np.nan
        self.spacing[slot] = 1.0

    def _grow(self) -> int:
        size = len(self._reported)
        more = max(size, 16)
        for name, dtype, initial in self._COLUMNS:
            setattr(self, name, np.concatenate([getattr(self, name), np.full(more, initial, dtype)]))
        self._reported += [[] for _ in range(more)]
        self._free += range(size + more - 1, size, -1)
        return size

    def check_invariants(self) -> None:
        """Assert what always holds; for tests. O(n)."""
        assert len(self._slots) == len(set(self._slots.values())), "two splits in one slot"
        assert sorted([*self._slots.values(), *self._free]) == list(range(len(self._reported))), "a slot is lost"
        for split_id, slot in self._slots.items():
            ranges, admitted_to, last_rows = self._reported[slot], int(self._admitted_to[slot]), self.last_rows[slot]
            assert len(ranges) in range(0, 2 * (_MAX_HOLES + 1) + 1, 2), (split_id, ranges)
            assert all(a < b for a, b in pairwise(ranges)), (split_id, ranges)
            assert not ranges or ranges[-1] <= admitted_to, (split_id, ranges, admitted_to)
            covered = bool(ranges) and ranges[-1] == admitted_to and ranges[-2] <= admitted_to - last_rows
            assert self.is_reported[slot] == (covered or last_rows == 0), (split_id, ranges, admitted_to, last_rows)
            density = self.density[slot]
            assert np.isnan(density) or 0 < density < np.inf, (split_id, density)
            assert 1 <= self.spacing[slot] < np.inf, (split_id, self.spacing[slot])
            assert 0 <= self._late_counted[slot] <= self._late[slot], (split_id, self._late[slot])


def _add_range(ranges: list[int], start: int, stop: int) -> int:
    """Add `[start, stop)` to ascending ranges, in place; how much of it is new."""
    if not ranges or start > ranges[-1]:
        ranges += (start, stop)
        _forget_oldest_hole(ranges)
        return stop - start
    # At an even place a value lies outside of all ranges, at an odd one inside; those that touch become one.
    first, last = bisect_left(ranges, start), bisect_right(ranges, stop)
    overlap = ranges[first - first % 2 : last + last % 2]
    pairs = zip(overlap[::2], overlap[1::2], strict=True)
    known = sum(min(end, stop) - max(begin, start) for begin, end in pairs)
    ranges[first:last] = [start] * (first % 2 == 0) + [stop] * (last % 2 == 0)
    _forget_oldest_hole(ranges)
    return stop - start - known


def _forget_oldest_hole(ranges: list[int]) -> None:
    if len(ranges) > 2 * (_MAX_HOLES + 1):
        del ranges[1:3]
