"""The planner once more, record by record over plain lists: it sees all records, needs no index, and is slow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from alignment.combine import SplitStatus
from alignment.plan import LimitedBy, PlanningRules
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK

ACTIVE, PAUSED, IDLE, FINISHED = SplitStatus


@dataclass
class NaiveSplit:
    """One split: every record that it has had so far, one entry each."""

    times: list[int] = field(default_factory=list)
    # What is known ahead of reading: the record's block (position of its first record), and that block's minimum.
    block: list[float] = field(default_factory=list)
    floor: list[int] = field(default_factory=list)
    position: int = 0
    watermark: int = MIN_WATERMARK
    idle: bool = False
    complete: bool = False

    @property
    def unread(self) -> list[int]:
        return self.times[self.position :]

    def begun(self, position: int) -> list[int]:
        """Positions from the beginning of the block that holds `position` on."""
        return [i for i in range(len(self.times)) if self.block[i] >= self.block[position]]


@dataclass
class NaivePlan:
    ends: dict[str, int]
    watermarks: dict[str, int]
    statuses: dict[str, SplitStatus]
    late: dict[str, int]
    combined: int
    bound: int
    limited_by: LimitedBy
    alignment_limit: int
    furthest: int


def clamp(value: int) -> int:
    return min(max(value, MIN_WATERMARK), MAX_WATERMARK)


def watermark_of(time: int, bound: int) -> int:
    return MIN_WATERMARK if time == NO_TIMESTAMP else clamp(time - bound - 1)


def admitted(split: NaiveSplit, bound: int) -> int:
    """How many records go before the first that is later than `bound`."""
    count = 0
    for time in split.unread:
        if time > bound:
            break
        count += 1
    return count


def naive_plan(
    splits: dict[str, NaiveSplit],
    announced: int,
    rules: PlanningRules,
    *,
    max_rows: int | None = None,
    group_limit: int = MAX_WATERMARK,
    horizon: int = MAX_WATERMARK,
    no_more_splits: bool = False,
    draining: bool = False,
    furthest: int = MIN_WATERMARK,
    advance: Callable[[str, list[int]], int] | None = None,
) -> NaivePlan:
    bounding = []
    for split_id, split in splits.items():
        counts = bool(split.unread) or not (split.complete or split.idle)
        if draining and rules.drains_past_caught_up and not split.unread:
            counts = False
        if counts:
            bounding.append(split_id)

    bound = MAX_WATERMARK
    if rules.max_drift_us is not None and bounding:
        ends_all = rules.bounded and no_more_splits
        bound = clamp(min(_reach(splits[i], rules, ends_all) for i in bounding) + rules.max_drift_us)
    why = LimitedBy.HORIZON if horizon < min(bound, group_limit) else LimitedBy.DRIFT
    group_limit = min(group_limit, horizon)
    bound = limit = min(bound, group_limit)

    def counts_at(bound: int) -> dict[str, int]:
        return {split_id: admitted(split, bound) for split_id, split in splits.items()}

    taken = counts_at(bound)
    available = {split_id: len(split.unread) for split_id, split in splits.items()}
    if any(available.values()) and not any(taken.values()) and all(available[i] for i in bounding):
        nearest = min(split.unread[0] for split in splits.values() if split.unread)
        if nearest <= group_limit:
            why, bound = LimitedBy.GAP, nearest
            taken = counts_at(bound)
    if max_rows is not None and sum(taken.values()) > max_rows:
        if why is not LimitedBy.GAP:
            why = LimitedBy.ROWS
        bound, taken = _within(splits, counts_at, bound, max_rows)
    if taken == available:
        why = LimitedBy.AVAILABLE

    ends = {split_id: split.position + taken[split_id] for split_id, split in splits.items()}
    watermarks = {}
    statuses = {}
    late = {}
    for split_id, split in splits.items():
        read = [time for time in split.unread[: taken[split_id]] if time != NO_TIMESTAMP]
        late[split_id] = sum(time <= announced for time in read)
        watermark = split.watermark
        if rules.out_of_orderness_us is not None:
            for time in read:
                watermark = max(watermark, watermark_of(time, rules.out_of_orderness_us))
        elif advance is not None and taken[split_id]:
            watermark = max(watermark, advance(split_id, read))
        watermarks[split_id] = watermark
        if taken[split_id] < available[split_id]:
            statuses[split_id] = PAUSED if why in (LimitedBy.DRIFT, LimitedBy.GAP) else ACTIVE
        elif split.complete:
            statuses[split_id] = FINISHED
        else:
            statuses[split_id] = IDLE if split.idle and not taken[split_id] else ACTIVE

    held = {i: _held(split, ends[i], watermarks[i], rules) for i, split in splits.items()}
    may_end = rules.bounded and no_more_splits
    furthest = max([furthest, *(watermarks[i] for i in splits if statuses[i] is FINISHED)])
    combined = naive_combined(held, watermarks, statuses, horizon, furthest, may_end=may_end)
    if rules.lateness == "none":
        unread = [time for i, split in splits.items() for time in _unread_times(split, ends[i])]
        combined = min([combined, *(clamp(time - 1) for time in unread)])
    combined = max(announced, combined)
    return NaivePlan(ends, watermarks, statuses, late, combined, bound, why, limit, furthest)


def naive_combined(
    held: dict[str, int],
    watermarks: dict[str, int],
    statuses: dict[str, SplitStatus],
    horizon: int,
    furthest: int,
    *,
    may_end: bool,
) -> int:
    """What all splits together stand for; `held` is what each of them lets pass, `furthest` what finished ones had."""
    counting = [held[i] for i in held if statuses[i] in (ACTIVE, PAUSED)]
    idling = [held[i] for i in held if statuses[i] is IDLE]
    ending = [held[i] for i in held if statuses[i] is FINISHED and watermarks[i] > MIN_WATERMARK]
    before_they_end = min(counting + ending, default=MIN_WATERMARK)
    combined = max(before_they_end, min(counting) if counting else max(idling, default=MIN_WATERMARK))
    if all(status is FINISHED for status in statuses.values()):
        combined = MAX_WATERMARK if may_end else max(combined, furthest)
    return combined if horizon == MAX_WATERMARK else min(combined, clamp(horizon - 1))


def _reach(split: NaiveSplit, rules: PlanningRules, ends_all: bool) -> int:
    if ends_all and split.complete:
        # It is cut where the others are, or is finished.
        return MAX_WATERMARK
    latest = NO_TIMESTAMP
    if split.unread:
        latest = max(split.times[i] for i in split.begun(split.position))
    if rules.out_of_orderness_us is not None:
        latest = watermark_of(latest, rules.out_of_orderness_us)
    reach = max(split.watermark, latest)
    if split.complete and rules.out_of_orderness_us is not None:
        # Once its last record is read it is finished, and holds nothing back.
        return clamp(reach + rules.out_of_orderness_us + 1)
    return reach


def _within(
    splits: dict[str, NaiveSplit], counts_at: Callable[[int], dict[str, int]], bound: int, max_rows: int
) -> tuple[int, dict[str, int]]:
    """The latest bound at which at most `max_rows` are admitted; if that is none, the first ones dealt out."""
    times = sorted({time for split in splits.values() for time in split.unread if time <= bound})
    too_late = next(time for time in times if sum(counts_at(time).values()) > max_rows)
    if too_late > NO_TIMESTAMP:
        taken = counts_at(too_late - 1)
        if any(taken.values()):
            return too_late - 1, taken
    wanted = counts_at(too_late)
    taken = dict.fromkeys(splits, 0)
    left = max_rows
    # Dealt out like cards, those of which least was read first.
    while left:
        for split_id in sorted(splits, key=lambda split_id: (splits[split_id].position, split_id)):
            if left and taken[split_id] < wanted[split_id]:
                taken[split_id] += 1
                left -= 1
    return too_late, taken


def _held(split: NaiveSplit, end: int, watermark: int, rules: PlanningRules) -> int:
    """Where a split holds the combined watermark: at its own, or where it foresees that of its first records."""
    if rules.out_of_orderness_us is None or end == len(split.times) or watermark != MIN_WATERMARK:
        return watermark
    latest = max(split.times[i] for i in split.begun(end))
    foreseen = max(watermark, watermark_of(latest, rules.out_of_orderness_us))
    return min([clamp(time - 1) for time in _unread_times(split, end)] + [foreseen])


def _unread_times(split: NaiveSplit, end: int) -> list[int]:
    """What is known of the event times from a position on, a lower bound of each."""
    known = []
    for i in range(end, len(split.times)):
        if split.block[i] < end:
            # The cut went through this block: its times are known one by one.
            known += [split.times[i]] if split.times[i] != NO_TIMESTAMP else []
        else:
            known.append(split.floor[i])
    return known
