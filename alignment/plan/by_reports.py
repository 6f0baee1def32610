"""One micro-batch of a source that knows where its splits end, but not when: pausing and resuming by what was reported.

An index lets `plan_micro_batch` cut every split at one event time. Without one a split is read by rows, its readers
report after each range which event times they saw, and the next plan follows from that, as in Flink (FLIP-217):

- *limit*: the smallest watermark of the splits that count, plus the drift; no more than the alignment group allows;
- a split whose watermark is strictly past the limit is *paused*: it is admitted nothing until the limit has caught up;
- any other is *admitted* as many records as are predicted to bring its watermark to the limit.

A prediction is worth what the reports are: where there are none a split starts small.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from alignment.exceptions import InvalidArgumentError
from alignment.plan import (
    LimitedBy,
    MicroBatchPlan,
    PlanConditions,
    PlanningRules,
    Reading,
    SplitTable,
    bounding_splits,
    conclude,
    share_evenly,
    total,
)
from alignment.plan.observed import ObservedSplits
from alignment.watermarks import MAX_WATERMARK, BoolArray, Int64Array, bounded_watermark, saturating_add

Slots: TypeAlias = npt.NDArray[np.intp]

_HALVINGS: Final = 80
"""From the widest range of event times down to what a float can tell apart."""

_MANY: Final = 2.0**62
"""More records than there are, and still an int64."""


class ReactivePlanner:
    """Plans micro-batches from reports; the watermark after a batch is the one that the reports before it justify.

    Let `W` be a split's watermark, `L >= W` the limit, `d` its measured density, in records per microsecond of event
    time, and `n` what it was admitted last. It is admitted

    - `first_rows`, if its density is not known: a new split, one after a restart, one whose last report was lost;
    - else `d * (L - W)`, rounded down, but at least `first_rows` and at most the larger of `first_rows` and
      `growth * n`;
    - all there is, if nothing sets a limit;

    and never more than it has. `max_rows` lowers this: of all splits those records go that are predicted to be
    earliest, and splits of unknown density share evenly.

    **Overshoot.** Let every record of a split bring its event time on by between `s` and `c * s` microseconds: its
    density varies by a factor `c`. Then, once the split has a watermark, one micro-batch takes it past the limit by at
    most

        max(first_rows * c * s, (c - 1) * (L - W))        where L - W <= max_drift

    Each report that is lost adds another `first_rows * c * s`, since what is not known to be past the limit is not
    paused. Where records are out of order by up to `J`, or there are gaps of `G` in all, one admission may be measured
    as much denser than the next one is; then only growth bounds it. Whatever the event times are, it takes the
    watermark on by at most

        max(first_rows, growth * n) * c * s + J + G

    So a small `first_rows` keeps the state small, and a large one reads a backlog in fewer micro-batches.

    **Gaps.** Positions may have gaps, and limits are of records. Until a report shows gaps each position is taken
    to hold one: so a limit on rows admits fewer where there are gaps. After each admission as many positions are taken
    to hold one as there were, but at most four times as many as before: a gap of `2**40` is crossed in 20
    micro-batches, and records that lie closer together than before exceed a read limit by as much, once.

    **Lost reports.** A watermark waits for the next report of its split, and never runs ahead. A split has *finished*
    when it is complete, and a plan finds nothing more to read in it: one plan later than with an index, so that its
    last report can be in. Where that one was lost, its watermark counts a last time as it was; no drift depends on it
    any more, and a bounded source ends with `MAX_WATERMARK` all the same.

    Perfect watermarks cannot be had so. Without `out_of_orderness_us` the table has the watermarks that the reports
    justify. What was reported is taken in by the `splits`. Not thread-safe: reports and plans come from one thread.
    """

    def __init__(self, rules: PlanningRules, *, first_rows: int = 4096, growth: int = 4) -> None:
        if rules.lateness == "none":
            raise InvalidArgumentError(
                "lateness = 'none': needs an index of the event times that are not read yet; look ahead instead, or "
                "accept late records"
            )
        if first_rows < 1:
            raise InvalidArgumentError(f"first_rows = {first_rows}: must be at least 1")
        if growth < 2:
            raise InvalidArgumentError(f"growth = {growth}: must be at least 2, or no split would become faster")
        self._rules = rules
        self._bound_us = rules.out_of_orderness_us
        self._first_rows = first_rows
        self._growth = growth
        self.splits = ObservedSplits()

    def plan(self, before: SplitTable, ends: Int64Array, conditions: PlanConditions | None = None) -> MicroBatchPlan:
        """Plan one micro-batch, after the one before it was read. O(n log n), in numpy steps but for one look-up each.

        A split that is not where the last plan left it starts anew, as after `rewind`. `ends` are `int64[n]`, the
        position after the last record of each split that is known to be there. Nothing later than a horizon is
        announced, but may be read.

        In the plan `bound_us` is the limit. `late` and `outside` are the records reported since the plan before: each
        is in one plan only, so a plan with any must be committed even if it reads nothing. `rows` are predicted where
        positions have gaps.
        """
        if ends.shape != before.positions.shape:
            raise InvalidArgumentError(f"ends has the shape {ends.shape}: must be one for each of {len(before)} splits")
        conditions = conditions or PlanConditions()
        idle, complete = conditions.flags(len(before))
        max_rows, horizon_us = conditions.max_rows, conditions.horizon_us
        slots = self.splits.take_up(before)
        watermarks = before.watermarks
        if self._bound_us is not None:
            watermarks = np.maximum(watermarks, bounded_watermark(self.splits.latest_us[slots], self._bound_us))
        unread = before.positions < ends

        bounding = bounding_splits(self._rules, unread, idle, complete, conditions.draining)
        aligned = min(self._limit(watermarks, bounding), conditions.group_limit_us)
        bound = min(aligned, horizon_us)
        may_read = unread & (watermarks <= bound) & (not conditions.holds_rows)
        readable = np.where(may_read, ends - before.positions, 0)
        wanted = self._wanted(slots, watermarks, readable, bound)
        rows = self.splits.records_in(slots, wanted)
        is_cut = max_rows is not None and total(rows) > max_rows
        if max_rows is not None and is_cut:
            shares = self._share(slots, before.positions, watermarks, rows, bound, max_rows)
            spaced = np.minimum(np.floor(shares * self.splits.spacing[slots]), _MANY).astype(np.int64)
            # Exact where there are no gaps, or all is admitted: a float does not tell large numbers apart.
            spaced = np.where(self.splits.spacing[slots] == 1, shares, np.minimum(spaced, wanted))
            rows, wanted = shares, np.where(shares == rows, wanted, spaced)
        new_ends = before.positions + wanted
        self.splits.admit(slots, new_ends)
        limited_by = LimitedBy.HORIZON if horizon_us < aligned else LimitedBy.DRIFT
        if conditions.holds_rows:
            limited_by = LimitedBy.MIN_ROWS
        elif (new_ends >= ends).all():
            limited_by = LimitedBy.AVAILABLE
        elif is_cut:
            limited_by = LimitedBy.ROWS
        return conclude(
            before,
            self._rules,
            conditions,
            Reading(
                ends=new_ends,
                watermarks=watermarks,
                held=watermarks,
                paused=unread & (watermarks > aligned),
                idle=~unread & idle,
                finished=~unread & complete,
                late=self.splits.take_late(slots),
                outside=self.splits.take_outside(),
                bound_us=bound,
                limited_by=limited_by,
                bounding=bounding_splits(self._rules, new_ends < ends, idle, complete, draining=True)
                if conditions.draining
                else None,
                rows=total(rows),
            ),
        )

    def records_in(self, table: SplitTable, ends: Int64Array) -> Int64Array:
        """Return how many records each split of a table has before `ends`, as predicted, `int64[n]`. O(n)."""
        return self.splits.records_in(self.splits.slots_of(table), ends - table.positions)

    def _limit(self, watermarks: Int64Array, bounding: BoolArray) -> int:
        if self._rules.max_drift_us is None or not bounding.any():
            return MAX_WATERMARK
        return saturating_add(int(watermarks[bounding].min()), self._rules.max_drift_us)

    def _is_known(self, slots: Slots) -> BoolArray:
        """Return whether the density is, and all of the last admission was reported, `bool[n]`."""
        return self.splits.is_reported[slots] & ~np.isnan(self.splits.density[slots])

    def _wanted(self, slots: Slots, watermarks: Int64Array, readable: Int64Array, bound: int) -> Int64Array:
        """Positions that each split is admitted if there is no read limit, `int64[n]`, of those that are `readable`."""
        if bound == MAX_WATERMARK:
            return readable
        # Floats do not overflow between the ends of time, and tell microseconds apart in all times that occur.
        first = self._first_rows * self.splits.spacing[slots]
        at_most = np.maximum(self._growth * self.splits.last_rows[slots].astype(np.float64), first)
        ahead = float(bound) - watermarks.astype(np.float64)
        predicted = np.floor(np.nan_to_num(self.splits.density[slots]) * ahead)
        predicted = np.where(self._is_known(slots), np.clip(predicted, first, at_most), first)
        return np.minimum(readable, np.minimum(predicted, _MANY).astype(np.int64))

    def _share(
        self, slots: Slots, positions: Int64Array, watermarks: Int64Array, wanted: Int64Array, bound: int, max_rows: int
    ) -> Int64Array:
        """Lower the records that are wanted, more than `max_rows`, until they fit, `int64[n]`."""
        if bound == MAX_WATERMARK:
            return share_evenly(wanted, positions, max_rows)
        known = self._is_known(slots)
        density = self.splits.density[slots] / self.splits.spacing[slots]
        evenly, by_time = np.where(known, 0, wanted), np.where(known, wanted, 0)
        # Those that nothing is known of get their part by number; what one side leaves is the other's.
        part = -(-max_rows * int(np.count_nonzero(evenly)) // int(np.count_nonzero(wanted)))
        left = max_rows - int(share_evenly(evenly, positions, part).sum())
        timed = share_by_time(by_time, positions, watermarks, density, left)
        return timed + share_evenly(evenly, positions, max_rows - int(timed.sum()))


def share_by_time(
    wanted: Int64Array, positions: Int64Array, times_us: Int64Array, density: npt.NDArray[np.float64], max_rows: int
) -> Int64Array:
    """Those records that are predicted to be earliest. O(n) in 80 numpy steps, and O(n log n).

    Record `k` of a split, counted from 0, is predicted at `times_us + k / density`, with the density in records per
    microsecond, above 0 where any are wanted. So the slowest split is the first to get one, however thin it is. All
    else is as in `share_evenly`; of records that are predicted at one time those go first of which least was read.
    """
    if total(wanted) <= max_rows:
        return wanted.copy()
    wants = np.flatnonzero(wanted > 0)
    most, rate = wanted[wants], density[wants]
    # From the slowest on: near zero a float tells more apart.
    since = times_us[wants].astype(np.float64) - float(times_us[wants].min())

    def admitted(until: float) -> Int64Array:
        count = np.floor(np.minimum((until - since) * rate, most.astype(np.float64))) + 1
        return np.asarray(np.clip(count, 0, most).astype(np.int64))

    fits, too_many = -1.0, float((since + most / rate).max())
    shared = np.zeros(wants.size, np.int64)
    for _ in range(_HALVINGS):
        middle = (fits + too_many) / 2
        if middle in (fits, too_many) or int(shared.sum()) == max_rows:
            break
        count = admitted(middle)
        if total(count) <= max_rows:
            fits, shared = middle, count
        else:
            too_many = middle
    # What is left are some of those predicted at one and the same time.
    left = max_rows - int(shared.sum())
    wanting = np.flatnonzero(shared < most)
    following = since[wanting] + shared[wanting] / rate[wanting]
    shared[wanting[np.lexsort((positions[wants[wanting]], following))[:left]]] += 1
    # And where a float cannot tell their times apart, more than one of a split.
    shared += share_evenly(most - shared, positions[wants], max_rows - int(shared.sum()))
    result = np.zeros_like(wanted)
    result[wants] = shared
    return result
