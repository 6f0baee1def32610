"""The reactive planner once more: it keeps all reports, and works everything out anew for each plan."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from alignment.combine import SplitStatus
from alignment.events import RangeReport
from alignment.plan import PlanningRules
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from tests.alignment.naive_planner import clamp, naive_combined, watermark_of

ACTIVE, PAUSED, IDLE, FINISHED = SplitStatus


@dataclass
class ReportedSplit:
    """One split: what the table says of it, and what was handed out and reported since it was taken up, in order."""

    position: int
    watermark: int = MIN_WATERMARK
    story: list[RangeReport | tuple[int, int]] = field(default_factory=list)
    # Ranges reported before it was taken up: their counts are not counted again.
    covered: set[int] = field(default_factory=set)
    # Late records that are in no plan yet, as of then; and how many of the others are in one.
    carried: int = 0
    reported_late: int = 0
    end: int = 0
    idle: bool = False
    complete: bool = False

    @property
    def latest(self) -> int:
        return max((r.max_us for r in self.story if isinstance(r, RangeReport)), default=NO_TIMESTAMP)

    def own_watermark(self, bound: int) -> int:
        return max(self.watermark, watermark_of(self.latest, bound))

    @property
    def last_rows(self) -> int:
        admissions = [entry for entry in self.story if isinstance(entry, tuple)]
        return admissions[-1][1] - admissions[-1][0] if admissions else 0

    def fresh_late(self) -> int:
        """Late records of all ranges of which nothing had been reported before, but those that are in a plan."""
        covered, late = set(self.covered), self.carried - self.reported_late
        for entry in self.story:
            if isinstance(entry, RangeReport):
                positions = set(range(entry.start, entry.stop))
                late += entry.late if not positions & covered else 0
                covered |= positions
        return late

    def density(self) -> float | None:
        """None if it is not known, or the last admission is not reported in full."""
        density: float | None = None
        covered, latest = set(self.covered), NO_TIMESTAMP
        admission: tuple[int, int] | None = None
        before = low = high = None
        missing: set[int] = set()
        for entry in self.story:
            if isinstance(entry, tuple):
                before = latest if not missing and latest != NO_TIMESTAMP else None
                admission, low, high = entry, None, None
                missing = set(range(*entry)) - covered
                continue
            new = set(range(entry.start, entry.stop)) - covered
            covered |= new
            latest = max(latest, entry.max_us)
            if not missing or not new:
                continue
            assert admission is not None
            if entry.start >= admission[0] and entry.max_us != NO_TIMESTAMP:
                low = entry.min_us if low is None else min(low, entry.min_us)
                high = entry.max_us if high is None else max(high, entry.max_us)
            missing -= new
            rows = admission[1] - admission[0] - (before is None)
            if not missing and high is not None and low is not None and rows:
                measured = rows / max(high - (low if before is None else before), 1)
                density = measured if density is None else math.sqrt(density * measured)
        return None if missing else density


@dataclass
class NaiveReactivePlan:
    wanted: dict[str, int]
    watermarks: dict[str, int]
    statuses: dict[str, SplitStatus]
    combined: int
    limit: int
    bound: int
    furthest: int


def naive_reactive_plan(
    splits: dict[str, ReportedSplit],
    announced: int,
    rules: PlanningRules,
    *,
    first_rows: int,
    growth: int,
    group_limit: int,
    horizon: int,
    no_more_splits: bool,
    draining: bool,
    furthest: int,
) -> NaiveReactivePlan:
    """What a plan without a read limit is; with one only the records admitted are fewer."""
    assert rules.out_of_orderness_us is not None
    watermarks = {i: split.own_watermark(rules.out_of_orderness_us) for i, split in splits.items()}
    holding = []
    for split_id, split in splits.items():
        unread = split.end > split.position
        holds = unread or not (split.idle or split.complete)
        if draining and rules.drains_past_caught_up and not unread:
            holds = False
        if holds:
            holding.append(watermarks[split_id])
    limit = MAX_WATERMARK
    if rules.max_drift_us is not None and holding:
        limit = clamp(min(holding) + rules.max_drift_us)
    limit = min(limit, group_limit)
    bound = min(limit, horizon)
    wanted, statuses = {}, {}
    for split_id, split in splits.items():
        unread = split.end - split.position
        rows = unread
        if watermarks[split_id] > bound:
            rows = 0
        elif bound < MAX_WATERMARK:
            density = split.density()
            rows = first_rows
            if density is not None:
                predicted = density * (float(bound) - float(watermarks[split_id]))
                rows = int(min(max(math.floor(predicted), first_rows), max(first_rows, growth * split.last_rows)))
        wanted[split_id] = min(rows, unread)
        if unread:
            statuses[split_id] = PAUSED if watermarks[split_id] > limit else ACTIVE
        elif split.complete:
            statuses[split_id] = FINISHED
        else:
            statuses[split_id] = IDLE if split.idle else ACTIVE
    may_end = rules.bounded and no_more_splits
    furthest = max([furthest, *(watermarks[i] for i in splits if statuses[i] is FINISHED)])
    combined = max(announced, naive_combined(watermarks, watermarks, statuses, horizon, furthest, may_end=may_end))
    return NaiveReactivePlan(wanted, watermarks, statuses, combined, limit, bound, furthest)
