"""One micro-batch: from what was read and what is known to be there, to how far each split is read next.

The planner chooses one bound `T` and cuts every split at its first record later than `T`. `T` is the latest that three
rules allow:

- *alignment*: `T <= min(reach) + max_drift` over the splits that count, where a split's *reach* is the watermark it
  would have if all that it has now were read;
- *read limit*: the records at or before `T` are at most `max_rows`;
- *liveness*: where both leave nothing although every split that counts has records, the nearest record goes on.

A plan is a function of its arguments alone: same state in, same plan out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from alignment.exceptions import InvalidArgumentError
from alignment.index import EventTimeIndex
from alignment.plan import (
    LimitedBy,
    MicroBatchPlan,
    PlanConditions,
    PlanningRules,
    Reading,
    SplitTable,
    below,
    bounding_splits,
    conclude,
    total,
)
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK, BoolArray, Int64Array, bounded_watermark, saturating_add

if TYPE_CHECKING:
    from alignment.groups import Lookahead

WatermarkAdvance: TypeAlias = Callable[[str, int, int], int]
"""`(split_id, start, stop) -> watermark` after the records of `[start, stop)`, which are admitted: the slow door."""


def plan_micro_batch(
    before: SplitTable,
    index: EventTimeIndex,
    rules: PlanningRules,
    conditions: PlanConditions | None = None,
    advance: WatermarkAdvance | None = None,
) -> MicroBatchPlan:
    """Plan one micro-batch of the splits of a state, which are those of the index.

    `advance` gives the watermarks of a generator whose watermarks cannot be foretold; None for one that never emits.
    O(n log m) for n splits and m unread blocks, in numpy steps, and the loading of the blocks that the cut divides;
    O(m) more where blocks are opaque, or what is later than the bound was read before.
    """
    if before.split_ids != index.split_ids:
        raise InvalidArgumentError(f"the state has {len(before)} splits that are not the {len(index)} of the index")
    conditions = conditions or PlanConditions()
    idle, complete = conditions.flags(len(before))
    max_rows, horizon_us, group_limit_us = conditions.max_rows, conditions.horizon_us, conditions.group_limit_us
    available, unscanned = index.ends(), conditions.unscanned
    unread = before.positions < available
    if unscanned is not None:
        unread |= unscanned

    bounding = bounding_splits(rules, unread, idle, complete, conditions.draining)
    bound = _drift_bound(before, index, rules, conditions, bounding)
    limited_by = LimitedBy.HORIZON if horizon_us < min(bound, group_limit_us) else LimitedBy.DRIFT
    group_limit_us = min(group_limit_us, horizon_us)
    aligned = bound = min(bound, group_limit_us)
    if conditions.holds_rows:
        ends, limited_by = before.positions.copy(), LimitedBy.MIN_ROWS
    else:
        bound, ends = _cut(index, rules, before.positions, bound, max_rows)
        if unread.any() and (ends == before.positions).all() and unread[bounding].all():
            nearest = index.nearest_time(before.positions)
            if nearest <= group_limit_us:
                bound, ends = _cut(index, rules, before.positions, nearest, max_rows)
                limited_by = LimitedBy.GAP
        if (ends == available).all():
            limited_by = LimitedBy.AVAILABLE
        elif limited_by is not LimitedBy.GAP and _limited_by_rows(before, index, rules, aligned, bound, ends, max_rows):
            limited_by = LimitedBy.ROWS
    awaits_scan = False
    if unscanned is not None:
        # What is found later lets no more be read if the limit on rows, or a split that is scanned, sets the bound; and
        # no less if each split is cut before a record that is known.
        most = _aligned(before, index, rules, conditions, bounding & ~unscanned)
        first, at_most = (_first_wanted(index, rules, before.positions, limit) for limit in (aligned, most))
        is_bound = aligned == most or (limited_by is LimitedBy.ROWS and np.array_equal(first, at_most))
        awaits_scan = not (is_bound and (index.cut(first, bound) < available)[unscanned].all())

    watermarks = _advance(before, index, rules, ends, bound, advance)
    if rules.by_source:
        watermarks = np.maximum(watermarks, conditions.source_us)
    waits = ends < available
    held, unread_us = _held(index, rules, ends, watermarks)
    if unscanned is not None:
        waits |= unscanned
        known_us = np.full(len(before), MAX_WATERMARK) if unread_us is None else unread_us
        unread_us = np.where(unscanned, MIN_WATERMARK + 1, known_us)
    return conclude(
        before,
        rules,
        conditions,
        Reading(
            ends=ends,
            watermarks=watermarks,
            held=held,
            unread_us=unread_us,
            paused=waits & (limited_by in (LimitedBy.DRIFT, LimitedBy.GAP)),
            idle=~waits & idle & (ends == before.positions),
            finished=~waits & complete,
            late=index.count_at_or_below(before.positions, ends, rules.late_up_to(before.combined)),
            bound_us=bound,
            limited_by=limited_by,
            bounding=bounding_splits(rules, waits, idle, complete, draining=True) if conditions.draining else None,
            rows=total(index.count(np.minimum(_first_wanted(index, rules, before.positions, bound), ends), ends)),
            outside=index.count_outside(before.positions, ends) if rules.times and rules.counts_outside else 0,
            awaits_scan=awaits_scan,
        ),
    )


def awaits_scan(before: SplitTable, index: EventTimeIndex, rules: PlanningRules, conditions: PlanConditions) -> bool:
    """Return whether the next plan surely awaits the scan: see `MicroBatchPlan`.

    By the bounds of blocks alone, so a plan may await it all the same. O(n log m), and nothing is loaded.
    """
    if (unscanned := conditions.unscanned) is None:
        return False
    has_all = rules.lateness != "none" or (rules.times is not None and rules.times.overlap == "fail")
    # A cut before a record that is known is before the latest one.
    latest_us = int(index.latest_times(before.positions)[unscanned].min())
    if has_all or latest_us == NO_TIMESTAMP:
        return True
    idle, complete = conditions.flags(len(before))
    unread = (before.positions < index.ends()) | unscanned
    bounding = bounding_splits(rules, unread, idle, complete, conditions.draining)
    # Whatever is found of the splits that are not scanned yet, alignment allows to read no further.
    if _aligned(before, index, rules, conditions, bounding & ~unscanned) < latest_us:
        return False
    most = index.no_cut_behind(before.positions, latest_us) - before.positions
    return conditions.max_rows is None or total(most) <= conditions.max_rows


def read_to_their_ends(
    before: SplitTable, index: EventTimeIndex, rules: PlanningRules, conditions: PlanConditions
) -> BoolArray:
    """Which splits the next micro-batch reads to their ends if it has no read limit, `bool[n]`.

    By the bounds of blocks alone: there may be more. O(n log m), and nothing is loaded.
    """
    _, complete = conditions.flags(len(before))
    bound = _aligned(before, index, rules, conditions, _bounding(before, index, rules, conditions))
    read: BoolArray = complete & (index.latest_times(before.positions) <= bound)
    return read


def _drift_bound(
    before: SplitTable, index: EventTimeIndex, rules: PlanningRules, conditions: PlanConditions, bounding: BoolArray
) -> int:
    """Return how far `max_drift` allows to read; `MAX_WATERMARK` without it."""
    if rules.max_drift_us is None or not bounding.any():
        return MAX_WATERMARK
    reach = _reach(before, index, rules, conditions)
    return saturating_add(int(reach[bounding].min()), rules.max_drift_us)


def times_to_load(
    before: SplitTable, index: EventTimeIndex, rules: PlanningRules, conditions: PlanConditions
) -> list[tuple[str, int, int]]:
    """Return the blocks whose exact times the next plan will need, as far as the bounds of blocks tell; see `to_load`.

    No plan depends on it.
    """
    bound = _aligned(before, index, rules, conditions, _bounding(before, index, rules, conditions))
    return index.to_load(before.positions, bound, conditions.max_rows)


def _bounding(before: SplitTable, index: EventTimeIndex, rules: PlanningRules, conditions: PlanConditions) -> BoolArray:
    """Return which splits bound the next micro-batch by what is known of them, `bool[n]`."""
    idle, complete = conditions.flags(len(before))
    return bounding_splits(rules, before.positions < index.ends(), idle, complete, conditions.draining)


def _aligned(
    before: SplitTable, index: EventTimeIndex, rules: PlanningRules, conditions: PlanConditions, bounding: BoolArray
) -> int:
    """Return how far drift, group and horizon allow to read."""
    bound = _drift_bound(before, index, rules, conditions, bounding)
    return min(bound, conditions.group_limit_us, conditions.horizon_us)


def _reach(before: SplitTable, index: EventTimeIndex, rules: PlanningRules, conditions: PlanConditions) -> Int64Array:
    """The watermark that each split would have if all that it has now were read, `int64[n]`.

    A split that gets no more records holds nothing back once its last one is read: it reaches as far as its latest
    record. Where nothing comes after all that is known, it bounds nothing: a plan reads it up to the same event time as
    the others, or to its end.
    """
    _, complete = conditions.flags(len(before))
    latest = index.latest_times(before.positions)
    if rules.out_of_orderness_us is None:
        reach = np.maximum(before.watermarks, latest)
    else:
        bound_us = rules.out_of_orderness_us
        reach = np.maximum(before.watermarks, bounded_watermark(latest, bound_us))
        to_the_end = np.minimum(reach, MAX_WATERMARK - bound_us) + bound_us
        reach = np.where(complete, np.minimum(to_the_end, MAX_WATERMARK - 1) + 1, reach)
    if rules.bounded and conditions.no_more_splits:
        reach = np.where(complete, MAX_WATERMARK, reach)
    return reach


def look_ahead(
    before: SplitTable, index: EventTimeIndex, rules: PlanningRules, conditions: PlanConditions | None = None
) -> Lookahead:
    """Return how far the next micro-batch gets by the rules of this source alone, for the other sources of its query.

    O(n log m), plus the loading of the blocks that its cut divides.
    """
    # Imported here: few sources are in a group.
    from alignment.groups import Lookahead

    conditions = conditions or PlanConditions()
    bounding, horizon_us = _bounding(before, index, rules, conditions), conditions.horizon_us
    reach_us: int | None = None
    if bounding.any():
        smallest_us = int(_reach(before, index, rules, conditions)[bounding].min())
        reach_us = None if smallest_us == MAX_WATERMARK else smallest_us
    if horizon_us < MAX_WATERMARK:
        reach_us = horizon_us if reach_us is None else min(reach_us, horizon_us)
    bound = horizon_us
    if reach_us is not None and rules.max_drift_us is not None:
        bound = min(bound, saturating_add(reach_us, rules.max_drift_us))
    leaves_some = horizon_us < MAX_WATERMARK or index.no_later_than(before.positions) > bound
    if conditions.max_rows is not None:
        bound, ends = _cut(index, rules, before.positions, bound, conditions.max_rows)
        # Of several records at the bound itself a read limit may leave some.
        leaves_some = leaves_some or bool((ends < index.ends()).any())
    return Lookahead(bound if leaves_some else MAX_WATERMARK, reach_us)


def _cut(
    index: EventTimeIndex, rules: PlanningRules, positions: Int64Array, bound: int, max_rows: int | None
) -> tuple[int, Int64Array]:
    if max_rows is None:
        return bound, index.cut(positions, bound)
    return index.cut_rows(_first_wanted(index, rules, positions, bound), bound, max_rows)


def _first_wanted(index: EventTimeIndex, rules: PlanningRules, positions: Int64Array, bound: int) -> Int64Array:
    """Return where the records begin that count in a read limit, `int64[n]`: blocks outside of a range do not."""
    return index.after_unwanted(positions, bound) if rules.times else positions


def _limited_by_rows(
    before: SplitTable,
    index: EventTimeIndex,
    rules: PlanningRules,
    aligned: int,
    bound: int,
    ends: Int64Array,
    max_rows: int | None,
) -> bool:
    """Return whether alignment alone would have let more be read."""
    if max_rows is None or bound < aligned:
        return max_rows is not None
    # The records at the bound itself may have been shared out.
    begin = np.minimum(_first_wanted(index, rules, before.positions, aligned), ends)
    is_full = total(index.count(begin, ends)) == max_rows
    return is_full and bool((ends < index.cut(before.positions, aligned)).any())


def _advance(
    before: SplitTable,
    index: EventTimeIndex,
    rules: PlanningRules,
    ends: Int64Array,
    bound: int,
    advance: WatermarkAdvance | None,
) -> Int64Array:
    """The splits' own watermarks after `[positions, ends)` was read; they never go back.

    Where a split is cut inside an opaque block, its latest event time is not known. But its next
    record is known to be later than `T`, so that it can be taken as read up to `T`: see `alignment.index.opaque`.
    """
    if rules.out_of_orderness_us is not None:
        following = index.next_times(ends)
        read_up_to = np.where(following > NO_TIMESTAMP, np.minimum(following - 1, bound), NO_TIMESTAMP)
        seen = np.maximum(index.maximum_times(before.positions, ends), read_up_to)
        return np.maximum(before.watermarks, bounded_watermark(seen, rules.out_of_orderness_us))
    watermarks = before.watermarks.copy()
    if advance is not None:
        for slot in np.flatnonzero(ends > before.positions):
            emitted_us = advance(before.split_ids[slot], int(before.positions[slot]), int(ends[slot]))
            watermarks[slot] = max(int(watermarks[slot]), emitted_us)
    return watermarks


def _held(
    index: EventTimeIndex, rules: PlanningRules, ends: Int64Array, watermarks: Int64Array
) -> tuple[Int64Array, Int64Array | None]:
    """Return where each split holds the combined watermark, and what it has unread: `Reading.held` and `unread_us`.

    A split holds it at its own watermark. One of which nothing was read yet holds it just below its smallest unread
    time instead of at MIN. What comes after all that is visible is, if on time, later than the watermark that all of it
    will give: also a bound.
    """
    bound_us, has_unread = rules.out_of_orderness_us, ends < index.ends()
    is_new = has_unread & (watermarks == MIN_WATERMARK) & (bound_us is not None)
    looked_at = has_unread if rules.lateness == "none" else is_new
    if not looked_at.any():
        return watermarks, None
    earliest = index.earliest_times(ends, looked_at)
    if bound_us is not None and is_new.any():
        below_all = np.where(earliest > NO_TIMESTAMP, below(earliest), MIN_WATERMARK)
        foreseen = np.minimum(below_all, bounded_watermark(index.latest_times(ends), bound_us))
        watermarks = np.where(is_new, foreseen, watermarks)
    return watermarks, np.where(earliest > NO_TIMESTAMP, earliest, MAX_WATERMARK) if rules.lateness == "none" else None
